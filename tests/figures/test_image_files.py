"""Figures as files and as parts of a page: the same bytes each time, and nothing breaks out of them."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from leash_trl.figures.style import inline_svg, new_figure, write_figure


HOSTILE = "<script>alert(1)</script> & </svg> $\\foo{$"


def line():
    figure, (axis,) = new_figure(4, 3)
    axis.plot([1, 2], color="black", label=HOSTILE)
    axis.legend()
    figure.set_label(f"{HOSTILE}: 1 to 2")
    return figure


@pytest.mark.parametrize(("ending", "head"), [("PNG", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_same_figure_gives_the_same_bytes(tmp_path, ending, head):
    path = tmp_path / f"figure.{ending}"
    write_figure(line(), path)
    image = path.read_bytes()
    write_figure(line(), path)
    assert image == path.read_bytes()
    assert image.startswith(head)


def test_an_svg_file_has_words_and_is_dark_where_the_screen_is(tmp_path):
    write_figure(line(), tmp_path / "figure.svg")
    description, style = list(ElementTree.parse(tmp_path / "figure.svg").getroot())[:2]
    assert description.text == f"{HOSTILE}: 1 to 2"
    drawn = (tmp_path / "figure.svg").read_text().split("</style>", 1)[1]
    colors = set(re.findall(r"(?:fill|stroke): #(?:000000|ffffff)", drawn))
    assert colors
    assert [color for color in colors if f'[style*="{color}"]' not in style.text] == []


def test_inline_svgs_take_the_colors_of_their_page_share_no_ids_and_labels_stay_text():
    figure = line()
    label = 'it\'s "big" <b>'
    svg = inline_svg(figure, "one", label)
    root = ElementTree.fromstring(svg)
    assert [root.get(key) for key in ("fill", "role", "aria-label")] == ["currentColor", "img", label]
    assert not re.search("#000000|#ffffff|<metadata|<script", svg)
    ids = set(re.findall(r'\bid="([^"]+)"', svg))
    assert ids
    assert ids.isdisjoint(re.findall(r'\bid="([^"]+)"', inline_svg(figure, "two", label)))
    assert ids.issuperset(re.findall(r'(?:href="|url\()#([^")]+)', svg))
