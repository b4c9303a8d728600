"""Training curves of a run, read from what it left on disk."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np


# The authors' published log names the same curves otherwise.
CSV_COLUMNS = {
    "constraint/satisfaction_rate": "satisfaction_rate",
    "constraint/lambda": "lambda",
    "constraint/avg_penalty": "mean_penalty",
    "constraint/avg_length": "mean_length",
}


@dataclass(frozen=True)
class Curves:
    """Curves of one run.

    Args:
        label (`str`):
            Name of the run in a legend.
        steps (`np.ndarray` of shape `(S,)`):
            Optimizer steps.
        values (`dict[str, np.ndarray]`):
            Curves of shape `(S,)` by their key without `leash/`; NaN where nothing was logged.
        target_length (`int`, *optional*):
            Target in tokens, if the run tells.
    """

    label: str
    steps: np.ndarray
    values: dict[str, np.ndarray]
    target_length: int | None = None

    def logged(self, key: str) -> np.ndarray:
        """The values of one curve that were logged, in order; empty if the run has no such curve."""
        values = self.values.get(key, np.array([]))
        return values[~np.isnan(values)]


def load_curves(path: str | Path) -> Curves:
    """Curves of a training run, or of a CSV file in the form of the LEASH authors' published logs.

    Args:
        path (`str` or `Path`):
            Output folder of a run, checkpoint folder, or CSV file.

    Raises:
        `ValueError`: If there is nothing of that kind at the path, or it holds no LEASH curves.
    """
    path = Path(path)
    if path.suffix == ".csv" and path.is_file():
        return _curves_from_csv(path)
    state_files = [*path.glob("trainer_state.json"), *path.glob("checkpoint-*/trainer_state.json")]
    if not state_files:
        raise ValueError(f"{path} is neither a CSV file nor the folder of a run with a trainer_state.json")
    # a finished run that was continued and stopped has its newest steps in a checkpoint
    states = [(json.loads(file.read_text(encoding="utf-8")), file) for file in state_files]
    state, file = max(states, key=lambda pair: pair[0]["global_step"])
    return _curves_from_trainer_state(state, file, label=path.name)


def _curves_from_csv(path: Path) -> Curves:
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    missing = {"_step", *CSV_COLUMNS} - set(rows[0] if rows else {})
    if missing:
        raise ValueError(f"{path} lacks the columns {', '.join(sorted(missing))} of the LEASH authors' training log")
    values = {ours: np.array([float(row[theirs]) for row in rows]) for theirs, ours in CSV_COLUMNS.items()}
    return Curves(path.stem, np.array([int(float(row["_step"])) for row in rows]), values)


def _curves_from_trainer_state(state: dict, path: Path, label: str) -> Curves:
    # not every method has a lambda
    rows = [row for row in state["log_history"] if any(key.startswith("leash/") for key in row)]
    if not rows:
        raise ValueError(f"{path} holds no LEASH curves; was this run trained with LeashGRPOTrainer?")
    keys = sorted({key for row in rows for key in row if key.startswith("leash/")})
    values = {
        key.removeprefix("leash/"): np.array(
            [np.nan if row.get(key) is None else row[key] for row in rows], dtype=float
        )
        for key in keys
    }
    state_file = path.parent / "leash_state.json"
    target = json.loads(state_file.read_text(encoding="utf-8")).get("target_length") if state_file.is_file() else None
    return Curves(label, np.array([row["step"] for row in rows]), values, target)
