"""Accuracy over tokens: the trade-off that length control makes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from leash_trl.analysis.figures.drawing import LABEL_SIZE, WIDE, common_target, new_figure, show_text_as_it_is
from leash_trl.analysis.label_placement import Box, Line, Point, place_labels
from leash_trl.evaluation.comparison import ComparisonRow, pareto_front


LABEL_MARGIN = 2.0  # pixels
FRAME_MARGIN = 4.0  # pixels
MARKER_RADIUS = 6.0  # pixels
LINE_WIDTH = 0.5  # pixels; thin, so that labels avoid lines only where it costs them little
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
    axis.plot(*zip(*front, strict=True), color="tab:orange", linewidth=1.4, label="Pareto front", zorder=1)
    _draw_intervals(axis, everything)
    axis.plot([row.mean_tokens for row in rows], [row.accuracy for row in rows], "o", color="tab:blue", zorder=3)
    axis.plot(*_point(base), "D", color="black", markersize=7, zorder=3)
    target = common_target([row.target_length for row in rows])
    if target is not None:
        axis.axvline(target, color="black", linestyle=":", linewidth=1.2, label=f"target {target:g}", zorder=0)
    axis.set_xlabel(f"mean tokens, with 95 % interval over {intervals_over}")
    axis.set_ylabel(f"accuracy, with 95 % interval over {intervals_over}")
    axis.margins(0.08)
    legend = axis.legend(frameon=False, fontsize=LABEL_SIZE, loc="lower right")
    show_text_as_it_is(figure)
    canvas.draw()  # fixes where everything is
    figure.set_layout_engine("none")
    axis.autoscale(False)
    lines = [*pairwise(front), *([((target, 0.0), (target, 1.0))] if target is not None else [])]
    legend_box = Box(*legend.get_window_extent().extents)
    _draw_labels(axis, everything, [legend_box, *_obstacles(axis, everything, lines)])
    return figure


def _point(row: ComparisonRow) -> Point:
    return row.mean_tokens, row.accuracy


def _staircase(front: Sequence[ComparisonRow]) -> list[Point]:
    """Corners of the front: accuracy stays until the next row's tokens are paid."""
    corners = [_point(front[0])]
    for row in front[1:]:
        corners += [(row.mean_tokens, corners[-1][1]), _point(row)]
    return corners


def _draw_intervals(axis: Axes, rows: Sequence[ComparisonRow]) -> None:
    style: dict[str, Any] = {"color": "tab:gray", "alpha": 0.35, "linewidth": 0.9, "zorder": 2}
    for row in rows:
        axis.plot([row.mean_tokens] * 2, row.accuracy_interval, **style)
        if row.mean_tokens_interval is not None:
            axis.plot(row.mean_tokens_interval, [row.accuracy] * 2, **style)


def _draw_labels(axis: Axes, rows: Sequence[ComparisonRow], obstacles: list[Box]) -> None:
    """Puts names where they cover neither each other nor a marker; those far from their marker get a line to it."""
    halo = [patheffects.withStroke(linewidth=2.5, foreground="white")]
    style: dict[str, Any] = {
        "parse_math": False,
        "fontsize": LABEL_SIZE,
        "ha": "center",
        "va": "center",
        "zorder": 5,
        "path_effects": halo,
    }
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
            axis.plot(*to_data([point, end]).T, color="tab:gray", linewidth=0.7, zorder=4)


def _obstacles(axis: Axes, rows: Sequence[ComparisonRow], lines: Sequence[Line]) -> list[Box]:
    """What labels should not cover, in pixels: the markers, and upright or level lines if there is room elsewhere."""
    to_pixels = axis.transData.transform
    boxes = []
    for x, y in to_pixels([_point(row) for row in rows]):
        boxes.append(Box(x - MARKER_RADIUS, y - MARKER_RADIUS, x + MARKER_RADIUS, y + MARKER_RADIUS))
    bars = [tuple((row.mean_tokens, end) for end in row.accuracy_interval) for row in rows]
    for line in [*bars, *lines]:
        (left, bottom), (right, top) = to_pixels(line)
        boxes.append(Box(left, bottom, max(right, left + LINE_WIDTH), max(top, bottom + LINE_WIDTH)))
    return boxes
