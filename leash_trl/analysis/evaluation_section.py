"""Builds the part of a report on evaluated runs: the paper's table, each benchmark, budgets, behaviour."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leash_trl.analysis.behavior import behavior_table, draw_behavior, load_behaviors
from leash_trl.analysis.evaluated_runs import (
    Changes,
    budget_curves,
    changes_from_first,
    headline,
    load_evaluated_runs,
    trade_offs,
)
from leash_trl.analysis.page import Paragraph, Picture, Section, Table
from leash_trl.evaluation.numbers import percent, points, tokens, with_interval
from leash_trl.evaluation.results import OVERALL, BenchmarkResult, RunResults, have_overall, interval_warning
from leash_trl.figures import NARROW, WIDE, budget_figure, pareto_figure


MANY_RUNS = 6  # whose labels need a wide figure
NO_OVERALL = (
    "No means over benchmarks, and no figures of them: the runs have different benchmarks. leash plot with "
    "--benchmark draws one."
)


def evaluation_section(folders: Sequence[Path]) -> Section:
    """Metrics, budgets and behaviour of evaluated runs, against the first of them.

    Args:
        folders (`Sequence[Path]`):
            Folders that `leash eval` wrote; the first is the baseline.

    Raises:
        `ValueError`: If a folder holds no evaluated run, or the run is not finished.
    """
    results = load_evaluated_runs(folders)
    changes, notes = changes_from_first(results)
    benchmarks = list(dict.fromkeys(row.name for result in results.values() for row in result.benchmarks))
    are_alike = len({frozenset(result.problems) for result in results.values()}) == 1
    words = [*notes, interval_warning(results.values()), "" if are_alike else NO_OVERALL]
    return Section(
        "Evaluation",
        [
            *(Paragraph(sentence) for sentence in words if sentence),
            _main_table(results, changes, benchmarks),
            *(_result_pictures(results) if are_alike else []),
            *([_change_table(results, changes, benchmarks)] if changes and len(benchmarks) > 1 else []),
            *(_benchmark_table(name, results) for name in benchmarks),
            *_behavior_blocks(folders),
            _settings_table(results),
        ],
        headline(results, changes),
    )


def _main_table(results: Mapping[str, RunResults], changes: Changes, benchmarks: Sequence[str]) -> Table:
    parts = ["Avg@k in % and mean tokens per benchmark."]
    shown = [*([OVERALL] if have_overall(results.values()) else []), *benchmarks]
    if have_overall(results.values()):
        parts.append("overall: unweighted mean over benchmarks, as in the paper.")
    if changes:
        parts.append(
            f"Δ: difference from {next(iter(results))} on the same problems, tokens in %, accuracy in points, with "
            "95 % intervals over problems."
        )
    return Table(
        caption=" ".join(parts),
        head=[
            "run",
            *(["Δ tokens", "Δ accuracy"] if changes else []),
            *(["overall accuracy", "overall tokens"] if have_overall(results.values()) else []),
            *(f"{name} {unit}" for name in benchmarks for unit in (_metric(results), "tokens")),
        ],
        rows=[
            [label, *(_change_cells(changes, label, OVERALL) if changes else []), *_main_cells(result, shown)]
            for label, result in results.items()
        ],
    )


def _metric(results: Mapping[str, RunResults]) -> str:
    sizes = {result.overall.num_samples for result in results.values()}
    return f"Avg@{sizes.pop()}" if len(sizes) == 1 else "Avg@k"


def _main_cells(result: RunResults, names: Sequence[str]) -> list[str]:
    rows = {row.name: row for row in result.rows}
    cells = []
    for name in names:
        cells += [percent(rows[name].accuracy.value), tokens(rows[name].tokens.value)] if name in rows else ["", ""]
    return cells


def _change_cells(changes: Changes, label: str, name: str) -> list[str]:
    change = changes.get(label, {}).get(name)
    if change is None:
        return ["", ""]
    return [with_interval(change.relative_tokens, points), with_interval(change.accuracy, points)]


def _change_table(results: Mapping[str, RunResults], changes: Changes, benchmarks: Sequence[str]) -> Table:
    return Table(
        caption=f"Differences from {next(iter(results))} per benchmark: tokens in %, accuracy in points.",
        head=["run", *(f"{name} Δ {unit}" for name in benchmarks for unit in ("tokens", "accuracy"))],
        rows=[
            [label, *(cell for name in benchmarks for cell in _change_cells(changes, label, name))]
            for label in changes
        ],
    )


def _benchmark_table(name: str, results: Mapping[str, RunResults]) -> Table:
    found = {label: row for label, result in results.items() for row in result.benchmarks if row.name == name}
    rows = [{"run": label, **_benchmark_cells(row)} for label, row in found.items()]
    return Table(
        caption=f"{name}: {next(iter(found.values())).num_problems} problems. Accuracies and rates in %, with 95 % "
        "intervals of the mean over problems; tokens per response: mean, median, 95th percentile, mean of right and "
        "of wrong answers. pass@k and maj@k with k samples.",
        head=list(rows[0]),
        rows=[list(row.values()) for row in rows],
    )


def _benchmark_cells(row: BenchmarkResult) -> dict[str, str]:
    k = row.num_samples
    return {
        "k": str(k),
        "Avg@k": with_interval(row.accuracy, percent),
        "pass@k": percent(row.means[f"pass_at_{k}"].value) if k > 1 else "",
        "maj@k": percent(row.means["majority"].value),
        "tokens": with_interval(row.tokens, tokens),
        "median": tokens(row.statistics["median_tokens"]),
        "p95": tokens(row.statistics["p95_tokens"]),
        "right": tokens(row.statistics["right_tokens"]),
        "wrong": tokens(row.statistics["wrong_tokens"]),
        "cut off": percent(row.means["truncated_rate"].value),
        "no answer": percent(row.means["no_answer_rate"].value),
    }


def _result_pictures(results: dict[str, RunResults]) -> list[Picture]:
    base, *others = trade_offs(results)
    labels = ", ".join(results)
    budgets = Picture(
        name="budget",
        caption="Share of completions that are right and fit a token budget (mean over benchmarks), with intervals.",
        description=f"Line plot of accuracy over token budgets of {labels}.",
        figure=budget_figure(budget_curves(results), width=NARROW),
    )
    pareto = Picture(
        name="evaluation-pareto",
        caption=f"Accuracy over mean tokens, means over benchmarks, with 95 % intervals. Diamond: {base.name}.",
        description=f"Scatter plot of accuracy over mean tokens of {labels}.",
        figure=pareto_figure(others, base, width=NARROW if len(others) < MANY_RUNS else WIDE),
    )
    return [pareto, budgets] if others else [budgets]


def _behavior_blocks(folders: Sequence[Path]) -> list[Table | Picture]:
    checkpoints = load_behaviors(folders)
    picture = Picture(
        name="behavior",
        caption="Mean response length, and the paper's keyword groups per response, with 95 % intervals.",
        description=f"Two plots, length and keyword counts, of {', '.join(point.label for point in checkpoints)}.",
        figure=draw_behavior(checkpoints, columns=1),
    )
    return [behavior_table(checkpoints), picture]


def _settings_table(results: Mapping[str, RunResults]) -> Table:
    settings = [_settings(result.run) for result in results.values()]
    names = list(dict.fromkeys(name for values in settings for name in values))
    rows = [[name, *(values.get(name, "") for values in settings)] for name in names]
    return Table("How the runs were sampled.", ["setting", *results], rows)


def _settings(run: Mapping[str, Any]) -> dict[str, str]:
    values = {name: value for name, value in run.items() if name != "label" and not isinstance(value, dict)}
    if weights := values.get("weights"):
        values["weights"] = weights[:8]  # the complete hash would not fit a phone
    values |= {f"decoding: {key}": value for key, value in run["decoding"].items()}
    values |= run["sampling"]
    values |= {f"version of {name}": version for name, version in run["versions"].items()}
    return {name: str(value) for name, value in values.items() if value is not None}
