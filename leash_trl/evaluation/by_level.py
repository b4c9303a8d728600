"""Splits a comparison's results by the level of the problems: which ones a method makes shorter, and at what price."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from leash_trl.evaluation import numbers
from leash_trl.evaluation.comparison import SeedResult
from leash_trl.evaluation.intervals import Estimate, mean_over_seeds


LEVEL_LEGEND = (
    "By level, which is the number of terms to add: accuracy and mean tokens, means over seeds. levels.csv has "
    "Student's t intervals of the means over seeds."
)


@dataclass(frozen=True)
class LevelRow:
    """One point of a comparison on the problems of one level.

    Args:
        name (`str`):
            Name of the method, with the values of its grid.
        target_length (`float`, *optional*):
            Target in tokens.
        level (`int`):
            Level of the problems.
        accuracy (`Estimate`), tokens (`Estimate`):
            Share of correct completions in [0, 1] and their length in tokens, means over seeds with 95 % t intervals;
            no interval where there is one seed.
    """

    name: str
    target_length: float | None
    level: int
    accuracy: Estimate
    tokens: Estimate


def level_rows(name: str, results: Sequence[SeedResult], levels: Sequence[int]) -> list[LevelRow]:
    """One point's rows, by level.

    Args:
        name (`str`):
            Name of the method.
        results (`Sequence[SeedResult]`):
            Its seeds, on the same P problems.
        levels (`Sequence[int]` of length P):
            Level of each problem.
    """
    level_P = np.asarray(levels)
    rows = []
    for level in np.unique(level_P).tolist():
        is_level = level_P == level
        accuracies = [float(result.is_correct[is_level].mean()) for result in results]
        tokens = [float(result.lengths[is_level].mean()) for result in results]
        rows.append(
            LevelRow(name, results[0].target_length, level, mean_over_seeds(accuracies, 1.0), mean_over_seeds(tokens))
        )
    return rows


def level_table(rows: Sequence[LevelRow]) -> str:
    """A line per point: its accuracy and tokens at each level."""
    points: dict[tuple[str, float | None], dict[int, LevelRow]] = {}
    for row in rows:
        points.setdefault((row.name, row.target_length), {})[row.level] = row
    levels = sorted({row.level for row in rows})
    lines = [
        [name, "" if target is None else f"{target:g}", *(_cell(own[level]) for level in levels)]
        for (name, target), own in points.items()
    ]
    return numbers.markdown_table(["method", "target", *(f"level {level}" for level in levels)], lines)


def _cell(row: LevelRow) -> str:
    return f"{row.accuracy.value:.3f}, {row.tokens.value:.1f}"


def level_csv(rows: Sequence[LevelRow]) -> str:
    """All rows in full precision."""
    return numbers.csv_table([_fields(row) for row in rows])


def _fields(row: LevelRow) -> Mapping[str, Any]:
    fields: dict[str, Any] = {"name": row.name, "target_length": row.target_length, "level": row.level}
    for name, estimate in (("accuracy", row.accuracy), ("mean_tokens", row.tokens)):
        ends = (estimate.low, estimate.high) if estimate.has_interval else ("", "")
        fields |= dict(
            zip((name, f"{name}_interval_low", f"{name}_interval_high"), (estimate.value, *ends), strict=True)
        )
    return fields
