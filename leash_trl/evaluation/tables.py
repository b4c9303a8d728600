"""Builds the tables of `leash eval`, `leash compare`, cards and reports: Markdown to read, CSV and JSON for programs.

`frame` has the numbers of runs, `intervals` the arithmetic. A number is empty where it does not exist.
"""

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from huggingface_hub import EvalResult, EvalResultEntry, eval_result_entries_to_yaml

from leash_trl.evaluation.frame import OVERALL, EvaluatedRun, changes, have_overall, warning
from leash_trl.evaluation.intervals import (
    SIGNIFICANCE,
    Estimate,
    few_problems,
    holm,
    mean_amount,
    mean_over_seeds,
    mean_share,
    t_quantile,
    welch,
)
from leash_trl.files import write_whole


# weights of the accuracy-efficiency score
LENGTH_WEIGHT = 1.0
GAIN_WEIGHT = 3.0
LOSS_WEIGHT = 5.0
WINDOW = 10  # training batches in a running mean; single ones are noise
MARGIN = 0.05  # a point may be longer by this share and still beat another
LAST_COLUMN = "generated_tokens"  # of a comparison's files; then come the fields of its grid
SETTLING = ("settling_error", "near_target_share", "overshoot", "steps_to_target")

COMPARISON_LEGEND = (
    "[95 % of the mean]: Student's t interval of the mean over seeds, for these problems; it is no range of the "
    "seeds, which seeds.csv lists. Where there is one seed or none, it is an interval over problems. "
    "p95: 95th percentile of the lengths of all completions. "
    "change: tokens against base. satisfied: share of completions at or under the target. "
    "settled off (worst): distance of the last quarter of the training batches from the target, mean over seeds and "
    "the greatest of them. "
    "stays near: once it is met, share of running means over ten training batches within 10 % of it. "
    "overshoot: how far they went below it, in the seeds that met it. "
    "steps to target: first training batch with its mean at or under the target, mean over the seeds that got there. "
    "These four count from the last change of the target. "
    "Where generation is cut at the target, they show the cut, not the policy. "
    "AES: accuracy-efficiency score of the means over seeds, 0 is the base."
)
FRONT_LEGEND = (
    "front: a point is off it if another one beats it, which has a higher accuracy at less than 1.05 times its mean "
    "tokens. It is on it if every other point has a lower accuracy or more tokens. Each must be shown: the 95 % "
    "interval of the difference excludes 0. after Holm: the same with Holm's correction over all differences of all "
    "points."
)
EQUAL_LENGTH_LEGEND = (
    "Accuracy at equal length: lines through the points of each seed, over the logarithm of tokens, and the mean of "
    "their difference over the logarithms that both curves cover with every seed. [95 % of the mean]: Student's t "
    "interval of the seeds' differences. n/a: no such tokens, or other seeds."
)
LEVEL_LEGEND = (
    "By level, which is the number of terms to add: accuracy and mean tokens, means over seeds. levels.csv has "
    "Student's t intervals of the means over seeds."
)


def percent(share: float | None) -> str:
    """A share in percent.

    Example:
        >>> percent(0.1234), percent(None)
        ('12.3', '')
    """
    return "" if share is None or math.isnan(share) else f"{100 * share:.1f}"


def tokens(count: float | None) -> str:
    """A number of tokens: without decimals from 1,000 on.

    Example:
        >>> tokens(16912.4), tokens(46.04)
        ('16,912', '46.0')
    """
    return "" if count is None or math.isnan(count) else f"{count:,.0f}" if abs(count) >= 1000 else f"{count:.1f}"


def plain(number: float | None) -> str:
    """A number without a unit, with three digits.

    Example:
        >>> plain(0.58061), plain(63.5), plain(0.0)
        ('0.581', '63.5', '0')
    """
    return "" if number is None or math.isnan(number) else f"{number:.3g}"


def points(share: float) -> str:
    """A difference of shares in points, or a relative one in percent, with its sign.

    Example:
        >>> points(-0.5), points(-0.0001)
        ('-50.0', '+0.0')
    """
    return f"{_without_minus_zero(100 * share):+.1f}"


def signed_tokens(count: float) -> str:
    """A difference of numbers of tokens.

    Example:
        >>> signed_tokens(-9854.2), signed_tokens(-0.01)
        ('-9,854', '+0.0')
    """
    return f"{count:+,.0f}" if abs(count) >= 1000 else f"{_without_minus_zero(count):+.1f}"


def _without_minus_zero(value: float) -> float:
    """A value at the one digit it is shown with; adding zero turns the -0.0 of a small loss into 0.0."""
    return round(value, 1) + 0.0


def with_interval(number: Estimate, shown: Callable[[float], str]) -> str:
    """A number and its interval, if it has one.

    Example:
        >>> with_interval(Estimate(0.5, 0.4, 0.625), percent)
        '50.0 [40.0, 62.5]'
    """
    return shown(number.value) + ("" if math.isnan(number.low) else f" [{shown(number.low)}, {shown(number.high)}]")


def markdown(frame: pd.DataFrame) -> str:
    """A Markdown table of a frame of text, whose first column is words and whose others are numbers.

    Example:
        >>> print(markdown(pd.DataFrame({"run": ["base"], "tokens": ["7"]})))
        | run | tokens |
        | --- | ---: |
        | base | 7 |
    """
    alignment = ["---", *["---:"] * (len(frame.columns) - 1)]
    rows = ([*frame.columns], alignment, *frame.itertuples(index=False, name=None))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def csv(frame: pd.DataFrame) -> str:
    """A frame as CSV in full precision, empty for `None` and NaN.

    Example:
        >>> csv(pd.DataFrame([{"run": "base"}, {"run": "leash", "tokens": 7.0}])).splitlines()
        ['run,tokens', 'base,', 'leash,7.0']
    """
    text: str = frame.to_csv(index=False, lineterminator="\n")
    return text


def escaped(name: str) -> str:
    """A name that neither breaks a table nor turns into a tag.

    Example:
        >>> escaped("a <b>")
        'a &lt;b>'
    """
    return " ".join(name.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


# of each metric with `at` and k: its column in files, its name in the literature, its form, whether it has an interval
METRICS = {
    "accuracy": ("accuracy", "Avg@{k}", percent, True),
    "pass": ("pass_at_{at:.0f}", "pass@{at:.0f}", percent, True),
    "majority": ("majority", "maj@{k}", percent, True),
    "short_accuracy": ("short_{at:.0f}_accuracy", "short-{at:.0f}@{k}", percent, True),
    "short_waiting_tokens": ("short_{at:.0f}_waiting_tokens", "short-{at:.0f}@{k} waiting tokens", tokens, True),
    "short_total_tokens": ("short_{at:.0f}_total_tokens", "short-{at:.0f}@{k} total tokens", tokens, True),
    "tokens": ("tokens", "tokens", tokens, True),
    "generated_tokens": ("generated_tokens", "generated tokens", tokens, True),
    "truncated_rate": ("truncated_rate", "truncated rate", percent, True),
    "no_answer_rate": ("no_answer_rate", "no answer rate", percent, True),
    "accuracy_within": ("accuracy_within_{at:.0f}", "right within {at:,.0f} tokens", percent, True),
    "median_tokens": ("median_tokens", "median tokens", tokens, False),
    "p95_tokens": ("p95_tokens", "p95 tokens", tokens, False),
    "right_tokens": ("right_tokens", "right tokens", tokens, False),
    "wrong_tokens": ("wrong_tokens", "wrong tokens", tokens, False),
}
CHANGES = {
    "accuracy": ("accuracy_change", "Δ accuracy (points)", points),
    "tokens": ("token_change", "Δ tokens", signed_tokens),
    "relative_tokens": ("relative_token_change", "Δ tokens (%)", points),
}
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


def results_markdown(run: EvaluatedRun, baseline: EvaluatedRun | None = None) -> str:
    """The paper's table, one line per run; below it every metric of the run with its interval, and the differences.

    Raises:
        `ValueError`: If run and baseline have different benchmarks or problems.
    """
    parts = [_main_table(run, baseline), _legend(run, baseline), METRIC_LEGEND, f"## {escaped(run.label)}"]
    return "\n\n".join([*parts, _detail_table(run), *_change_table(run, baseline)]) + "\n"


def summary_markdown(run: EvaluatedRun, baseline: EvaluatedRun | None = None) -> str:
    """The part of [`results_markdown`] for a terminal and the model card: the paper's table and the differences.

    Raises:
        `ValueError`: If run and baseline have different benchmarks or problems.
    """
    changed = _change_table(run, baseline)
    return "\n\n".join([_main_table(run, baseline), *changed, _legend(run, baseline)]) + "\n"


def _legend(run: EvaluatedRun, baseline: EvaluatedRun | None) -> str:
    parts = [LEGEND, DIFFERENCE_LEGEND if baseline else "", OVERALL_LEGEND if have_overall([run]) else ""]
    warned = warning([run] if baseline is None else [baseline, run])
    return "\n\n".join(filter(None, [" ".join(filter(None, parts)), warned]))


def _shown_benchmarks(run: EvaluatedRun) -> list[str]:
    """One benchmark needs no mean over benchmarks."""
    return [*run.benchmarks, *([OVERALL] if have_overall([run]) else [])]


def _main_table(run: EvaluatedRun, baseline: EvaluatedRun | None) -> str:
    """Accuracy and tokens on each benchmark, of the baseline and the run."""
    runs = [run] if baseline is None else [baseline, run]
    sizes = {each.run["num_samples"] for each in runs}
    metric = f"Avg@{sizes.pop()}" if len(sizes) == 1 else "Avg@k"
    rows = []
    for each in runs:
        row = {"model": escaped(each.label)}
        for name in _shown_benchmarks(run):
            row[f"{escaped(name)} {metric}"] = with_interval(each.estimate("accuracy", name), percent)
            row[f"{escaped(name)} tokens"] = with_interval(each.estimate("tokens", name), tokens)
        rows.append(row)
    return markdown(pd.DataFrame(rows))


def _detail_table(run: EvaluatedRun) -> str:
    """One line per metric, because there are more metrics than benchmarks."""
    columns: dict[str, dict[str, str]] = {}
    for row in run.results.itertuples():
        _, name, form, _ = METRICS[row.metric]
        column = columns.setdefault(row.benchmark, {"problems": str(row.num_problems)})
        heading = name.format(at=row.at, k=row.num_samples)
        column[heading] = with_interval(Estimate(row.value, row.low, row.high), form)
    table = pd.DataFrame({escaped(name): columns[name] for name in _shown_benchmarks(run)})
    return markdown(table.rename_axis("metric").reset_index())


def _change_table(run: EvaluatedRun, baseline: EvaluatedRun | None) -> list[str]:
    if baseline is None:
        return []
    rows: dict[str, dict[str, str]] = {}
    for row in changes(run, baseline).itertuples():
        _, heading, form = CHANGES[row.metric]
        first = {f"against {escaped(baseline.label)}": escaped(row.benchmark)}
        cell = with_interval(Estimate(row.value, row.low, row.high), form)
        rows.setdefault(row.benchmark, first)[heading] = cell
    return [markdown(pd.DataFrame([rows[name] for name in _shown_benchmarks(run)]))]


def results_csv(run: EvaluatedRun, baseline: EvaluatedRun | None = None) -> str:
    """Every metric in full precision, one line per benchmark, the overall line last.

    A metric with an interval has three columns (`accuracy`, `accuracy_low`, `accuracy_high`).

    Raises:
        `ValueError`: If run and baseline have different benchmarks or problems.
    """
    records: dict[str, dict[str, Any]] = {}
    for row in run.results.itertuples():
        first = {
            "label": run.label,
            "model": run.run["model"],
            "step": run.run.get("step"),
            "benchmark": row.benchmark,
        }
        sizes = {"num_problems": row.num_problems, "num_graded": row.num_graded, "num_samples": row.num_samples}
        column, _, _, has_interval = METRICS[row.metric]
        name = column.format(at=row.at)
        ends = {f"{name}_low": row.low, f"{name}_high": row.high} if has_interval else {}
        records.setdefault(row.benchmark, {**first, **sizes}).update({name: row.value, **ends})
    if baseline is not None:
        for row in changes(run, baseline).itertuples():
            name = CHANGES[row.metric][0]
            records[row.benchmark] |= {name: row.value, f"{name}_low": row.low, f"{name}_high": row.high}
    return csv(pd.DataFrame([*records.values()]))


def results_json(run: EvaluatedRun, baseline: EvaluatedRun | None = None) -> str:
    """Every metric in full precision, and the run's settings; `null` where a number does not exist.

    Raises:
        `ValueError`: If run and baseline have different benchmarks or problems.
    """
    rows: dict[str, dict[str, Any]] = {}
    for row in run.results.astype(object).where(run.results.notna(), None).itertuples():
        sizes = {"num_problems": row.num_problems, "num_graded": row.num_graded, "num_samples": row.num_samples}
        first = {"name": row.benchmark, **sizes, "means": {}, "statistics": {}}
        own, (column, _, _, has_interval) = rows.setdefault(row.benchmark, first), METRICS[row.metric]
        name = column.format(at=row.at or 0)
        if has_interval:
            own["means"][name] = {"value": row.value, "low": row.low, "high": row.high}
        else:
            own["statistics"][name] = row.value
    overall = rows.pop(OVERALL)
    document = {
        "run": run.run,
        "benchmarks": [*rows.values()],
        "overall": overall,
        "warning": warning([run]) or None,
        "changes": None if baseline is None else _changes_document(run, baseline),
    }
    return json.dumps([document], ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def _changes_document(run: EvaluatedRun, baseline: EvaluatedRun) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {}
    found = changes(run, baseline)
    for row in found.astype(object).where(found.notna(), None).itertuples():
        number = {"value": row.value, "low": row.low, "high": row.high}
        rows.setdefault(row.benchmark, {"name": row.benchmark})[row.metric] = number
    overall = rows.pop(OVERALL)
    names = {"label": run.label, "baseline_label": baseline.label}
    return {**names, "benchmarks": [*rows.values()], "overall": overall}


def write_results(folder: Path, run: EvaluatedRun, baseline: EvaluatedRun | None) -> None:
    """Writes `results.md`, `.csv` and `.json` and, for whole benchmarks of the Hub, `hub_eval_results.yaml`."""
    write_whole(folder / "results.md", results_markdown(run, baseline))
    write_whole(folder / "results.csv", results_csv(run, baseline))
    write_whole(folder / "results.json", results_json(run, baseline))
    if hub_benchmarks(run):
        write_whole(folder / "hub_eval_results.yaml", hub_eval_results(run))


def hub_benchmarks(run: EvaluatedRun) -> dict[str, tuple[str, str]]:
    """The benchmarks of a run that live on the Hub, each with the id of its data set and the name of its task there.

    Only named sources exist there, and only a complete benchmark is published, not a part of it.
    """
    from leash_trl.data.sources import SOURCES  # reaches torch, which figures must not import

    sources = {name: SOURCES[name] for name in run.benchmarks if name in SOURCES}
    return {
        name: (source.hub_id, source.task_id)
        for name, source in sources.items()
        if source.hub_id is not None and source.num_rows in (None, run.run["benchmarks"][name]["num_problems"])
    }


def hub_eval_results(run: EvaluatedRun) -> str:
    """Content of one file of a model repository's `.eval_results/` folder: avg@k in percent, one entry per benchmark.

    The notes of each entry say how it was sampled, its interval, its number of problems and of graded ones, its mean
    length, and whether the problems came from a local copy.

    Args:
        run ([`~leash_trl.evaluation.frame.EvaluatedRun`]):
            A run with at least one of [`hub_benchmarks`].
    """
    entries = [
        EvalResultEntry(dataset_id=hub_id, task_id=task_id, value=_percent(run, name), notes=_notes(run, name, hub_id))
        for name, (hub_id, task_id) in hub_benchmarks(run).items()
    ]
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True)


def model_card_results(run: EvaluatedRun) -> list[EvalResult]:
    """Entries for `ModelCardData(eval_results=...)`, which turns them into `model-index`: avg@k and mean length.

    The list is empty if the run has none of [`hub_benchmarks`].
    """
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=hub_id,
            dataset_name=name,
            metric_type=metric_type,
            metric_name=metric_name,
            metric_value=value,
        )
        for name, (hub_id, _) in hub_benchmarks(run).items()
        for metric_type, metric_name, value in (
            ("accuracy", f"Avg@{run.run['num_samples']} (%)", _percent(run, name)),
            ("mean_tokens", "mean tokens per completion", round(run.estimate("tokens", name).value, 1)),
        )
    ]


def _percent(run: EvaluatedRun, name: str) -> float:
    return round(100 * run.estimate("accuracy", name).value, 2)


def _notes(run: EvaluatedRun, name: str, hub_id: str) -> str:
    from leash_trl.data.sources import SOURCES

    sampling, reference = run.run["sampling"], run.run["benchmarks"][name]["reference"]
    row = run.results[run.results["benchmark"] == name].iloc[0]
    accuracy = run.estimate("accuracy", name)
    warned = few_problems({name: row.num_graded})
    is_local = reference not in SOURCES and reference.partition(":")[0] != hub_id
    graded = "" if row.num_graded == row.num_problems else f", {row.num_graded} of them graded"
    return (
        f"Avg@{row.num_samples} in % [{100 * accuracy.low:.1f}, {100 * accuracy.high:.1f}]; "
        f"{row.num_problems} problems{graded}{', rows from a local copy' if is_local else ''}; "
        f"{run.estimate('tokens', name).value:.0f} tokens per completion; temperature {sampling['temperature']}, "
        f"top_p {sampling['top_p']}, top_k {sampling['top_k']}, max_new_tokens {sampling['max_new_tokens']}, "
        f"{run.run['decoding']['name']} decoding{f'; {warned}' if warned else ''}"
    )


def accuracy_efficiency_score(accuracy: float, tokens: float, base_accuracy: float, base_tokens: float) -> float:
    r"""Accuracy-efficiency score (AES), dimensionless; 0 is the base.

    $$ \mathrm{AES} = \alpha \Delta L + \begin{cases} \beta |\Delta A| & \Delta A \ge 0 \\
    -\gamma |\Delta A| & \Delta A < 0 \end{cases}, \qquad
    \Delta L = \frac{L_0 - L}{L_0}, \quad \Delta A = \frac{A - A_0}{A_0}, \quad \alpha, \beta, \gamma = 1, 3, 5 $$

    Tokens saved count once, accuracy gained three times, accuracy lost five times, each relative to the base.

    Source: [O1-Pruner](https://huggingface.co/papers/2501.12570), with the weights that the literature uses since.

    Example:
        >>> round(accuracy_efficiency_score(0.9, 60.0, base_accuracy=0.8, base_tokens=100.0), 9)  # 0.4 + 3 * 0.125
        0.775
        >>> round(accuracy_efficiency_score(0.72, 60.0, base_accuracy=0.8, base_tokens=100.0), 9)  # 0.4 - 5 * 0.1
        -0.1
    """
    length_gain = (base_tokens - tokens) / base_tokens
    accuracy_change = (accuracy - base_accuracy) / base_accuracy
    weight = GAIN_WEIGHT if accuracy_change >= 0 else LOSS_WEIGHT
    return LENGTH_WEIGHT * length_gain + weight * accuracy_change


def first_step_at_target(steps: np.ndarray, mean_lengths: np.ndarray, target_length: float) -> int | None:
    """The first training step whose batch has a mean length at or under the target; `None` if there is none.

    Args:
        steps (`np.ndarray` of shape `(S,)`):
            Optimizer steps in order.
        mean_lengths (`np.ndarray` of shape `(S,)`):
            Mean lengths of their batches in tokens.
        target_length (`float`):
            Target in tokens.

    Example:
        >>> first_step_at_target(np.array([1, 2, 3]), np.array([60.0, 46.0, 50.0]), 46)
        2
    """
    is_reached = mean_lengths <= target_length
    return int(steps[is_reached.argmax()]) if is_reached.any() else None


def settling(steps: np.ndarray, mean_lengths: np.ndarray, target_length: float | None) -> dict[str, float]:
    """How the training batches came to the target and stayed there; NaN for what cannot be said.

    Args:
        steps (`np.ndarray` of shape `(S,)`), mean_lengths (`np.ndarray` of shape `(S,)`):
            Optimizer steps since the target last changed, and the mean length of their batches in tokens.
        target_length (`float`, *optional*):
            Target in tokens.

    Returns:
        `dict`: `settling_error`, the distance of the mean length of the last quarter of the batches from the target,
        as a share of it; from the first batch at or under the target on, `near_target_share`, the share of running
        means over ten batches within 10 % of it; `overshoot`, how far below it any running mean went, as a share of
        it; and `steps_to_target`.

    Example:
        >>> settling(np.arange(1, 17), np.array([128.0] * 6 + [48.0] * 10), 64)
        {'settling_error': 0.25, 'near_target_share': 0.0, 'overshoot': 0.25, 'steps_to_target': 7}
    """
    found = dict.fromkeys(SETTLING, math.nan)
    if target_length is None or len(steps) == 0:
        return found
    last_quarter = mean_lengths[-max(1, len(mean_lengths) // 4) :]
    found["settling_error"] = abs(float(last_quarter.mean() / target_length) - 1.0)
    first = first_step_at_target(np.arange(len(steps)), mean_lengths, target_length)
    if first is not None:
        near = np.abs(_running_means(mean_lengths[first:]) / target_length - 1.0) <= 0.1
        found["near_target_share"] = float(near.mean())
        found["overshoot"] = max(0.0, 1.0 - float(_running_means(mean_lengths).min() / target_length))
        found["steps_to_target"] = int(steps[first])
    return found


def _running_means(mean_lengths: np.ndarray) -> np.ndarray:
    window = min(WINDOW, len(mean_lengths))
    return np.convolve(mean_lengths, np.full(window, 1 / window), mode="valid")


def seed_row(
    name: str,
    seed: int,
    samples: pd.DataFrame,
    base: Mapping[str, Any],
    target_length: float | None,
    steps: np.ndarray,
    mean_lengths: np.ndarray,
    generated_tokens: int | None,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """One trained model's row of `seeds.csv`; [`read_comparison`] reads the file back for [`comparison_markdown`].

    Args:
        name (`str`), seed (`int`):
            Name of the method, and seed of training and sampling.
        samples (`pd.DataFrame`):
            Graded completions, in the columns of [`~leash_trl.evaluation.frame.load_samples`].
        base (`Mapping[str, Any]`):
            The base model's `accuracy`, `accuracy_interval`, `mean_tokens` and `p95_tokens`.
        target_length (`float`, *optional*), steps (`np.ndarray`), mean_lengths (`np.ndarray`):
            As for [`settling`].
        generated_tokens (`int`, *optional*):
            Tokens generated in training.
        settings (`Mapping[str, Any]`):
            Values of the fields of its grid other than the target.
    """
    by_problem = samples.groupby("id", sort=False)
    accuracy = mean_share(by_problem["is_correct"].mean().to_numpy())
    length = mean_amount(by_problem["num_tokens"].mean().to_numpy())
    found = settling(steps, mean_lengths, target_length)
    return {
        "name": name,
        "seeds": str(seed),
        **_with_ends("accuracy", accuracy),
        "mean_tokens": length.value,
        "p95_tokens": float(np.quantile(samples["num_tokens"], 0.95)),
        **_against(base, accuracy.value, length.value),
        "mean_tokens_interval_low": length.low,
        "mean_tokens_interval_high": length.high,
        "target_length": math.nan if target_length is None else target_length,
        "satisfaction_rate": math.nan
        if target_length is None
        else float((samples["num_tokens"] <= target_length).mean()),
        "settling_error": found["settling_error"],
        "worst_settling_error": found["settling_error"],
        "near_target_share": found["near_target_share"],
        "overshoot": found["overshoot"],
        "steps_to_target": found["steps_to_target"],
        "num_reached": int(not math.isnan(found["steps_to_target"])),
        LAST_COLUMN: math.nan if generated_tokens is None else generated_tokens,
        **{field: str(value) for field, value in settings.items()},
    }


def _with_ends(name: str, number: Estimate) -> dict[str, float]:
    return {name: number.value, f"{name}_interval_low": number.low, f"{name}_interval_high": number.high}


def _against(base: Mapping[str, Any], accuracy: float, length: float) -> dict[str, float]:
    score = accuracy_efficiency_score(accuracy, length, base["accuracy"], base["mean_tokens"])
    return {"token_change": length / base["mean_tokens"] - 1, "efficiency_score": score}


def read_comparison(path: str | Path) -> pd.DataFrame:
    """Rows of a comparison's `seeds.csv` or `table.csv`: numbers as numbers, the rest as text."""
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    numbers = rows.loc[:, "accuracy":LAST_COLUMN].apply(pd.to_numeric).astype(float)
    return rows.assign(**{column: numbers[column] for column in numbers})


def grid_fields(rows: pd.DataFrame) -> list[str]:
    """Fields of a comparison's grid other than the target: the columns after those of all comparisons."""
    return [*rows.columns[rows.columns.get_loc(LAST_COLUMN) + 1 :]]


def in_words(row: Mapping[str, Any]) -> str:
    """Method and settings of a comparison's row, without its target.

    Example:
        >>> in_words({"name": "DOT", "generated_tokens": 7.0, "length_control_kwargs.alpha": "0.5", "lambda_lr": ""})
        'DOT, alpha 0.5'
    """
    fields = itertools.dropwhile(lambda field: field != LAST_COLUMN, row.keys())
    values = {field: row[field] for field in itertools.islice(fields, 1, None)}
    words = [f"{field.rpartition('.')[2]} {value}" for field, value in values.items() if not pd.isna(value) and value]
    return ", ".join([row["name"], *words])


def _points(seeds: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The seeds of each point of a comparison, by the point's name."""
    found = {}
    by = ["name", "target_length", *grid_fields(seeds)]
    for (_, target, *_), own in seeds.groupby(by, dropna=False, sort=False):
        found[in_words(own.iloc[0]) + ("" if math.isnan(target) else f" at {target:g}")] = own
    return found


def comparison_rows(
    seeds: pd.DataFrame, base: Mapping[str, Any], p95_tokens: Sequence[float] | None = None
) -> pd.DataFrame:
    """The base and each point of a comparison with means over its seeds, in the columns of `table.csv`.

    Args:
        seeds (`pd.DataFrame`):
            As [`read_comparison`] reads it.
        base (`Mapping[str, Any]`):
            As for [`seed_row`].
        p95_tokens (`Sequence[float]`, *optional*):
            95th percentile of the lengths of all seeds together, for each point in order. It does not follow from
            those of the seeds, so without it only points with one seed have one.
    """
    points = [*_points(seeds).values()]
    percentiles = [math.nan] * len(points) if p95_tokens is None else p95_tokens
    rows = [_point_row(own, base, p95) for own, p95 in zip(points, percentiles, strict=True)]
    first = {
        "name": "base",
        "seeds": "",
        **_with_ends("accuracy", Estimate(base["accuracy"], *base["accuracy_interval"])),
        "mean_tokens": base["mean_tokens"],
        "p95_tokens": base["p95_tokens"],
        "token_change": 0.0,
        "efficiency_score": 0.0,
        "num_reached": 0,
        **dict.fromkeys(grid_fields(seeds), ""),
    }
    return pd.DataFrame([first, *rows], columns=list(seeds.columns))


def _point_row(own: pd.DataFrame, base: Mapping[str, Any], p95_tokens: float) -> dict[str, Any]:
    first = own.iloc[0].to_dict()
    if len(own) == 1:
        return first
    accuracy = mean_over_seeds(own["accuracy"].to_numpy(), highest=1.0)
    length = mean_over_seeds(own["mean_tokens"].to_numpy())
    return {
        **first,
        **own[["satisfaction_rate", *SETTLING, "generated_tokens"]].mean(),
        **_with_ends("accuracy", accuracy),
        **_with_ends("mean_tokens", length),
        **_against(base, accuracy.value, length.value),
        "seeds": " ".join(own["seeds"]),
        "p95_tokens": p95_tokens,
        "worst_settling_error": own["settling_error"].max(),
        "num_reached": own["num_reached"].sum(),
    }


def comparison_markdown(
    seeds: pd.DataFrame,
    base: Mapping[str, Any],
    levels: pd.DataFrame | None = None,
    p95_tokens: Sequence[float] | None = None,
) -> str:
    """The result of a comparison: its methods, which of them are told apart, their front, and each level of problems.

    Args:
        seeds (`pd.DataFrame`), base (`Mapping[str, Any]`), p95_tokens (`Sequence[float]`, *optional*):
            As for [`comparison_rows`].
        levels (`pd.DataFrame`, *optional*):
            All [`level_rows`].
    """
    points = _points(seeds)
    known = {name: own for name, own in points.items() if len(own) > 1}
    paragraphs = [_comparison_table(comparison_rows(seeds, base, p95_tokens)), COMPARISON_LEGEND]
    if len(known) > 1:
        others = [name for name in points if name not in known]
        left_out = [f"Not told apart, for want of a second seed: {', '.join(others)}."] if others else []
        alone, corrected = front(known, is_corrected=False), front(known, is_corrected=True)
        paragraphs += [*_pairs_told([*known.values()]), *left_out]
        paragraphs += [markdown(alone.assign(**{"after Holm": corrected["front"]})), FRONT_LEGEND]
        paragraphs += _equal_length_table([*known.values()])
    if levels is not None:
        paragraphs += [_level_table(levels), LEVEL_LEGEND]
    return "\n\n".join(paragraphs)


def _comparison_table(rows: pd.DataFrame) -> str:
    """The table to read: after the method, what differs in the grid: the target, and each field."""
    targets = rows["target_length"].map("{:g}".format, na_action="ignore").fillna("")
    grid = rows[grid_fields(rows)].fillna("").assign(target=targets)[["target", *grid_fields(rows)]]
    short = [field.rpartition(".")[2] for field in grid]
    grid.columns = [name if short.count(name) == 1 else field for field, name in zip(grid, short, strict=True)]
    grid = grid.loc[:, [len({*grid[field]} - {""}) > 1 for field in grid]]
    cells = pd.DataFrame([_cells(row) for row in rows.to_dict("records")])
    return markdown(pd.concat([rows["name"].rename("method"), grid, cells], axis=1))


def _cells(row: Mapping[str, Any]) -> dict[str, str]:
    """One line of a comparison's table after the columns of its grid; the base's has no seeds."""
    accuracy, length = (
        Estimate(row[name], row[f"{name}_interval_low"], row[f"{name}_interval_high"])
        for name in ("accuracy", "mean_tokens")
    )
    num_seeds, num_reached = len(row["seeds"].split()), row["num_reached"]
    share = "" if num_reached == num_seeds else f" ({num_reached:.0f} of {num_seeds})"
    steps = f"{row['steps_to_target']:.0f}{share}" if num_reached else "never"
    return {
        "seeds": str(num_seeds or ""),
        "accuracy [95 % of the mean]": with_interval(accuracy, "{:.3f}".format),
        "tokens [95 % of the mean]": with_interval(length, "{:.1f}".format),
        "p95": _shown(row["p95_tokens"], "{:.0f}"),
        "change": f"{row['token_change']:+.1%}" if num_seeds else "",
        "satisfied": _shown(row["satisfaction_rate"], "{:.3f}"),
        "settled off (worst)": _shown(row["settling_error"], f"{{:.1%}} ({row['worst_settling_error']:.1%})"),
        "stays near": _shown(row["near_target_share"], "{:.0%}"),
        "overshoot": _shown(row["overshoot"], "{:.1%}"),
        "steps to target": "" if math.isnan(row["target_length"]) else steps,
        "tokens in training": _shown(row["generated_tokens"] / 1e6, "{:.2f} M"),
        "AES": f"{row['efficiency_score']:+.2f}" if num_seeds else "",
    }


def _shown(value: float, form: str) -> str:
    return "" if math.isnan(value) else form.format(value)


def _shown_signs(differences: Sequence[tuple[float, float]], is_corrected: bool) -> np.ndarray:
    """Of differences with their p values: 1 where shown to be positive, -1 where negative, else 0."""
    means, p_values = np.array(differences).T
    signs: np.ndarray = np.sign(means) * (holm(p_values) if is_corrected else p_values < SIGNIFICANCE)
    return signs


def _pairs_told(points: Sequence[pd.DataFrame]) -> list[str]:
    """How many pairs of methods at the same target are told apart."""
    place = ["name", "target_length"]
    pairs = [
        (first, second)
        for first, second in itertools.combinations(points, 2)
        if (first[place].iloc[0] == second[place].iloc[0]).tolist() == [False, True]
    ]
    if not pairs:
        return []
    differences = [
        welch(first[metric].to_numpy(), second[metric].to_numpy())
        for metric in ("accuracy", "mean_tokens")
        for first, second in pairs
    ]
    counts = []
    for is_corrected in (False, True):
        accuracy, length = np.split(_shown_signs(differences, is_corrected) != 0, 2)
        counts.append((accuracy.sum(), length.sum(), (accuracy | length).sum()))
    alone, corrected = counts
    return [
        f"Of {len(pairs)} pairs of methods at the same target, {alone[0]} are told apart by accuracy, {alone[1]} by "
        f"tokens, {alone[2]} by either: Welch's 95 % t interval of the difference of the means over seeds excludes 0. "
        f"After Holm's correction over these {2 * len(pairs)} intervals: {corrected[0]}, {corrected[1]} and "
        f"{corrected[2]}."
    ]


def front(points: Mapping[str, pd.DataFrame], is_corrected: bool) -> pd.DataFrame:
    """Where each point lies relative to the front of accuracy over tokens, and which points beat it.

    A point beats another if its accuracy is higher and its mean tokens are less than 1.05 times the other's. What
    another beats is off the front. On the front is a point if each other one has a lower accuracy or more tokens. Both
    must be shown; of the rest it cannot be told.

    Args:
        points (`Mapping[str, pd.DataFrame]`):
            Two seeds or more of each point, with columns `accuracy` and `mean_tokens`.
        is_corrected (`bool`):
            Whether only what Holm's procedure over all differences of all points shows counts as shown.

    Returns:
        `pd.DataFrame`: Columns `point`, `front` ("on it", "off it" or "cannot be told") and `beaten by`.
    """
    accuracies, lengths = ([own[name].to_numpy() for own in points.values()] for name in ("accuracy", "mean_tokens"))
    longer = [(1 + MARGIN) * values for values in lengths]
    pairs = list(itertools.combinations(range(len(points)), 2))
    differences = [
        *(welch(accuracies[other], accuracies[own]) for own, other in pairs),
        *(welch(lengths[other], lengths[own]) for own, other in pairs),
        *(welch(lengths[other], longer[own]) for own, other in pairs),
        *(welch(lengths[own], longer[other]) for own, other in pairs),
    ]
    # of the point of a column over that of a row; 0 on the diagonal
    gain, cost, excess = np.zeros((3, len(points), len(points)))
    upper = np.triu_indices(len(points), 1)
    gain[upper], cost[upper], excess[upper], excess.T[upper] = np.split(_shown_signs(differences, is_corrected), 4)
    is_beaten = (gain - gain.T > 0) & (excess < 0)
    is_safe = (gain - gain.T < 0) | (cost - cost.T > 0) | np.eye(len(points), dtype=bool)
    places = np.where(is_beaten.any(axis=1), "off it", np.where(is_safe.all(axis=1), "on it", "cannot be told"))
    beaten_by = [", ".join(itertools.compress(points, others)) for others in is_beaten]
    return pd.DataFrame({"point": [*points], "front": places, "beaten by": beaten_by})


def _equal_length_table(points: Sequence[pd.DataFrame]) -> list[str]:
    """Every curve against the first one: points by method, and by settings where they share a target."""
    firsts = pd.DataFrame([own.iloc[0] for own in points])
    shared = firsts[firsts["target_length"].notna() & firsts.duplicated(["name", "target_length"])]["name"].tolist()
    curves: dict[str, list[pd.DataFrame]] = {}
    for own in points:
        name = own["name"].iloc[0]
        curves.setdefault(in_words(own.iloc[0]) if name in shared else name, []).append(own)
    (reference, first), *others = [(name, own) for name, own in curves.items() if len(own) > 1] or [("", [])]
    heading, rows = f"accuracy minus that of {reference} [95 % of the mean]", []
    for name, own in others:
        found = accuracy_at_equal_length(own, first)
        cell = "n/a" if found is None else with_interval(found[0], "{:+.3f}".format)
        covered = "" if found is None else f"{found[1]:.1f} to {found[2]:.1f}"
        rows.append({"method": name, heading: cell, "tokens": covered})
    return [markdown(pd.DataFrame(rows)), EQUAL_LENGTH_LEGEND] if rows else []


def accuracy_at_equal_length(
    first: Sequence[pd.DataFrame], second: Sequence[pd.DataFrame]
) -> tuple[Estimate, float, float] | None:
    r"""How much more accurate the first method is at the same length, and the range of that in tokens.

    $$ d_s = \frac{1}{\log b - \log a} \int_{\log a}^{\log b} (A_s - B_s) \, d \log T, \qquad
    \bar d \pm t_{S-1} \, \mathrm{sd}(d) / \sqrt S $$

    $A_s$ and $B_s$ are lines through the points of seed s, accuracy over the logarithm of mean tokens T, and [a, b] is
    the range that the curves of both methods cover with every seed. The integral of such lines is exact.

    Args:
        first (`Sequence[pd.DataFrame]`), second (`Sequence[pd.DataFrame]`):
            The seeds of two methods' points, two points or more each.

    Returns:
        `tuple`, or `None` if the seeds are not the same at all points, or there is no range that all cover.
    """
    if len({tuple(sorted(own["seeds"])) for own in (*first, *second)}) > 1:
        return None
    curves = [_curves(first), _curves(second)]
    low = max(length[0] for own in curves for length, _ in own)
    high = min(length[-1] for own in curves for length, _ in own)
    if low >= high:
        return None
    differences = []
    for (lengths, accuracies), (other_lengths, other_accuracies) in zip(*curves, strict=True):
        knots = np.unique(np.concatenate([lengths, other_lengths]).clip(low, high))
        gap = np.interp(knots, lengths, accuracies) - np.interp(knots, other_lengths, other_accuracies)
        differences.append(float(((gap[1:] + gap[:-1]) / 2 * np.diff(knots)).sum() / (high - low)))
    mean, size = float(np.mean(differences)), len(differences)
    reach = t_quantile(size - 1) * math.sqrt(np.var(differences, ddof=1) / size)
    return Estimate(mean, mean - reach, mean + reach), math.exp(low), math.exp(high)


def _curves(points: Sequence[pd.DataFrame]) -> list[np.ndarray]:
    """Logarithms of tokens in rising order and their accuracies, of each seed in the order of seeds."""
    by_seed = pd.concat(points).sort_values(["seeds", "mean_tokens"]).groupby("seeds")
    return [np.array([np.log(own["mean_tokens"]), own["accuracy"]]) for _, own in by_seed]


def level_rows(
    name: str, target_length: float | None, runs: Sequence[pd.DataFrame], levels: Sequence[int]
) -> list[dict[str, Any]]:
    """One point's rows of `levels.csv`, a row per level of the problems.

    Args:
        name (`str`), target_length (`float`, *optional*):
            Name of the method with its settings ([`in_words`]), and its target in tokens.
        runs (`Sequence[pd.DataFrame]`):
            The samples of its seeds.
        levels (`Sequence[int]`):
            Level of each problem, by the samples' `index`.
    """
    parts = [run.groupby(np.asarray(levels)[run["index"]])[["is_correct", "num_tokens"]].mean() for run in runs]
    return [
        {
            "name": name,
            "target_length": target_length,
            "level": level,
            **_with_ends("accuracy", mean_over_seeds(own["is_correct"].to_numpy(), 1.0)),
            **_with_ends("mean_tokens", mean_over_seeds(own["num_tokens"].to_numpy())),
        }
        for level, own in pd.concat(parts).groupby(level=0)
    ]


def _level_table(levels: pd.DataFrame) -> str:
    """A line per point: its accuracy and tokens at each level."""
    rows = []
    for (name, target), own in levels.groupby(["name", "target_length"], dropna=False, sort=False):
        cells = {f"level {row.level}": f"{row.accuracy:.3f}, {row.mean_tokens:.1f}" for row in own.itertuples()}
        rows.append({"method": name, "target": "" if math.isnan(target) else f"{target:g}", **cells})
    return markdown(pd.DataFrame(rows))
