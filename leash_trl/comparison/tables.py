"""Builds the tables of comparisons, for `leash compare` and reports: rows of seeds, rows of points, and differences.

A point is a method with its settings and its target; a comparison runs each point with several seeds.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from leash_trl.comparison.curves import first_step_at_target
from leash_trl.completions.costs import cost_label
from leash_trl.evaluation import intervals
from leash_trl.evaluation.intervals import Estimate, mean_over_seeds
from leash_trl.evaluation.metrics import OVERALL
from leash_trl.evaluation.runs import EvaluatedRun, reward_bounds
from leash_trl.evaluation.tables import format_cost, format_tokens, markdown, with_interval


RUNNING_MEAN_BATCHES = 10  # number of training batches in a running mean, since single batches are too noisy
NEAR_TARGET_DISTANCE = 0.1  # largest distance from the target, relative to it, of a running mean that counts as near
GAIN_WEIGHT = 3.0  # of a rise and of a fall of accuracy in the accuracy-efficiency score
LOSS_WEIGHT = 5.0
DIFFERENCES_FILE = "differences.csv"  # in the folder of a comparison
# columns of a comparison's files without an interval, and their metrics
METRIC_BY_COLUMN = {
    "p95_tokens": "p95_tokens",
    "truncated_rate": "truncated_rate",
    "satisfaction_rate": "within_target",
}
LAST_FIXED_COLUMN = "generated_tokens"  # last fixed column of a comparison's files; the fields of its grid follow

# a sentence, and a list of terms, a line each
COMPARISON_LEGEND = (
    "95 % intervals over seeds (Student's t) say what a method does on these problems; those over problems, what the "
    "models of these runs do on others like them. "
    "Columns from distance to steps count from the last change of the target.\n"
    "- truncated rate: share of completions cut at max_new_tokens\n"
    "- change of tokens: from the base\n"
    "- share within target: completions that cost no more than the target\n"
    "- distance to target (worst seed): of the mean length in the last quarter of training\n"
    "- share of batches within 10 %: running means over ten batches within 10 % of the target, from the first batch "
    "at or below it on\n"
    "- overshoot: how far these means fell below the target\n"
    "- steps to target: updates until that first batch, mean over the seeds that reached the target\n"
    "- AES: accuracy-efficiency score; the base has 0"
)
DIFFERENCE_LEGEND = (
    "Differences with 95 % intervals.\n"
    "- over seeds: what the methods do (Welch's t interval; *: significant after Holm's correction for all of this "
    "table)\n"
    "- over problems: what the models of these runs do, paired by problem and seed\n"
    "- seeds needed: of each method, to find a difference as large with a power of 80 %, if seeds vary as these do, "
    "which few seeds tell only roughly"
)
EQUAL_LENGTH_LEGEND = (
    "At equal length, with Student's t interval over seeds: mean difference in accuracy between the lines that join "
    "each seed's points over the logarithm of tokens.\n"
    "- n/a: the seeds differ, or no tokens are common to all lines"
)

Row = dict[str, Any]
Table = tuple[pd.DataFrame, str]
"""A table of text, and its legend."""


def settling_columns(mean_lengths: pd.Series, target_length: float | None) -> dict[str, float]:
    """Measures how training reached the target and stayed near it; NaN where this is not defined.

    `mean_lengths` has the mean length of each batch, indexed by the number of optimizer steps since the target last
    changed. Returned are `settling_error`, the distance of the mean over the last quarter of batches from the target;
    `near_target_share`, the share of running means over ten batches that are within 10 % of the target, from the first
    batch at or below the target on; `overshoot`, the largest distance of a running mean below the target; and
    `steps_to_target`, the step of that first batch. Distances are relative to the target.
    """
    columns = {
        "settling_error": math.nan,
        "near_target_share": math.nan,
        "overshoot": math.nan,
        "steps_to_target": math.nan,
    }
    if target_length is None or mean_lengths.empty:
        return columns
    last_quarter = mean_lengths.iloc[-max(1, len(mean_lengths) // 4) :]
    columns["settling_error"] = abs(float(last_quarter.mean() / target_length) - 1.0)
    first_reached = first_step_at_target(mean_lengths, target_length)  # a step, or None if the target was not reached
    if first_reached is not None:
        # Running means relative to the target: a mean of 1 is at the target.
        relative_means = _running_means(mean_lengths.loc[first_reached:]) / target_length
        is_near = np.abs(relative_means - 1.0) <= NEAR_TARGET_DISTANCE
        # The overshoot counts windows of the whole run, since a window may begin before the target was reached.
        shortest = _running_means(mean_lengths).min()
        columns["near_target_share"] = float(is_near.mean())
        columns["overshoot"] = max(0.0, 1.0 - float(shortest / target_length))
        columns["steps_to_target"] = first_reached
    return columns


def _running_means(lengths: pd.Series) -> np.ndarray:
    """Returns the means of all windows of ten batches; of fewer batches, their mean."""
    window = min(RUNNING_MEAN_BATCHES, len(lengths))
    return np.convolve(lengths.to_numpy(), np.full(window, 1 / window), mode="valid")


def common_measure(runs: Sequence[EvaluatedRun]) -> str:
    """Returns by which measure to compare runs: `"accuracy"` if the correctness of every benchmark is known, and
    rewards are 1 for correct completions and negative, or 0, for all others; otherwise `"reward"`."""
    # The different rewards of all completions; none if the grader of answers decided correctness.
    rewards: set[float] = set()
    for run in runs:
        # A run without rewards, or without those of a benchmark, has no mean reward.
        if not math.isnan(run.estimate("reward").value):
            rewards.update(run.samples["reward"].dropna())
    knows_correctness = all(run.knows_correctness() for run in runs)
    return "accuracy" if knows_correctness and _only_say_right_or_wrong(rewards) else "reward"


def _only_say_right_or_wrong(rewards: set[float]) -> bool:
    """Returns whether these rewards carry nothing beside correctness, as partial credit would."""
    other_rewards = rewards - {1}
    # `<=` compares sets: there are no other rewards, or only 0.
    if other_rewards <= {0} or other_rewards == {-1}:
        return True
    # Several negative rewards, such as -1 and -0.5, are kinds of wrong answers if right ones have 1.
    return max(other_rewards) < 0 and 1 in rewards


def evaluation_columns(run: EvaluatedRun, measure: str = "accuracy", benchmark: str = OVERALL) -> dict[str, Any]:
    """Returns the columns of `seeds.csv` for an evaluated model: its score, which is accuracy or reward, and its
    tokens. Another cost than tokens also has its name and its mean, and rewards have their bounds."""
    length_of = run.record["length_of"]  # "completion" is the number of tokens
    has_other_cost = length_of != "completion"
    row: dict[str, Any] = {"measure": measure}
    if has_other_cost:
        row["length_of"] = length_of
    row.update(_interval_columns("score", run.estimate(measure, benchmark)))
    row.update(_interval_columns("mean_tokens", run.estimate("tokens", benchmark)))
    for column, metric in METRIC_BY_COLUMN.items():
        row[column] = run.estimate(metric, benchmark).value
    if has_other_cost:
        # An evaluation reports all other costs as the metric "cost".
        metric = "thinking_tokens" if length_of == "thinking" else "cost"
        row.update(_interval_columns("mean_cost", run.estimate(metric, benchmark)))
    # The interval over seeds must stay within these bounds; those of accuracy are 0 and 1.
    if measure == "reward":
        lowest, highest = reward_bounds(run.samples)
        row["lowest_score"] = lowest
        row["highest_score"] = highest
    return row


def result_columns(
    run: EvaluatedRun, base: Row, target_length: float | None, mean_lengths: pd.Series, multipliers: pd.Series
) -> dict[str, Any]:
    """Returns the columns of `seeds.csv` for one trained model, without names, training tokens and grid.

    `base` is the result of [`evaluation_columns`] before training, and `multipliers` is lambda by step; for the other
    arguments see [`settling_columns`].
    """
    row = evaluation_columns(run, base["measure"])
    row.update(_change_columns(row, base))
    row["target_length"] = math.nan if target_length is None else target_length
    row.update(settling_columns(mean_lengths, target_length))
    # Rows of several seeds have the largest error of a seed here, and the number of seeds that reached the target.
    row["worst_settling_error"] = row["settling_error"]
    row["num_reached"] = 0 if math.isnan(row["steps_to_target"]) else 1
    row["lambda_end"] = float(multipliers.iloc[-1]) if len(multipliers) else math.nan
    row["lambda_peak"] = float(multipliers.max())
    return row


def _interval_columns(name: str, estimate: Estimate) -> dict[str, float]:
    """Returns a number and the ends of its interval as columns, such as `score`, `score_interval_low` and
    `score_interval_high`."""
    return {
        name: estimate.value,
        name + "_interval_low": estimate.low,
        name + "_interval_high": estimate.high,
    }


def estimate_in_row(row: Row, name: str) -> Estimate:
    """Returns a number of a comparison's row with its interval; NaN if the comparison has no such column."""
    columns = (name, f"{name}_interval_low", f"{name}_interval_high")
    return Estimate(*(row.get(column, math.nan) for column in columns))


# the result of `_change_columns` for a row that cannot be compared with the base
NAN_CHANGE_COLUMNS = {"token_change": math.nan, "efficiency_score": math.nan}


def _change_columns(row: Row, base: Row) -> dict[str, float]:
    r"""Returns the change of tokens from the base and the accuracy-efficiency score (AES), dimensionless.

    $$ \mathrm{AES} = \frac{L_0 - L}{L_0} + \beta \frac{A - A_0}{A_0} $$

    $\beta$ is 3 if accuracy rises and 5 if it falls. AES is NaN if the base has accuracy 0, or rewards instead.

    Source: [O1-Pruner](https://huggingface.co/papers/2501.12570), with the weights that later papers use.
    """
    # If the base has rewards, or accuracy 0, there is no relative gain: NaN here makes gain and AES NaN too.
    has_accuracy = base["measure"] == "accuracy" and base["score"] > 0
    base_accuracy = base["score"] if has_accuracy else math.nan
    gain = (row["score"] - base["score"]) / base_accuracy
    saved_share = (base["mean_tokens"] - row["mean_tokens"]) / base["mean_tokens"]
    weight = GAIN_WEIGHT if gain >= 0 else LOSS_WEIGHT
    return {
        "token_change": row["mean_tokens"] / base["mean_tokens"] - 1,
        "efficiency_score": saved_share + weight * gain,
    }


def read_comparison_rows(path: str | Path) -> pd.DataFrame:
    """Reads a comparison's `seeds.csv` or `table.csv`, with numbers as floats and the fields of the grid as text."""
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    numbers = rows.loc[:, "score":LAST_FIXED_COLUMN].apply(pd.to_numeric).astype(float)  # an empty cell becomes NaN
    return rows.assign(**numbers)


def grid_fields(columns: Iterable[str]) -> list[str]:
    """Returns the fields of a comparison's grid except the target, which are the columns after the fixed ones."""
    names = list(columns)
    if LAST_FIXED_COLUMN not in names:
        return []
    return names[names.index(LAST_FIXED_COLUMN) + 1 :]


def method_with_settings(row: Row) -> str:
    """Describes method and settings of a comparison's row, without its target.

    Example:
        >>> row = {"name": "ALP", "generated_tokens": 7.0, "length_control_kwargs.alpha": "0.5", "lambda_lr": ""}
        >>> method_with_settings(row)
        'ALP, alpha 0.5'
    """
    words = [row["name"]]
    # A setting that this row does not have is an empty cell in a file, and NaN in a frame.
    for field in grid_fields(row.keys()):
        value = row[field]
        if not pd.isna(value) and value != "":
            words.append(f"{_short_name(field)} {value}")
    return ", ".join(words)


def _short_name(field: str) -> str:
    """Returns `alpha` for `length_control_kwargs.alpha`."""
    return field.rpartition(".")[2]


def comparison_rows(seeds: pd.DataFrame) -> pd.DataFrame:
    """Returns the base and each point of a comparison, with means over its seeds, in the columns of `table.csv`.

    `seeds` is a frame of [`read_comparison_rows`], whose first row is the base.
    """
    base, *_ = seeds.to_dict("records")
    trained = seeds[1:]
    # Bounds of the score. Accuracies have no columns of bounds, and are in [0, 1].
    lowest = trained.get("lowest_score", pd.Series([0.0])).min()
    highest = trained.get("highest_score", pd.Series([1.0])).max()
    rows = [base]
    # Rows with the same method, target and settings are the seeds of a point. The target may be NaN.
    for _, point in trained.groupby(["name", "target_length", *grid_fields(seeds)], dropna=False, sort=False):
        means = point.loc[:, "score":LAST_FIXED_COLUMN].drop(columns="target_length").mean(numeric_only=True)
        # Text, such as the settings, and the target are equal in all rows of the point.
        row = {**point.iloc[0], **means}
        # These columns are not means over the seeds.
        row["seeds"] = " ".join(point["seeds"])  # such as "0 1 2"
        row["worst_settling_error"] = point["worst_settling_error"].max()
        row["num_reached"] = point["num_reached"].sum()
        # A single seed keeps its interval over problems.
        if len(point) > 1:
            row |= _interval_columns("score", mean_over_seeds(point["score"], highest=highest, lowest=lowest))
            row |= _interval_columns("mean_tokens", mean_over_seeds(point["mean_tokens"]))
            if "mean_cost" in point:
                row |= _interval_columns("mean_cost", mean_over_seeds(point["mean_cost"]))
        # Change and AES are those of the means. They are NaN for a point that must not be compared with the base.
        if point["token_change"].notna().any():
            row |= _change_columns(row, base)
        rows.append(row)
    return pd.DataFrame(rows)


def comparison_markdown(seeds: pd.DataFrame, differences: pd.DataFrame | None = None) -> str:
    """Returns [`comparison_tables`] as Markdown."""
    paragraphs = []
    for frame, legend in comparison_tables(seeds, differences):
        paragraphs.extend([markdown(frame), legend])
    return "\n\n".join(paragraphs)


def comparison_tables(seeds: pd.DataFrame, differences: pd.DataFrame | None = None) -> list[Table]:
    """Returns the tables of a comparison: its methods, the differences of its points from the first one, and the
    scores at equal length.

    Args:
        seeds (`DataFrame`): As for [`comparison_rows`].
        differences (`DataFrame`): The result of [`~leash_trl.comparison.page.paired_differences`], if samples are at
            hand.
    """
    tables: list[Table] = [(_methods_table(comparison_rows(seeds)), COMPARISON_LEGEND)]
    trained = seeds[1:].assign(method_at_target=methods_at_targets(seeds))  # such as "ALP, alpha 0.5 at 46"
    trained["method_with_settings"] = [method_with_settings(row) for row in seeds[1:].to_dict("records")]
    tables.extend(_difference_tables(trained, compared_points(seeds), differences))
    # Scores at equal length need intervals over seeds, so points of a single seed are left out.
    repeated = trained[trained["method_at_target"].duplicated(keep=False)]
    if repeated["method_at_target"].nunique() > 1:
        tables.extend(_equal_length_tables(repeated))
    return tables


class ComparedPoints(NamedTuple):
    """The point that others are compared with, and these."""

    reference: str
    others: list[str]


def compared_points(seeds: pd.DataFrame) -> ComparedPoints:
    """Returns the first point and the others; of a comparison with one point, the base and this point."""
    first, *others = dict.fromkeys(methods_at_targets(seeds))
    if not others:
        return ComparedPoints(reference=seeds["name"].iloc[0], others=[first])
    return ComparedPoints(first, others)


def methods_at_targets(seeds: pd.DataFrame) -> list[str]:
    """Returns the point of each row of a comparison without the base: method and settings, and the target, with its
    unit if it is not tokens."""
    points = []
    for row in seeds[1:].to_dict("records"):
        point = method_with_settings(row)  # such as "ALP, alpha 0.5", to which " at 46" is added
        if target := target_text(row):
            point += f" at {target}"
        points.append(point)
    return points


def target_text(row: Row) -> str:
    """Returns the target of a comparison's row, with its unit if training counted something else than tokens; empty
    without a target.

    Example:
        >>> target_text({"target_length": 3.0, "target_of": "tool_calls"})
        '3 tool calls'
    """
    if math.isnan(row["target_length"]):
        return ""
    target = f"{row['target_length']:g}"
    target_of = row.get("target_of")
    return f"{target} {cost_label(target_of)}" if isinstance(target_of, str) else target


def comparison_sentences(rows: pd.DataFrame) -> list[str]:
    """Returns a sentence on score, tokens and any other cost of each row of [`comparison_rows`], the base first."""
    # The first row is the base, which `methods_at_targets` leaves out.
    points = [rows["name"].iloc[0], *methods_at_targets(rows)]
    sentences = []
    for point, row in zip(points, rows.to_dict("records"), strict=True):
        score = with_interval(estimate_in_row(row, "score"), "{:.3f}".format)
        tokens = with_interval(estimate_in_row(row, "mean_tokens"), format_tokens)
        # Such as "LEASH at 46: accuracy 0.512 [0.480, 0.544], 45.2 [43.9, 46.5] tokens".
        sentence = f"{point}: {row['measure']} {score}, {tokens} tokens"
        # The column `length_of` names another cost that the evaluation measured.
        if "length_of" in row:
            cost = with_interval(estimate_in_row(row, "mean_cost"), partial(format_cost, length_of=row["length_of"]))
            sentence += f", {cost} {cost_label(row['length_of'])}"
        sentences.append(sentence)
    return sentences


# columns of a comparison's table after those with intervals
CELL_FORMATS = {
    "p95 of tokens": "{p95_tokens:.0f}",
    "truncated rate": "{truncated_rate:.1%}",
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
    """Returns the table of methods as text: name, settings that differ, and the cells of [`_row_cells`].

    `rows` is the result of [`comparison_rows`].
    """
    targets = [target_text(row) for row in rows.to_dict("records")]
    settings = rows[grid_fields(rows)].fillna("").rename(columns=_short_name)
    settings.insert(0, "target", targets)
    # For each setting, whether rows have different values; only these settings have a column.
    differs = [len({*settings[field]} - {""}) > 1 for field in settings]
    cells = pd.DataFrame([_row_cells(row) for row in rows.to_dict("records")])
    # Rows of several seeds, such as "0 1", have intervals over seeds; a single seed and the base, over problems.
    is_over_seeds = rows["seeds"].str.contains(" ")
    sample = "seeds" if is_over_seeds.any() else "problems"
    names = {"score": rows["measure"].iloc[0], "mean_tokens": "tokens"}
    if "length_of" in rows:
        names["mean_cost"] = cost_label(rows["length_of"].iloc[0])
    for column, name in names.items():
        # A cell with an interval says so if its interval is not the one that the heading names.
        if sample == "seeds":
            is_over_problems = ~is_over_seeds & cells[column].str.endswith("]")
            cells[column] += np.where(is_over_problems, " over problems", "")
        cells = cells.rename(columns={column: f"{name} [95 % interval over {sample}]"})
    has_cells = (cells != "").any()  # of each column; empty columns are left out
    return pd.concat([rows["name"].rename("method"), settings.loc[:, differs], cells.loc[:, has_cells]], axis=1)


def _row_cells(row: Row) -> dict[str, str]:
    """Returns the cells of a row from `seeds` on; empty where a number is not defined."""
    num_seeds = len(row["seeds"].split())  # "0 1 2" are three; the base has none
    format_mean_cost = partial(
        format_cost, length_of=row.get("length_of", "")
    )  # there may be no other cost than tokens
    cells = {
        "seeds": str(num_seeds) if num_seeds else "",
        "score": with_interval(estimate_in_row(row, "score"), "{:.3f}".format),
        "mean_tokens": with_interval(estimate_in_row(row, "mean_tokens"), "{:.1f}".format),
        "mean_cost": with_interval(estimate_in_row(row, "mean_cost"), format_mean_cost),
    }
    # A format in `CELL_FORMATS`, such as "{millions:.2f} M", names the columns that it shows.
    numbers = {**row, "steps": _steps_cell(row, num_seeds), "millions": row[LAST_FIXED_COLUMN] / 1e6}
    for name, form in CELL_FORMATS.items():
        cell = form.format(**numbers)
        # A number that is not defined is NaN, which `format` writes as "nan".
        cells[name] = "" if "nan" in cell else cell
    return cells


def _steps_cell(row: Row, num_seeds: int) -> str:
    """Describes after how many steps the target was reached, and by how many seeds if not by all."""
    num_reached = row["num_reached"]
    # Without a target there is no error.
    if math.isnan(row["settling_error"]):
        return ""
    if not num_reached:
        return "never"
    # The mean over the seeds that reached the target.
    steps = f"{row['steps_to_target']:.0f}"
    return steps if num_reached == num_seeds else f"{steps} ({num_reached:.0f} of {num_seeds})"


def _difference_tables(seeds: pd.DataFrame, compared: ComparedPoints, paired: pd.DataFrame | None) -> list[Table]:
    """Shows the differences from the reference, over seeds where both have several, and over problems where `paired`
    has them."""
    # What is compared: column of `seeds`, and its name in headings; and how its differences are formatted.
    names = {"score": seeds["measure"].iloc[0], "mean_tokens": "tokens"}
    formats: dict[str, Callable[[float], str]] = {"score": "{:+.3f}".format, "mean_tokens": "{:+.1f}".format}
    if "mean_cost" in seeds:
        length_of = seeds["length_of"].iloc[0]
        names["mean_cost"] = cost_label(length_of)
        formats["mean_cost"] = partial(format_cost, length_of=length_of, sign="+z")
    over_seeds = _differences_over_seeds(seeds, compared, [*names])
    differences_by_sample = {"seeds": over_seeds}
    if paired is not None:
        # Differences over problems are not tested for significance, so they have no mark.
        differences_by_sample["problems"] = paired.assign(mark="")
    # Cells by heading and point, such as {"accuracy over seeds": {"ALP at 46": "-0.012 [-0.020, -0.004] *"}}.
    columns: dict[str, Any] = {}
    for column, name in names.items():
        for sample, differences in differences_by_sample.items():
            cells = {}
            # A point has a row for its score, one for its tokens and, of another cost, one for that.
            for row in differences[differences["column"] == column].itertuples():
                estimate = Estimate(row.value, row.low, row.high)
                cells[row.point] = with_interval(estimate, formats[column]) + row.mark
            columns[f"{name} over {sample}"] = cells
    # A cell such as "4, 12": for the difference of scores, and for that of tokens.
    seeds_needed = over_seeds.groupby("point")["num_needed"].agg(", ".join)
    columns[f"seeds needed ({', '.join(names.values())})"] = seeds_needed.to_dict()
    table = pd.DataFrame(columns, index=compared.others, dtype=object)
    # A point may have no difference, and a column none of any point.
    table = table.dropna(axis="index", how="all").dropna(axis="columns", how="all").fillna("")
    table = table.rename_axis(f"minus {compared.reference}").reset_index()
    return [(table, DIFFERENCE_LEGEND)] if len(table) else []


def _differences_over_seeds(seeds: pd.DataFrame, compared: ComparedPoints, columns: Sequence[str]) -> pd.DataFrame:
    """Returns the differences of these columns from the reference of those points that, like it, have several seeds.

    The result has the columns `point`, `column`, `value`, `low` and `high`, `num_needed`, the number of seeds that
    would find the difference, and `mark`, which says whether it is significant.
    """
    seeds_by_point = dict(list(seeds.groupby("method_at_target")))
    # The base has no seeds. If it is the reference, there are no rows of it, and so no differences.
    reference_seeds = seeds_by_point.get(compared.reference, seeds[:0])
    rows = []
    for point in compared.others:
        for column in columns:
            values = seeds_by_point[point][column]
            reference_values = reference_seeds[column]
            # A variance needs two seeds.
            if min(len(values), len(reference_values)) < 2:
                continue
            estimate, p_value = intervals.welch_test(values, reference_values)
            num_needed = intervals.num_seeds_needed(estimate.value, values.var(), reference_values.var())
            rows.append((point, column, *estimate, f"{num_needed:,.0f}", p_value))
    differences = pd.DataFrame(rows, columns=["point", "column", "value", "low", "high", "num_needed", "p_value"])
    # All differences are one family of tests, in which a false rejection has a probability of at most 5 %.
    is_significant = intervals.holm_rejections(differences["p_value"])
    return differences.assign(mark=np.where(is_significant, " *", ""))


def _equal_length_tables(seeds: pd.DataFrame) -> list[Table]:
    """Compares every curve with the first one. A curve joins the points of the same method and settings, or of the
    same method if it has no target."""
    # The name of each row's curve. Points with targets are joined over their targets, for each method with its
    # settings. Points without targets are joined over their settings, for each method.
    names = seeds["method_with_settings"].where(seeds["target_length"].notna(), seeds["name"])
    # A curve needs at least two points.
    curves = {name: part for name, part in seeds.groupby(names, sort=False) if part["method_at_target"].nunique() > 1}
    if len(curves) < 2:
        return []
    reference, *others = curves
    heading = f"{seeds['measure'].iloc[0]} minus that of {reference} [95 % interval]"
    rows = []
    for name in others:
        gap = score_gap_at_equal_length(curves[name], curves[reference])
        if gap is None:  # Seeds differ, or the curves have no range of lengths in common.
            rows.append({"method": name, heading: "n/a", "tokens": ""})
            continue
        cell = with_interval(gap.difference, "{:+.3f}".format)
        rows.append({"method": name, heading: cell, "tokens": f"{gap.fewest_tokens:.1f} to {gap.most_tokens:.1f}"})
    return [(pd.DataFrame(rows), EQUAL_LENGTH_LEGEND)]


class ScoreGap(NamedTuple):
    """By how much the score of one method is higher than that of another at equal length, and the range of tokens for
    which this holds."""

    difference: Estimate
    fewest_tokens: float
    most_tokens: float


def score_gap_at_equal_length(first: pd.DataFrame, second: pd.DataFrame) -> ScoreGap | None:
    r"""Returns by how much the score of the first method is higher at equal length, and the range of tokens compared.

    $$ d_s = \frac{1}{\log b - \log a} \int_{\log a}^{\log b} (A_s - B_s) \, d \log T, \qquad
    \bar d \pm t_{S-1} \, \mathrm{sd}(d) / \sqrt S $$

    $A_s$ and $B_s$ join the points of seed s by straight lines, with the score over the logarithm of mean tokens T.
    [a, b] is the range of tokens that the curves of both methods cover for every seed. The integral is computed
    exactly.

    Each frame has one row per point and seed of a method, with columns `method_at_target`, `seeds`, `score`
    and `mean_tokens`.
    The result is `None` if points have different seeds, or if there is no range that all curves cover.
    """
    points = pd.concat([first.assign(method="first"), second.assign(method="second")])
    # The seeds of each point, such as ("0", "1").
    seeds_of_points = points.groupby("method_at_target")["seeds"].agg(lambda seeds: tuple(sorted(seeds)))
    # A method has a curve for each seed. All curves cover the range from the longest of their shortest lengths to the
    # shortest of their longest.
    log_tokens = np.log(points["mean_tokens"]).groupby([points["method"], points["seeds"]])
    low = log_tokens.min().max()
    high = log_tokens.max().min()
    if seeds_of_points.nunique() > 1 or low >= high:
        return None
    differences = []
    for _, points_of_seed in points.groupby("seeds"):
        # The groups are sorted, "first" before "second".
        first_score, second_score = (_mean_score(curve, low, high) for _, curve in points_of_seed.groupby("method"))
        differences.append(first_score - second_score)
    return ScoreGap(
        mean_over_seeds(differences, lowest=-math.inf), fewest_tokens=math.exp(low), most_tokens=math.exp(high)
    )


def _mean_score(curve: pd.DataFrame, low: float, high: float) -> float:
    """Returns the mean score of a curve between two logarithms of tokens, which it covers."""
    curve = curve.sort_values("mean_tokens")
    log_tokens = np.log(curve["mean_tokens"])
    # The points between the bounds, and the bounds themselves.
    knots = np.unique(log_tokens.clip(low, high))
    scores = np.interp(knots, log_tokens, curve["score"])
    # Between two knots the curve is straight, so the trapezoidal rule is exact.
    return float(np.trapezoid(scores, knots) / (high - low))
