"""Loads the curves of training runs as DataFrames, and draws the paper's two figures of training."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leash_trl.comparison.curves import RUNNING_MEAN_BATCHES
from leash_trl.completions.costs import unit_of
from leash_trl.figures import style
from leash_trl.run_folder import (
    ADVICE_STATE_KEY,
    LENGTH_CONTROL_STATE_KEY,
    MEAN_TARGET_KEY,
    newest_trainer_state,
)


LENGTH_KEY = "leash/mean_length"
ACCURACY_KEY = "leash/accuracy"
PANEL_TITLES = {
    "leash/satisfaction_rate": "Satisfaction rate",
    "leash/lambda": "Penalty coefficient λ",
    "leash/mean_penalty": "Mean penalty (reward units)",
    LENGTH_KEY: "Mean length",  # with its unit
}
OPTIONAL_PANEL_TITLES = {
    ACCURACY_KEY: "Mean accuracy",
    "leash/length_accuracy_correlation": "Correlation of length\nand correctness",
}
RATE_KEYS = ("leash/satisfaction_rate", ACCURACY_KEY)  # in [0, 1]
BUDGET_TARGET_PREFIX = f"{MEAN_TARGET_KEY}/"  # each budget's curves end with the budget's name


def load_curves(path: str | Path) -> pd.DataFrame:
    """Loads the curves of a training run from its trainer state with the highest step.

    Args:
        path (`str` or `Path`): Output folder of a run, or folder of a checkpoint.

    Returns:
        `DataFrame`: Columns as logged, such as `leash/mean_length` and `eval_leash/accuracy`, with NaN for missing
        values. The index `step` counts policy updates. The `attrs` have `label`, the name of the run's folder;
        `length_of`, the cost that the target limits; and `advice`, a list of the advice, each with `step` and `text`.
    """
    return curves_from_state(newest_trainer_state(path), Path(path).resolve().name)


def curves_from_state(trainer_state: Mapping[str, Any], label: str) -> pd.DataFrame:
    """Returns the curves in a `trainer_state.json`, in the format of [`load_curves`]."""
    # rows by step, such as {5: {"leash/lambda": 0.1, "eval_leash/accuracy": 0.5}}; a batch and an evaluation of the
    # same step are separate entries of the history, and become one row
    rows: dict[int, dict[str, Any]] = {}
    for entry in trainer_state["log_history"]:
        rows.setdefault(entry["step"], {}).update(entry)
    curves = pd.DataFrame.from_dict(rows, orient="index").rename_axis("step").sort_index()
    curves = curves.drop(columns="step", errors="ignore")  # a run without a log has no such column
    # Values that are not numbers become NaN, and columns without any number are left out.
    curves = curves.apply(pd.to_numeric, errors="coerce")
    curves = curves.dropna(axis="columns", how="all")
    # The saved states of callbacks, by name: that of length control, and the advice on the run.
    callback_states = trainer_state.get("stateful_callbacks", {})
    length_control = callback_states.get(LENGTH_CONTROL_STATE_KEY, {})
    curves.attrs = {
        "label": label,
        "length_of": length_control.get("length_of", "completion"),
        "advice": callback_states.get(ADVICE_STATE_KEY, []),
    }
    return curves


def logged_curve(curves: pd.DataFrame, key: str) -> "pd.Series[float]":
    """Returns the logged values of one curve by step; empty if the run did not log `key`."""
    return curves.get(key, pd.Series(dtype=float)).dropna()


def split_by_budget(curves: pd.DataFrame) -> list[pd.DataFrame]:
    """Splits the curves of a run by budget: `leash/mean_length/low` is the curve `leash/mean_length` of budget `low`.
    Without budgets, returns the run alone.

    Example:
        >>> values = {"leash/lambda": [1.0], "leash/lambda/low": [0.0], "leash/target_length/low": [64.0]}
        >>> [(part.attrs["label"], part["leash/lambda"].item()) for part in split_by_budget(pd.DataFrame(values))]
        [('low', 0.0)]
    """
    # Every budget has a target, so these columns have the names of all budgets.
    budgets = [
        column.removeprefix(BUDGET_TARGET_PREFIX) for column in curves if column.startswith(BUDGET_TARGET_PREFIX)
    ]
    parts = []
    for name in budgets:
        ending = f"/{name}"
        columns = [column for column in curves if column.endswith(ending)]  # such as "leash/lambda/low"
        part = curves[columns].set_axis([column.removesuffix(ending) for column in columns], axis="columns")
        part.attrs = {**curves.attrs, "label": name}
        parts.append(part)
    return parts or [curves]


def write_curves_figure(trainer_state: Mapping[str, Any], path: Path) -> None:
    """Draws the curves of a `trainer_state.json` into a file, if any are logged. The label is the folder's name."""
    curves = curves_from_state(trainer_state, path.resolve().parent.name)
    if any(key in curves for key in PANEL_TITLES):
        style.write_figure(dynamics_figure([curves], columns=2), path)


def dynamics_figure(runs: Sequence[pd.DataFrame], columns: int = 4) -> Figure:
    """Draws the four panels of the paper's training-dynamics figure, with one line per run.

    If logged, panels for accuracy and for the correlation of length and correctness are added.

    Source: figure "Training dynamics" of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        runs (`Sequence[DataFrame]`): Curves of [`load_curves`]. A single run has a line for each of its budgets. The
            targets are dotted as they were logged: in black if all lines have the same one, else in their colors.
        columns (`int`): Number of panels side by side: 4 as in the paper (up to 6 with the added panels), or 2 for a
            narrow page.

    Returns:
        `Figure`: 16 by 3.6 inches (19.2 by 3.6 with six panels); in two columns, 5.6 inches wide and 2.6 per row.
    """
    lines = _curves_to_draw(runs)
    # the title of each panel by the key of the curve that it shows
    titles = {**PANEL_TITLES, LENGTH_KEY: length_title(runs)}
    for key, title in OPTIONAL_PANEL_TITLES.items():
        if any(key in line for line in lines):
            titles[key] = title
    figure, axes = _panel_grid(len(titles), columns)
    _draw_panels(axes, titles, lines, style.draw_line)
    for axis, key in zip(axes, titles, strict=True):
        style.label_steps(axis, "optimizer step")
        if key in RATE_KEYS:
            axis.set_ylim(0, 1 + style.HEADROOM)
    return figure


def _draw_panels(
    axes: Sequence[Axes],
    titles: Mapping[str, str],
    lines: Sequence[pd.DataFrame],
    draw: Callable[..., None],
) -> None:
    """Draws a panel for each key of `titles`, with a line for each run. `draw` draws a line, with the arguments of
    [`~leash_trl.figures.style.draw_line`]."""
    for axis, key in zip(axes, titles, strict=True):
        for index, line in enumerate(lines):
            draw(axis, logged_curve(line, key), line.attrs["label"], **style.line_style(index))
        if key.endswith(LENGTH_KEY):
            _draw_targets(axis, lines)
            # All panels have the same lines, so a single legend is enough.
            style.draw_legend_above(axis)
        axis.set_title(titles[key], fontsize=style.TITLE_SIZE)
        if axis.lines:
            style.set_y_limits(axis)
        else:
            axis.text(0.5, 0.5, "not logged", transform=axis.transAxes, ha="center", va="center")


def _draw_batches(axis: Axes, batches: "pd.Series[float]", label: str, **look: Any) -> None:
    """Draws training batches faintly, and their running mean as the line, because batches vary much."""
    style.draw_line(axis, batches, "_batches", alpha=0.3, **look)
    running_mean = batches.rolling(RUNNING_MEAN_BATCHES, min_periods=1).mean()
    style.draw_line(axis, running_mean, label, **look)


def length_title(runs: Sequence[pd.DataFrame]) -> str:
    """Returns a title for the mean lengths of runs, such as "Mean thinking (tokens)" or "Mean tool calls"."""
    costs = {run.attrs["length_of"] for run in runs}  # such as {"completion", "tool_calls"}
    if len(costs) > 1:
        return "Mean of " + ", ".join(sorted(costs))
    (length_of,) = costs
    if length_of == "completion":
        return "Mean length (tokens)"
    unit = unit_of(length_of)
    return f"Mean {length_of} (tokens)" if unit == "tokens" else f"Mean {unit}"


def _panel_grid(num_panels: int, columns: int) -> tuple[Figure, list[Axes]]:
    """Creates a figure with all panels side by side or, for fewer than four columns, in several rows."""
    # The paper's figure of four panels is 16 inches wide; six panels need more.
    if columns >= len(PANEL_TITLES):
        return style.new_figure(3.2 * max(num_panels, 5), 3.6, columns=num_panels)
    # The last row may have empty panels, which are removed.
    num_rows = math.ceil(num_panels / columns)
    figure, axes = style.new_figure(style.NARROW_INCHES, 2.6 * num_rows, rows=num_rows, columns=columns)
    for empty_panel in axes[num_panels:]:
        empty_panel.remove()
    return figure, axes[:num_panels]


def _curves_to_draw(runs: Sequence[pd.DataFrame]) -> Sequence[pd.DataFrame]:
    """Returns the curves that get a line each: the budgets of a single run, or the runs."""
    return split_by_budget(runs[0]) if len(runs) == 1 else runs


def _draw_targets(axis: Axes, lines: Sequence[pd.DataFrame]) -> None:
    """Draws dotted lines for the targets. A target that all lines have is drawn over the whole panel with a legend;
    otherwise, the targets of each line are drawn as they were logged."""
    targets = set(pd.concat([logged_curve(line, MEAN_TARGET_KEY) for line in lines]))
    if len(targets) == 1:
        target = targets.pop()
        dotted = axis.axhline(target, **style.TARGET_LOOK)
        axis.legend([dotted], [f"target {target:g}"], frameon=False, fontsize=style.LABEL_SIZE)
        return
    for index, line in enumerate(lines):
        color = style.line_style(index)["color"]
        style.draw_line(axis, logged_curve(line, MEAN_TARGET_KEY), "_target", color=color, linestyle=":")


def training_figure(runs: Sequence[pd.DataFrame], columns: int = 2) -> Figure:
    """Draws the paper's main training figure: mean length and accuracy over steps, one line per run.

    The lines show evaluations if all runs logged them, else training batches: a faint line of the batches, and their
    running mean over ten batches.

    Source: figure "main-train" of [LEASH](https://huggingface.co/papers/2512.21540).

    The panels are side by side as in the paper (10 by 4 inches) or in one column (5.6 by 6 inches). Targets and
    budgets are drawn as in [`dynamics_figure`].
    """
    lines = _curves_to_draw(runs)
    have_evaluations = all(f"eval_{LENGTH_KEY}" in line for line in lines)
    prefix = "eval_" if have_evaluations else ""
    source = "evaluation" if have_evaluations else f"training batches, running mean over {RUNNING_MEAN_BATCHES}"
    if columns == 2:
        figure, axes = style.new_figure(style.WIDE_INCHES, 4, columns=2)
    else:
        figure, axes = style.new_figure(style.NARROW_INCHES, 6, rows=2)
    titles = {
        prefix + LENGTH_KEY: length_title(runs),
        prefix + ACCURACY_KEY: OPTIONAL_PANEL_TITLES[ACCURACY_KEY],
    }
    _draw_panels(axes, titles, lines, style.draw_line if have_evaluations else _draw_batches)
    for axis in axes:
        style.label_steps(axis, f"optimizer step ({source})")
    return figure
