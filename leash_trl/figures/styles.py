"""Draws accuracy over tokens of a model whose traces are forced into styles: what each token left out costs."""

from collections.abc import Sequence
from typing import Protocol

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter

from leash_trl.figures.drawing import LABEL_SIZE, legend_above, line_style, new_figure


TICKS = (5, 10, 20, 50, 100)


class StylePoint(Protocol):
    """What a model does in one style at one level."""

    @property
    def style(self) -> str: ...

    @property
    def level(self) -> int: ...

    @property
    def tokens(self) -> float: ...

    @property
    def accuracy(self) -> float: ...


def styles_figure(points: Sequence[StylePoint], width: float = 7.0) -> Figure:
    """Accuracy over tokens, one line per level, and black markers for the mean of all levels in each style.

    Args:
        points (`Sequence[StylePoint]`):
            Every style at every level.
        width (`float`, *optional*, defaults to `7.0`):
            Width in inches.

    Returns:
        `Figure`: 4.5 inches high.
    """
    figure, (axis,) = new_figure(width, 4.5)
    levels = sorted({point.level for point in points})
    styles = list(dict.fromkeys(point.style for point in points))
    for index, level in enumerate(levels):
        own = sorted((point for point in points if point.level == level), key=lambda point: point.tokens)
        label = f"{level} term{'s' if level > 1 else ''} to add"
        axis.plot(
            [point.tokens for point in own],
            [point.accuracy for point in own],
            marker="os^Dv"[index % 5],
            markersize=4,
            linewidth=1,
            label=label,
            **line_style(index),
        )
    means = [_mean([point for point in points if point.style == style]) for style in styles]
    axis.plot(*zip(*means, strict=True), "o", color="black", markersize=7, zorder=4, label="mean of all")
    for style, place in zip(styles, means, strict=True):
        axis.annotate(style, place, (6, -10), textcoords="offset points", fontsize=LABEL_SIZE, fontweight="bold")
    axis.set_xscale("log")
    axis.set_xticks(TICKS)
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("tokens of a completion")
    axis.set_ylabel("accuracy")
    legend_above(figure, axis, len(levels) + 1)
    return figure


def _mean(points: Sequence[StylePoint]) -> tuple[float, float]:
    """Mean tokens and mean accuracy."""
    return sum(point.tokens for point in points) / len(points), sum(point.accuracy for point in points) / len(points)
