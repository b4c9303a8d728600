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
    one, two = (tmp_path / name / f"figure.{ending}" for name in ("one", "two"))
    for path in (one, two):
        write_figure(line(), path)
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes().startswith(head)


@pytest.mark.parametrize("name", ["figure.jpg", "figure"])
def test_other_formats_are_refused(name):
    with pytest.raises(ValueError, match=name):
        write_figure(new_figure(3, 2)[0], name)


def test_an_svg_file_has_words_and_is_dark_where_the_screen_is(tmp_path):
    write_figure(line(), tmp_path / "figure.svg")
    description, style = list(ElementTree.parse(tmp_path / "figure.svg").getroot())[:2]
    assert description.text == f"{HOSTILE}: 1 to 2"
    drawn = (tmp_path / "figure.svg").read_text().split("</style>", 1)[1]
    colors = set(re.findall(r"(?:fill|stroke): #(?:000000|ffffff)", drawn))
    assert [color for color in colors if f'[style*="{color}"]' in style.text] == [*colors] != []


def test_inline_svgs_take_the_colors_of_their_page_share_no_ids_and_labels_stay_text():
    figure = line()
    one, two = (inline_svg(figure, name, 'it\'s "big" <b>') for name in ("one", "two"))
    root = ElementTree.fromstring(one)
    assert [root.get(key) for key in ("fill", "role", "aria-label")] == ["currentColor", "img", 'it\'s "big" <b>']
    assert not re.search("#000000|#ffffff|<metadata|<script", one)
    ids = [{*re.findall(r'\bid="([^"]+)"', svg)} for svg in (one, two)]
    assert not ids[0] & ids[1]
    assert {*re.findall(r'(?:href="|url\()#([^")]+)', one)} <= ids[0] != set()
