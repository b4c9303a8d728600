"""Builds the tables of evaluations, for `leash eval`, cards and reports: Markdown to read, CSV and JSON for programs.

A cell is empty where its number is not defined.
"""

import html
import json
import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from leash_trl.completions.costs import TOKEN_COSTS, cost_label
from leash_trl.evaluation.changes import changes_from_baseline
from leash_trl.evaluation.intervals import Estimate
from leash_trl.evaluation.metrics import OVERALL
from leash_trl.evaluation.runs import EvaluatedRun, have_comparable_overall, warning_line
from leash_trl.files import write_atomically


# A legend is a sentence, followed by a list of terms, one per line.
SUMMARY_LEGEND = (
    "Results in %, with 95 % intervals over problems; differences are in percentage points, with intervals over the "
    "differences of each problem.\n"
    "- Avg@k: share of correct completions (own rewards: above 0), mean over problems\n"
    "- truncated rate: share of completions cut at max_new_tokens\n"
    "- tokens: mean length of a completion\n"
    "- sd, p95: standard deviation and 95th percentile over completions\n"
    "- thinking tokens: up to the last end of thinking"
)
METRIC_LEGEND = (
    "Names of metrics.\n"
    "- pass@k: at least one of k answers is right\n"
    "- maj@k: the most frequent answer is right\n"
    "- right within B tokens: right and at most B tokens long\n"
    "- within N: share of completions that cost no more than the target\n"
    "- overall: mean over benchmarks"
)


def format_percent(share: float) -> str:
    """Formats a share in percent."""
    return "" if pd.isna(share) else f"{100 * share:.1f}"


def format_tokens(count: float, sign: str = "") -> str:
    """Formats a number of tokens, without decimals from 1,000 on, as `16,912` or `46.0`, or a difference of such
    numbers, with `sign="+z"`, as `-1,024` or `+0.0`; NaN becomes empty text."""
    if pd.isna(count):
        return ""
    return f"{count:{sign},.0f}" if abs(count) >= 1000 else f"{count:{sign},.1f}"


def format_cost(number: float, length_of: str, sign: str = "") -> str:
    """Formats a number of tokens, or another cost, which may be small; for `sign`, see [`format_tokens`].

    Example:
        >>> format_cost(1024.0, "thinking"), format_cost(8.625, "checking"), format_cost(8.625, "tool_calls")
        ('1,024', '8.6', '8.62')
        >>> format_cost(-1220.6, "costs.py:num_words", sign="+z"), format_cost(-0.0375, "costs.py:num_dollars")
        ('-1,221', '-0.0375')
    """
    is_large = length_of in TOKEN_COSTS or abs(number) >= 10
    return format_tokens(number, sign) if is_large else format_number(number, sign)


def format_number(number: float, sign: str = "") -> str:
    """Formats a number with three significant digits; for `sign`, see [`format_tokens`]."""
    return "" if pd.isna(number) else f"{number:{sign}.3g}"


def format_points(share: float) -> str:
    """Formats a difference of shares in percentage points, or a relative difference in percent, as `-50.0`."""
    return f"{100 * share:+z.1f}"


def with_interval(number: Estimate, formatter: Callable[[float], str]) -> str:
    """Formats a number with its interval, if it has one: `"50.0 [40.0, 62.5]"`."""
    if math.isnan(number.low):
        return formatter(number.value)
    return f"{formatter(number.value)} [{formatter(number.low)}, {formatter(number.high)}]"


def markdown(frame: pd.DataFrame) -> str:
    """Formats a frame of text as a Markdown table, with the first column aligned left and the others right."""
    alignment = ["---:"] * len(frame.columns)
    alignment[0] = "---"
    rows = [frame.columns, alignment, *frame.itertuples(index=False, name=None)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def csv(frame: pd.DataFrame) -> str:
    """Formats a frame as CSV in full precision, with empty cells for `None` and NaN."""
    return frame.to_csv(index=False, lineterminator="\n")


def escaped(text: str) -> str:
    r"""Escapes text so that Markdown shows it unchanged, without tags, links, emphasis, new cells or new lines.

    Example:
        >>> escaped("<b> | [x](y)\n*z* [1.0, 2.0]")
        '&lt;b&gt; \\| [x]\\(y) \\*z\\* [1.0, 2.0]'
    """
    text = " ".join(text.split())  # on one line
    text = text.replace("\\", "\\\\")
    text = html.escape(text, quote=False)
    text = text.replace("](", "]\\(")
    # cells of tables, emphasis and code
    return re.sub(r"([|*`])", r"\\\1", text)


# for each metric its name in the literature, with fields for `at`, k and the run's cost, and how to format it
METRICS: dict[str, tuple[str, Callable[..., str]]] = {
    "accuracy": ("Avg@{k}", format_percent),
    "pass": ("pass@{at:.0f}", format_percent),
    "majority": ("maj@{k}", format_percent),
    "reward": ("reward", format_number),
    "tokens": ("tokens", format_tokens),
    "thinking_tokens": ("thinking tokens", format_tokens),
    "answer_tokens": ("answer tokens", format_tokens),
    "cost": ("{cost}", format_cost),
    "within_target": ("within {at:g} {cost}", format_percent),
    "truncated_rate": ("truncated rate", format_percent),
    "completed_accuracy": ("Avg of completed", format_percent),
    "truncated_accuracy": ("Avg of truncated", format_percent),
    "completed_reward": ("reward of completed", format_number),
    "truncated_reward": ("reward of truncated", format_number),
    "no_answer_rate": ("no answer rate", format_percent),
    "accuracy_within": ("right within {at:,.0f} tokens", format_percent),
    "sd_tokens": ("sd tokens", format_tokens),
    "median_tokens": ("median tokens", format_tokens),
    "p95_tokens": ("p95 tokens", format_tokens),
    "right_tokens": ("right tokens", format_tokens),
    "wrong_tokens": ("wrong tokens", format_tokens),
    "accuracy_change": ("Δ accuracy (points)", format_points),
    "reward_change": ("Δ reward", "{:+.3g}".format),
    "tokens_change": ("Δ tokens", partial(format_tokens, sign="+z")),
    "cost_change": ("Δ {cost}", partial(format_cost, sign="+z")),
    "relative_tokens_change": ("Δ tokens (%)", format_points),
}
COST_METRICS = ("cost", "cost_change")  # their format depends on the run's `length_of`


SUMMARY_METRICS = (
    "accuracy",
    "reward",
    "truncated_rate",
    "tokens",
    "sd_tokens",
    "p95_tokens",
    "thinking_tokens",
    "cost",
    "within_target",
)
# in the summary too if a completion was truncated
METRICS_BY_ENDING = ("completed_accuracy", "truncated_accuracy", "completed_reward", "truncated_reward")


def results_markdown(run: EvaluatedRun, baseline: EvaluatedRun | None = None) -> str:
    """Returns [`summary_markdown`], followed by every metric of the run with its interval."""
    has_overall = have_comparable_overall([run])
    cells = metric_cells(run, run.results, has_overall)  # a column per benchmark
    num_problems = run.results.groupby("benchmark")["num_problems"].first().astype(str)
    # The first row has the number of problems of each column.
    problems_row = num_problems[[*cells]].to_frame("problems").T
    table = pd.concat([problems_row, cells])
    table = table.rename_axis("metric").reset_index()
    parts = [
        summary_markdown(run, baseline),
        f"## {escaped(run.label)}",
        markdown(table),
        METRIC_LEGEND,
    ]
    return "\n\n".join(parts) + "\n"


def summary_markdown(run: EvaluatedRun, baseline: EvaluatedRun | None = None) -> str:
    """Returns the table of [`summary_table`], and the differences from the baseline, for terminals and model
    cards.

    Raises:
        `ValueError`: If the run and its baseline have different benchmarks or problems.
    """
    runs = [baseline, run] if baseline else [run]
    summary = summary_table(runs)
    summary["model"] = summary["model"].map(escaped)
    parts = [markdown(summary)]
    if baseline:
        changes = changes_from_baseline(run, baseline)
        has_overall = have_comparable_overall([run])
        differences = metric_cells(run, changes, has_overall).T  # a row per benchmark
        differences = differences.rename_axis(f"against {escaped(baseline.label)}").reset_index()
        parts.append(markdown(differences))
    parts.append(SUMMARY_LEGEND)
    parts.append(warning_line(runs))
    # Without a warning the last part is empty, and `strip` removes the blank lines before it.
    return "\n\n".join(parts).strip() + "\n"


def summary_table(runs: Sequence[EvaluatedRun]) -> pd.DataFrame:
    """Returns the table of [`SUMMARY_METRICS`], with [`METRICS_BY_ENDING`] if any completion was truncated, one row
    per benchmark and run."""
    are_truncated = any(run.estimate("truncated_rate").value > 0 for run in runs)
    metrics = SUMMARY_METRICS + METRICS_BY_ENDING if are_truncated else SUMMARY_METRICS
    has_overall = have_comparable_overall(runs)
    parts = []
    for run in runs:
        is_in_summary = run.results["metric"].isin(metrics)
        cells = metric_cells(run, run.results[is_in_summary], has_overall).T  # a row per benchmark
        cells = cells.rename_axis("benchmark").reset_index()
        cells.insert(1, "model", run.label)
        parts.append(cells)
    # A run may lack a metric, so its cell is empty.
    table = pd.concat(parts).fillna("")
    # This brings the rows of each benchmark together.
    return pd.concat([rows for _, rows in table.groupby("benchmark", sort=False)])


def metric_cells(run: EvaluatedRun, rows: pd.DataFrame, has_overall: bool) -> pd.DataFrame:
    """Returns numbers with their intervals, one row per metric and one column per benchmark, with a column for the
    mean over benchmarks if `has_overall` is true."""
    # cells by benchmark and heading, such as {"aime24": {"pass@4": "62.5 [40.0, 80.1]"}}
    cells: dict[str, dict[str, str]] = {}
    length_of = run.record["length_of"]
    for row in rows.itertuples():
        if row.benchmark == OVERALL and not has_overall:
            continue
        name, formatter = METRICS[row.metric]
        if row.metric in COST_METRICS:
            formatter = partial(formatter, length_of=length_of)
        # `name` may have placeholders, as "pass@{at:.0f}" has.
        heading = name.format(at=row.at, k=row.num_samples, cost=cost_label(length_of))
        estimate = Estimate(row.value, row.low, row.high)
        benchmark_cells = cells.setdefault(row.benchmark, {})
        benchmark_cells[heading] = with_interval(estimate, formatter)
    # A benchmark may lack a metric, so its cell is empty.
    return pd.DataFrame(cells).fillna("")


def write_results(folder: Path, run: EvaluatedRun, baseline: EvaluatedRun | None) -> None:
    """Writes `results.md`, and `results.csv` and `results.json` in full precision, with the changes from the
    baseline."""
    rows = run.results
    if baseline:
        rows = pd.concat([rows, changes_from_baseline(run, baseline)], ignore_index=True)
    # `step` is the number of policy updates of the model, or None if it has no trainer state.
    names = {
        "label": run.label,
        "model": run.record["model"],
        "step": run.record["step"],
    }
    # A DataFrame repeats single values in every row.
    table = pd.DataFrame({**names, **rows})
    document = {
        "run": run.record,
        "baseline": baseline.label if baseline else None,
        "results": rows.astype(object).where(rows.notna(), None).to_dict("records"),  # JSON has no NaN
    }
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2)
    write_atomically(folder / "results.md", results_markdown(run, baseline))
    write_atomically(folder / "results.csv", csv(table))
    write_atomically(folder / "results.json", text + "\n")
