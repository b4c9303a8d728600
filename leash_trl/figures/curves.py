"""`Curves`: a run's training curves in the form that figures draw, made from the rows that a trainer logs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


MOST_BUDGETS = 12  # more lines than this cannot be told apart
BUDGETS = "target_length/"  # each budget's curves end with its name
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
            Target in tokens, if it is known.
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


def by_budget(run: Curves) -> list[Curves]:
    """One run as several, one for each budget it logged, such as `mean_length/low`; the run itself if it had one.

    Example:
        >>> values = {"lambda": np.ones(1), "lambda/low": np.zeros(1), "target_length/low": np.full(1, 64.0)}
        >>> [(part.label, part.values["lambda"].item()) for part in by_budget(Curves("mine", np.array([1]), values))]
        [('low', 0.0)]
    """
    names = [key.removeprefix(BUDGETS) for key in run.values if key.startswith(BUDGETS)]
    parts = []
    for name in names:
        values = {key.removesuffix(f"/{name}"): each for key, each in run.values.items() if key.endswith(f"/{name}")}
        targets = values["target_length"][~np.isnan(values["target_length"])]
        parts.append(Curves(label_of(name), run.steps, values, int(targets[-1]) if len(targets) else None))
    return parts if 0 < len(parts) <= MOST_BUDGETS else [run]


def label_of(name: str) -> str:
    """A budget's name for a legend, which leaves out labels that are empty or begin with an underscore."""
    return name if name[:1] not in ("", "_") else f"\N{ZERO WIDTH SPACE}{name}"


def curves_from_log(log_history: Sequence[Mapping[str, Any]], label: str, target_length: int | None = None) -> Curves:
    """Curves from a trainer's `trainer.state.log_history`; without steps if it holds no LEASH curves.

    Args:
        log_history (`Sequence[Mapping[str, Any]]`):
            Logged rows, each with its `step`.
        label (`str`):
            Name of the run in a legend.
        target_length (`int`, *optional*):
            Target in tokens.
    """
    return curves_from_rows(rows_by_step(log_history), label, target_length)


def rows_by_step(log_history: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """One row per step: batches and evaluations log separately."""
    rows: dict[int, dict[str, float]] = {}
    for entry in log_history:
        if values := renamed(entry):
            rows.setdefault(entry["step"], {}).update(values)
    return dict(sorted(rows.items()))


def renamed(logged: Mapping[str, float | None]) -> dict[str, float]:
    """LEASH's own curves by our names, without those that were logged as empty."""
    return {
        ours + key.removeprefix(prefix): np.nan if value is None else value
        for key, value in logged.items()
        for prefix, ours in PREFIXES.items()
        if key.startswith(prefix)
    }


def curves_from_rows(rows: dict[int, dict[str, float]], label: str, target_length: int | None) -> Curves:
    keys = sorted({key for row in rows.values() for key in row})
    values = {key: np.array([row.get(key, np.nan) for row in rows.values()], dtype=float) for key in keys}
    return Curves(label, np.array(list(rows)), values, target_length)
