"""Reads training curves from disk: trainer states, TensorBoard's event files, the authors' published logs."""

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util

from leash_trl.analysis.run_labels import run_labels
from leash_trl.engines.checkpoint_path import length_control_state, read_trainer_state
from leash_trl.figures.curves import Curves, curves_from_rows, renamed, rows_by_step


# The authors' published logs name the same curves otherwise: one of training, one of evaluation.
CSV_COLUMNS = {
    "constraint/satisfaction_rate": "satisfaction_rate",
    "constraint/lambda": "lambda",
    "constraint/avg_penalty": "mean_penalty",
    "constraint/avg_length": "mean_length",
}
EVAL_CSV_COLUMNS = {"result/avg_len": "eval_mean_length", "result/avg_acc": "eval_accuracy"}
ARGUMENTS_TAG = "args/text_summary"  # transformers' TensorBoardCallback writes the training arguments there


def load_runs(paths: Sequence[str | Path], evaluations: Sequence[str | Path] = ()) -> list[Curves]:
    """Curves of several runs, by their labels of [`run_labels`].

    Args:
        paths (`Sequence[str | Path]`):
            Whatever [`load_curves`] reads.
        evaluations (`Sequence[str | Path]`, *optional*):
            Folders that `leash eval` wrote, some of these runs perhaps.

    Raises:
        `ValueError`: As [`load_curves`].
    """
    labels = run_labels(evaluations, paths)
    return [replace(load_curves(path), label=labels[Path(path)]) for path in paths]


def load_curves(path: str | Path) -> Curves:
    """Curves of a training run, or of a CSV file in the form of the LEASH authors' published logs.

    The newest trainer state of a run says what happened up to its step. What TensorBoard's event files hold beyond it,
    as after a kill, follows; where there is no trainer state, they say all.

    Args:
        path (`str` or `Path`):
            Output folder of a run, checkpoint folder, folder with event files, event file, or CSV file.

    Raises:
        `ValueError`: If there is nothing of that kind at the path, or it holds no LEASH curves.
    """
    path = Path(path)
    if path.suffix == ".csv" and path.is_file():
        return _curves_from_csv(path)
    state, folder = _newest_state(path)
    events = read_event_files(event_files(path))
    if not state and not events.scalars:
        raise ValueError(
            f"{path} is neither a CSV file nor an event file of TensorBoard, nor the folder of a run with a "
            "trainer_state.json or event files"
        )
    rows = rows_by_step(state.get("log_history", []))
    last_step = state.get("global_step", -1)
    rows |= {step: row for step, values in events.scalars.items() if step > last_step and (row := renamed(values))}
    if not rows:
        raise ValueError(f"{path} holds no LEASH curves; was this run trained with LeashGRPOTrainer?")
    return curves_from_rows(rows, path.resolve().name, _target_length(folder, events.arguments))


def _newest_state(path: Path) -> tuple[dict[str, Any], Path]:
    """The trainer state with the most steps and its folder; an empty one if there is none."""
    folders = [path, *path.glob("checkpoint-*")]
    states = [(state, folder) for folder in folders if (state := read_trainer_state(folder)) is not None]
    # a finished run that was continued and stopped has its newest steps in a checkpoint
    return max(states, key=lambda pair: pair[0]["global_step"], default=({}, path))


def _target_length(folder: Path, arguments: dict[str, Any]) -> int | None:
    target: int | None = (length_control_state(folder) or arguments).get("target_length")
    return target


def _curves_from_csv(path: Path) -> Curves:
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = set(rows[0] if rows else {})
    columns = EVAL_CSV_COLUMNS if found & set(EVAL_CSV_COLUMNS) else CSV_COLUMNS
    if missing := {"_step", *columns} - found:
        kind = "evaluation" if columns is EVAL_CSV_COLUMNS else "training"
        raise ValueError(f"{path} lacks the columns {', '.join(sorted(missing))} of the LEASH authors' {kind} log")
    try:
        values = {ours: np.array([float(row[theirs] or "nan") for row in rows]) for theirs, ours in columns.items()}
        return Curves(path.stem, np.array([int(float(row["_step"])) for row in rows]), values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} holds something that is not a number: {error}") from error


@dataclass
class EventLog:
    """The content of event files.

    Args:
        scalars (`dict[int, dict[str, float]]`):
            Values by optimizer step and tag, in the order of the steps.
        arguments (`dict[str, Any]`):
            Training arguments of the last start; empty if none were logged.
        start (`float`):
            Time of the first value in seconds since 1970; infinite if there is none.
    """

    scalars: dict[int, dict[str, float]] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    start: float = math.inf


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


def read_event_files(files: list[Path]) -> EventLog:
    """One log of all files of one run.

    A resumed run begins a new file and repeats the steps after its checkpoint. So values of earlier files from the
    first step of a later file on are dropped.

    Args:
        files (`list[Path]`):
            Files in any order; they are sorted by their first events. A last event that a kill cut short is left out.
    """
    log = EventLog()
    for part in sorted(map(_read_file, files), key=lambda part: part.start):
        first_step = min(part.scalars, default=math.inf)
        kept = {step: row for step, row in log.scalars.items() if step < first_step}
        log = EventLog(
            {**kept, **dict(sorted(part.scalars.items()))}, part.arguments or log.arguments, min(log.start, part.start)
        )
    return log


def _read_file(file: Path) -> EventLog:
    log = EventLog()
    for time, step, tag, value in _values(file):
        log.start = min(log.start, time)
        if isinstance(value, float):
            log.scalars.setdefault(step, {})[tag] = value
        elif tag == ARGUMENTS_TAG:
            log.arguments = json.loads(value)
    return log


def _values(file: Path) -> Iterator[tuple[float, int, str, float | str]]:
    for event in EventFileLoader(str(file)).Load():
        for value in event.summary.value:
            plugin = value.metadata.plugin_data.plugin_name
            content = tensor_util.make_ndarray(value.tensor).reshape(-1)
            if plugin == "scalars":
                yield event.wall_time, event.step, value.tag, float(content[0])
            elif plugin == "text":
                yield event.wall_time, event.step, value.tag, content[0].decode("utf-8")
