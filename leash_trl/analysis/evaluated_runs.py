"""Several evaluated runs side by side, as the figures need them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from leash_trl.analysis.curves import distinct_labels
from leash_trl.evaluation.comparison import ComparisonRow
from leash_trl.evaluation.intervals import Estimate
from leash_trl.evaluation.results import BenchmarkResult, RunResults, load_results


def load_evaluated_runs(folders: Sequence[str | Path]) -> dict[str, RunResults]:
    """Results of runs by their labels; runs with the same label are told apart by step, or else by folder.

    Args:
        folders (`Sequence[str | Path]`):
            Folders that `leash eval` wrote.

    Raises:
        `ValueError`: If one is no such folder, or is not finished.
    """
    results = [load_results(folder) for folder in folders]
    labels = unique_labels([(result.label, result.run.get("step")) for result in results], folders)
    return dict(zip(labels, results, strict=True))


def unique_labels(runs: Sequence[tuple[str, int | None]], folders: Sequence[str | Path]) -> list[str]:
    """Labels that tell runs apart.

    Args:
        runs (`Sequence[tuple[str, int | None]]`):
            Label and training step of each, if it is known.
        folders (`Sequence[str | Path]`):
            Folder of each.

    Example:
        >>> unique_labels([("base", None), ("leash", 50), ("leash", 100)], ["a", "b", "c"])
        ['base', 'leash, step 50', 'leash, step 100']
        >>> unique_labels([("leash", None), ("leash", None)], ["runs/a", "runs/b"])
        ['leash (a)', 'leash (b)']
    """
    names = [label for label, _ in runs]
    with_steps = [
        f"{label}, step {step}" if names.count(label) > 1 and step is not None else label for label, step in runs
    ]
    places = distinct_labels([Path(folder) for folder in folders])
    return [
        f"{label} ({place})" if with_steps.count(label) > 1 else label
        for label, place in zip(with_steps, places, strict=True)
    ]


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
