"""Builds the tables of comparisons, for `leash compare` and reports: rows of seeds, rows of points, and differences.

A point is a method with its settings and its target; a comparison runs each point with several seeds.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from leash_trl.evaluation import intervals
from leash_trl.evaluation.frame import EvaluatedRun, reward_bounds
from leash_trl.evaluation.intervals import Estimate, mean_over_seeds, welch
from leash_trl.evaluation.tables import markdown, with_interval


WINDOW = 10  # number of training batches in a running mean, since single batches are too noisy
FEW_POINTS = 5  # comparisons with at most this many points show each pair
LAST_COLUMN = "generated_tokens"  # last fixed column of a comparison's files; the fields of its grid follow

COMPARISON_LEGEND = (
    "[95 % interval]: Student's t interval over seeds; with one seed or none, over problems. change of tokens: from "
    "the base. share within target: completions no longer than the target. distance to target (worst seed): of the "
    "mean length in the last quarter of training. share of batches within 10 %: running means over ten batches within "
    "10 % of the target, from the first batch at or below it on. overshoot: how far these means fell below the "
    "target. steps to target: updates until that first batch, mean over the seeds that reached the target. Columns "
    "from distance to steps count from the last change of the target. AES: accuracy-efficiency score; the base has 0."
)
EQUAL_LENGTH_LEGEND = (
    "At equal length: mean difference in accuracy between the lines that join each seed's points over the logarithm "
    "of tokens, with Student's t interval over seeds. n/a: the seeds differ, or no tokens are common to all lines."
)

Row = dict[str, Any]
Table = tuple[pd.DataFrame | None, str]
"""A table of text and the words below it, or words without a table."""


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


def measure_of(runs: Sequence[EvaluatedRun]) -> str:
    """Returns by which measure to compare runs: `"accuracy"` if correctness is known, and rewards are 1 for correct
    completions and negative, or 0, for all others; otherwise `"reward"`."""
    rewards = {value for run in runs if "reward" in run.samples for value in run.samples["reward"].dropna().unique()}
    wrong = rewards - {1}
    has_two = wrong <= {0} or (max(wrong) < 0 and (1 in rewards or wrong == {-1}))
    return "accuracy" if has_two and all(run.knows_correctness for run in runs) else "reward"


def measured(run: EvaluatedRun, measure: str = "accuracy") -> dict[str, Any]:
    """Returns the columns of `seeds.csv` for an evaluated model: its score, which is accuracy or reward, and tokens,
    with several benchmarks as unweighted means over them. Rewards also have their bounds."""
    ends = _ends(run.estimate(measure), run.estimate("tokens"))
    row = {"measure": measure, **ends, "p95_tokens": run.estimate("p95_tokens").value}
    if measure == "reward":
        row["lowest_score"], row["highest_score"] = reward_bounds(run.samples)
    return row


def seed_row(
    run: EvaluatedRun,
    base: Row,
    target_length: float | None,
    mean_lengths: pd.Series,
    multipliers: pd.Series,
    controlled: str = "num_tokens",
) -> dict[str, Any]:
    """Returns the columns of `seeds.csv` for one trained model, without names, training tokens and grid.

    `base` is the result of [`measured`] before training, `multipliers` is lambda by step, and `controlled` the column
    of the run's samples that has the controlled lengths; for the others, see [`settling`].
    """
    row, found = measured(run, base["measure"]), settling(mean_lengths, target_length)
    target = math.nan if target_length is None else target_length
    is_met = (run.samples[controlled] <= target).groupby(run.samples["benchmark"]).mean()
    return {
        **row,
        **_against(base, row),
        "target_length": target,
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
    lowest, highest = 0.0, 1.0
    if rows["measure"].iloc[0] == "reward":
        lowest, highest = rows["lowest_score"].min(), rows["highest_score"].max()
    groups = rows.groupby(by, dropna=False, sort=False)
    ends = [
        _ends(mean_over_seeds(own["score"], highest, lowest), mean_over_seeds(own["mean_tokens"])) for _, own in groups
    ]
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
    """Returns [`comparison_tables`] as Markdown."""
    paragraphs = []
    for frame, words in comparison_tables(seeds):
        paragraphs += [words] if frame is None else [markdown(frame), words]
    return "\n\n".join(paragraphs)


def comparison_tables(seeds: pd.DataFrame) -> list[Table]:
    """Returns the tables of a comparison, with `seeds` as for [`comparison_rows`]: its methods, which pairs of points
    differ significantly, and the scores at equal length."""
    trained = seeds[1:]
    words = [in_words(row) for row in trained.to_dict("records")]
    points = words + trained["target_length"].map(lambda length: _shown(length, " at {:g}"))
    has_seeds = points.duplicated(keep=False)  # at least two
    tables = [(_methods_table(comparison_rows(seeds)), COMPARISON_LEGEND)]
    if points[has_seeds].nunique() > 1:
        known = trained.assign(words=words, point=points)[has_seeds]
        tables += [*_significance_tables(known), *_equal_length_tables(known)]
    return tables


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


def _methods_table(rows: pd.DataFrame) -> pd.DataFrame:
    target = rows["target_length"].map(lambda length: _shown(length, "{:g}"))
    grid = pd.concat([target.rename("target"), rows[grid_fields(rows)].fillna("")], axis=1)
    grid = grid.loc[:, [len({*grid[field]} - {""}) > 1 for field in grid]]
    grid.columns = [field.rpartition(".")[2] for field in grid]
    cells = pd.DataFrame([_row_cells(row) for row in rows.to_dict("records")])
    headings = {"score": rows["measure"].iloc[0], "tokens": "tokens"}
    cells = cells.rename(columns={name: f"{shown} [95 % interval]" for name, shown in headings.items()})
    cells = cells.loc[:, (cells != "").any()]
    return pd.concat([rows["name"].rename("method"), grid, cells], axis=1)


def _row_cells(row: dict[str, Any]) -> dict[str, str]:
    num_seeds, num_reached = len(row["seeds"].split()), row["num_reached"]
    share = "" if num_reached == num_seeds else f" ({num_reached:.0f} of {num_seeds})"
    steps = f"{row['steps_to_target']:.0f}{share}" if num_reached else "never"
    row |= {"steps": "" if math.isnan(row["settling_error"]) else steps, "millions": row[LAST_COLUMN] / 1e6}
    cells = {name: form.format(**row).replace(" [nan, nan]", "") for name, form in CELLS.items()}
    return {"seeds": str(num_seeds or ""), **{name: "" if "nan" in cell else cell for name, cell in cells.items()}}


def _significance_tables(seeds: pd.DataFrame) -> list[Table]:
    """Tests which pairs of points differ over their seeds: all pairs, which are listed, if there are few points, else
    pairs at the same target, which are counted."""
    measure = seeds["measure"].iloc[0]
    by_point = dict(list(seeds.groupby("point", sort=False)))
    targets = {point: own["target_length"].iloc[0] for point, own in by_point.items()}
    methods = {point: own["name"].iloc[0] for point, own in by_point.items()}
    has_few_points = len(by_point) <= FEW_POINTS
    rows = []
    for first, second in itertools.combinations(by_point, 2):
        if has_few_points or (targets[first] == targets[second] and methods[first] != methods[second]):
            score, score_p = welch(by_point[first]["score"], by_point[second]["score"])
            tokens, tokens_p = welch(by_point[first]["mean_tokens"], by_point[second]["mean_tokens"])
            rows.append((f"{first} minus {second}", score, tokens, score_p, tokens_p))
    if not rows:
        return []
    pairs = pd.DataFrame(rows, columns=["difference", measure, "tokens", "score_p", "tokens_p"])
    p_values = pairs[["score_p", "tokens_p"]].to_numpy()
    is_significant = p_values < intervals.SIGNIFICANCE
    is_significant_by_holm = intervals.holm(p_values.flatten()).reshape(-1, 2)
    pairs_tested = f"{len(pairs)} pairs" if has_few_points else f"{len(pairs)} pairs of methods at the same target"
    sentence = (
        f"Of {pairs_tested}, Welch's t test over seeds (95 %) finds a difference for "
        f"{_counts(is_significant, measure)}; after Holm's correction for these {p_values.size} tests, for "
        f"{_counts(is_significant_by_holm, measure)}."
    )
    if not has_few_points:
        return [(None, sentence)]
    shown = pd.DataFrame({"difference": pairs["difference"]})
    shown[measure] = pairs[measure].map("{:+.3f}".format)
    shown["tokens"] = pairs["tokens"].map("{:+.1f}".format)
    columns = np.array([measure, "tokens"])
    significant = [columns[is_rejected] for is_rejected in is_significant_by_holm]
    shown["significant (Holm)"] = [" and ".join(names) or "nothing" for names in significant]
    return [(shown, sentence)]


def _counts(is_significant: np.ndarray, measure: str) -> str:
    """Describes in how many pairs score and tokens differ, with `is_significant` of shape `(pairs, 2)`."""
    in_score, in_tokens = is_significant.sum(axis=0)
    return f"{in_score} in {measure}, {in_tokens} in tokens and {is_significant.any(axis=1).sum()} in either"


def _equal_length_tables(seeds: pd.DataFrame) -> list[Table]:
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
    return [(pd.DataFrame(rows), EQUAL_LENGTH_LEGEND)] if rows else []


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
