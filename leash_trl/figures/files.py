"""Writes figures as files and as parts of an HTML page; the same figure gives the same bytes."""

import html
import io
import re
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from leash_trl.figures.drawing import show_text_as_it_is
from leash_trl.files import write_whole


# without these, each format would write the time
METADATA = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
SVG_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')
# an SVG file sets its own background and ink, so that it is readable on any page; without CSS it is light
DARK_STYLE = """<style>@media (prefers-color-scheme: dark) {
svg { fill: #e6edf3 }
[style*="fill: #000000"] { fill: #e6edf3 !important }
[style*="stroke: #000000"] { stroke: #e6edf3 !important }
[style*="fill: #ffffff"] { fill: #0d1117 !important }
[style*="stroke: #ffffff"] { stroke: #0d1117 !important }
}</style>"""


def check_format(path: str | Path) -> str:
    """The image format of a file's ending.

    Raises:
        `ValueError`: If that is not `.png`, `.svg` or `.pdf`.
    """
    image_format = Path(path).suffix.removeprefix(".").lower()
    if image_format not in METADATA:
        raise ValueError(f"output is {str(path)!r}, but must end with .png, .svg or .pdf")
    return image_format


def write_figure(figure: Figure, path: str | Path) -> None:
    """Writes a figure in the format of the file's ending; an SVG is dark on a dark screen.

    Raises:
        `ValueError`: If that is not `.png`, `.svg` or `.pdf`.
    """
    image_format = check_format(path)
    image = _image(figure, image_format)
    if image_format == "svg":
        description = f"<desc>{html.escape(str(figure.get_label()))}</desc>"
        image = re.sub(rb"<svg [^>]*>", lambda tag: tag[0] + f"\n{description}\n{DARK_STYLE}".encode(), image, count=1)
    write_whole(path, image)


def _image(figure: Figure, image_format: str, is_transparent: bool = False) -> bytes:
    # each drawing would move the panels by a rounding error: the first one fixes the layout for later ones
    show_text_as_it_is(figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "leash"}):
        figure.savefig(
            buffer, format=image_format, dpi=120, metadata=METADATA[image_format], transparent=is_transparent
        )
    return buffer.getvalue()


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """A figure as an `<svg>` element for a page.

    Black becomes the colour of the page's text, white the colour of the CSS variable `--card`, and the background is
    clear, so that the figure is readable on light and on dark pages.

    Args:
        figure (`Figure`):
            The figure.
        name (`str`):
            Letters, digits and hyphens; figures with other names on the same page share no ids with this one.
        description (`str`):
            Text for those who do not see it.
    """
    svg = _image(figure, "svg", is_transparent=True).decode("utf-8")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = SVG_REFERENCE.sub(rf"\g<1>{name}-", svg)
    svg = svg.replace("#000000", "currentColor").replace("#ffffff", "var(--card)")
    label = html.escape(description)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" fill="currentColor" ', 1)
