"""Draws the figures of evaluated runs: accuracy within token budgets, and behaviour over training."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leash_trl.figures.drawing import (
    LABEL_SIZE,
    TITLE_SIZE,
    Estimate,
    label_steps,
    leave_room,
    legend_above,
    line_style,
    new_figure,
    two_panels,
)


NEXT_TICK = 1.4  # ratio of two budgets from which their ticks do not touch
BAND_ALPHA = 0.2
LENGTH_LOOK = {"color": "black", "linestyle": "-", "marker": "o"}  # unlike any keyword group, which the legend names
LEGEND_ROOM = 1.18  # height of a panel with a legend inside, relative to one without
APART = 0.12  # between markers of one checkpoint, where checkpoints are 1 apart
LONGEST_TICK = 24  # characters of a line
SLANT_FROM = 24  # characters of all labels of an axis, from which they would touch each other


def budget_figure(curves: Mapping[str, Mapping[int, Estimate]], width: float = 7.0) -> Figure:
    """Share of completions that are correct and fit a token budget, with 95 % intervals, one line per run.

    Args:
        curves (`Mapping[str, Mapping[int, Estimate]]`):
            By the runs' labels: accuracy in [0, 1] by budget in tokens.
        width (`float`, *optional*, defaults to `7.0`):
            Width in inches.

    Returns:
        `Figure`: 4.5 inches high.
    """
    figure, (axis,) = new_figure(width, 4.5)
    for index, (label, curve) in enumerate(curves.items()):
        _draw_with_band(axis, list(curve), list(curve.values()), label, _look(index))
    budgets = _apart({budget for curve in curves.values() for budget in curve})
    axis.set_xscale("log", base=2)
    axis.set_xticks(budgets, [_short(budget) for budget in budgets])
    axis.minorticks_off()
    axis.set_xlabel("token budget")
    axis.set_ylabel("accuracy within budget, with 95 % interval")
    leave_room(axis)
    legend_above(figure, axis, len(curves))
    return figure


def _apart(budgets: set[int]) -> list[int]:
    """Budgets whose ticks do not touch: powers of two, and limits far enough from all of these."""
    powers = {budget for budget in budgets if budget.bit_count() == 1}
    return sorted(powers | {b for b in budgets if all(max(b, p) / min(b, p) > NEXT_TICK for p in powers)})


def _short(tokens: int) -> str:
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def _look(index: int) -> dict[str, Any]:
    """Colour, dashes and marker of the run or group with that number."""
    return {**line_style(index), "marker": "os^Dvx"[index % 6]}


def _draw_with_band(
    axis: Axes, x: Sequence[float], estimates: Sequence[Estimate], label: str, look: Mapping[str, Any]
) -> None:
    """A line with its intervals: a band with edges, or one bar for a single point."""
    axis.plot(x, [point.value for point in estimates], markersize=5, label=label, **look)
    low, high = [point.low for point in estimates], [point.high for point in estimates]
    if len(x) > 1:
        axis.fill_between(x, low, high, facecolor=(look["color"], BAND_ALPHA), edgecolor=look["color"], linewidth=0.5)
    else:
        axis.vlines(x, low, high, color=look["color"])


def _draw_apart(
    axis: Axes, x: Sequence[float], estimates: Sequence[Estimate], label: str, look: Mapping[str, Any]
) -> None:
    """Markers with intervals, without a line between them."""
    axis.plot(x, [point.value for point in estimates], markersize=6, label=label, **{**look, "linestyle": "None"})
    axis.vlines(x, [point.low for point in estimates], [point.high for point in estimates], color=look["color"])


def behavior_figure(
    labels: Sequence[str],
    steps: Sequence[int] | None,
    tokens: Sequence[Estimate],
    groups: Mapping[str, Sequence[Estimate]],
    columns: int = 2,
) -> Figure:
    """The paper's behaviour figure: mean response length, and keywords per response by group, over C checkpoints.

    Source: figure "behaviors" of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        labels (`Sequence[str]` of length C):
            Names of the checkpoints, in order.
        steps (`Sequence[int]` of length C, *optional*):
            Their training steps, as the axis of lines; without steps, named markers stand side by side without lines.
        tokens (`Sequence[Estimate]` of length C):
            Mean lengths of a response in tokens.
        groups (`Mapping[str, Sequence[Estimate]]`):
            By group of keywords, occurrences per response, C estimates each.
        columns (`int`, *optional*, defaults to `2`):
            Panels beside each other, 2 as in the paper or 1 for a narrow page.

    Returns:
        `Figure`: 10 by 4 inches, or 5.6 by 6 in one column.
    """
    places = list(range(len(labels))) if steps is None else steps
    draw = _draw_apart if steps is None else _draw_with_band
    figure, (left, right) = two_panels(columns)
    draw(left, places, tokens, "tokens", LENGTH_LOOK)
    left.set_title("Mean response length (tokens)", fontsize=TITLE_SIZE)
    for index, (group, estimates) in enumerate(groups.items()):
        shift = 0.0 if steps is not None else APART * (index - (len(groups) - 1) / 2)
        draw(right, [place + shift for place in places], estimates, group.capitalize(), _look(index))
    right.set_title("Keywords per response", fontsize=TITLE_SIZE)
    for axis in (left, right):
        leave_room(axis)
        if steps is not None:
            label_steps(axis, "training step", steps)
        else:
            _label_ticks(axis, places, labels)
    right.set_ylim(top=LEGEND_ROOM * right.get_ylim()[1])
    right.legend(loc="upper right", ncols=len(groups), frameon=False, fontsize=LABEL_SIZE, columnspacing=1.2)
    return figure


def _label_ticks(axis: Axes, x: Sequence[float], labels: Sequence[str]) -> None:
    is_slanted = len(labels) > 1 and sum(map(len, labels)) > SLANT_FROM
    slant: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if is_slanted else {}
    axis.set_xticks(x, [textwrap.fill(label, LONGEST_TICK) for label in labels], fontsize=LABEL_SIZE, **slant)
    axis.set_xlim(x[0] - 0.5, x[-1] + 0.5)
