"""Builds the tables of `leash eval`, `leash compare`, cards and reports: Markdown to read, CSV and JSON for programs.

A cell is empty where its number is not defined.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from leash_trl.evaluation import intervals
from leash_trl.evaluation.frame import OVERALL, EvaluatedRun, changes, have_overall, warning
from leash_trl.evaluation.intervals import Estimate, mean_over_seeds, welch
from leash_trl.files import write_whole


WINDOW = 10  # number of training batches in a running mean, since single batches are too noisy
FEW_POINTS = 5  # comparisons with at most this many points show each pair
LAST_COLUMN = "generated_tokens"  # last fixed column of a comparison's files; the fields of its grid follow

LEGEND = (
    "Avg@k: share of correct completions (own rewards: above 0), mean over problems. Accuracies and rates are in %, "
    "their differences in percentage points. tokens: mean length of a completion. Brackets: 95 % interval over "
    "problems, for differences over the differences of each problem."
)
METRIC_LEGEND = (
    "pass@k: at least one of k answers is right. maj@k: the most frequent answer is right. right within B tokens: "
    "right and at most B tokens long. AUC: its mean over all B up to max_new_tokens (AUC_OAA of arXiv 2508.13141, "
    "where B counts thinking tokens). tokens per correct answer: all tokens over the number of right answers. "
    "thinking tokens: up to the last end of thinking. overall: mean over benchmarks."
)
COMPARISON_LEGEND = (
    "[95 % interval]: Student's t interval over seeds; with one seed or none, over problems. change of tokens: from "
    "the base. share within target: completions no longer than the target. distance to target (worst seed): of the "
    "mean length in the last quarter of training. share of batches within 10 %: running means over ten batches within "
    "10 % of the target, from the first batch at or below it on. overshoot: how far they fell below it. steps to "
    "target: until that first batch, mean over the seeds that reached it. These four columns count from the last "
    "change of the target. AES: accuracy-efficiency score; the base has 0."
)
EQUAL_LENGTH_LEGEND = (
    "At equal length: mean distance of the lines that join each seed's points over the logarithm of tokens, with "
    "Student's t interval over seeds. n/a: seeds differ, or their lines have no range of tokens in common."
)

Row = dict[str, Any]


def percent(share: float | None) -> str:
    """Formats a share in percent."""
    return "" if share is None or pd.isna(share) else f"{100 * share:.1f}"


def tokens(count: float | None) -> str:
    """Formats a number of tokens, without decimals from 1,000 on: `16,912`, `46.0`."""
    return "" if count is None or pd.isna(count) else f"{count:,.{0 if abs(count) >= 1000 else 1}f}"


def signed_tokens(count: float) -> str:
    """Formats a difference of numbers of tokens: `-9,854`, `+0.0`."""
    return f"{count:+z,.{0 if abs(count) >= 1000 else 1}f}"


def plain(number: float | None) -> str:
    """Formats a number without a unit to three digits."""
    return "" if pd.isna(number) else f"{number:.3g}"


def points(share: float) -> str:
    """Formats a difference of shares in percentage points, or a relative difference in percent: `-50.0`, `+0.0`."""
    return f"{100 * share:+z.1f}"


def with_interval(number: Estimate, shown: Callable[[float], str]) -> str:
    """Formats a number with its interval, if it has one: `"50.0 [40.0, 62.5]"`."""
    return shown(number.value) + ("" if math.isnan(number.low) else f" [{shown(number.low)}, {shown(number.high)}]")


def markdown(frame: pd.DataFrame) -> str:
    """Formats a frame of text as a Markdown table, with the first column aligned left and the others right."""
    alignment = ["---", *["---:"] * (len(frame.columns) - 1)]
    rows = ([*frame.columns], alignment, *frame.itertuples(index=False, name=None))
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
    text = " ".join(text.split()).replace("\\", "\\\\")
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("](", "]\\(")
    return re.sub(r"([|*`])", r"\\\1", text)


# for each metric its name in the literature, with `at` and k, and how to format it
METRICS: dict[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("Avg@{k}", percent),
    "pass": ("pass@{at:.0f}", percent),
    "majority": ("maj@{k}", percent),
    "reward": ("reward", plain),
    "tokens": ("tokens", tokens),
    "thinking_tokens": ("thinking tokens", tokens),
    "answer_tokens": ("answer tokens", tokens),
    "truncated_rate": ("truncated rate", percent),
    "no_answer_rate": ("no answer rate", percent),
    "accuracy_within": ("right within {at:,.0f} tokens", percent),
    "auc_oaa": ("AUC of accuracy within budget", percent),
    "tokens_per_correct": ("tokens per correct answer", tokens),
    "median_tokens": ("median tokens", tokens),
    "p95_tokens": ("p95 tokens", tokens),
    "right_tokens": ("right tokens", tokens),
    "wrong_tokens": ("wrong tokens", tokens),
    "accuracy_change": ("Δ accuracy (points)", points),
    "reward_change": ("Δ reward", "{:+.3g}".format),
    "tokens_change": ("Δ tokens", signed_tokens),
    "relative_tokens_change": ("Δ tokens (%)", points),
}


def results_markdown(run: EvaluatedRun, baseline: EvaluatedRun | None = None) -> str:
    """Returns [`summary_markdown`], followed by every metric of the run with its interval."""
    detail = metric_cells(run, run.results, have_overall([run]))
    sizes = run.results.groupby("benchmark")["num_problems"].first().astype(str)
    detail = pd.concat([sizes[[*detail]].to_frame("problems").T, detail]).rename_axis("metric").reset_index()
    parts = [summary_markdown(run, baseline), f"## {escaped(run.label)}", markdown(detail), METRIC_LEGEND]
    return "\n\n".join(parts) + "\n"


def summary_markdown(run: EvaluatedRun, baseline: EvaluatedRun | None = None) -> str:
    """Returns the paper's table with one row per run, and the differences from the baseline, for terminals and model
    cards.

    Raises:
        `ValueError`: If the run and its baseline have different benchmarks or problems.
    """
    runs = [baseline, run] if baseline else [run]
    summary = summary_table(runs)
    parts = [markdown(summary.assign(model=summary["model"].map(escaped)))]
    if baseline:
        differences = metric_cells(run, changes(run, baseline), have_overall([run])).T
        parts.append(markdown(differences.rename_axis(f"against {escaped(baseline.label)}").reset_index()))
    return "\n\n".join([*parts, LEGEND, warning(runs)]).strip() + "\n"


def summary_table(runs: Sequence[EvaluatedRun]) -> pd.DataFrame:
    """Returns the paper's table: Avg@k and tokens of each benchmark with their intervals, one row per run."""
    rows = []
    for run in runs:
        numbers = run.results[run.results["metric"].isin(["accuracy", "reward", "tokens"])]
        cells = metric_cells(run, numbers, have_overall(runs)).unstack()
        rows.append({"model": run.label} | {" ".join(names): cell for names, cell in cells.items()})
    return pd.DataFrame(rows).fillna("")


def metric_cells(run: EvaluatedRun, rows: pd.DataFrame, has_overall: bool) -> pd.DataFrame:
    """Returns numbers with their intervals, one row per metric and one column per benchmark, with a column for the
    mean over benchmarks if `has_overall` is true."""
    cells: dict[str, dict[str, str]] = {}
    for row in rows.itertuples():
        if row.benchmark != OVERALL or has_overall:
            name, form = METRICS[row.metric]
            shown = with_interval(Estimate(row.value, row.low, row.high), form)
            cells.setdefault(row.benchmark, {})[name.format(at=row.at, k=row.num_samples)] = shown
    return pd.DataFrame(cells)


def write_results(folder: Path, run: EvaluatedRun, baseline: EvaluatedRun | None) -> None:
    """Writes `results.md`, and `results.csv` and `results.json` in full precision, with the changes from the
    baseline."""
    rows = pd.concat([run.results, changes(run, baseline)], ignore_index=True) if baseline else run.results
    names = {"label": run.label, "model": run.run["model"], "step": run.run.get("step")}
    records = rows.astype(object).where(rows.notna(), None).to_dict("records")
    document = {"run": run.run, "baseline": baseline and baseline.label, "results": records}
    write_whole(folder / "results.md", results_markdown(run, baseline))
    write_whole(folder / "results.csv", csv(pd.DataFrame({**names, **rows})))
    write_whole(folder / "results.json", json.dumps(document, ensure_ascii=False, allow_nan=False, indent=2) + "\n")


def settling(mean_lengths: pd.Series, target_length: float | None) -> dict[str, float]:
    """Measures how training reached the target and stayed near it; NaN where this is not defined.

    `mean_lengths` has the mean length of each batch, indexed by the number of optimizer steps since the target last
    changed. Returned are `settling_error`, the distance of the mean over the last quarter of batches from the target;
    `near_target_share`, the share of running means over ten batches that are within 10 % of the target, from the first
    batch at or below the target on; `overshoot`, the largest distance of a running mean below the target; and
    `steps_to_target`, the step of that first batch. Distances are relative to the target.
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


def measure_of(runs: Iterable[pd.DataFrame]) -> str:
    """Returns by which measure to compare runs with these `load_samples`: `"reward"` if rewards have other values than
    those of right and wrong, else `"accuracy"`."""
    rewards = {value for samples in runs if "reward" in samples for value in samples["reward"].dropna().unique()}
    return "accuracy" if rewards <= {0, 1} or rewards <= {-1, 1} else "reward"


def measured(samples: pd.DataFrame, measure: str = "accuracy") -> dict[str, Any]:
    """Returns the columns of `seeds.csv` for a model's `load_samples`: its score, which is accuracy or reward, and
    tokens."""
    column = "is_correct" if measure == "accuracy" else "reward"
    means = samples.groupby(["benchmark", "id"], sort=False)[[column, "num_tokens"]].mean().dropna()
    scores, length = means[column].to_numpy(), intervals.mean_amount(means["num_tokens"].to_numpy())
    score = intervals.mean_share(scores) if measure == "accuracy" else intervals.mean_amount(scores, -math.inf)
    return {"measure": measure, **_ends(score, length), "p95_tokens": float(np.quantile(samples["num_tokens"], 0.95))}


def seed_row(
    samples: pd.DataFrame, base: Row, target_length: float | None, mean_lengths: pd.Series, multipliers: pd.Series
) -> dict[str, Any]:
    """Returns the columns of `seeds.csv` for one trained model, without names, training tokens and grid.

    `base` is the result of [`measured`] before training, and `multipliers` is lambda by step; for the others, see
    [`settling`].
    """
    row, found = measured(samples, base["measure"]), settling(mean_lengths, target_length)
    is_met = samples["num_tokens"] <= (math.nan if target_length is None else target_length)
    return {
        **row,
        **_against(base, row),
        "target_length": math.nan if target_length is None else target_length,
        "satisfaction_rate": math.nan if target_length is None else float(is_met.mean()),
        **found,
        "worst_settling_error": found["settling_error"],
        "num_reached": int(not math.isnan(found["steps_to_target"])),
        "lambda_end": float(multipliers.iloc[-1]) if len(multipliers) else math.nan,
        "lambda_peak": float(multipliers.max()),
    }


def _ends(score: Estimate, length: Estimate) -> dict[str, float]:
    numbers = {"score": score, "mean_tokens": length}
    ends = ("", "_interval_low", "_interval_high")
    return {name + end: value for name, number in numbers.items() for end, value in zip(ends, number, strict=True)}


def _over_seeds(rows: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Returns score and tokens with intervals over seeds, one row per group."""
    bounds = (1.0, 0.0) if rows["measure"].iloc[0] == "accuracy" else (math.inf, -math.inf)
    groups = rows.groupby(by, dropna=False, sort=False)
    ends = [_ends(mean_over_seeds(own["score"], *bounds), mean_over_seeds(own["mean_tokens"])) for _, own in groups]
    return pd.concat([rows[by].drop_duplicates(ignore_index=True), pd.DataFrame(ends)], axis=1)


def _against(base: Row, row: Any) -> dict[str, Any]:
    r"""Returns the change of tokens from the base and the accuracy-efficiency score (AES), dimensionless, of one or
    several rows.

    $$ \mathrm{AES} = \frac{L_0 - L}{L_0} + \beta \frac{A - A_0}{A_0} $$

    $\beta$ is 3 if accuracy rises and 5 if it falls.

    Source: [O1-Pruner](https://huggingface.co/papers/2501.12570), with the weights that later papers use.
    """
    has_share = base["measure"] == "accuracy" and base["score"] > 0
    gain = (row["score"] - base["score"]) / (base["score"] if has_share else math.nan)
    saved = (base["mean_tokens"] - row["mean_tokens"]) / base["mean_tokens"]
    efficiency = saved + np.where(gain >= 0, 3.0, 5.0) * gain
    return {"token_change": row["mean_tokens"] / base["mean_tokens"] - 1, "efficiency_score": efficiency}


def read_comparison(path: str | Path) -> pd.DataFrame:
    """Reads a comparison's `seeds.csv` or `table.csv`, with numbers as floats and the fields of the grid as text."""
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    return rows.assign(**rows.loc[:, "score":LAST_COLUMN].apply(pd.to_numeric).astype(float))


def grid_fields(columns: Iterable[str]) -> list[str]:
    """Returns the fields of a comparison's grid except the target, which are the columns after the fixed ones."""
    return [*itertools.dropwhile(lambda column: column != LAST_COLUMN, columns)][1:]


def in_words(row: Row) -> str:
    """Describes method and settings of a comparison's row, without its target.

    Example:
        >>> in_words({"name": "ALP", "generated_tokens": 7.0, "length_control_kwargs.alpha": "0.5", "lambda_lr": ""})
        'ALP, alpha 0.5'
    """
    given = {field.rpartition(".")[2]: row[field] for field in grid_fields(row.keys()) if not pd.isna(row[field])}
    return ", ".join([row["name"], *(f"{field} {value}" for field, value in given.items() if value)])


def comparison_rows(seeds: pd.DataFrame) -> pd.DataFrame:
    """Returns the base and each point of a comparison, with means over its seeds, in the columns of `table.csv`.

    `seeds` is a frame of [`read_comparison`], whose first row is the base.
    """
    by = ["name", "target_length", *grid_fields(seeds)]
    base, trained = seeds[:1], seeds[1:]
    kinds: dict[Any, Any] = dict.fromkeys(seeds.loc[:, "score":LAST_COLUMN].drop(columns="target_length"), "mean")
    kinds |= {"seeds": " ".join, "measure": "first", "worst_settling_error": "max", "num_reached": "sum"}
    means = trained.groupby(by, dropna=False, sort=False).agg(kinds).reset_index()
    rows = _over_seeds(trained, by).combine_first(means)  # a single seed keeps its interval over problems
    return pd.concat([base, rows.assign(**_against(base.iloc[0], rows))], ignore_index=True)[[*seeds.columns]]


def comparison_markdown(seeds: pd.DataFrame) -> str:
    """Returns the tables of a comparison, with `seeds` as for [`comparison_rows`]: its methods, which pairs of them
    differ significantly, and their scores at equal length."""
    paragraphs, trained = [_comparison_table(comparison_rows(seeds)), COMPARISON_LEGEND], seeds[1:]
    words = [in_words(row) for row in trained.to_dict("records")]
    points = words + trained["target_length"].map(lambda length: _shown(length, " at {:g}"))
    known = trained.assign(words=words, point=points)[points.duplicated(keep=False)]  # points with two seeds or more
    if known["point"].nunique() > 1:
        paragraphs += [*_pairs_told(known), *_equal_length_table(known)]
    return "\n\n".join(paragraphs)


def _shown(value: float, form: str) -> str:
    return "" if math.isnan(value) else form.format(value)


# columns of a comparison's table after those of the method and of the settings in which its points differ
CELLS = {
    "score": "{score:.3f} [{score_interval_low:.3f}, {score_interval_high:.3f}]",
    "tokens": "{mean_tokens:.1f} [{mean_tokens_interval_low:.1f}, {mean_tokens_interval_high:.1f}]",
    "p95 of tokens": "{p95_tokens:.0f}",
    "change of tokens": "{token_change:+.1%}",
    "share within target": "{satisfaction_rate:.3f}",
    "last lambda (largest)": "{lambda_end:.3f} ({lambda_peak:.3f})",
    "distance to target (worst seed)": "{settling_error:.1%} ({worst_settling_error:.1%})",
    "share of batches within 10 %": "{near_target_share:.0%}",
    "overshoot": "{overshoot:.1%}",
    "steps to target": "{steps}",
    "tokens in training": "{millions:.2f} M",
    "AES": "{efficiency_score:+.2f}",
}


def _comparison_table(rows: pd.DataFrame) -> str:
    target = rows["target_length"].map(lambda length: _shown(length, "{:g}"))
    grid = pd.concat([target.rename("target"), rows[grid_fields(rows)].fillna("")], axis=1)
    grid = grid.loc[:, [len({*grid[field]} - {""}) > 1 for field in grid]]
    grid.columns = [field.rpartition(".")[2] for field in grid]
    cells = pd.DataFrame([_row_cells(row) for row in rows.to_dict("records")])
    headings = {"score": rows["measure"].iloc[0], "tokens": "tokens"}
    cells = cells.rename(columns={name: f"{shown} [95 % interval]" for name, shown in headings.items()})
    cells = cells.loc[:, (cells != "").any()]
    return markdown(pd.concat([rows["name"].rename("method"), grid, cells], axis=1))


def _row_cells(row: dict[str, Any]) -> dict[str, str]:
    num_seeds, num_reached = len(row["seeds"].split()), row["num_reached"]
    share = "" if num_reached == num_seeds else f" ({num_reached:.0f} of {num_seeds})"
    steps = f"{row['steps_to_target']:.0f}{share}" if num_reached else "never"
    row |= {"steps": "" if math.isnan(row["target_length"]) else steps, "millions": row[LAST_COLUMN] / 1e6}
    cells = {name: form.format(**row).replace(" [nan, nan]", "") for name, form in CELLS.items()}
    return {"seeds": str(num_seeds or ""), **{name: "" if "nan" in cell else cell for name, cell in cells.items()}}


def _shown_signs(differences: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns for differences with their p values 1 if significantly positive, -1 if negative, else 0, without and
    with Holm's correction."""
    means, p_values = np.array(differences).T
    return np.sign(means) * (p_values < intervals.SIGNIFICANCE), np.sign(means) * intervals.holm(p_values)


def _pairs_told(seeds: pd.DataFrame) -> list[str]:
    """Counts the pairs of points that differ significantly, among many points only pairs at the same target, and lists
    the pairs if there are few points."""
    measure = seeds["measure"].iloc[0]
    points = {name: own[["score", "mean_tokens"]].to_numpy().T for name, own in seeds.groupby("point", sort=False)}
    pairs, where = [*itertools.combinations(points, 2)], ""
    if len(points) > FEW_POINTS:
        firsts = seeds.drop_duplicates("point").dropna(subset="target_length")
        both = firsts.merge(firsts, on="target_length").query("name_x < name_y")
        pairs, where = [*zip(both["point_x"], both["point_y"], strict=True)], " of methods at the same target"
    if not pairs:
        return []
    differences = [welch(points[one][kind], points[other][kind]) for kind in (0, 1) for one, other in pairs]
    told = [signs.reshape(2, -1) != 0 for signs in _shown_signs(differences)]
    words = f"{{}} in {measure}, {{}} in tokens and {{}} in either"
    alone, corrected = [words.format(*each.sum(axis=1), each.any(axis=0).sum()) for each in told]
    sentence = (
        f"Of {len(pairs)} pairs{where}, Welch's t test over seeds (95 %) finds a difference for {alone}; "
        f"after Holm's correction for these {len(differences)} tests, for {corrected}."
    )
    if where:
        return [sentence]
    gains, costs = np.array(differences)[:, 0].reshape(2, -1)
    by = [" and ".join(itertools.compress((measure, "tokens"), each)) or "nothing" for each in told[1].T]
    table = pd.DataFrame({"difference": [" minus ".join(pair) for pair in pairs]})
    table[measure], table["tokens"] = [*map("{:+.3f}".format, gains)], [*map("{:+.1f}".format, costs)]
    return [markdown(table.assign(**{"significant (Holm)": by})), sentence]


def _equal_length_table(seeds: pd.DataFrame) -> list[str]:
    """Compares every curve with the first one. A curve joins the points of the same method and settings, or of the
    same method if it has no target."""
    names = seeds["words"].where(seeds["target_length"].notna(), seeds["name"])
    curves = [(name, own) for name, own in seeds.groupby(names, sort=False) if own["point"].nunique() > 1]
    (reference, first), *others = curves or [("", seeds)]
    heading, rows = f"{seeds['measure'].iloc[0]} minus that of {reference} [95 % interval]", []
    for name, own in others:
        number, low, high = score_at_equal_length(own, first)
        cell = with_interval(number, "{:+.3f}".format).replace("+nan", "n/a")
        rows.append({"method": name, heading: cell, "tokens": _shown(low, f"{{:.1f}} to {high:.1f}")})
    return [markdown(pd.DataFrame(rows)), EQUAL_LENGTH_LEGEND] if rows else []


def score_at_equal_length(first: pd.DataFrame, second: pd.DataFrame) -> tuple[Estimate, float, float]:
    r"""Returns by how much the score of the first method is higher at equal length, and the range of tokens compared.

    $$ d_s = \frac{1}{\log b - \log a} \int_{\log a}^{\log b} (A_s - B_s) \, d \log T, \qquad
    \bar d \pm t_{S-1} \, \mathrm{sd}(d) / \sqrt S $$

    $A_s$ and $B_s$ join the points of seed s by straight lines, with the score over the logarithm of mean tokens T.
    [a, b] is the range of tokens that the curves of both methods cover for every seed. The integral is computed
    exactly.

    Each frame has one row per point and seed of a method, with columns `point`, `seeds`, `score` and `mean_tokens`.
    All results are NaN if points have different seeds, or if there is no range that all curves cover.
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
    return mean_over_seeds(differences, lowest=-math.inf), math.exp(low), math.exp(high)


def _curves(rows: pd.DataFrame) -> dict[str, np.ndarray]:
    """Returns, for each seed, the logarithms of tokens in ascending order and their scores."""
    by_seed = rows.sort_values("mean_tokens").groupby("seeds")
    return {seed: np.array([np.log(own["mean_tokens"]), own["score"]]) for seed, own in by_seed}
