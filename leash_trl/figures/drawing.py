"""Draws the lines, bands, axes and legends of all figures in one style."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator


LABEL_SIZE = 9
TITLE_SIZE = 10
WIDE = 10.0  # inches, of a figure on a wide page
NARROW = 5.6  # inches, of a figure that can be read on a phone
HEADROOM = 0.05  # share of an axis above its highest value
LEGEND_WIDTH = 160  # characters of labels that fit beside each other above a figure 16 inches wide
# After Paul Tol's vibrant scheme, in tones that contrast 3 : 1 and more with the cards of a light and of a dark page;
# black is left to what changes with the background.
COLORS = ("#0077bb", "#dd5f1a", "#009988", "#ee3377", "#8f6fc4", "#8b8b00")
NEUTRAL = "#808080"  # for intervals, grids and lines to labels
DASHES = ("-", "--", ":", "-.")
LINES_PER_DASH = 3


class Estimate(Protocol):
    """A number and the ends of its interval, which are NaN if there is none."""

    @property
    def value(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """An empty figure and its axes, row by row. It belongs to no window and is forgotten with its last reference.

    Args:
        width (`float`), height (`float`):
            Size in inches.
        rows (`int`, *optional*, defaults to `1`), columns (`int`, *optional*, defaults to `1`):
            Panels.
    """
    figure = Figure(
        figsize=(width, height), dpi=120, layout=ConstrainedLayoutEngine(hspace=0.08 if rows > 1 else 0.02)
    )
    axes: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.grid(color=NEUTRAL, alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def two_panels(columns: int) -> tuple[Figure, list[Axes]]:
    """An empty figure of two panels: beside each other, 10 by 4 inches, or in one column, 5.6 by 6."""
    return new_figure(WIDE, 4, columns=2) if columns == 2 else new_figure(NARROW, 6, rows=2)


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of the line with that number; twelve differ."""
    return {"color": COLORS[index % len(COLORS)], "linestyle": DASHES[index // LINES_PER_DASH % len(DASHES)]}


def draw_line(axis: Axes, steps: np.ndarray, values: np.ndarray, label: str, **style: Any) -> None:
    """A line with a break at each gap of the log, so that no value is invented."""
    gap = np.diff(steps) > 5 * np.median(np.diff(steps)) if len(steps) > 1 else np.array([], dtype=bool)
    breaks = np.flatnonzero(gap) + 1
    x, y = np.insert(steps.astype(float), breaks, np.nan), np.insert(values, breaks, np.nan)
    marker = "o" if len(steps) == 1 else None
    axis.plot(x, y, **{"linewidth": 1.6, "label": label, "marker": marker, "markersize": 4, **style})


def label_steps(axis: Axes, label: str, steps: Sequence[float] = ()) -> None:
    """Names an axis of steps, with whole numbers as ticks however few there are; a single step is the only tick."""
    axis.set_xlabel(label)
    if len(steps) == 1:
        axis.set_xticks(steps)
        return
    axis.xaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True, steps=[1, 2, 5, 10]))


def leave_room(axis: Axes) -> None:
    """Begins an axis at zero, or below its lowest value if that is negative, and ends it above its highest."""
    low, high = min(axis.dataLim.y0, 0.0), max(axis.dataLim.y1, 0.0)
    room = HEADROOM * (high - low) or 1.0
    axis.set_ylim(low - room if low < 0 else 0.0, high + room)


def say_not_logged(axis: Axes) -> None:
    """Writes "not logged" into the middle of an empty panel."""
    axis.text(0.5, 0.5, "not logged", transform=axis.transAxes, ha="center", va="center")


def legend_above(figure: Figure, axis: Axes, num_labels: int) -> None:
    """Legend of one panel's lines above the figure, where it covers nothing; none for a single line.

    Args:
        figure (`Figure`), axis (`Axes`):
            Figure of the legend, and the panel whose first lines it names.
        num_labels (`int`):
            Number of lines.
    """
    handles, labels = axis.get_legend_handles_labels()
    handles, labels = handles[:num_labels], labels[:num_labels]
    if num_labels > 1 and labels:
        fitting = max(1, int(LEGEND_WIDTH * figure.get_figwidth() / 16 // (max(map(len, labels)) + 6)))
        rows = math.ceil(len(labels) / fitting)
        columns = math.ceil(len(labels) / rows)
        figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False, fontsize=LABEL_SIZE)


def common_target(targets: Sequence[float | None]) -> float | None:
    """The target in tokens if all runs with a target have the same one, else `None`."""
    known = {target for target in targets if target is not None}
    return known.pop() if len(known) == 1 else None


def show_text_as_it_is(figure: Figure) -> None:
    """Makes dollar signs in labels, which users choose, plain text instead of formulas; call it before drawing."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
