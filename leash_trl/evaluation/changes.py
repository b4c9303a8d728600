"""A run against its baseline: differences on the same problems, with intervals that go problem by problem."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from leash_trl.evaluation.intervals import (
    Estimate,
    mean_amount,
    mean_over_benchmarks,
    mean_share_difference,
    ratio_minus_one,
)
from leash_trl.evaluation.results import OVERALL, RunResults


@dataclass(frozen=True)
class Change:
    """How one benchmark, or the mean over benchmarks, differs from the baseline on the same problems.

    Args:
        name (`str`):
            Name of the benchmark, or `"overall"`.
        accuracy (`Estimate`):
            Difference of avg@k, in [-1, 1]; 0.01 is one point.
        tokens (`Estimate`):
            Difference of mean lengths in tokens; negative is shorter.
        relative_tokens (`Estimate`):
            Ratio of mean lengths minus 1, dimensionless; -0.5 is half as long.
    """

    name: str
    accuracy: Estimate
    tokens: Estimate
    relative_tokens: Estimate


@dataclass(frozen=True)
class RunComparison:
    """A run against a baseline.

    Args:
        label (`str`), baseline_label (`str`):
            Names of the two runs.
        benchmarks (`tuple[Change, ...]`):
            One per benchmark, in the run's order.
        overall (`Change`):
            Change of the unweighted means over benchmarks.
    """

    label: str
    baseline_label: str
    benchmarks: tuple[Change, ...]
    overall: Change

    @property
    def rows(self) -> tuple[Change, ...]:
        """The benchmarks, then the overall row."""
        return (*self.benchmarks, self.overall)


def compare_results(run: RunResults, baseline: RunResults) -> RunComparison:
    """Differences of accuracy and length from a baseline on the same problems, with 95 % intervals.

    The intervals are those of the differences problem by problem, so how hard the problems are drops out. What one of
    the runs could not grade is left out of both; [`~leash_trl.evaluation.results.interval_warning`] says how much.

    Args:
        run (`RunResults`), baseline (`RunResults`):
            Runs on the same problems of the same benchmarks, in any order.

    Raises:
        `ValueError`: If benchmarks or sampled problems differ, or the runs have no graded problem in common.
    """
    _check_same(run, baseline, set(run.problems), set(baseline.problems), "benchmarks")
    num_samples = min(run.overall.num_samples, baseline.overall.num_samples)
    pairs = {}
    for name, own in run.problems.items():
        base = baseline.problems[name]
        _check_same(run, baseline, set(own), set(base), f"problems of {name}")
        pairs[name] = np.array(
            [(own[key], base[key]) for key in own if own[key] is not None and base[key] is not None]
        )
        if not len(pairs[name]):
            raise ValueError(
                f"{run.label!r} and its baseline {baseline.label!r} have no problem of {name} graded in both; run the "
                "commands that made their folders again: they grade them again"
            )
    return RunComparison(
        label=run.label,
        baseline_label=baseline.label,
        benchmarks=tuple(_change(name, [pair], num_samples) for name, pair in pairs.items()),
        overall=_change(OVERALL, [*pairs.values()], num_samples),
    )


def _check_same(run: RunResults, baseline: RunResults, own: set[str], other: set[str], what: str) -> None:
    if own != other:
        raise ValueError(
            f"{run.label!r} and its baseline {baseline.label!r} differ in {what}: only in the run "
            f"{_first_few(own - other)}, only in the baseline {_first_few(other - own)}; "
            "evaluate both on the same problems"
        )


def _first_few(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:5]) or "none"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _change(name: str, pairs: Sequence[np.ndarray], num_samples: int) -> Change:
    """Change of the mean over benchmarks.

    Args:
        name (`str`):
            Name of the benchmark, or `"overall"`.
        pairs (`Sequence[np.ndarray]` of shape `(P, 2, 2)`):
            By benchmark: of each problem the run's accuracy and tokens, and the baseline's.
        num_samples (`int`):
            k, completions per problem.
    """
    differences = [own - base for own, base in (pair.swapaxes(0, 1) for pair in pairs)]
    return Change(
        name=name,
        accuracy=mean_over_benchmarks([mean_share_difference(column[:, 0], num_samples) for column in differences]),
        tokens=mean_over_benchmarks([mean_amount(column[:, 1], lowest=-math.inf) for column in differences]),
        relative_tokens=ratio_minus_one([pair[:, 0, 1] for pair in pairs], [pair[:, 1, 1] for pair in pairs]),
    )
