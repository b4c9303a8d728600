"""Draws the paper's two figures of training: dynamics of the penalty, and tokens and accuracy over steps."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leash_trl.figures.curves import Curves, by_budget
from leash_trl.figures.drawing import (
    HEADROOM,
    LABEL_SIZE,
    NARROW,
    TITLE_SIZE,
    common_target,
    draw_line,
    label_steps,
    leave_room,
    legend_above,
    line_style,
    new_figure,
    say_not_logged,
    two_panels,
)


PANELS = {
    "satisfaction_rate": "Satisfaction rate",
    "lambda": "Penalty coefficient λ",
    "mean_penalty": "Mean penalty (reward units)",
    "mean_length": "Mean length (tokens)",
}
SMOOTHING = 10  # batches in a running mean
BATCHES = "_batches"  # label of the faint lines behind the mean; legends leave out labels with an underscore in front
SOURCES = {"eval_": "evaluation", "": "training batches"}


def dynamics_figure(runs: Sequence[Curves], columns: int = 4) -> Figure:
    """The four panels of the paper's training-dynamics figure, one line per run.

    Source: figure "Training dynamics" of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        runs (`Sequence[Curves]`):
            Runs to draw; the target is a dotted line where all runs that tell theirs agree. A run alone has a line
            for each of its budgets, and a dotted one in the same colour for the target of each.
        columns (`int`, *optional*, defaults to `4`):
            Panels beside each other, 4 as in the paper or 2 for a narrow page.

    Returns:
        `Figure`: 16 by 3.6 inches, or 5.6 by 5.2 in two columns.
    """
    drawn = _each_budget(runs)
    rows = len(PANELS) // columns
    figure, axes = new_figure(16, 3.6, rows, columns) if rows == 1 else new_figure(NARROW, 5.2, rows, columns)
    for axis, (key, title) in zip(axes, PANELS.items(), strict=True):
        for index, run in enumerate(drawn):
            steps, values = run.curve(key)
            if len(steps):
                draw_line(axis, steps, values, run.label, **line_style(index))
        _finish_panel(axis, title, "optimizer step")
    axes[0].set_ylim(0, 1 + HEADROOM)
    _draw_target(axes[-1], runs, drawn)
    legend_above(figure, max(axes[:-1], key=lambda axis: len(axis.lines)), len(drawn))
    return figure


def _finish_panel(axis: Axes, title: str, x_label: str) -> None:
    axis.set_title(title, fontsize=TITLE_SIZE)
    label_steps(axis, x_label)
    if axis.lines:
        leave_room(axis)
    else:
        say_not_logged(axis)


def _each_budget(runs: Sequence[Curves]) -> Sequence[Curves]:
    """The budgets of a run that is drawn alone, or the runs."""
    return by_budget(runs[0]) if len(runs) == 1 else runs


def _draw_target(axis: Axes, runs: Sequence[Curves], drawn: Sequence[Curves]) -> None:
    if len(drawn) > len(runs):
        for index, budget in enumerate(drawn):
            if budget.target_length is not None:
                axis.axhline(budget.target_length, color=line_style(index)["color"], linestyle=":", linewidth=1.2)
        leave_room(axis)
        return
    target = common_target([run.target_length for run in runs])
    if target is not None:
        line = axis.axhline(target, color="black", linestyle=":", linewidth=1.2, label=f"target {target:g}")
        axis.legend(handles=[line], frameon=False, fontsize=LABEL_SIZE)
        leave_room(axis)


def training_figure(runs: Sequence[Curves], columns: int = 2) -> Figure:
    """The paper's main training figure: mean tokens per response and accuracy over steps, one line per run.

    The lines are evaluations if all runs logged them, else training batches: each batch faint, with the running mean
    over ten of them. If some runs only have the one and some only the other, the legend says which is which.

    Source: figure "main-train" of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        runs (`Sequence[Curves]`):
            Runs to draw; the target is a dotted line where all runs that tell theirs agree. A run alone has a line
            for each of its budgets, and a dotted one in the same colour for the target of each.
        columns (`int`, *optional*, defaults to `2`):
            Panels beside each other, 2 as in the paper or 1 for a narrow page.

    Returns:
        `Figure`: 10 by 4 inches, or 5.6 by 6 in one column.
    """
    drawn = _each_budget(runs)
    prefixes = _sources(drawn)
    figure, axes = two_panels(columns)
    for axis, key in zip(axes, ("mean_length", "accuracy"), strict=True):
        for index, (run, prefix) in enumerate(zip(drawn, prefixes, strict=True)):
            label = run.label if len(set(prefixes)) == 1 else f"{run.label} ({SOURCES[prefix]})"
            _draw_smoothed(axis, *run.curve(prefix + key), label, index, is_noisy=not prefix)
    is_smoothed = any(line.get_label() == BATCHES for axis in axes for line in axis.lines)
    notes = [SOURCES[prefixes[0]]] if len(set(prefixes)) == 1 else []
    notes += [f"running mean over {SMOOTHING}"] if is_smoothed else []
    x_label = f"optimizer step ({', '.join(notes)})" if notes else "optimizer step"
    _finish_panel(axes[0], "Mean tokens per response", x_label)
    _finish_panel(axes[1], "Mean accuracy", x_label)
    _draw_target(axes[0], runs, drawn)
    legend_above(figure, axes[0], len(drawn))
    return figure


def _sources(runs: Sequence[Curves]) -> list[str]:
    """Prefix of the curves to draw, for each run."""
    for prefix in SOURCES:
        if all(len(run.logged(f"{prefix}mean_length")) for run in runs):
            return [prefix] * len(runs)
    return ["eval_" if len(run.logged("eval_mean_length")) else "" for run in runs]


def _draw_smoothed(axis: Axes, steps: np.ndarray, values: np.ndarray, label: str, index: int, is_noisy: bool) -> None:
    if is_noisy and len(steps) > SMOOTHING:
        draw_line(axis, steps, values, BATCHES, **{**line_style(index), "linewidth": 0.8, "alpha": 0.45})
        values = np.convolve(values, np.full(SMOOTHING, 1 / SMOOTHING), mode="valid")
        steps = steps[SMOOTHING - 1 :]
    if len(steps):
        draw_line(axis, steps, values, label, **line_style(index))
