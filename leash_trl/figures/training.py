"""Loads the curves of training runs as DataFrames, and draws the paper's two figures of training."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leash_trl.figures import style
from leash_trl.run_folder import TargetSpan, read_trainer_state, target_spans


PANELS = {
    "leash/satisfaction_rate": "Satisfaction rate",
    "leash/lambda": "Penalty coefficient λ",
    "leash/mean_penalty": "Mean penalty (reward units)",
    "leash/mean_length": "Mean length (tokens)",
}
ACCURACY = "leash/accuracy"
OPTIONAL_PANELS = {
    ACCURACY: "Mean accuracy",
    "leash/length_accuracy_correlation": "Correlation of length\nand correctness",
}
ANSWER_LENGTH = "leash/mean_answer_length"  # logged if only the length of the thinking is controlled
BUDGETS = "leash/target_length/"  # each budget's curves end with the budget's name
SMOOTHING = 10  # number of batches in the running mean
BATCHES = "_batches"  # label of the faint lines of batches; legends omit labels that begin with an underscore
SOURCES = {"eval_": "evaluation", "": "training batches"}


def load_curves(path: str | Path) -> pd.DataFrame:
    """Loads the curves of a training run from its trainer state with the highest step.

    Args:
        path (`str` or `Path`): Output folder of a run, or folder of a checkpoint.

    Returns:
        `DataFrame`: Columns as logged, such as `leash/mean_length` and `eval_leash/accuracy`, with NaN for missing
        values. The index `step` counts optimizer steps. The `attrs` are `label`, the name of the run's folder, and
        `target_length` in tokens, which is `None` if the target was not logged, or it or what it counts changed.
    """
    path = Path(path)
    # if a finished run was resumed and interrupted, its newest steps are in a checkpoint
    states = [read_trainer_state(folder) for folder in (path, *path.glob("checkpoint-*"))]
    complete_states = [state for state in states if state]
    newest_state: dict[str, Any] = max(
        complete_states, key=lambda state: state["global_step"], default={"log_history": []}
    )
    curves = curves_from_log(newest_state["log_history"], path.resolve().name)
    if not any(column.startswith(("leash/", "eval_leash/")) for column in curves):
        raise ValueError(f"{path} has no curves of LEASH; give the folder of a run with a checkpoint")
    return curves


def curves_from_log(log_history: Sequence[Mapping[str, Any]], label: str) -> pd.DataFrame:
    """Returns the curves in a trainer's `trainer.state.log_history`, in the format of [`load_curves`]."""
    rows: dict[int, dict[str, Any]] = {}
    for entry in log_history:  # a batch and an evaluation of the same step are separate entries
        rows.setdefault(entry["step"], {}).update(entry)
    curves = pd.DataFrame.from_dict(rows, orient="index").drop(columns="step", errors="ignore")
    curves = curves.apply(pd.to_numeric, errors="coerce").dropna(axis="columns", how="all")
    return _labeled(curves.rename_axis("step").sort_index(), label)


def _labeled(curves: pd.DataFrame, label: str) -> pd.DataFrame:
    """Returns the curves with the `attrs` of [`load_curves`]."""
    spans = targets_of(curves)
    curves.attrs = {"label": label, "target_length": float(spans[0].target) if len(spans) == 1 else None}
    return curves


def targets_of(curves: pd.DataFrame) -> list[TargetSpan]:
    """Returns the targets that a run logged, as [`~leash_trl.run_folder.target_spans`] does."""
    rows = curves.reindex(columns=["leash/target_length", ANSWER_LENGTH]).to_dict("records")
    return target_spans({"step": step, **row} for step, row in zip(curves.index, rows, strict=True))


def logged(curves: pd.DataFrame, key: str) -> "pd.Series[float]":
    """Returns the logged values of one curve by step; empty if the run did not log `key`."""
    return curves.get(key, pd.Series(dtype=float)).dropna()


def by_budget(curves: pd.DataFrame) -> list[pd.DataFrame]:
    """Splits the curves of a run by budget, as in `leash/mean_length/low`; without budgets, returns the run.

    Example:
        >>> values = {"leash/lambda": [1.0], "leash/lambda/low": [0.0], "leash/target_length/low": [64.0]}
        >>> [(part.attrs["label"], part["leash/lambda"].item()) for part in by_budget(pd.DataFrame(values))]
        [('low', 0.0)]
    """
    budgets = [column.removeprefix(BUDGETS) for column in curves if column.startswith(BUDGETS)]
    parts = []
    for name in budgets:
        keys = {column: column.removesuffix(f"/{name}") for column in curves if column.endswith(f"/{name}")}
        part = curves[[*keys]].rename(columns=keys)
        if ANSWER_LENGTH in curves:
            part[ANSWER_LENGTH] = curves[ANSWER_LENGTH]
        parts.append(_labeled(part, name))
    return parts or [curves]


def write_curves(trainer_state: Mapping[str, Any], path: Path) -> None:
    """Draws the curves of a `trainer_state.json` into a file, if any are logged. The label is the folder's name."""
    curves = curves_from_log(trainer_state["log_history"], path.resolve().parent.name)
    if any(key in curves for key in PANELS):
        style.write_figure(dynamics_figure([curves], columns=2), path)


def dynamics_figure(runs: Sequence[pd.DataFrame], columns: int = 4) -> Figure:
    """Draws the four panels of the paper's training-dynamics figure, with one line per run.

    If logged, panels for accuracy and for the correlation of length and correctness are added.

    Source: figure "Training dynamics" of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        runs (`Sequence[DataFrame]`): Curves of [`load_curves`]. The target is a dotted line if all runs with a logged
            target have the same one. A single run has a line for each of its budgets, and a dotted line in the same
            color for the budget's target. A target that changed in a single run is drawn as it was logged, with a line
            for each `length_of` that it counted.
        columns (`int`): Number of panels side by side: 4 as in the paper (up to 6 with the added panels), or 2 for a
            narrow page.

    Returns:
        `Figure`: 16 by 3.6 inches (19.2 by 3.6 with six panels); in two columns, 5.6 inches wide and 2.6 per row.
    """
    lines = _lines(runs)
    panels = dict(PANELS)
    for key, title in OPTIONAL_PANELS.items():
        if any(len(logged(line, key)) for line in lines):
            panels[key] = title
    if columns < 4:
        num_rows = math.ceil(len(panels) / columns)
        figure, axes = style.new_figure(style.NARROW, 2.6 * num_rows, rows=num_rows, columns=columns)
    else:
        figure, axes = style.new_figure(3.2 * max(len(panels), 5), 3.6, columns=len(panels))
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis, (key, title) in zip(axes, panels.items(), strict=False):
        for index, line in enumerate(lines):
            values = logged(line, key)
            if len(values):
                style.draw_line(axis, values, line.attrs["label"], **style.line_style(index))
        _finish_panel(axis, title, "optimizer step")
        if key in ("leash/satisfaction_rate", ACCURACY):
            axis.set_ylim(0, 1 + style.HEADROOM)
    fullest = max(axes, key=lambda axis: len(axis.lines))
    style.legend_above(figure, fullest, len(lines))
    _draw_targets(axes[3], runs, lines)  # the panel of mean lengths
    return figure


def _lines(runs: Sequence[pd.DataFrame]) -> Sequence[pd.DataFrame]:
    """Returns the curves that get a line each: the budgets of a single run, or the runs."""
    return by_budget(runs[0]) if len(runs) == 1 else runs


def _finish_panel(axis: Axes, title: str, x_label: str) -> None:
    axis.set_title(title, fontsize=style.TITLE_SIZE)
    style.label_steps(axis, x_label)
    if axis.lines:
        style.set_y_limits(axis)
    else:
        axis.text(0.5, 0.5, "not logged", transform=axis.transAxes, ha="center", va="center")


def _draw_targets(axis: Axes, runs: Sequence[pd.DataFrame], lines: Sequence[pd.DataFrame]) -> None:
    """Draws dotted lines for the targets of the runs, whose curves are drawn as `lines`, as [`dynamics_figure`]
    describes."""
    has_budgets = len(lines) > len(runs)
    color_by_target: dict[float, str] = {}
    changed_targets: list[tuple[list[TargetSpan], str]] = []  # with the color of the dotted line
    for index, line in enumerate(lines):
        color = style.line_style(index)["color"] if has_budgets else "black"
        target = line.attrs["target_length"]
        if target is not None:
            color_by_target[target] = color
        spans = targets_of(line)
        if len(spans) > 1:
            changed_targets.append((spans, color))

    if not has_budgets:
        units = {_length_of(line) for line in lines} - {None}
        is_shared = len(color_by_target) == 1 and not changed_targets and len(units) <= 1
        if not is_shared:
            color_by_target = {}
    look: dict[str, Any] = {"linestyle": ":", "linewidth": 1.2}
    for target, color in color_by_target.items():
        axis.axhline(target, color=color, label=f"target {target:g}", **look)
    num_dotted = len(color_by_target)
    if len(runs) == 1:
        for spans, color in changed_targets:
            num_dotted += _draw_changed_target(axis, spans, color=color, **look)
    # dotted lines in the colors of several budgets need no legend
    if num_dotted == 1 or (num_dotted > 1 and len(lines) == 1):
        axis.legend(handles=axis.lines[-num_dotted:], frameon=False, fontsize=style.LABEL_SIZE)
    style.set_y_limits(axis)


def _length_of(run: pd.DataFrame) -> str | None:
    """Returns what the run's only target counts; `None` if none was logged."""
    spans = targets_of(run)
    return spans[0].length_of if spans else None


def _draw_changed_target(axis: Axes, spans: Sequence[TargetSpan], **look: Any) -> int:
    """Draws the targets as they were logged, with a line for each stretch of one unit, and returns the number of
    lines."""
    has_several_units = len({span.length_of for span in spans}) > 1
    stretches = [[*stretch] for _, stretch in groupby(spans, key=lambda span: span.length_of)]
    for stretch in stretches:
        target_by_step: dict[int, float] = {}
        for span in stretch:
            target_by_step[span.first_step] = span.target
            target_by_step[span.last_step] = span.target
        label = f"target {stretch[0].target:g}" if len(stretch) == 1 else "target"
        if has_several_units:
            label += f" ({stretch[0].length_of})"
        axis.plot([*target_by_step], [*target_by_step.values()], label=label, **look)
    return len(stretches)


def training_figure(runs: Sequence[pd.DataFrame], columns: int = 2) -> Figure:
    """Draws the paper's main training figure: mean length and accuracy over steps, one line per run.

    The lines show evaluations if all runs logged them, else training batches: a faint line of the batches, and their
    running mean over ten batches. If some runs logged only evaluations and others only batches, the legend names the
    source of each line.

    Source: figure "main-train" of [LEASH](https://huggingface.co/papers/2512.21540).

    The panels are side by side as in the paper (10 by 4 inches) or in one column (5.6 by 6 inches). Targets and
    budgets are drawn as in [`dynamics_figure`].
    """
    lines = _lines(runs)
    # prefix of each line's keys: "eval_" for evaluations, which are preferred, or "" for training batches
    prefixes = ["eval_" if len(logged(line, "eval_leash/mean_length")) else "" for line in lines]
    if "" in prefixes and all(len(logged(line, "leash/mean_length")) for line in lines):
        prefixes = [""] * len(lines)
    has_several_sources = len(set(prefixes)) > 1
    figure, axes = style.two_panels(columns)
    for axis, key in zip(axes, ("leash/mean_length", ACCURACY), strict=True):
        for index, (line, prefix) in enumerate(zip(lines, prefixes, strict=True)):
            label = line.attrs["label"]
            if has_several_sources:
                label += f" ({SOURCES[prefix]})"
            is_noisy = prefix == ""
            _draw_smoothed(axis, logged(line, prefix + key), label, style.line_style(index), is_noisy)

    notes = [] if has_several_sources else [SOURCES[prefixes[0]]]
    labels = {drawn.get_label() for drawn in [*axes[0].lines, *axes[1].lines]}
    if BATCHES in labels:
        notes.append(f"running mean over {SMOOTHING}")
    x_label = f"optimizer step ({', '.join(notes)})" if notes else "optimizer step"
    _finish_panel(axes[0], "Mean length (tokens)", x_label)
    _finish_panel(axes[1], "Mean accuracy", x_label)
    style.legend_above(figure, axes[0], len(lines))
    _draw_targets(axes[0], runs, lines)
    return figure


def _draw_smoothed(axis: Axes, values: "pd.Series[float]", label: str, look: dict[str, Any], is_noisy: bool) -> None:
    """Draws a curve; noisy values are a faint line, with the line of their running mean above it."""
    if is_noisy and len(values) > SMOOTHING:
        faint = look | {"linewidth": 0.8, "alpha": 0.45}
        style.draw_line(axis, values, BATCHES, **faint)
        values = values.rolling(SMOOTHING).mean().dropna()
    if len(values):
        style.draw_line(axis, values, label, **look)
