"""Accuracy over tokens: the trade-off that length control makes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from leash_trl.evaluation.comparison import ComparisonRow, pareto_front
from leash_trl.figures.drawing import (
    COLORS,
    LABEL_SIZE,
    NEUTRAL,
    WIDE,
    common_target,
    new_figure,
    show_text_as_it_is,
)
from leash_trl.figures.label_placement import Box, Line, Point, place_labels


LABEL_MARGIN = 2.0  # pixels
FRAME_MARGIN = 4.0  # pixels
MARKER_RADIUS = 9.0  # pixels, of the diamond with some air
LINE_WIDTH = 2.0  # pixels that a line takes of a label's room
LEADER_LENGTH = 12.0  # pixels; a label nearer than that needs no line


def pareto_figure(
    rows: Sequence[ComparisonRow],
    base: ComparisonRow,
    intervals_over: str = "seeds",
    width: float = WIDE,
) -> Figure:
    """Accuracy over mean tokens: one marker per row with both intervals, the base, the target and the Pareto front.

    Args:
        rows (`Sequence[ComparisonRow]`):
            Methods or runs to draw; the target is a dotted line where all that have one agree.
        base (`ComparisonRow`):
            The base model, or the run that the others are compared with.
        intervals_over (`str`, *optional*, defaults to `"seeds"`):
            What the intervals are over.
        width (`float`, *optional*, defaults to `10.0`):
            Width in inches.

    Returns:
        `Figure`: 10 by 6.5 inches, 1200 pixels wide at 120 dpi; 5 inches high where it is narrower.
    """
    figure, (axis,) = new_figure(width, 6.5 if width >= WIDE else 5)
    canvas = FigureCanvasAgg(figure)
    everything = [*rows, base]
    front = _staircase(pareto_front(everything))
    if len(front) > 1:
        axis.plot(*zip(*front, strict=True), color=COLORS[1], linewidth=3, label="Pareto front", zorder=1)
    for bar in (bar for row in everything for bar in _bars(row)):
        axis.plot(*zip(*bar, strict=True), color=NEUTRAL, linewidth=1.3, zorder=2)
    axis.plot([row.mean_tokens for row in rows], [row.accuracy for row in rows], "o", color=COLORS[0], zorder=3)
    axis.plot(*_point(base), "D", color="black", markersize=7, zorder=3)
    target = common_target([row.target_length for row in rows])
    if target is not None:
        axis.axvline(target, color="black", linestyle=":", linewidth=1.2, label=f"target {target:g}", zorder=0)
    axis.set_xlabel(f"mean tokens, with 95 % interval over {intervals_over}")
    axis.set_ylabel(f"accuracy, with 95 % interval over {intervals_over}")
    axis.margins(0.08)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, fontsize=LABEL_SIZE, loc="lower right")
    show_text_as_it_is(figure)
    canvas.draw()  # fixes where everything is
    figure.set_layout_engine("none")
    axis.autoscale(False)
    lines = [*pairwise(front), *([((target, 0.0), (target, 1.0))] if target is not None else [])]
    legends = [] if (legend := axis.get_legend()) is None else [Box(*legend.get_window_extent().extents)]
    _draw_labels(axis, everything, [*legends, *_obstacles(axis, everything, lines)])
    return figure


def _point(row: ComparisonRow) -> Point:
    return row.mean_tokens, row.accuracy


def _staircase(front: Sequence[ComparisonRow]) -> list[Point]:
    """Corners of the front: accuracy stays until the next row's tokens are paid."""
    corners = [_point(front[0])]
    for row in front[1:]:
        corners += [(row.mean_tokens, corners[-1][1]), _point(row)]
    return corners


def _bars(row: ComparisonRow) -> list[Line]:
    """The row's intervals as lines: that of accuracy upright, that of tokens level."""
    low, high = row.accuracy_interval
    bars = [((row.mean_tokens, low), (row.mean_tokens, high))]
    if row.mean_tokens_interval is not None:
        left, right = row.mean_tokens_interval
        bars.append(((left, row.accuracy), (right, row.accuracy)))
    return bars


def _draw_labels(axis: Axes, rows: Sequence[ComparisonRow], obstacles: list[Box]) -> None:
    """Puts names where they cover nothing that is drawn; those far from their marker get a line to it."""
    style: dict[str, Any] = {"parse_math": False, "fontsize": LABEL_SIZE, "ha": "center", "va": "center", "zorder": 5}
    texts = [axis.text(0, 0, row.name, **style) for row in rows]
    extents = [text.get_window_extent() for text in texts]
    sizes = [(extent.width + 2 * LABEL_MARGIN, extent.height + 2 * LABEL_MARGIN) for extent in extents]
    points = [tuple(point) for point in axis.transData.transform([_point(row) for row in rows])]
    places = place_labels(points, sizes, Box(*axis.get_window_extent().padded(-FRAME_MARGIN).extents), obstacles)
    to_data = axis.transData.inverted().transform
    for text, point, place in zip(texts, points, places, strict=True):
        x, y = to_data(((place.left + place.right) / 2, (place.bottom + place.top) / 2))
        text.set_position((x, y))
        end = place.nearest(point)
        if np.hypot(end[0] - point[0], end[1] - point[1]) > LEADER_LENGTH:
            axis.plot(*to_data([point, end]).T, color="black", linewidth=0.5, zorder=4)


def _obstacles(axis: Axes, rows: Sequence[ComparisonRow], lines: Sequence[Line]) -> list[Box]:
    """What labels should not cover, in pixels: the markers, the intervals and other upright or level lines."""
    to_pixels = axis.transData.transform
    boxes = []
    for x, y in to_pixels([_point(row) for row in rows]):
        boxes.append(Box(x - MARKER_RADIUS, y - MARKER_RADIUS, x + MARKER_RADIUS, y + MARKER_RADIUS))
    for line in [*(bar for row in rows for bar in _bars(row)), *lines]:
        (left, bottom), (right, top) = to_pixels(line)
        boxes.append(Box(left, bottom, max(right, left + LINE_WIDTH), max(top, bottom + LINE_WIDTH)))
    return boxes
