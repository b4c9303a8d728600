"""Figures of the paper, drawn from curves, and the figure of a comparison, drawn from its rows."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import matplotlib


matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leash_trl.analysis.curves import Curves
from leash_trl.analysis.label_placement import Box, Line, Point, place_labels
from leash_trl.evaluation.comparison import ComparisonRow, pareto_front


PANELS = {
    "satisfaction_rate": "Satisfaction rate",
    "lambda": "Penalty coefficient λ",
    "mean_penalty": "Mean penalty (reward units)",
    "mean_length": "Mean length (tokens)",
}

LABEL_SIZE = 9
LABEL_MARGIN = 2.0  # pixels
FRAME_MARGIN = 4.0  # pixels
MARKER_RADIUS = 6.0  # pixels
LINE_WIDTH = 0.5  # pixels; thin, so that labels avoid lines only where it costs them little
LEADER_LENGTH = 12.0  # pixels; a label nearer than that needs no line


def dynamics_figure(runs: list[Curves]) -> Figure:
    """The four panels of the paper's training-dynamics figure, one line per run.

    Source: figure "Training dynamics" of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        runs (`list[Curves]`):
            Runs to draw; the target is a dotted line where all runs that tell theirs agree.

    Returns:
        `Figure`: 16 by 3.6 inches.
    """
    figure, axes = plt.subplots(1, len(PANELS), figsize=(16, 3.6), layout="constrained")
    for axis, (key, title) in zip(axes, PANELS.items(), strict=True):
        for run in runs:
            if key in run.values:
                _draw_line(axis, run.steps, run.values[key], run.label)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("optimizer step")
        axis.grid(alpha=0.25)
        if axis.lines:
            axis.set_ylim(bottom=axis.get_ylim()[0] if _goes_below_zero(axis) else 0.0)
        else:
            axis.text(0.5, 0.5, "not logged", transform=axis.transAxes, ha="center", va="center")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(0, 1.02)
    targets = {run.target_length for run in runs if run.target_length is not None}
    if len(targets) == 1:
        target = targets.pop()
        line = axes[-1].axhline(target, color="black", linestyle=":", linewidth=1.2, label=f"target {target}")
        axes[-1].legend(handles=[line], frameon=False, fontsize=9)
    if len(runs) > 1:
        axes[0].legend(frameon=False, fontsize=9)
    return figure


def _goes_below_zero(axis: Axes) -> bool:
    """Whether a line does: penalties of methods that pay a bonus."""
    return any(np.nanmin(line.get_ydata()) < 0 for line in axis.lines)


def _draw_line(axis: Axes, steps: np.ndarray, values: np.ndarray, label: str) -> None:
    """A line that is broken where the log has a gap, so that no value is made up."""
    gap = np.diff(steps) > 5 * np.median(np.diff(steps)) if len(steps) > 1 else np.array([], dtype=bool)
    breaks = np.flatnonzero(gap) + 1
    axis.plot(
        np.insert(steps.astype(float), breaks, np.nan), np.insert(values, breaks, np.nan), linewidth=1.6, label=label
    )


def pareto_figure(rows: Sequence[ComparisonRow], base: ComparisonRow) -> Figure:
    """Accuracy over mean tokens: one marker per method with both intervals, the base, the target and the Pareto front.

    Args:
        rows (`Sequence[ComparisonRow]`):
            Methods to draw; the target is a dotted line where all that have one agree.
        base (`ComparisonRow`):
            The base model.

    Returns:
        `Figure`: 10 by 6.5 inches, 1200 pixels wide at 120 dpi.
    """
    figure, axis = plt.subplots(figsize=(10, 6.5), dpi=120, layout="constrained")
    everything = [*rows, base]
    front = _staircase(pareto_front(everything))
    axis.plot(*zip(*front, strict=True), color="tab:orange", linewidth=1.4, label="Pareto front", zorder=1)
    _draw_intervals(axis, everything)
    axis.plot(*zip(*map(_point, rows), strict=True), "o", color="tab:blue", markersize=6, zorder=3)
    axis.plot(*_point(base), "D", color="black", markersize=7, zorder=3)
    targets = list({row.target_length for row in rows if row.target_length is not None})
    if len(targets) == 1:
        (target,) = targets
        axis.axvline(target, color="black", linestyle=":", linewidth=1.2, label=f"target {target:g}", zorder=0)
    axis.set_xlabel("mean tokens, with 95 % interval over seeds and problems")
    axis.set_ylabel("accuracy, with 95 % interval over seeds and problems")
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(0.08)
    legend = axis.legend(frameon=False, fontsize=LABEL_SIZE, loc="lower right")
    figure.canvas.draw()  # fixes where everything is
    figure.set_layout_engine("none")
    axis.autoscale(False)
    lines = [*pairwise(front), *(((target, 0.0), (target, 1.0)) for target in targets)]
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
    style: dict[str, Any] = {"fontsize": LABEL_SIZE, "ha": "center", "va": "center", "zorder": 5, "path_effects": halo}
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
