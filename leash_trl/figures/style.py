"""Defines the style of all figures, and writes image files; the same figure gives an identical file."""

import html
import io
import re
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from leash_trl.files import write_atomically


LABEL_SIZE = 9
TITLE_SIZE = 10
WIDE_INCHES = 10.0  # width in inches of a figure for a wide page
NARROW_INCHES = 5.6  # width in inches of a figure that is readable on a phone
HEADROOM = 0.05  # free share of an axis above its highest value
LEGEND_CHARACTERS_PER_INCH = 10  # characters of labels that fit into one inch
# Eight colors: six after Paul Tol's vibrant scheme, green and brown. All have a contrast of at least 3:1 with the
# background of light and dark pages. Black is reserved for elements that follow the page's text color.
COLORS = ("#0077bb", "#dd5f1a", "#009988", "#ee3377", "#8f6fc4", "#8b8b00", "#3f9142", "#a9714b")
TARGET_LOOK: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1.2}  # of the line at a target
NEUTRAL = "#808080"  # color of grids
MARKERS = "os^vXP<D"  # as many as colors
DASHES = ("-", "--", ":", "-.")
LINES_PER_DASH = 3
# omits the time of creation from the files
METADATA: dict[str, dict[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}
SVG_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')  # what stands before an element's id, or a reference to it
# makes an SVG file dark in dark mode; viewers without CSS show the light version
DARK_MODE_STYLE = """<style>@media (prefers-color-scheme: dark) {
svg { fill: #e6edf3 }
[style*="fill: #000000"] { fill: #e6edf3 !important }
[style*="stroke: #000000"] { stroke: #e6edf3 !important }
[style*="fill: #ffffff"] { fill: #0d1117 !important }
[style*="stroke: #ffffff"] { stroke: #0d1117 !important }
}</style>"""


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Creates an empty figure of the given size in inches, and returns the figure and its panels, row by row."""
    engine = ConstrainedLayoutEngine(hspace=0.08 if rows > 1 else 0.02)
    figure = Figure(figsize=(width, height), dpi=120, layout=engine)
    # With `squeeze=False`, matplotlib returns an array of rows and columns even for a single panel.
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.grid(color=NEUTRAL, alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def line_style(index: int) -> dict[str, Any]:
    """Returns the color and dashes of a line by its index; 24 lines are distinguishable."""
    dashes = DASHES[index // LINES_PER_DASH % len(DASHES)]
    return {"color": COLORS[index % len(COLORS)], "linestyle": dashes}


def line_and_marker_style(index: int) -> dict[str, Any]:
    """Returns the color, marker and dashes of a curve by its index; 64 curves are distinguishable."""
    turn, color = divmod(index, len(COLORS))
    marker = MARKERS[(color + turn) % len(MARKERS)]  # in each turn, every color gets another marker
    return {"color": COLORS[color], "marker": marker, "linestyle": DASHES[turn % len(DASHES)]}


def draw_line(axis: Axes, curve: "pd.Series[float]", label: str, **style: Any) -> None:
    """Draws a line over the index of a curve. A single value becomes a dot; an empty curve is not drawn.

    Legends omit labels that begin with an underscore.
    """
    if len(curve):
        marker = "o" if len(curve) == 1 else None
        axis.plot(
            curve.index,
            curve,
            label=label,
            linewidth=1.6,
            marker=marker,
            markersize=4,
            **style,
        )


def label_steps(axis: Axes, label: str) -> None:
    """Sets the label of an axis of steps, and restricts its ticks to integers."""
    axis.set_xlabel(label)
    axis.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))


def set_y_limits(axis: Axes) -> None:
    """Sets the limits of the y-axis: from zero, or from below a negative minimum, to above zero and the maximum."""
    low = min(axis.dataLim.y0, 0.0)
    high = max(axis.dataLim.y1, 0.0)
    room = HEADROOM * (high - low) or 1.0
    axis.set_ylim(low - room if low < 0 else 0.0, high + room)


def draw_legend_above(axis: Axes) -> None:
    """Draws a legend of a panel's lines above its figure; a single line gets no legend."""
    figure: Any = axis.figure  # not one of matplotlib's subfigures, which have no width in inches
    handles, labels = axis.get_legend_handles_labels()
    if len(labels) <= 1:
        return
    # The width of an entry in characters, of which the line before its label takes about six.
    label_width = max(map(len, labels)) + 6
    most_columns = max(1, int(LEGEND_CHARACTERS_PER_INCH * figure.get_figwidth() // label_width))
    columns = min(most_columns, len(labels))
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=columns,
        frameon=False,
        fontsize=LABEL_SIZE,
    )


def write_figure(figure: Figure, path: str | Path) -> None:
    """Writes a figure in the format of the path's extension. An SVG file gets a dark mode, and the figure's label as
    its description."""
    image_format = Path(path).suffix.removeprefix(".").lower()
    image = _image_bytes(figure, image_format)
    if image_format == "svg":
        # Description and style come first in the file, after the opening tag `<svg ...>`.
        description = html.escape(str(figure.get_label()))
        inserted = f"\n<desc>{description}</desc>\n{DARK_MODE_STYLE}".encode()
        image = re.sub(rb"<svg [^>]*>", lambda tag: tag[0] + inserted, image, count=1)
    write_atomically(path, image)


def _image_bytes(figure: Figure, image_format: str, is_transparent: bool = False) -> bytes:
    """Returns the content of an image file, the same for the same figure."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a dollar sign in a label does not start a formula
    # A second drawing would change the layout by rounding errors, so the layout of the first drawing is kept.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    buffer = io.BytesIO()
    # Without a salt, the ids of elements in an SVG file are random.
    with matplotlib.rc_context({"svg.hashsalt": "leash"}):
        figure.savefig(
            buffer,
            format=image_format,
            dpi=120,
            metadata=METADATA.get(image_format),
            transparent=is_transparent,
        )
    return buffer.getvalue()


def inline_svg(figure: Figure, name: str, description: str) -> str:
    """Returns a figure as an `<svg>` element that is readable on light and on dark pages.

    Black is replaced by the page's text color and white by the CSS variable `--card`; the background is transparent.
    Figures with different names have different ids, so that a page can contain several figures.
    """
    svg = _image_bytes(figure, "svg", is_transparent=True).decode("utf-8")
    svg = svg[svg.index("<svg") :]  # without the XML declaration
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    # `id="p1"` becomes `id="NAME-p1"`, and so do references to it, such as `url(#p1)`.
    svg = SVG_REFERENCE.sub(rf"\g<1>{name}-", svg)
    # Black and white become the colors of text and background of the page, which may be dark.
    svg = svg.replace("#000000", "currentColor").replace("#ffffff", "var(--card)")
    label = html.escape(description)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" fill="currentColor" ', 1)
