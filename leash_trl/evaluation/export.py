"""Results of runs as tables: Markdown to read, CSV and JSON to compute with. The Hub's forms are `hub_results`'s."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from leash_trl.evaluation.intervals import Estimate
from leash_trl.evaluation.numbers import percent, points, signed_tokens, tokens, with_interval, without_nan
from leash_trl.evaluation.results import (
    OVERALL,
    BenchmarkResult,
    Change,
    RunComparison,
    RunResults,
    compare_results,
    have_overall,
    interval_warning,
)


LEGEND = (
    "Avg@k: share of right completions, mean over problems. Accuracies and rates in %, differences in points. "
    "tokens: mean length of a completion. Brackets: 95 % interval of the mean over problems."
)
DIFFERENCE_LEGEND = "Those of differences are over the differences problem by problem."
OVERALL_LEGEND = "overall: unweighted mean over benchmarks."
OTHER_BENCHMARKS = "No overall: the runs have different benchmarks."
METRIC_LEGEND = (
    "pass@k: at least one of k completions is right. maj@k: the most frequent answer of k is right. short-m@k: the "
    "most frequent answer among the m shortest of k completions is right; all k run side by side until m have ended, "
    "waiting tokens: the length of the last of these, total tokens: what all k have computed by then. generated "
    "tokens: computed for one completion, trials of a decoding strategy included. right within B tokens: share of "
    "completions that are right and no longer than B."
)


def to_markdown(runs: Sequence[RunResults], baseline: RunResults | None = None) -> str:
    """The paper's table, one line per run; below it, per run, every metric with its interval.

    Empty where a number does not exist. Accuracies and rates in percent, their differences in points. Means over
    benchmarks stand where there are several, the same in all runs.

    Args:
        runs (`Sequence[RunResults]`):
            One run or more; they may have different benchmarks where no baseline is given.
        baseline (`RunResults`, *optional*):
            What differences are taken to. Its own line has none.

    Raises:
        `ValueError`: If a run and the baseline have different benchmarks or problems.
    """
    comparisons = _comparisons(runs, baseline)
    parts = [_main_table(runs, comparisons), _legend(runs, comparisons), METRIC_LEGEND]
    for run, comparison in zip(runs, comparisons, strict=True):
        parts += [f"## {_escaped(run.label)}", _detail_table(run)]
        if comparison is not None:
            parts.append(_change_table(comparison))
    return "\n\n".join(parts) + "\n"


def summary_markdown(runs: Sequence[RunResults], baseline: RunResults | None = None) -> str:
    """What a terminal shows of [`to_markdown`]: the paper's table and the differences, both with their intervals.

    Args:
        runs (`Sequence[RunResults]`), baseline (`RunResults`, *optional*):
            As in [`to_markdown`].

    Raises:
        `ValueError`: If a run and the baseline have different benchmarks or problems.
    """
    comparisons = _comparisons(runs, baseline)
    changes = [_change_table(comparison) for comparison in comparisons if comparison is not None]
    return (
        "\n\n".join([_main_table(runs, comparisons, has_intervals=True), *changes, _legend(runs, comparisons)]) + "\n"
    )


def _legend(runs: Sequence[RunResults], comparisons: Sequence[RunComparison | None]) -> str:
    legend = f"{LEGEND} {DIFFERENCE_LEGEND}" if any(comparisons) else LEGEND
    if have_overall(runs):
        legend = f"{legend} {OVERALL_LEGEND}"
    elif len({frozenset(run.problems) for run in runs}) > 1:
        legend = f"{legend} {OTHER_BENCHMARKS}"
    return "\n\n".join(filter(None, [legend, interval_warning(runs)]))


def _comparisons(runs: Sequence[RunResults], baseline: RunResults | None) -> list[RunComparison | None]:
    return [None if baseline is None or run is baseline else compare_results(run, baseline) for run in runs]


def _main_table(
    runs: Sequence[RunResults], comparisons: Sequence[RunComparison | None], has_intervals: bool = False
) -> str:
    names = list(dict.fromkeys(row.name for run in runs for row in run.benchmarks))
    names += [OVERALL] if have_overall(runs) else []
    sizes = {run.overall.num_samples for run in runs}
    metric = f"Avg@{sizes.pop()}" if len(sizes) == 1 else "Avg@k"
    heading = ["model"]
    for name in map(_escaped, names):
        heading += [f"{name} {metric}", f"{name} tokens"]
    has_changes = any(comparison is not None for comparison in comparisons)
    heading += ["Δ accuracy (points)", "Δ tokens (%)"] if has_changes else []
    rows = [
        [
            _name(run.label, run.overall),
            *_main_cells(run, names, has_intervals),
            *(_change_cells(comparison) if has_changes else []),
        ]
        for run, comparison in zip(runs, comparisons, strict=True)
    ]
    return _table(heading, rows)


def _main_cells(run: RunResults, names: Sequence[str], has_intervals: bool) -> list[str]:
    by_name = {row.name: row for row in run.rows}
    cells: list[str] = []
    for row in map(by_name.get, names):
        means = [] if row is None else [(row.accuracy, percent), (row.tokens, tokens)]
        shown = [with_interval(mean, unit) if has_intervals else unit(mean.value) for mean, unit in means]
        cells += shown or ["", ""]
    return cells


def _change_cells(comparison: RunComparison | None) -> list[str]:
    if comparison is None:
        return ["", ""]
    change = comparison.overall
    return [points(change.accuracy.value), points(change.relative_tokens.value)]


def _detail_table(run: RunResults) -> str:
    """One line per metric, because there are more metrics than benchmarks."""
    rows = run.rows if len(run.benchmarks) > 1 else run.benchmarks
    heading = ["metric", *(_name(row.name, row) for row in rows)]
    means = [
        [_metric(name, run.overall.num_samples), *(with_interval(row.means[name], _unit(name)) for row in rows)]
        for name in run.overall.means
    ]
    statistics = [[_words(name), *(tokens(row.statistics[name]) for row in rows)] for name in run.overall.statistics]
    problems = ["problems", *(str(row.num_problems) for row in rows)]
    return _table(heading, [problems, *means, *statistics])


def _metric(name: str, k: int) -> str:
    """A metric as the literature writes it."""
    if name.startswith("accuracy_within_"):
        return f"right within {int(name.rpartition('_')[2]):,} tokens"
    if name.startswith("pass_at_"):
        return f"pass@{name.rpartition('_')[2]}"
    if name.startswith("short_"):
        _, m, quantity = name.split("_", 2)
        return f"short-{m}@{k}" + ("" if quantity == "accuracy" else f" {_words(quantity)}")
    return {"accuracy": f"Avg@{k}", "majority": f"maj@{k}"}.get(name, _words(name))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _change_table(comparison: RunComparison) -> str:
    heading = [f"against {_escaped(comparison.baseline_label)}", "Δ accuracy (points)", "Δ tokens", "Δ tokens (%)"]
    rows = [
        [
            _escaped(change.name),
            with_interval(change.accuracy, points),
            with_interval(change.tokens, signed_tokens),
            with_interval(change.relative_tokens, points),
        ]
        for change in (comparison.rows if len(comparison.benchmarks) > 1 else comparison.benchmarks)
    ]
    return _table(heading, rows)


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    alignment = ["---", *["---:"] * (len(heading) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, alignment, *rows))


def _escaped(name: str) -> str:
    """A name that neither breaks a table nor turns into a tag."""
    one_line = " ".join(name.split())
    return one_line.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _name(name: str, row: BenchmarkResult) -> str:
    partial = f" (partial: {row.num_problems} of {row.num_expected} problems)" if row.is_partial else ""
    return _escaped(name) + partial


def _unit(name: str) -> Callable[[float], str]:
    return tokens if name.endswith("tokens") else percent


def to_csv(runs: Sequence[RunResults], baseline: RunResults | None = None) -> str:
    """Every metric in full precision, one line per run and benchmark, the overall line last.

    A metric with an interval has three columns (`accuracy`, `accuracy_low`, `accuracy_high`). Columns come in the
    order of `BenchmarkResult`, then the changes, then what only later runs have; empty where a number does not exist.

    Args:
        runs (`Sequence[RunResults]`):
            One run or more.
        baseline (`RunResults`, *optional*):
            What changes are taken to.

    Raises:
        `ValueError`: If a run and the baseline have different benchmarks or problems.
    """
    records = [
        _record(run, row, change)
        for run, comparison in zip(runs, _comparisons(runs, baseline), strict=True)
        for row, change in zip(run.rows, comparison.rows if comparison else [None] * len(run.rows), strict=True)
    ]
    columns = dict.fromkeys(column for record in records for column in record)
    output = io.StringIO()
    writer = csv.DictWriter(output, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(without_nan, records))
    return output.getvalue()


def _record(run: RunResults, row: BenchmarkResult, change: Change | None) -> dict[str, Any]:
    return {
        "label": run.label,
        "model": run.run["model"],
        "step": run.run.get("step"),
        "benchmark": row.name,
        "num_problems": row.num_problems,
        "num_expected": row.num_expected,
        "num_graded": row.num_graded,
        "num_samples": row.num_samples,
        **_with_bounds(row.means),
        **row.statistics,
        **({} if change is None else _with_bounds(_changes(change))),
    }


def _changes(change: Change) -> dict[str, Estimate]:
    return {
        "accuracy_change": change.accuracy,
        "token_change": change.tokens,
        "relative_token_change": change.relative_tokens,
    }


def _with_bounds(means: Mapping[str, Estimate]) -> dict[str, float]:
    return {
        column: number
        for name, mean in means.items()
        for column, number in ((name, mean.value), (f"{name}_low", mean.low), (f"{name}_high", mean.high))
    }


def to_json(runs: Sequence[RunResults], baseline: RunResults | None = None) -> str:
    """Every metric in full precision with what each run's folder says about it; `null` where a number does not exist.

    Args:
        runs (`Sequence[RunResults]`):
            One run or more.
        baseline (`RunResults`, *optional*):
            What changes are taken to; they are `null` without one, and for the baseline itself.

    Raises:
        `ValueError`: If a run and the baseline have different benchmarks or problems.
    """
    document = [
        {
            "run": run.run,
            "benchmarks": [asdict(row) for row in run.benchmarks],
            "overall": asdict(run.overall),
            "warning": interval_warning([run]) or None,
            "changes": None if comparison is None else asdict(comparison),
        }
        for run, comparison in zip(runs, _comparisons(runs, baseline), strict=True)
    ]
    return json.dumps(without_nan(document), ensure_ascii=False, allow_nan=False, indent=2) + "\n"
