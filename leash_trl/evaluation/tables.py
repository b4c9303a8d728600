"""Builds the tables of `leash eval`, `leash compare`, cards and reports: Markdown to read, CSV and JSON for programs.

`frame` has the numbers of runs, `intervals` the arithmetic. A number is empty where it does not exist.
"""

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from huggingface_hub import EvalResult, EvalResultEntry, eval_result_entries_to_yaml

from leash_trl.evaluation import intervals
from leash_trl.evaluation.frame import OVERALL, EvaluatedRun, changes, have_overall, warning
from leash_trl.evaluation.intervals import Estimate, mean_over_seeds, welch
from leash_trl.files import write_whole


GAIN_WEIGHT, LOSS_WEIGHT = 3.0, 5.0  # of accuracy in the accuracy-efficiency score, where tokens saved weigh 1
WINDOW = 10  # training batches in a running mean; single ones are noise
MARGIN = 0.05  # a point may be longer by this share and still beat another
LAST_COLUMN = "generated_tokens"  # of a comparison's files; then come the fields of its grid

LEGEND = (
    "Avg@k: share of correct completions, mean over problems. Accuracies and rates in %, differences in points. "
    "tokens: mean length of a completion. Brackets: 95 % interval of the mean over problems{}."
)
METRIC_LEGEND = (
    "pass@k: at least one of k completions is right. maj@k: their most frequent answer is right. short-m@k: that of "
    "the m shortest of k is right; waiting tokens: until these have ended, total tokens: what all k have computed by "
    "then. generated tokens: with the trials of a decoding strategy. right within B tokens: right and no longer."
)
COMPARISON_LEGEND = (
    "[95 % of the mean]: Student's t interval of the mean over seeds, for these problems, not a range of seeds; with "
    "one seed or none, over problems. p95: 95th percentile of all lengths. change: of tokens against base. satisfied: "
    "share of completions at or under the target. settled off (worst): distance of the last quarter of the training "
    "batches from the target, mean over seeds and greatest. stays near: once it is met, share of running means over "
    "ten batches within 10 % of it. overshoot: how far they went below it. steps to target: first batch with its mean "
    "at or under it, mean over the seeds that got there. These four count from the last change of the target; where "
    "generation is cut at the target, they show the cut. AES: accuracy-efficiency score, 0 is the base."
)
FRONT_LEGEND = (
    "front, of points with two seeds or more: off it is one that another beats, with a higher accuracy at less than "
    "1.05 times its mean tokens; on it is one than which every other has a lower accuracy or more tokens. Each must "
    "be shown: the 95 % interval of the difference excludes 0. after Holm: corrected over all differences of all "
    "points."
)
EQUAL_LENGTH_LEGEND = (
    "Accuracy at equal length: mean difference of the lines through each seed's points over the logarithm of tokens, "
    "where both cover it with every seed, and Student's t interval over seeds. n/a: no such tokens, or other seeds."
)
LEVEL_LEGEND = (
    "By level, the number of terms to add: accuracy and mean tokens, means over seeds (intervals: levels.csv)."
)


def percent(share: float | None) -> str:
    """A share in percent: `12.3`."""
    return "" if share is None or pd.isna(share) else f"{100 * share:.1f}"


def tokens(count: float | None) -> str:
    """A number of tokens: `46.0`, and from 1,000 on `16,912`."""
    return "" if count is None or pd.isna(count) else f"{count:,.0f}" if abs(count) >= 1000 else f"{count:.1f}"


def plain(number: float | None) -> str:
    """A number without a unit, with three digits: `0.581`, `63.5`, `0`."""
    return "" if pd.isna(number) else f"{number:.3g}"


def points(share: float) -> str:
    """A difference of shares in points, or a relative one in percent: `-50.0`, `+0.0`."""
    return f"{100 * share:+z.1f}"


def signed_tokens(count: float) -> str:
    """A difference of numbers of tokens: `-9,854`, `+0.0`."""
    return f"{count:+,.0f}" if abs(count) >= 1000 else f"{count:+z.1f}"


def with_interval(number: Estimate, shown: Callable[[float], str]) -> str:
    """A number and its interval, if it has one: `50.0 [40.0, 62.5]`."""
    return shown(number.value) + ("" if math.isnan(number.low) else f" [{shown(number.low)}, {shown(number.high)}]")


def markdown(frame: pd.DataFrame) -> str:
    """A Markdown table of a frame of text, whose first column is words and whose others are numbers."""
    alignment = ["---", *["---:"] * (len(frame.columns) - 1)]
    rows = ([*frame.columns], alignment, *frame.itertuples(index=False, name=None))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def csv(frame: pd.DataFrame) -> str:
    """A frame as CSV in full precision, empty for `None` and NaN."""
    return frame.to_csv(index=False, lineterminator="\n")


def escaped(name: str) -> str:
    """A name that neither breaks a table nor turns into a tag."""
    return " ".join(name.split()).replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


# of each metric its name in the literature, with `at` and k, and its form
METRICS = {
    "accuracy": ("Avg@{k}", percent),
    "pass": ("pass@{at:.0f}", percent),
    "majority": ("maj@{k}", percent),
    "short_accuracy": ("short-{at:.0f}@{k}", percent),
    "short_waiting_tokens": ("short-{at:.0f}@{k} waiting tokens", tokens),
    "short_total_tokens": ("short-{at:.0f}@{k} total tokens", tokens),
    "tokens": ("tokens", tokens),
    "generated_tokens": ("generated tokens", tokens),
    "truncated_rate": ("truncated rate", percent),
    "no_answer_rate": ("no answer rate", percent),
    "accuracy_within": ("right within {at:,.0f} tokens", percent),
    "median_tokens": ("median tokens", tokens),
    "p95_tokens": ("p95 tokens", tokens),
    "right_tokens": ("right tokens", tokens),
    "wrong_tokens": ("wrong tokens", tokens),
    "accuracy_change": ("Δ accuracy (points)", points),
    "tokens_change": ("Δ tokens", signed_tokens),
    "relative_tokens_change": ("Δ tokens (%)", points),
}


def results_markdown(run: EvaluatedRun, baseline: EvaluatedRun | None = None) -> str:
    """The paper's table, one line per run; below it every metric of the run with its interval, and the differences."""
    cells = _cells(run, run.results)
    sizes = run.results.groupby("benchmark")["num_problems"].first().astype(str).rename(index=escaped)
    cells = pd.concat([sizes[[*cells]].to_frame("problems").T, cells])
    detail = markdown(cells.rename_axis("metric").reset_index())
    parts = [_main_table(run, baseline), _legend(run, baseline), METRIC_LEGEND, f"## {escaped(run.label)}", detail]
    return "\n\n".join([*parts, *_change_table(run, baseline)]) + "\n"


def summary_markdown(run: EvaluatedRun, baseline: EvaluatedRun | None = None) -> str:
    """The part of [`results_markdown`] for a terminal and the model card: the paper's table and the differences."""
    return "\n\n".join([_main_table(run, baseline), *_change_table(run, baseline), _legend(run, baseline)]) + "\n"


def _legend(run: EvaluatedRun, baseline: EvaluatedRun | None) -> str:
    legend = LEGEND.format(", of differences over those problem by problem" if baseline else "")
    legend += " overall: unweighted mean over benchmarks." if have_overall([run]) else ""
    return "\n\n".join(filter(None, [legend, warning([baseline, run] if baseline else [run])]))


def _cells(run: EvaluatedRun, rows: pd.DataFrame, k: object = None) -> pd.DataFrame:
    """Numbers with their intervals: a line per metric, a column per benchmark; one alone needs no overall."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows.itertuples():
        if row.benchmark != OVERALL or have_overall([run]):
            heading, form = METRICS[row.metric]
            cell = with_interval(Estimate(row.value, row.low, row.high), form)
            heading = heading.format(at=row.at, k=k or row.num_samples)
            cells.setdefault(escaped(row.benchmark), {})[heading] = cell
    return pd.DataFrame(cells)


def _main_table(run: EvaluatedRun, baseline: EvaluatedRun | None) -> str:
    """Accuracy and tokens on each benchmark, of the baseline and the run."""
    runs = [baseline, run] if baseline else [run]
    k = run.run["num_samples"] if len({each.run["num_samples"] for each in runs}) == 1 else "k"
    rows = []
    for each in runs:
        shown = _cells(each, each.results[each.results["metric"].isin(["accuracy", "tokens"])], k).unstack()
        rows.append({"model": escaped(each.label)} | {" ".join(names): cell for names, cell in shown.items()})
    return markdown(pd.DataFrame(rows))


def _changes(run: EvaluatedRun, baseline: EvaluatedRun) -> pd.DataFrame:
    """Rows of [`changes`] as those of results, their metrics with `_change` at the end."""
    rows = changes(run, baseline)
    return rows.assign(metric=rows["metric"] + "_change", at=math.nan, num_samples=run.run["num_samples"])


def _change_table(run: EvaluatedRun, baseline: EvaluatedRun | None) -> list[str]:
    if baseline is None:
        return []
    cells = _cells(run, _changes(run, baseline)).T
    return [markdown(cells.rename_axis(f"against {escaped(baseline.label)}").reset_index())]


def write_results(folder: Path, run: EvaluatedRun, baseline: EvaluatedRun | None) -> None:
    """Writes `results.md`, `.csv` and `.json` and, for whole benchmarks of the Hub, `hub_eval_results.yaml`.

    CSV and JSON have the rows of [`EvaluatedRun`] in full precision, then the changes from the baseline; the JSON also
    the run's settings.
    """
    changed = _changes(run, baseline) if baseline else None
    sizes = dict.fromkeys(("num_problems", "num_graded", "num_samples"), "Int64")
    rows = pd.concat([run.results, changed], ignore_index=True).astype(sizes)
    names = {"label": run.label, "model": run.run["model"], "step": run.run.get("step")}
    records = rows.astype(object).where(rows.notna(), None).to_dict("records")
    document = {"run": run.run, "baseline": baseline and baseline.label, "results": records}
    files = {
        "results.md": results_markdown(run, baseline),
        "results.csv": csv(pd.DataFrame({**names, **rows})),
        "results.json": json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2) + "\n",
        "hub_eval_results.yaml": hub_eval_results(run),
    }
    for name, text in files.items():
        if text:
            write_whole(folder / name, text)


def _hub_benchmarks(run: EvaluatedRun) -> dict[str, tuple[str, str]]:
    """Ids and tasks on the Hub of a run's benchmarks; only named sources exist there, and only whole ones count."""
    from leash_trl.data.sources import SOURCES  # reaches torch, which figures must not import

    return {
        name: (source.hub_id, source.task_id)
        for name in run.benchmarks
        if (source := SOURCES.get(name))
        and source.hub_id is not None
        and source.num_rows in (None, run.run["benchmarks"][name]["num_problems"])
    }


def hub_eval_results(run: EvaluatedRun) -> str:
    """Content of one file of a model repository's `.eval_results/` folder: avg@k in percent, one entry per benchmark.

    Empty without a whole benchmark of the Hub.
    """
    entries = [
        EvalResultEntry(dataset_id=hub_id, task_id=task_id, value=_percent(run, name), notes=_notes(run, name, hub_id))
        for name, (hub_id, task_id) in _hub_benchmarks(run).items()
    ]
    return yaml.safe_dump(eval_result_entries_to_yaml(entries), sort_keys=False, allow_unicode=True) if entries else ""


def model_card_results(run: EvaluatedRun) -> list[EvalResult]:
    """Entries for `ModelCardData(eval_results=...)`, which turns them into `model-index`: avg@k and mean length."""
    return [
        EvalResult("text-generation", hub_id, name, metric_type, value, metric_name=metric_name)
        for name, (hub_id, _) in _hub_benchmarks(run).items()
        for metric_type, metric_name, value in (
            ("accuracy", f"Avg@{run.run['num_samples']} (%)", _percent(run, name)),
            ("mean_tokens", "mean tokens per completion", round(run.estimate("tokens", name).value, 1)),
        )
    ]


def _percent(run: EvaluatedRun, name: str) -> float:
    return round(100 * run.estimate("accuracy", name).value, 2)


def _notes(run: EvaluatedRun, name: str, hub_id: str) -> str:
    row = run.results[run.results["benchmark"] == name].iloc[0]
    graded = "" if row["num_graded"] == row["num_problems"] else f", {row['num_graded']} of them graded"
    is_hub = run.run["benchmarks"][name]["reference"].partition(":")[0] in (name, hub_id)
    _, low, high = run.estimate("accuracy", name)
    shown = [
        f"Avg@{row['num_samples']} in % [{percent(low)}, {percent(high)}]",
        f"{row['num_problems']} problems{graded}{'' if is_hub else ', rows from a local copy'}",
        f"{run.estimate('tokens', name).value:.0f} tokens per completion",
        ", ".join(f"{setting} {value}" for setting, value in run.run["sampling"].items()),
    ]
    return f"{'; '.join(shown)}, {run.run['decoding']['name']} decoding"


def accuracy_efficiency_score(accuracy: Any, tokens: Any, base_accuracy: float, base_tokens: float) -> Any:
    r"""Accuracy-efficiency score (AES), dimensionless; 0 is the base.

    $$ \mathrm{AES} = \alpha \Delta L + \begin{cases} \beta |\Delta A| & \Delta A \ge 0 \\
    -\gamma |\Delta A| & \Delta A < 0 \end{cases}, \qquad
    \Delta L = \frac{L_0 - L}{L_0}, \quad \Delta A = \frac{A - A_0}{A_0}, \quad \alpha, \beta, \gamma = 1, 3, 5 $$

    Tokens saved count once, accuracy gained three times, accuracy lost five times, each relative to the base.

    Source: [O1-Pruner](https://huggingface.co/papers/2501.12570), with the weights that the literature uses since.

    Example:
        >>> float(accuracy_efficiency_score(0.9, 60.0, 0.8, 100.0).round(9))  # 0.4 + 3 * 0.125
        0.775
        >>> float(accuracy_efficiency_score(0.72, 60.0, 0.8, 100.0).round(9))  # 0.4 - 5 * 0.1
        -0.1
    """
    change = (accuracy - base_accuracy) / base_accuracy
    return (base_tokens - tokens) / base_tokens + np.where(change >= 0, GAIN_WEIGHT, LOSS_WEIGHT) * change


def settling(mean_lengths: pd.Series, target_length: float | None) -> dict[str, float]:
    """How the training batches came to the target and stayed there; NaN for what cannot be said.

    `mean_lengths` in tokens go by the optimizer steps since the target last changed. `settling_error` is the distance
    of the mean length of the last quarter of the batches from the target, as a share of it. From the first batch at or
    under the target on, `near_target_share` is the share of running means over ten batches within 10 % of it, and
    `overshoot` how far below it any of them went, as a share of it.

    Example:
        >>> settling(pd.Series([128.0] * 6 + [48.0] * 10, range(1, 17)), 64)
        {'settling_error': 0.25, 'near_target_share': 0.0, 'overshoot': 0.25, 'steps_to_target': 7}
    """
    found = dict.fromkeys(("settling_error", "near_target_share", "overshoot", "steps_to_target"), math.nan)
    if target_length is None or mean_lengths.empty:
        return found
    lengths = mean_lengths.to_numpy()
    found["settling_error"] = abs(float(lengths[-max(1, len(lengths) // 4) :].mean() / target_length) - 1.0)
    if (is_met := lengths <= target_length).any():
        near = np.abs(_running_means(lengths[is_met.argmax() :]) / target_length - 1.0) <= 0.1
        found["near_target_share"] = float(near.mean())
        found["overshoot"] = max(0.0, 1.0 - float(_running_means(lengths).min() / target_length))
        found["steps_to_target"] = int(mean_lengths.index[is_met.argmax()])
    return found


def _running_means(lengths: np.ndarray) -> np.ndarray:
    window = min(WINDOW, len(lengths))
    return np.convolve(lengths, np.full(window, 1 / window), mode="valid")


def seed_row(
    samples: pd.DataFrame, base: Mapping[str, Any], target_length: float | None, mean_lengths: pd.Series
) -> dict[str, Any]:
    """What `seeds.csv` says of one trained model, without the names, the tokens of training and the grid around it.

    Args:
        samples (`pd.DataFrame`): As [`~leash_trl.evaluation.frame.load_samples`] gives it.
        base (`Mapping[str, Any]`): The base model's `accuracy`, `accuracy_interval`, `mean_tokens` and `p95_tokens`.
        target_length (`float`), mean_lengths (`pd.Series`): As for [`settling`].
    """
    lengths, means = samples["num_tokens"], samples.groupby("id", sort=False)[["is_correct", "num_tokens"]].mean()
    accuracy = intervals.mean_share(means["is_correct"].to_numpy())
    measured = _with_ends(accuracy, intervals.mean_amount(means["num_tokens"].to_numpy()))
    found = settling(mean_lengths, target_length)
    return {
        **measured,
        **_against(base, measured),
        "p95_tokens": float(np.quantile(lengths, 0.95)),
        "target_length": math.nan if target_length is None else target_length,
        "satisfaction_rate": math.nan if target_length is None else float((lengths <= target_length).mean()),
        **found,
        "worst_settling_error": found["settling_error"],
        "num_reached": int(not math.isnan(found["steps_to_target"])),
    }


def _with_ends(accuracy: Estimate, length: Estimate) -> dict[str, float]:
    numbers = {"accuracy": accuracy, "mean_tokens": length}
    ends = ("", "_interval_low", "_interval_high")
    return {name + end: value for name, number in numbers.items() for end, value in zip(ends, number, strict=True)}


def _over_seeds(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Accuracy and tokens with intervals over seeds, a row per group."""
    groups = rows.groupby(by, dropna=False, sort=False)
    ends = [
        _with_ends(mean_over_seeds(own["accuracy"].to_numpy(), 1.0), mean_over_seeds(own["mean_tokens"].to_numpy()))
        for _, own in groups
    ]
    return pd.concat([rows[by].drop_duplicates(ignore_index=True), pd.DataFrame(ends)], axis=1)


def _against(base: Mapping[str, Any], row: Any) -> dict[str, Any]:
    score = accuracy_efficiency_score(row["accuracy"], row["mean_tokens"], base["accuracy"], base["mean_tokens"])
    return {"token_change": row["mean_tokens"] / base["mean_tokens"] - 1, "efficiency_score": score}


def read_comparison(path: str | Path) -> pd.DataFrame:
    """Rows of a comparison's `seeds.csv` or `table.csv`: numbers as numbers, the rest as text."""
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    numbers = rows.loc[:, "accuracy":LAST_COLUMN]
    return rows.assign(**numbers.apply(pd.to_numeric).astype(float))


def grid_fields(columns: Iterable[str]) -> list[str]:
    """Fields of a comparison's grid other than the target: the columns after those of all comparisons."""
    return [*itertools.dropwhile(lambda column: column != LAST_COLUMN, columns)][1:]


def in_words(row: Mapping[str, Any]) -> str:
    """Method and settings of a comparison's row, without its target.

    Example:
        >>> in_words({"name": "DOT", "generated_tokens": 7.0, "length_control_kwargs.alpha": "0.5", "lambda_lr": ""})
        'DOT, alpha 0.5'
    """
    given = {field.rpartition(".")[2]: row[field] for field in grid_fields(row.keys()) if not pd.isna(row[field])}
    return ", ".join([row["name"], *(f"{field} {value}" for field, value in given.items() if value)])


def _by_point(seeds: pd.DataFrame) -> list[str]:
    return ["name", "target_length", *grid_fields(seeds)]


def _points(seeds: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The seeds of each point of a comparison, by the point's name."""
    groups = [own for _, own in seeds.groupby(_by_point(seeds), dropna=False, sort=False)]
    return {in_words(own.iloc[0]) + _shown(own["target_length"].iloc[0], " at {:g}"): own for own in groups}


def _shown(value: float, form: str) -> str:
    return "" if math.isnan(value) else form.format(value)


def comparison_rows(
    seeds: pd.DataFrame, base: Mapping[str, Any], p95_tokens: Sequence[float] | None = None
) -> pd.DataFrame:
    """The base and each point of a comparison with means over its seeds, in the columns of `table.csv`.

    `p95_tokens` is the 95th percentile of the lengths of all seeds together, for each point in order. It does not
    follow from those of the seeds, so without it only points with one seed have one. `base` is as for [`seed_row`].
    """
    groups = seeds.groupby(_by_point(seeds), dropna=False, sort=False)
    kinds: dict[Any, Any] = dict.fromkeys(seeds.loc[:, "accuracy":LAST_COLUMN].drop(columns="target_length"), "mean")
    kinds |= {"seeds": " ".join, "worst_settling_error": "max", "num_reached": "sum"}
    means = groups.agg(kinds).reset_index(drop=True)
    rows = _over_seeds(seeds, _by_point(seeds)).fillna(means)  # of one seed the interval over problems
    rows = rows.join(means.drop(columns=rows.columns, errors="ignore"))
    rows["p95_tokens"] = p95_tokens or means["p95_tokens"].where(groups.size().to_numpy() == 1)
    first = Estimate(base["accuracy"], *base["accuracy_interval"]), Estimate(base["mean_tokens"], math.nan, math.nan)
    named = {"name": "base", "seeds": "", "p95_tokens": base["p95_tokens"], **dict.fromkeys(grid_fields(seeds), "")}
    rows = pd.concat([pd.DataFrame([named | _with_ends(*first)]), rows.assign(**_against(base, rows))])
    return rows.reset_index(drop=True)[[*seeds]]


def comparison_markdown(
    seeds: pd.DataFrame,
    base: Mapping[str, Any],
    levels: pd.DataFrame | None = None,
    p95_tokens: Sequence[float] | None = None,
) -> str:
    """The result of a comparison: its methods, which of them are told apart, their front, and each level of problems.

    `levels` are all [`level_rows`]; the rest is as for [`comparison_rows`].
    """
    points = _points(seeds)
    known = {name: own for name, own in points.items() if len(own) > 1}
    paragraphs = [_comparison_table(comparison_rows(seeds, base, p95_tokens)), COMPARISON_LEGEND]
    if len(known) > 1:
        paragraphs += [*_pairs_told([*known.values()]), markdown(front(known)), FRONT_LEGEND]
        named = [own.assign(point=name, words=in_words(own.iloc[0])) for name, own in known.items()]
        paragraphs += _equal_length_table(pd.concat(named))
    if levels is not None:
        paragraphs += [_level_table(levels), LEVEL_LEGEND]
    return "\n\n".join(paragraphs)


# of a comparison's table, after the method and what differs in the grid
CELLS = {
    "accuracy [95 % of the mean]": "{accuracy:.3f} [{accuracy_interval_low:.3f}, {accuracy_interval_high:.3f}]",
    "tokens [95 % of the mean]": "{mean_tokens:.1f} [{mean_tokens_interval_low:.1f}, {mean_tokens_interval_high:.1f}]",
    "p95": "{p95_tokens:.0f}",
    "change": "{token_change:+.1%}",
    "satisfied": "{satisfaction_rate:.3f}",
    "settled off (worst)": "{settling_error:.1%} ({worst_settling_error:.1%})",
    "stays near": "{near_target_share:.0%}",
    "overshoot": "{overshoot:.1%}",
    "steps to target": "{steps}",
    "tokens in training": "{millions:.2f} M",
    "AES": "{efficiency_score:+.2f}",
}


def _comparison_table(rows: pd.DataFrame) -> str:
    target = rows["target_length"].map(lambda length: _shown(length, "{:g}"))
    grid = pd.concat([target.rename("target"), rows[grid_fields(rows)].fillna("")], axis=1)
    short = [field.rpartition(".")[2] for field in grid]
    grid.columns = [name if short.count(name) == 1 else field for field, name in zip(grid, short, strict=True)]
    grid = grid.loc[:, [len({*grid[field]} - {""}) > 1 for field in grid]]
    cells = pd.DataFrame([_row_cells(row) for row in rows.to_dict("records")])
    return markdown(pd.concat([rows["name"].rename("method"), grid, cells], axis=1))


def _row_cells(row: dict[str, Any]) -> dict[str, str]:
    num_seeds, num_reached = len(row["seeds"].split()), row["num_reached"]
    share = "" if num_reached == num_seeds else f" ({num_reached:.0f} of {num_seeds})"
    steps = f"{row['steps_to_target']:.0f}{share}" if num_reached else "never"
    row |= {"steps": "" if math.isnan(row["target_length"]) else steps, "millions": row[LAST_COLUMN] / 1e6}
    cells = {name: form.format(**row).replace(" [nan, nan]", "") for name, form in CELLS.items()}
    return {"seeds": str(num_seeds or ""), **{name: "" if "nan" in cell else cell for name, cell in cells.items()}}


def _shown_signs(differences: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Of differences and their p values: 1 where shown to be positive, -1 negative, else 0; alone and after Holm."""
    means, p_values = np.array(differences).T
    return np.sign(means) * (p_values < intervals.SIGNIFICANCE), np.sign(means) * intervals.holm(p_values)


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
    metrics = ("accuracy", "mean_tokens")
    differences = [welch(own[name].to_numpy(), other[name].to_numpy()) for name in metrics for own, other in pairs]
    told = [signs.reshape(2, -1) != 0 for signs in _shown_signs(differences)]
    alone, corrected = [[*each.sum(axis=1), each.any(axis=0).sum()] for each in told]
    return [
        f"Of {len(pairs)} pairs of methods at the same target, {alone[0]} are told apart by accuracy, {alone[1]} by "
        f"tokens, {alone[2]} by either: Welch's 95 % t interval of the difference of the means over seeds excludes 0. "
        f"After Holm's correction over these {2 * len(pairs)} intervals: {corrected[0]}, {corrected[1]} and "
        f"{corrected[2]}."
    ]


def front(points: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Where each point lies relative to the front of accuracy over tokens, and which points beat it.

    A point beats another if its accuracy is higher and its mean tokens are less than 1.05 times the other's. What
    another beats is off the front. On the front is a point if each other one has a lower accuracy or more tokens. Both
    must be shown; of the rest it cannot be told.

    `points` hold two seeds or more of each, with columns `accuracy` and `mean_tokens`. `after Holm` is the front with
    Holm's procedure over all differences of all points.
    """
    accuracies, lengths = ([own[name].to_numpy() for own in points.values()] for name in ("accuracy", "mean_tokens"))
    longer, numbers = [(1 + MARGIN) * values for values in lengths], range(len(points))
    differences = [
        welch(own[second], other[first])
        for own, other in ((accuracies, accuracies), (lengths, lengths), (lengths, longer), (longer, lengths))
        for first, second in itertools.combinations(numbers, 2)
    ]
    places, beaten_by = [], []
    for signs in _shown_signs(differences):
        # of the point of a column over that of a row; 0 on the diagonal
        gain, cost, excess, shortfall = np.zeros((4, len(points), len(points)))
        upper = np.triu_indices(len(points), 1)
        gain[upper], cost[upper], excess[upper], shortfall[upper] = np.split(signs, 4)
        is_beaten = (gain - gain.T > 0) & (excess - shortfall.T < 0)
        is_safe = (gain - gain.T < 0) | (cost - cost.T > 0) | np.eye(len(points), dtype=bool)
        place = np.where(is_beaten.any(axis=1), "off it", np.where(is_safe.all(axis=1), "on it", "cannot be told"))
        places.append(place)
        beaten_by.append([", ".join(itertools.compress(points, others)) for others in is_beaten])
    return pd.DataFrame({"point": [*points], "front": places[0], "beaten by": beaten_by[0], "after Holm": places[1]})


def _equal_length_table(seeds: pd.DataFrame) -> list[str]:
    """Every curve against the first one: points by method, and by settings where they share a target."""
    firsts = seeds.drop_duplicates("point")
    shared = {*firsts[firsts["target_length"].notna() & firsts.duplicated(["name", "target_length"])]["name"]}
    names = seeds["name"].where(~seeds["name"].isin(shared), seeds["words"])
    curves = [(name, own) for name, own in seeds.groupby(names, sort=False) if own["point"].nunique() > 1]
    (reference, first), *others = curves or [("", seeds)]
    heading, rows = f"accuracy minus that of {reference} [95 % of the mean]", []
    for name, own in others:
        number, low, high = accuracy_at_equal_length(own, first)
        cell = with_interval(number, "{:+.3f}".format).replace("+nan", "n/a")
        rows.append({"method": name, heading: cell, "tokens": _shown(low, f"{{:.1f}} to {high:.1f}")})
    return [markdown(pd.DataFrame(rows)), EQUAL_LENGTH_LEGEND] if rows else []


def accuracy_at_equal_length(first: pd.DataFrame, second: pd.DataFrame) -> tuple[Estimate, float, float]:
    r"""How much more accurate the first method is at the same length, and the range of that in tokens.

    $$ d_s = \frac{1}{\log b - \log a} \int_{\log a}^{\log b} (A_s - B_s) \, d \log T, \qquad
    \bar d \pm t_{S-1} \, \mathrm{sd}(d) / \sqrt S $$

    $A_s$ and $B_s$ are lines through the points of seed s, accuracy over the logarithm of mean tokens T, and [a, b] is
    the range that the curves of both methods cover with every seed. The integral of such lines is exact.

    All are NaN if the seeds are not the same at all points, or there is no range that all cover.
    """
    curves = [_curves(first), _curves(second)]
    low = max(lengths[0] for own in curves for lengths, _ in own.values())
    high = min(lengths[-1] for own in curves for lengths, _ in own.values())
    seeds = {tuple(sorted(own)) for rows in (first, second) for _, own in rows.groupby("point")["seeds"]}
    if len(seeds) > 1 or low >= high:
        return Estimate(math.nan, math.nan, math.nan), math.nan, math.nan
    differences = []
    for seed, curve in curves[0].items():
        knots = np.unique(np.concatenate([curve[0], curves[1][seed][0]]).clip(low, high))
        gap = np.interp(knots, *curve) - np.interp(knots, *curves[1][seed])
        differences.append(float(((gap[1:] + gap[:-1]) / 2 * np.diff(knots)).sum() / (high - low)))
    mean, size = float(np.mean(differences)), len(differences)
    reach = intervals.t_quantile(size - 1) * math.sqrt(np.var(differences, ddof=1) / size)
    return Estimate(mean, mean - reach, mean + reach), math.exp(low), math.exp(high)


def _curves(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """Logarithms of tokens in rising order and their accuracies, of each seed."""
    by_seed = rows.sort_values("mean_tokens").groupby("seeds")
    return {seed: np.array([np.log(own["mean_tokens"]), own["accuracy"]]) for seed, own in by_seed}


def level_rows(
    name: str, target_length: float | None, runs: Sequence[pd.DataFrame], levels: Sequence[int]
) -> list[dict[str, Any]]:
    """One point's rows of `levels.csv`, from its `name` [`in_words`], the samples of its seeds, and the level of each
    problem by the samples' `index`."""
    parts = [run.groupby(np.asarray(levels)[run["index"]])[["is_correct", "num_tokens"]].mean() for run in runs]
    means = pd.concat(parts).set_axis(["accuracy", "mean_tokens"], axis=1).rename_axis("level").reset_index()
    by_point = means.assign(name=name, target_length=target_length)
    return _over_seeds(by_point, ["name", "target_length", "level"]).to_dict("records")


def _level_table(levels: pd.DataFrame) -> str:
    """A line per point: its accuracy and tokens at each level."""
    rows = []
    for (name, target), own in levels.groupby(["name", "target_length"], dropna=False, sort=False):
        cells = {f"level {row.level}": f"{row.accuracy:.3f}, {row.mean_tokens:.1f}" for row in own.itertuples()}
        rows.append({"method": name, "target": _shown(target, "{:g}"), **cells})
    return markdown(pd.DataFrame(rows))
