"""Several evaluated runs side by side, as the figures need them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from leash_trl.analysis.run_labels import run_labels
from leash_trl.evaluation.comparison import ComparisonRow
from leash_trl.evaluation.intervals import Estimate
from leash_trl.evaluation.results import BenchmarkResult, RunResults, load_results


def load_evaluated_runs(folders: Sequence[str | Path]) -> dict[str, RunResults]:
    """Results of runs by their labels of [`run_labels`], which the results bear too.

    Args:
        folders (`Sequence[str | Path]`):
            Folders that `leash eval` wrote.

    Raises:
        `ValueError`: If one is no such folder, or is not finished.
    """
    results = {}
    for folder, label in run_labels(folders).items():
        result = load_results(folder)
        results[label] = replace(result, run=result.run | {"label": label})
    return results


def chosen_rows(results: Mapping[str, RunResults], benchmark: str | None) -> dict[str, BenchmarkResult]:
    """Each run's row of one benchmark, or its overall row.

    Raises:
        `ValueError`: If a run has no such benchmark; or none is chosen, and the runs have different ones.
    """
    if benchmark is None:
        if len({frozenset(result.problems) for result in results.values()}) > 1:
            raise ValueError(
                "benchmark is None, but the runs have different ones: "
                + "; ".join(f"{label!r} has {', '.join(result.problems)}" for label, result in results.items())
                + "; choose one that all have (--benchmark)"
            )
        return {label: result.overall for label, result in results.items()}
    for label, result in results.items():
        if benchmark not in result.problems:
            raise ValueError(f"benchmark is {benchmark!r}, but {label!r} has {', '.join(result.problems)}")
    return {label: row for label, result in results.items() for row in result.benchmarks if row.name == benchmark}


def budget_curves(results: Mapping[str, RunResults], benchmark: str | None = None) -> dict[str, dict[int, Estimate]]:
    """Accuracy within token budgets of each run, on one benchmark or as the mean over all.

    Raises:
        `ValueError`: As [`chosen_rows`].
    """
    return {label: row.budget_curve for label, row in chosen_rows(results, benchmark).items()}


def pareto_rows(results: Mapping[str, RunResults], benchmark: str | None = None) -> list[ComparisonRow]:
    """Accuracy and tokens of each run with their intervals over problems, as a comparison has them.

    Raises:
        `ValueError`: As [`chosen_rows`].
    """
    rows = chosen_rows(results, benchmark)
    return [
        ComparisonRow(
            name=label,
            seeds=(),
            accuracy=row.accuracy.value,
            accuracy_interval=(row.accuracy.low, row.accuracy.high),
            mean_tokens=row.tokens.value,
            mean_tokens_interval=(row.tokens.low, row.tokens.high) if row.tokens.has_interval else None,
            p95_tokens=row.statistics["p95_tokens"] or 0.0,
        )
        for label, row in rows.items()
    ]
