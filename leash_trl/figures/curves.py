"""Training curves of a run, read from what it left on disk."""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from leash_trl.analysis.event_files import event_files, read_event_files
from leash_trl.analysis.run_labels import run_labels
from leash_trl.checkpoints.completeness import read_trainer_state
from leash_trl.checkpoints.state_file import STATE_FILE


# The authors' published logs name the same curves otherwise: one of training, one of evaluation.
CSV_COLUMNS = {
    "constraint/satisfaction_rate": "satisfaction_rate",
    "constraint/lambda": "lambda",
    "constraint/avg_penalty": "mean_penalty",
    "constraint/avg_length": "mean_length",
}
EVAL_CSV_COLUMNS = {"result/avg_len": "eval_mean_length", "result/avg_acc": "eval_accuracy"}
PREFIXES = {"leash/": "", "eval_leash/": "eval_"}


@dataclass(frozen=True)
class Curves:
    """Curves of one run.

    Args:
        label (`str`):
            Name of the run in a legend.
        steps (`np.ndarray` of shape `(S,)`):
            Optimizer steps.
        values (`dict[str, np.ndarray]`):
            Curves of shape `(S,)` by their key without `leash/`, those of evaluations with `eval_` before it; NaN
            where nothing was logged.
        target_length (`int`, *optional*):
            Target in tokens, if the run tells.
    """

    label: str
    steps: np.ndarray
    values: dict[str, np.ndarray]
    target_length: int | None = None

    def logged(self, key: str) -> np.ndarray:
        """The values of one curve that were logged, in order; empty if the run has no such curve."""
        return self.curve(key)[1]

    def curve(self, key: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps at which one curve was logged, and its values; both empty if the run has no such curve."""
        values = self.values.get(key, np.full(len(self.steps), np.nan))
        is_logged = ~np.isnan(values)
        return self.steps[is_logged], values[is_logged]


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
    rows = _rows_by_step(state.get("log_history", []))
    last_step = state.get("global_step", -1)
    rows |= {step: row for step, values in events.scalars.items() if step > last_step and (row := _renamed(values))}
    if not rows:
        raise ValueError(f"{path} holds no LEASH curves; was this run trained with LeashGRPOTrainer?")
    return _curves_from_rows(rows, path.resolve().name, _target_length(folder, events.arguments))


def curves_from_log(log_history: Sequence[Mapping[str, Any]], label: str, target_length: int | None = None) -> Curves:
    """Curves of what a trainer logged, `trainer.state.log_history`; without steps if that holds no LEASH curves.

    Args:
        log_history (`Sequence[Mapping[str, Any]]`):
            Logged rows, each with its `step`.
        label (`str`):
            Name of the run in a legend.
        target_length (`int`, *optional*):
            Target in tokens.
    """
    return _curves_from_rows(_rows_by_step(log_history), label, target_length)


def _newest_state(path: Path) -> tuple[dict[str, Any], Path]:
    """The trainer state with the most steps and its folder; an empty one if there is none."""
    folders = [path, *path.glob("checkpoint-*")]
    states = [(state, folder) for folder in folders if (state := read_trainer_state(folder)) is not None]
    # a finished run that was continued and stopped has its newest steps in a checkpoint
    return max(states, key=lambda pair: pair[0]["global_step"], default=({}, path))


def _rows_by_step(log_history: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """One row per step: batches and evaluations log separately."""
    rows: dict[int, dict[str, float]] = {}
    for entry in log_history:
        if values := _renamed(entry):
            rows.setdefault(entry["step"], {}).update(values)
    return dict(sorted(rows.items()))


def _renamed(logged: Mapping[str, float | None]) -> dict[str, float]:
    """LEASH's own curves by our names, without those that were logged as empty."""
    return {
        ours + key.removeprefix(prefix): np.nan if value is None else value
        for key, value in logged.items()
        for prefix, ours in PREFIXES.items()
        if key.startswith(prefix)
    }


def _curves_from_rows(rows: dict[int, dict[str, float]], label: str, target_length: int | None) -> Curves:
    keys = sorted({key for row in rows.values() for key in row})
    values = {key: np.array([row.get(key, np.nan) for row in rows.values()], dtype=float) for key in keys}
    return Curves(label, np.array(list(rows)), values, target_length)


def _target_length(folder: Path, arguments: dict[str, Any]) -> int | None:
    state_file = folder / STATE_FILE
    if state_file.is_file():
        arguments = json.loads(state_file.read_text(encoding="utf-8"))
    target: int | None = arguments.get("target_length")
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
