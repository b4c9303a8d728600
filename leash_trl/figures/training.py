"""Curves of training runs as DataFrames, and the paper's two figures of them."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leash_trl.engines.checkpoint_path import length_control_state, read_trainer_state
from leash_trl.figures.style import (
    HEADROOM,
    LABEL_SIZE,
    NARROW,
    TITLE_SIZE,
    draw_line,
    label_steps,
    leave_room,
    legend_above,
    line_style,
    new_figure,
    two_panels,
    write_figure,
)


PANELS = {
    "leash/satisfaction_rate": "Satisfaction rate",
    "leash/lambda": "Penalty coefficient λ",
    "leash/mean_penalty": "Mean penalty (reward units)",
    "leash/mean_length": "Mean length (tokens)",
}
ACCURACY = "leash/accuracy"
# The authors' published logs name the same curves otherwise: one of training, one of evaluation.
CSV_COLUMNS = {
    "constraint/satisfaction_rate": "leash/satisfaction_rate",
    "constraint/lambda": "leash/lambda",
    "constraint/avg_penalty": "leash/mean_penalty",
    "constraint/avg_length": "leash/mean_length",
}
EVAL_CSV_COLUMNS = {"result/avg_len": "eval_leash/mean_length", "result/avg_acc": "eval_leash/accuracy"}
ARGUMENTS_TAG = "args/text_summary"  # transformers' TensorBoardCallback writes the training arguments there
MOST_BUDGETS = 12  # more lines than this cannot be told apart
BUDGETS = "leash/target_length/"  # each budget's curves end with its name
SMOOTHING = 10  # batches in a running mean
BATCHES = "_batches"  # label of the faint lines behind the mean; legends leave out labels with an underscore in front
SOURCES = {"eval_": "evaluation", "": "training batches"}


def load_curves(path: str | Path) -> pd.DataFrame:
    """Curves of a training run, or of a CSV file in the form of the LEASH authors' published logs.

    The newest trainer state of a run says what happened up to its step. What TensorBoard's event files hold beyond it,
    as after a kill, follows; where there is no trainer state, they say all.

    Args:
        path (`str` or `Path`):
            Output folder of a run, checkpoint folder, folder with event files, event file, or CSV file.

    Returns:
        `DataFrame`: Columns as logged, such as `leash/mean_length` and `eval_leash/accuracy`, NaN where nothing was;
        the index `step` counts optimizer steps. Its `attrs` are `label`, the name of the run's folder, and
        `target_length` in tokens, `None` if it is not known.

    Raises:
        `ValueError`: If there is nothing of that kind at the path, or it holds no LEASH curves.
    """
    path = Path(path)
    if path.suffix == ".csv" and path.is_file():
        return _curves_from_csv(path)
    # a finished run that was continued and stopped has its newest steps in a checkpoint
    states = [(state, folder) for folder in (path, *path.glob("checkpoint-*")) if (state := read_trainer_state(folder))]
    state, folder = max(states, key=lambda pair: pair[0]["global_step"], default=({}, path))
    events, arguments = read_events(path)
    if not state and not events:
        raise ValueError(
            f"{path} is neither a CSV file nor an event file of TensorBoard, nor the folder of a run with a "
            "trainer_state.json or event files"
        )
    later = [{"step": step, **row} for step, row in events.items() if step > state.get("global_step", -1)]
    target = (length_control_state(folder) or arguments).get("target_length")
    curves = curves_from_log([*state.get("log_history", []), *later], path.resolve().name, target)
    if not any(column.startswith(("leash/", "eval_leash/")) for column in curves):
        raise ValueError(f"{path} holds no LEASH curves; was this run trained with LeashGRPOTrainer?")
    return curves


def curves_from_log(
    log_history: Sequence[Mapping[str, Any]], label: str, target_length: int | None = None
) -> pd.DataFrame:
    """Curves as of [`load_curves`] from a trainer's `trainer.state.log_history`."""
    rows: dict[int, dict[str, Any]] = {}
    for entry in log_history:  # batches and evaluations of one step log separately
        rows.setdefault(entry["step"], {}).update(entry)
    curves = pd.DataFrame([*rows.values()], columns=[*dict.fromkeys(key for row in rows.values() for key in row)])
    curves = curves.apply(pd.to_numeric, errors="coerce").dropna(axis="columns", how="all")
    curves = curves.set_index("step").sort_index() if len(curves) else curves
    curves.attrs = {"label": label, "target_length": target_length}
    return curves


def _curves_from_csv(path: Path) -> pd.DataFrame:
    log = pd.read_csv(path)
    columns = EVAL_CSV_COLUMNS if {*log} & {*EVAL_CSV_COLUMNS} else CSV_COLUMNS
    if missing := {"_step", *columns} - {*log}:
        kind = "evaluation" if columns is EVAL_CSV_COLUMNS else "training"
        raise ValueError(f"{path} lacks the columns {', '.join(sorted(missing))} of the LEASH authors' {kind} log")
    try:
        curves = log.set_index(log["_step"].astype(int))[[*columns]].astype(float)
    except ValueError as error:
        raise ValueError(f"{path} holds something that is not a number: {error}") from error
    curves = curves.rename(columns=columns).rename_axis("step")
    curves.attrs = {"label": path.stem, "target_length": None}
    return curves


def event_files(path: Path) -> list[Path]:
    """The event file itself, or those of one run: in the folder, or where transformers puts them in its `runs`.

    Example:
        >>> event_files(Path("nowhere"))
        []
    """
    if path.is_file() and "tfevents" in path.name:
        return [path]
    # not those of any folder below: it may hold several runs
    return sorted([*path.glob("*tfevents*"), *path.glob("runs/**/*tfevents*")])


def read_events(path: Path) -> tuple[dict[int, dict[str, float]], dict[str, Any]]:
    """Logged values by step and name, and the training arguments of the last start, from a run's event files.

    A resumed run begins a new file and repeats the steps after its checkpoint. So values of earlier files from the
    first step of a later file on are dropped. A last event that a kill cut short is left out.
    """
    rows: dict[int, dict[str, float]] = {}
    arguments: dict[str, Any] = {}
    for _, own_rows, own_arguments in sorted(map(_read_event_file, event_files(path)), key=lambda file: file[0]):
        first_step = min(own_rows, default=math.inf)
        rows = {step: row for step, row in rows.items() if step < first_step} | own_rows
        arguments = own_arguments or arguments
    return rows, arguments


def _read_event_file(file: Path) -> tuple[float, dict[int, dict[str, float]], dict[str, Any]]:
    """Time of its first value, values by step and name, and training arguments."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    start, rows, arguments = math.inf, {}, {}
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            start = min(start, event.wall_time)
            content = tensor_util.make_ndarray(value.tensor).reshape(-1)[0]
            if value.metadata.plugin_data.plugin_name == "scalars":
                rows.setdefault(event.step, {})[value.tag.removeprefix("train/")] = float(content)
            elif value.tag == ARGUMENTS_TAG:
                arguments = json.loads(content.decode("utf-8"))
    return start, rows, arguments


def logged(curves: pd.DataFrame, key: str) -> "pd.Series[float]":
    """The logged values of one curve by step, with its key as in the log; empty if the run has no such curve."""
    return curves.get(key, pd.Series(dtype=float)).dropna()


def by_budget(curves: pd.DataFrame) -> list[pd.DataFrame]:
    """One run as several, one for each budget it logged, such as `leash/mean_length/low`; itself if it had one.

    Example:
        >>> values = {"leash/lambda": [1.0], "leash/lambda/low": [0.0], "leash/target_length/low": [64.0]}
        >>> [(part.attrs["label"], part["leash/lambda"].item()) for part in by_budget(pd.DataFrame(values))]
        [('low', 0.0)]
    """
    parts = []
    for name in (column.removeprefix(BUDGETS) for column in curves if column.startswith(BUDGETS)):
        own = [column for column in curves if column.endswith(f"/{name}")]
        part = curves[own].rename(columns=lambda column, name=name: column.removesuffix(f"/{name}"))
        # a legend leaves out labels that are empty or begin with an underscore
        label = name if name[:1] not in ("", "_") else f"\N{ZERO WIDTH SPACE}{name}"
        part.attrs = {"label": label, "target_length": int(logged(part, "leash/target_length").iloc[-1])}
        parts.append(part)
    return parts if 0 < len(parts) <= MOST_BUDGETS else [curves]


def write_curves(trainer_state: Mapping[str, Any], path: Path) -> None:
    """Draws the curves of a `trainer_state.json` for its model's card, if any were logged; the folder names the run."""
    target = trainer_state["stateful_callbacks"]["LengthControl"].get("target_length")
    curves = curves_from_log(trainer_state["log_history"], path.resolve().parent.name, target)
    if len(curves):
        write_figure(dynamics_figure([curves], columns=2), path)


def dynamics_figure(runs: Sequence[pd.DataFrame], columns: int = 4) -> Figure:
    """The four panels of the paper's training-dynamics figure and, where it was logged, accuracy; one line per run.

    Source: figure "Training dynamics" of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        runs (`Sequence[DataFrame]`):
            Curves of [`load_curves`]; the target is a dotted line where all runs that tell theirs agree. A run alone
            has a line for each of its budgets, and a dotted one in the same colour for the target of each.
        columns (`int`, *optional*, defaults to `4`):
            Panels beside each other, 4 as in the paper (5 with accuracy) or 2 for a narrow page.

    Returns:
        `Figure`: 16 by 3.6 inches; in two columns 5.6 wide and 2.6 a row.
    """
    drawn = by_budget(runs[0]) if len(runs) == 1 else runs
    panels = {**PANELS, ACCURACY: "Mean accuracy"} if any(len(logged(run, ACCURACY)) for run in drawn) else PANELS
    rows = math.ceil(len(panels) / columns) if columns < 4 else 1
    size = (16, 3.6, 1, len(panels)) if rows == 1 else (NARROW, 2.6 * rows, rows, columns)
    figure, axes = new_figure(*size)
    for axis in axes[len(panels) :]:
        axis.remove()
    for axis, (key, title) in zip(axes, panels.items(), strict=False):
        for index, run in enumerate(drawn):
            if len(values := logged(run, key)):
                draw_line(axis, values, run.attrs["label"], **line_style(index))
        _finish_panel(axis, title, "optimizer step")
        if key in ("leash/satisfaction_rate", ACCURACY):
            axis.set_ylim(0, 1 + HEADROOM)
    legend_above(figure, max(axes, key=lambda axis: len(axis.lines)), len(drawn))
    _draw_target(axes[3], runs, drawn)
    return figure


def _finish_panel(axis: Axes, title: str, x_label: str) -> None:
    axis.set_title(title, fontsize=TITLE_SIZE)
    label_steps(axis, x_label)
    if axis.lines:
        leave_room(axis)
    else:
        axis.text(0.5, 0.5, "not logged", transform=axis.transAxes, ha="center", va="center")


def _draw_target(axis: Axes, runs: Sequence[pd.DataFrame], drawn: Sequence[pd.DataFrame]) -> None:
    targets = {run.attrs["target_length"] for run in runs} - {None}
    if len(drawn) > len(runs):
        for index, budget in enumerate(drawn):
            axis.axhline(
                budget.attrs["target_length"], color=line_style(index)["color"], linestyle=":", linewidth=1.2
            )
        leave_room(axis)
    elif len(targets) == 1:
        (target,) = targets
        line = axis.axhline(target, color="black", linestyle=":", linewidth=1.2, label=f"target {target:g}")
        axis.legend(handles=[line], frameon=False, fontsize=LABEL_SIZE)
        leave_room(axis)


def training_figure(runs: Sequence[pd.DataFrame], columns: int = 2) -> Figure:
    """The paper's main training figure: mean tokens per response and accuracy over steps, one line per run.

    The lines are evaluations if all runs logged them, else training batches: each batch faint, with the running mean
    over ten of them. If some runs only have the one and some only the other, the legend says which is which.

    Source: figure "main-train" of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        runs (`Sequence[DataFrame]`):
            As for [`dynamics_figure`], with its targets and budgets.
        columns (`int`, *optional*, defaults to `2`):
            Panels beside each other, 2 as in the paper or 1 for a narrow page.

    Returns:
        `Figure`: 10 by 4 inches, or 5.6 by 6 in one column.
    """
    drawn = by_budget(runs[0]) if len(runs) == 1 else runs
    prefixes = _sources(drawn)
    figure, axes = two_panels(columns)
    for axis, key in zip(axes, ("leash/mean_length", ACCURACY), strict=True):
        for index, (run, prefix) in enumerate(zip(drawn, prefixes, strict=True)):
            label = run.attrs["label"] + (f" ({SOURCES[prefix]})" if len({*prefixes}) > 1 else "")
            _draw_smoothed(axis, logged(run, prefix + key), label, line_style(index), is_noisy=not prefix)
    is_smoothed = any(line.get_label() == BATCHES for axis in axes for line in axis.lines)
    notes = [SOURCES[prefixes[0]]] if len({*prefixes}) == 1 else []
    notes += [f"running mean over {SMOOTHING}"] if is_smoothed else []
    x_label = f"optimizer step ({', '.join(notes)})" if notes else "optimizer step"
    _finish_panel(axes[0], "Mean tokens per response", x_label)
    _finish_panel(axes[1], "Mean accuracy", x_label)
    legend_above(figure, axes[0], len(drawn))
    _draw_target(axes[0], runs, drawn)
    return figure


def _sources(runs: Sequence[pd.DataFrame]) -> list[str]:
    """Prefix of the curves to draw, for each run."""
    has = {prefix: [len(logged(run, f"{prefix}leash/mean_length")) > 0 for run in runs] for prefix in SOURCES}
    alike = next((prefix for prefix in SOURCES if all(has[prefix])), None)
    return [("eval_" if has_evaluation else "") if alike is None else alike for has_evaluation in has["eval_"]]


def _draw_smoothed(axis: Axes, values: "pd.Series[float]", label: str, style: dict[str, Any], is_noisy: bool) -> None:
    if is_noisy and len(values) > SMOOTHING:
        draw_line(axis, values, BATCHES, **{**style, "linewidth": 0.8, "alpha": 0.45})
        values = values.rolling(SMOOTHING).mean().dropna()
    if len(values):
        draw_line(axis, values, label, **style)
