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
    states = [state for folder in (path, *path.glob("checkpoint-*")) if (state := read_trainer_state(folder))]
    state = max(states, key=lambda state: state["global_step"], default={"log_history": []})
    curves = curves_from_log(state["log_history"], path.resolve().name)
    if not any(column.startswith(("leash/", "eval_leash/")) for column in curves):
        raise ValueError(f"{path} has no curves of LEASH; give the folder of a run with a checkpoint")
    return curves


def curves_from_log(log_history: Sequence[Mapping[str, Any]], label: str) -> pd.DataFrame:
    """Returns the curves in a trainer's `trainer.state.log_history`, in the format of [`load_curves`]."""
    rows: dict[int, dict[str, Any]] = {}
    for entry in log_history:  # a batch and an evaluation of the same step are separate entries
        rows.setdefault(entry["step"], {}).update(entry)
    curves = pd.DataFrame.from_dict(rows, orient="index").drop(columns="step", errors="ignore")
    curves = curves.apply(pd.to_numeric, errors="coerce")
    return _labeled(curves.dropna(axis="columns", how="all").rename_axis("step").sort_index(), label)


def _labeled(curves: pd.DataFrame, label: str) -> pd.DataFrame:
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
    parts = []
    for name in (column.removeprefix(BUDGETS) for column in curves if column.startswith(BUDGETS)):
        names = {column: column.removesuffix(f"/{name}") for column in curves if column.endswith(f"/{name}")}
        part = curves[[*names]].rename(columns=names)
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
    drawn = by_budget(runs[0]) if len(runs) == 1 else runs
    known = [key for key in OPTIONAL_PANELS if any(len(logged(run, key)) for run in drawn)]
    panels = {**PANELS, **{key: OPTIONAL_PANELS[key] for key in known}}
    rows = math.ceil(len(panels) / columns) if columns < 4 else 1
    size = (3.2 * max(len(panels), 5), 3.6, 1, len(panels)) if rows == 1 else (style.NARROW, 2.6 * rows, rows, columns)
    figure, axes = style.new_figure(*size)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis, (key, title) in zip(axes, panels.items(), strict=False):
        for index, run in enumerate(drawn):
            if len(values := logged(run, key)):
                style.draw_line(axis, values, run.attrs["label"], **style.line_style(index))
        _finish_panel(axis, title, "optimizer step")
        if key in ("leash/satisfaction_rate", ACCURACY):
            axis.set_ylim(0, 1 + style.HEADROOM)
    style.legend_above(figure, max(axes, key=lambda axis: len(axis.lines)), len(drawn))
    _draw_target(axes[3], runs, drawn)
    return figure


def _finish_panel(axis: Axes, title: str, x_label: str) -> None:
    axis.set_title(title, fontsize=style.TITLE_SIZE)
    style.label_steps(axis, x_label)
    if axis.lines:
        style.set_y_limits(axis)
    else:
        axis.text(0.5, 0.5, "not logged", transform=axis.transAxes, ha="center", va="center")


def _draw_target(axis: Axes, runs: Sequence[pd.DataFrame], drawn: Sequence[pd.DataFrame]) -> None:
    lines = {budget.attrs["target_length"]: style.line_style(index)["color"] for index, budget in enumerate(drawn)}
    lines.pop(None, None)
    changed = {index: targets_of(run) for index, run in enumerate(drawn) if len(targets_of(run)) > 1}
    if len(drawn) == len(runs):
        is_shared = len(lines) == 1 and not changed and len({*map(_length_of, drawn)} - {None}) <= 1
        lines = dict.fromkeys(lines, "black") if is_shared else {}
    look: dict[str, Any] = {"linestyle": ":", "linewidth": 1.2}
    for target, color in lines.items():
        axis.axhline(target, color=color, label=f"target {target:g}", **look)
    num_lines = len(lines)
    if len(runs) == 1:
        for index, spans in changed.items():
            color = "black" if len(drawn) == 1 else style.line_style(index)["color"]
            num_lines += _draw_changed_target(axis, spans, color=color, **look)
    if num_lines == 1 or (num_lines and len(drawn) == 1):
        axis.legend(handles=axis.lines[-num_lines:], frameon=False, fontsize=style.LABEL_SIZE)
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
        points: dict[int, float] = {}
        for span in stretch:
            points |= {span.first_step: span.target, span.last_step: span.target}
        label = f"target {stretch[0].target:g}" if len(stretch) == 1 else "target"
        label += f" ({stretch[0].length_of})" if has_several_units else ""
        axis.plot([*points], [*points.values()], label=label, **look)
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
    drawn = by_budget(runs[0]) if len(runs) == 1 else runs
    prefixes = ["eval_" if len(logged(run, "eval_leash/mean_length")) else "" for run in drawn]
    if all(len(logged(run, "leash/mean_length")) for run in drawn) and "" in prefixes:
        prefixes = [""] * len(drawn)
    figure, axes = style.two_panels(columns)
    for axis, key in zip(axes, ("leash/mean_length", ACCURACY), strict=True):
        for index, (run, prefix) in enumerate(zip(drawn, prefixes, strict=True)):
            label = run.attrs["label"] + (f" ({SOURCES[prefix]})" if len({*prefixes}) > 1 else "")
            _draw_smoothed(axis, logged(run, prefix + key), label, style.line_style(index), is_noisy=not prefix)
    is_smoothed = any(line.get_label() == BATCHES for axis in axes for line in axis.lines)
    notes = [SOURCES[prefixes[0]]] if len({*prefixes}) == 1 else []
    notes += [f"running mean over {SMOOTHING}"] if is_smoothed else []
    x_label = f"optimizer step ({', '.join(notes)})" if notes else "optimizer step"
    _finish_panel(axes[0], "Mean length (tokens)", x_label)
    _finish_panel(axes[1], "Mean accuracy", x_label)
    style.legend_above(figure, axes[0], len(drawn))
    _draw_target(axes[0], runs, drawn)
    return figure


def _draw_smoothed(axis: Axes, values: "pd.Series[float]", label: str, look: dict[str, Any], is_noisy: bool) -> None:
    if is_noisy and len(values) > SMOOTHING:
        style.draw_line(axis, values, BATCHES, **{**look, "linewidth": 0.8, "alpha": 0.45})
        values = values.rolling(SMOOTHING).mean().dropna()
    if len(values):
        style.draw_line(axis, values, label, **look)
