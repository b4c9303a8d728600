"""Writes the results of a run as Markdown to read, and as CSV and JSON to compute with."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from leash_trl.evaluation.changes import RunComparison, compare_results
from leash_trl.evaluation.hub_results import hub_benchmarks, hub_eval_results
from leash_trl.evaluation.intervals import Estimate
from leash_trl.evaluation.numbers import (
    csv_table,
    markdown_table,
    percent,
    points,
    signed_tokens,
    tokens,
    with_interval,
    without_nan,
)
from leash_trl.evaluation.results import OVERALL, BenchmarkResult, RunResults, have_overall, interval_warning
from leash_trl.files import write_whole


LEGEND = (
    "Avg@k: share of correct completions, mean over problems. Accuracies and rates in %, differences in points. "
    "tokens: mean length of a completion. Brackets: 95 % interval of the mean over problems."
)
DIFFERENCE_LEGEND = "Those of differences are over the differences problem by problem."
OVERALL_LEGEND = "overall: unweighted mean over benchmarks."
METRIC_LEGEND = (
    "pass@k: at least one of k completions is right. maj@k: the most frequent answer of k is right. short-m@k: the "
    "most frequent answer among the m shortest of k completions is right; all k run side by side until m have ended, "
    "waiting tokens: the length of the last of these, total tokens: what all k have computed by then. generated "
    "tokens: computed for one completion, trials of a decoding strategy included. right within B tokens: share of "
    "completions that are right and no longer than B."
)


def to_markdown(run: RunResults, baseline: RunResults | None = None) -> str:
    """The paper's table, one line per run; below it every metric of the run with its interval, and the differences.

    Empty where a number does not exist. Accuracies and rates in percent, their differences in points.

    Args:
        run (`RunResults`):
            The run.
        baseline (`RunResults`, *optional*):
            The run to compare with.

    Raises:
        `ValueError`: If run and baseline have different benchmarks or problems.
    """
    changes = [] if baseline is None else [_change_table(compare_results(run, baseline))]
    detail = [METRIC_LEGEND, f"## {_escaped(run.label)}", _detail_table(run)]
    return "\n\n".join([_main_table(run, baseline), _legend(run, baseline), *detail, *changes]) + "\n"


def summary_markdown(run: RunResults, baseline: RunResults | None = None) -> str:
    """The part of [`to_markdown`] for a terminal and the model card: the paper's table and the differences.

    Args:
        run (`RunResults`), baseline (`RunResults`, *optional*):
            As in [`to_markdown`].

    Raises:
        `ValueError`: If run and baseline have different benchmarks or problems.
    """
    changes = [] if baseline is None else [_change_table(compare_results(run, baseline))]
    return "\n\n".join([_main_table(run, baseline), *changes, _legend(run, baseline)]) + "\n"


def _legend(run: RunResults, baseline: RunResults | None) -> str:
    parts = [LEGEND, DIFFERENCE_LEGEND if baseline else "", OVERALL_LEGEND if have_overall([run]) else ""]
    warning = interval_warning([run] if baseline is None else [baseline, run])
    return "\n\n".join(filter(None, [" ".join(filter(None, parts)), warning]))


def _main_table(run: RunResults, baseline: RunResults | None) -> str:
    """Accuracy and tokens on each benchmark, of the baseline and the run."""
    runs = [run] if baseline is None else [baseline, run]
    names = [*run.problems, *([OVERALL] if have_overall(runs) else [])]
    sizes = {each.overall.num_samples for each in runs}
    metric = f"Avg@{sizes.pop()}" if len(sizes) == 1 else "Avg@k"
    rows = []
    for each in runs:
        by_name = {row.name: row for row in each.rows}
        means = [(by_name[name].accuracy, by_name[name].tokens) for name in names]
        cells = [[with_interval(accuracy, percent), with_interval(length, tokens)] for accuracy, length in means]
        rows.append([_escaped(each.label), *chain.from_iterable(cells)])
    columns = [f"{_escaped(name)} {unit}" for name in names for unit in (metric, "tokens")]
    return markdown_table(["model", *columns], rows)


def _detail_table(run: RunResults) -> str:
    """One line per metric, because there are more metrics than benchmarks."""
    rows = _shown(run)
    means = [
        [_metric(name, run.overall.num_samples), *(with_interval(row.means[name], _unit(name)) for row in rows)]
        for name in run.overall.means
    ]
    statistics = [[_words(name), *(tokens(row.statistics[name]) for row in rows)] for name in run.overall.statistics]
    problems = ["problems", *(str(row.num_problems) for row in rows)]
    return markdown_table(["metric", *(_escaped(row.name) for row in rows)], [problems, *means, *statistics])


def _shown(run: RunResults) -> Sequence[BenchmarkResult]:
    """One benchmark needs no mean over benchmarks."""
    return run.rows if have_overall([run]) else run.benchmarks


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
    return markdown_table(heading, rows)


def _escaped(name: str) -> str:
    """A name that neither breaks a table nor turns into a tag."""
    one_line = " ".join(name.split())
    return one_line.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _unit(name: str) -> Callable[[float], str]:
    return tokens if name.endswith("tokens") else percent


def to_csv(run: RunResults, baseline: RunResults | None = None) -> str:
    """Every metric in full precision, one line per benchmark, the overall line last.

    A metric with an interval has three columns (`accuracy`, `accuracy_low`, `accuracy_high`). Columns come in the
    order of `BenchmarkResult`, then the changes; empty where a number does not exist.

    Args:
        run (`RunResults`), baseline (`RunResults`, *optional*):
            As in [`to_markdown`].

    Raises:
        `ValueError`: If run and baseline have different benchmarks or problems.
    """
    records = [_record(run, row) for row in run.rows]
    if baseline is not None:
        for record, change in zip(records, compare_results(run, baseline).rows, strict=True):
            record |= _with_bounds(
                {
                    "accuracy_change": change.accuracy,
                    "token_change": change.tokens,
                    "relative_token_change": change.relative_tokens,
                }
            )
    return csv_table(records)


def _record(run: RunResults, row: BenchmarkResult) -> dict[str, Any]:
    return {
        "label": run.label,
        "model": run.run["model"],
        "step": run.run.get("step"),
        "benchmark": row.name,
        "num_problems": row.num_problems,
        "num_graded": row.num_graded,
        "num_samples": row.num_samples,
        **_with_bounds(row.means),
        **row.statistics,
    }


def _with_bounds(means: Mapping[str, Estimate]) -> dict[str, float]:
    return {
        column: number
        for name, mean in means.items()
        for column, number in ((name, mean.value), (f"{name}_low", mean.low), (f"{name}_high", mean.high))
    }


def to_json(run: RunResults, baseline: RunResults | None = None) -> str:
    """Every metric in full precision, and the run's settings; `null` where a number does not exist.

    Args:
        run (`RunResults`), baseline (`RunResults`, *optional*):
            As in [`to_markdown`]. Without a baseline the changes are `null`.

    Raises:
        `ValueError`: If run and baseline have different benchmarks or problems.
    """
    document = {
        "run": run.run,
        "benchmarks": [asdict(row) for row in run.benchmarks],
        "overall": asdict(run.overall),
        "warning": interval_warning([run]) or None,
        "changes": None if baseline is None else asdict(compare_results(run, baseline)),
    }
    return json.dumps([without_nan(document)], ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def write_results(folder: Path, results: RunResults, baseline: RunResults | None) -> None:
    """Writes `results.md`, `.csv` and `.json` and, for whole benchmarks of the Hub, `hub_eval_results.yaml`."""
    for suffix, export in (("md", to_markdown), ("csv", to_csv), ("json", to_json)):
        write_whole(folder / f"results.{suffix}", export(results, baseline))
    if hub_benchmarks(results):
        write_whole(folder / "hub_eval_results.yaml", hub_eval_results(results))
