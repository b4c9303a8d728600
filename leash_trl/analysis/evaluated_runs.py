"""Puts several evaluated runs side by side: results by label, rows for figures, and their changes in words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from leash_trl.analysis.run_labels import run_labels
from leash_trl.evaluation.changes import Change, compare_results
from leash_trl.evaluation.intervals import Estimate
from leash_trl.evaluation.numbers import percent, points, tokens
from leash_trl.evaluation.results import OVERALL, BenchmarkResult, RunResults, load_results
from leash_trl.figures import TradeOff


NO_CLEAR_CHANGE = "no clear change (the interval includes zero)"
NO_INTERVAL = "which may be chance (one problem gives no interval)"
Changes = Mapping[str, Mapping[str, Change]]


def load_evaluated_runs(folders: Sequence[str | Path]) -> dict[str, RunResults]:
    """Results of runs by their labels of [`run_labels`]; the results have the same labels.

    Args:
        folders (`Sequence[str | Path]`):
            Folders that `leash eval` wrote.

    Raises:
        `ValueError`: If a folder holds no evaluated run, or the run is not finished.
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
    """Accuracy within token budgets of each run, as [`chosen_rows`] chooses."""
    return {label: row.budget_curve for label, row in chosen_rows(results, benchmark).items()}


def trade_offs(results: Mapping[str, RunResults], benchmark: str | None = None) -> list[TradeOff]:
    """Accuracy and tokens of each run with their intervals over problems, as [`chosen_rows`] chooses."""
    return [TradeOff(label, row.accuracy, row.tokens) for label, row in chosen_rows(results, benchmark).items()]


def changes_from_first(results: Mapping[str, RunResults]) -> tuple[Changes, list[str]]:
    """Changes against the first run by label and benchmark, and a sentence on each run that has other problems."""
    changes, notes = {}, []
    baseline, *others = results.values()
    for result in others:
        try:
            changes[result.label] = {change.name: change for change in compare_results(result, baseline).rows}
        except ValueError as error:
            notes.append(f"No differences for {result.label}: {error}.")
    return changes, notes


def headline(results: Mapping[str, RunResults], changes: Changes) -> list[str]:
    """The first sentences of a report: the change of each run against the first, and whether it is clear.

    There is one sentence for each run that is compared with the first; if there is no other, one on the first.

    Args:
        results (`Mapping[str, RunResults]`):
            Runs by their labels, the baseline first.
        changes (`Mapping[str, Mapping[str, Change]]`):
            Those of [`changes_from_first`].
    """
    base, *others = results
    if not others:
        accuracy, length = results[base].overall.accuracy, results[base].overall.tokens
        return [
            f"{base}, on {_problems(results[base])}: accuracy {percent(accuracy.value)} %"
            f"{_interval(accuracy, percent)}, {tokens(length.value)} tokens per response{_interval(length, tokens)}. "
            "There is no baseline, so this page says nothing of a change."
        ]
    return [
        f"{label} against {base}, on the same {_problems(results[label])}: {_change(changes[label][OVERALL])}."
        if label in changes
        else f"{label} is not compared with {base}: their problems differ."
        for label in others
    ]


def _change(change: Change) -> str:
    tokens_change, accuracy = change.relative_tokens, change.accuracy
    if tokens_change.high < 0:
        fewer = Estimate(-tokens_change.value, -tokens_change.high, -tokens_change.low)
        words = f"{percent(fewer.value)} % fewer tokens{_interval(fewer, percent)}"
    elif tokens_change.low > 0:
        words = f"{percent(tokens_change.value)} % more tokens{_interval(tokens_change, percent)}"
    else:
        words = f"tokens {points(tokens_change.value)} %{_interval(tokens_change, points)}{_doubt(tokens_change)}"
    fell = " fell:" if accuracy.high < 0 else ""
    difference = f"{points(accuracy.value)} points{_interval(accuracy, points)}{_doubt(accuracy)}"
    return f"{words}, accuracy{fell} {difference}"


def _interval(number: Estimate, shown: Callable[[float], str]) -> str:
    return f" [{shown(number.low)}, {shown(number.high)}]" if number.has_interval else ""


def _doubt(change: Estimate) -> str:
    """Words to add to a change whose interval does not exclude zero."""
    if change.high < 0 or change.low > 0:
        return ""
    return f", {NO_CLEAR_CHANGE if change.has_interval else NO_INTERVAL}"


def _problems(result: RunResults) -> str:
    number, benchmarks = result.overall.num_problems, len(result.benchmarks)
    word = "problem" if number == 1 else "problems"
    return f"{number:,} {word}" if benchmarks == 1 else f"{number:,} {word} of {benchmarks} benchmarks"
