"""Builds the tables of comparisons, for `leash compare` and reports: rows of seeds, rows of points, and differences.

A point is a method with its settings and its target; a comparison runs each point with several seeds.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from leash_trl.comparison.curves import RUNNING_MEAN_BATCHES, first_step_at_target
from leash_trl.completions.costs import cost_label
from leash_trl.evaluation import intervals
from leash_trl.evaluation.intervals import Estimate, mean_over_seeds
from leash_trl.evaluation.runs import EvaluatedRun, reward_bounds
from leash_trl.evaluation.tables import format_cost, format_tokens, markdown, with_interval


NEAR_TARGET_DISTANCE = 0.1  # a running mean within this distance of the target, relative to the target, is near
GAIN_WEIGHT = 3.0  # weight of a rise of accuracy in the accuracy-efficiency score
LOSS_WEIGHT = 5.0  # weight of a fall
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

DIFFERENCE_COLUMNS = ("point", "column", "value", "low", "high")  # of the file with paired differences

SETTLING_COLUMNS = ("settling_error", "near_target_share", "overshoot", "steps_to_target")

Row = dict[str, Any]


class Table(NamedTuple):
    """A table of text, and its caption: a sentence, and a list of terms, a line each."""

    frame: pd.DataFrame
    caption: str


class ComparedNumber(NamedTuple):
    """A number by which methods are compared.

    Args:
        column (`str`), name (`str`): Its column in a comparison's files, and its name in tables.
        format (`Callable`), format_difference (`Callable`): Turn the number, and a difference of it, into text.
        change_metric (`str`): Metric of [`~leash_trl.evaluation.changes.mean_changes`] for its difference.
    """

    column: str
    name: str
    format: Callable[[float], str]
    format_difference: Callable[[float], str]
    change_metric: str


def compared_numbers(rows: pd.DataFrame) -> list[ComparedNumber]:
    """Returns the numbers by which methods are compared: the score, tokens and any other cost that was measured."""
    measure = rows["measure"].iloc[0]  # "accuracy" or "reward"
    numbers = [
        ComparedNumber("score", measure, "{:.3f}".format, "{:+.3f}".format, f"{measure}_change"),
        ComparedNumber("mean_tokens", "tokens", "{:.1f}".format, "{:+.1f}".format, "tokens_change"),
    ]
    # The column exists if the evaluation measured another cost than tokens, and names this cost.
    if "length_of" in rows:
        length_of = rows["length_of"].iloc[0]
        format_mean = partial(format_cost, length_of=length_of)
        format_difference = partial(format_cost, length_of=length_of, sign="+z")
        name = cost_label(length_of)
        numbers.append(ComparedNumber("mean_cost", name, format_mean, format_difference, "cost_change"))
    return numbers


def settling_columns(mean_lengths: pd.Series, target_length: float | None) -> dict[str, float]:
    """Measures how training reached the target and stayed near it; NaN where a number is not defined.

    `mean_lengths` has the mean length of each batch, indexed by the number of policy updates since the last change of
    the target. Returned are `settling_error`, the distance of the mean over the last quarter of batches from the
    target; `near_target_share`, the share of running means over ten batches that are within 10 % of the target, from
    the first batch at or below the target on; `overshoot`, the largest distance of a running mean below the target;
    and `steps_to_target`, the step of that first batch. Distances are relative to the target.
    """
    columns = dict.fromkeys(SETTLING_COLUMNS, math.nan)
    if target_length is None or mean_lengths.empty:
        return columns
    last_quarter = mean_lengths.iloc[-max(1, len(mean_lengths) // 4) :]
    columns["settling_error"] = abs(float(last_quarter.mean() / target_length) - 1.0)
    first_reached = first_step_at_target(mean_lengths, target_length)
    if first_reached is None:
        return columns
    columns["steps_to_target"] = first_reached
    # Running means relative to the target: a mean of 1 is at the target.
    relative_means = _running_means(mean_lengths.loc[first_reached:]) / target_length
    is_near = np.abs(relative_means - 1.0) <= NEAR_TARGET_DISTANCE
    columns["near_target_share"] = float(is_near.mean())
    # The overshoot counts windows of the whole run, since a window may begin before the target was reached.
    shortest = _running_means(mean_lengths).min()
    columns["overshoot"] = max(0.0, 1.0 - float(shortest / target_length))
    return columns


def _running_means(lengths: pd.Series) -> np.ndarray:
    """Returns the means of all windows of ten batches; if there are fewer batches, the mean of all."""
    window = min(RUNNING_MEAN_BATCHES, len(lengths))
    return np.convolve(lengths.to_numpy(), np.full(window, 1 / window), mode="valid")


def common_measure(runs: Sequence[EvaluatedRun]) -> str:
    """Returns by which measure to compare runs: `"accuracy"` if the correctness of every benchmark is known and
    rewards say nothing else, otherwise `"reward"`."""
    # the different rewards of all completions; empty if no reward functions graded them
    rewards: set[float] = set()
    for run in runs:
        # A run without rewards, or without those of a benchmark, has no mean reward.
        if not math.isnan(run.estimate("reward").value):
            rewards.update(run.samples["reward"].dropna())
    knows_correctness = all(run.knows_correctness() for run in runs)
    return "accuracy" if knows_correctness and _only_say_right_or_wrong(rewards) else "reward"


def _only_say_right_or_wrong(rewards: set[float]) -> bool:
    """Returns whether rewards say nothing beside correctness: 1 for correct completions, and for the others always 0,
    or always a negative reward."""
    other_rewards = rewards - {1}
    # `<=` compares sets: there are no other rewards, or only 0.
    if other_rewards <= {0} or other_rewards == {-1}:
        return True
    # Several negative rewards, such as -1 and -0.5, are kinds of wrong answers if correct ones have 1.
    return max(other_rewards) < 0 and 1 in rewards


def evaluation_columns(run: EvaluatedRun, measure: str) -> Row:
    """Returns the columns of `seeds.csv` for an evaluated model: its score, which is accuracy or reward, and its
    tokens. Another cost than tokens also has its name and its mean, and rewards have their bounds."""
    row: Row = {"measure": measure}
    length_of = run.record["length_of"]  # "completion" is the number of tokens
    if length_of != "completion":
        row["length_of"] = length_of
    for column, metric in {"score": measure, "mean_tokens": "tokens"}.items():
        row |= _interval_columns(column, run.estimate(metric))
    for column, metric in METRIC_BY_COLUMN.items():
        row[column] = run.estimate(metric).value
    if length_of != "completion":
        cost_metric = "thinking_tokens" if length_of == "thinking" else "cost"
        row |= _interval_columns("mean_cost", run.estimate(cost_metric))
    # The interval over seeds must stay within these bounds; those of accuracy are 0 and 1.
    if measure == "reward":
        row["lowest_score"], row["highest_score"] = reward_bounds(run.samples)
    return row


def result_columns(
    run: EvaluatedRun,
    base: Row,
    target_length: float | None,
    mean_lengths: pd.Series,
    multipliers: pd.Series,
) -> Row:
    """Returns the columns of `seeds.csv` for one trained model, without names, training tokens and grid.

    `base` is the result of [`evaluation_columns`] before training, and `multipliers` has lambda by policy update; for
    the other arguments see [`settling_columns`].
    """
    row = evaluation_columns(run, base["measure"])
    row |= _change_columns(row, base)
    row["target_length"] = math.nan if target_length is None else target_length
    row |= settling_columns(mean_lengths, target_length)
    # In rows of several seeds, these columns have the largest error and the number of seeds that reached the target.
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
    # If the row does not have a setting, its cell is empty text after reading a file, and otherwise NaN.
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

    `seeds` has the rows of `seeds.csv`, the base first.
    """
    base, *_ = seeds.to_dict("records")
    trained = seeds[1:]
    # Accuracies have no columns with bounds, since they are always in [0, 1].
    lowest_score = trained.get("lowest_score", pd.Series([0.0])).min()
    highest_score = trained.get("highest_score", pd.Series([1.0])).max()
    rows = [base]
    # Rows with the same method, target and settings are the seeds of a point. The target may be NaN.
    for _, point in trained.groupby(["name", "target_length", *grid_fields(seeds)], dropna=False, sort=False):
        row = _mean_row(point)
        # A single seed keeps its interval over problems.
        if len(point) > 1:
            row |= _interval_columns("score", mean_over_seeds(point["score"], highest_score, lowest_score))
            for cost in point.columns.intersection(["mean_tokens", "mean_cost"]):
                row |= _interval_columns(cost, mean_over_seeds(point[cost]))
        # Change and AES are computed from the means. They stay NaN for a point that must not be compared with the
        # base.
        if point["token_change"].notna().any():
            row |= _change_columns(row, base)
        rows.append(row)
    return pd.DataFrame(rows)


def _mean_row(point: pd.DataFrame) -> Row:
    """Returns the row of a point, from the rows of its seeds: their texts, which are equal, and means of the
    numbers."""
    means = point.loc[:, "score":LAST_FIXED_COLUMN].drop(columns="target_length").mean(numeric_only=True)
    row = {**point.iloc[0], **means}
    row["seeds"] = " ".join(point["seeds"])  # such as "0 1 2"
    row["worst_settling_error"] = point["worst_settling_error"].max()
    row["num_reached"] = point["num_reached"].sum()
    return row


def comparison_markdown(seeds: pd.DataFrame, differences: pd.DataFrame) -> str:
    """Returns [`comparison_tables`] as Markdown."""
    paragraphs = []
    for table in comparison_tables(seeds, differences):
        paragraphs.extend([markdown(table.frame), table.caption])
    return "\n\n".join(paragraphs)


def comparison_tables(seeds: pd.DataFrame, differences: pd.DataFrame) -> list[Table]:
    """Returns the tables of a comparison: its methods, the differences of its points from the first one, and the
    scores at equal length.

    Args:
        seeds (`DataFrame`): As for [`comparison_rows`].
        differences (`DataFrame`): The result of [`~leash_trl.comparison.page.paired_differences`]; empty if the
            samples are not at hand.
    """
    # the rows of the seeds, indexed by point, such as "ALP, alpha 0.5 at 46"
    trained = seeds[1:].set_axis(methods_at_targets(seeds))
    tables = [
        _methods_table(comparison_rows(seeds)),
        _difference_table(trained, compared_points(seeds), differences),
        _equal_length_table(trained),
    ]
    return [table for table in tables if len(table.frame)]


class ComparedPoints(NamedTuple):
    """The point with which other points are compared, and the others."""

    reference: str
    others: list[str]


def compared_points(seeds: pd.DataFrame) -> ComparedPoints:
    """Returns the first point as the reference of the others; if there is only one, the base is its reference."""
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


def _methods_table(rows: pd.DataFrame) -> Table:
    """Returns the table of methods: name, settings that differ, and the cells of each of the [`comparison_rows`]."""
    # Rows of several seeds, such as "0 1", have intervals over seeds. Other rows have intervals over problems.
    sample = "seeds" if rows["seeds"].str.contains(" ").any() else "problems"
    numbers = compared_numbers(rows)
    cells = pd.DataFrame([_row_cells(row, numbers, sample) for row in rows.to_dict("records")])
    has_cells = (cells != "").any()  # of each column; empty columns are left out
    parts = [rows["name"].rename("method"), _differing_settings(rows), cells.loc[:, has_cells]]
    return Table(pd.concat(parts, axis="columns"), COMPARISON_LEGEND)


def _differing_settings(rows: pd.DataFrame) -> pd.DataFrame:
    """Returns columns for the target and the fields of the grid, if rows have different values in them."""
    settings = rows[grid_fields(rows)].fillna("").rename(columns=_short_name)
    settings.insert(0, "target", [target_text(row) for row in rows.to_dict("records")])
    num_values = settings.where(settings != "").nunique()  # an empty cell, which is no value, becomes NaN
    return settings.loc[:, num_values > 1]


def _row_cells(row: Row, numbers: Sequence[ComparedNumber], sample: str) -> dict[str, str]:
    """Returns the cells of a row by heading, from the number of its seeds on; empty where a number is not defined.

    `sample` is `"seeds"` or `"problems"`: the headings say that intervals are over these.
    """
    num_seeds = len(row["seeds"].split())  # "0 1 2" are three; the base has none
    cells = {"seeds": str(num_seeds) if num_seeds else ""}
    for number in numbers:
        cell = with_interval(estimate_in_row(row, number.column), number.format)
        # The interval of a single seed is over problems, even if the heading says seeds.
        if sample == "seeds" and num_seeds < 2 and cell.endswith("]"):
            cell += " over problems"
        cells[f"{number.name} [95 % interval over {sample}]"] = cell
    # A format in `CELL_FORMATS`, such as "{millions:.2f} M", names the columns that it shows.
    values = {**row, "steps": _steps_cell(row, num_seeds), "millions": row[LAST_FIXED_COLUMN] / 1e6}
    for name, form in CELL_FORMATS.items():
        cell = form.format(**values)
        # A number that is not defined is NaN, which `format` writes as "nan".
        cells[name] = "" if "nan" in cell else cell
    return cells


def _steps_cell(row: Row, num_seeds: int) -> str:
    """Returns after how many steps the target was reached, and by how many of the seeds if not by all."""
    num_reached = row["num_reached"]
    # Without a target or training, the error is NaN.
    if math.isnan(row["settling_error"]):
        return ""
    if not num_reached:
        return "never"
    # The mean over the seeds that reached the target.
    steps = f"{row['steps_to_target']:.0f}"
    return steps if num_reached == num_seeds else f"{steps} ({num_reached:.0f} of {num_seeds})"


def _difference_table(trained: pd.DataFrame, compared: ComparedPoints, paired: pd.DataFrame) -> Table:
    """Returns the table of differences from the reference: over seeds if both points have several, and over problems
    if `paired` has them."""
    numbers = compared_numbers(trained)
    over_seeds = _differences_over_seeds(trained, compared, [number.column for number in numbers])
    # Cells by heading and point, such as {"accuracy over seeds": {"ALP at 46": "-0.012 [-0.020, -0.004] *"}}.
    cells: dict[str, Any] = {}
    for number in numbers:
        cells[f"{number.name} over seeds"] = _difference_cells(over_seeds, number)
        # Differences over problems are not tested for significance, so they have no mark.
        cells[f"{number.name} over problems"] = _difference_cells(paired.assign(mark=""), number)
    # A cell such as "4, 12" has the number for the difference of scores, and for that of tokens.
    names = ", ".join(number.name for number in numbers)
    cells[f"seeds needed ({names})"] = over_seeds.groupby("point")["num_needed"].agg(", ".join).to_dict()
    frame = pd.DataFrame(cells, index=compared.others, dtype=object)
    # Points without any difference are left out, and so are columns without any.
    frame = frame.dropna(axis="index", how="all")
    frame = frame.dropna(axis="columns", how="all").fillna("")
    frame = frame.rename_axis(f"minus {compared.reference}").reset_index()
    return Table(frame, DIFFERENCE_LEGEND)


def _difference_cells(differences: pd.DataFrame, number: ComparedNumber) -> dict[str, str]:
    """Returns the differences of one number with their intervals and marks, by point."""
    cells = {}
    for row in differences[differences["column"] == number.column].itertuples():
        difference = Estimate(row.value, row.low, row.high)
        cells[row.point] = with_interval(difference, number.format_difference) + row.mark
    return cells


def _differences_over_seeds(trained: pd.DataFrame, compared: ComparedPoints, columns: Sequence[str]) -> pd.DataFrame:
    """Returns the differences from the reference, in these columns, of the points with several seeds; none if the
    reference has fewer than two.

    The result has `DIFFERENCE_COLUMNS`, `num_needed`, the number of seeds that would find the difference, and `mark`,
    which says whether the difference is significant.
    """
    rows = []
    for point, column in itertools.product(compared.others, columns):
        values = trained[column][trained.index == point]
        # There are no such values, and so no differences, if the reference is the base, which has no seeds.
        reference_values = trained[column][trained.index == compared.reference]
        # A variance needs two seeds.
        if min(len(values), len(reference_values)) < 2:
            continue
        estimate, p_value = intervals.welch_test(values, reference_values)
        num_needed = intervals.num_seeds_needed(estimate.value, values.var(), reference_values.var())
        rows.append((point, column, *estimate, f"{num_needed:,.0f}", p_value))
    differences = pd.DataFrame(rows, columns=[*DIFFERENCE_COLUMNS, "num_needed", "p_value"])
    # All differences are one family of tests, in which a false rejection has a probability of at most 5 %.
    is_significant = intervals.holm_rejections(differences["p_value"])
    return differences.assign(mark=np.where(is_significant, " *", ""))


def _equal_length_table(trained: pd.DataFrame) -> Table:
    """Compares the score of every curve with that of the first curve; empty if there are fewer than two curves."""
    curves = _curves_over_lengths(trained)
    if len(curves) < 2:
        return Table(pd.DataFrame(), EQUAL_LENGTH_LEGEND)
    reference, *others = curves
    heading = f"{trained['measure'].iloc[0]} minus that of {reference} [95 % interval]"
    rows = []
    for name in others:
        row = {"method": name, heading: "n/a", "tokens": ""}
        gap = score_gap_at_equal_length(curves[name], curves[reference])
        if gap is not None:
            row[heading] = with_interval(gap.difference, "{:+.3f}".format)
            row["tokens"] = f"{gap.fewest_tokens:.1f} to {gap.most_tokens:.1f}"
        rows.append(row)
    return Table(pd.DataFrame(rows), EQUAL_LENGTH_LEGEND)


def _curves_over_lengths(trained: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Returns the rows of each curve by the name of the curve. A curve joins points of the same method and settings
    with different targets or, if points have no target, points of the same method with different settings."""
    # Scores at equal length need intervals over seeds, so points of a single seed are left out.
    repeated = trained[trained.index.duplicated(keep=False)]
    methods = [method_with_settings(row) for row in repeated.to_dict("records")]
    names = np.where(repeated["target_length"].notna(), methods, repeated["name"])
    # A curve needs at least two points.
    return {name: rows for name, rows in repeated.groupby(names, sort=False) if rows.index.nunique() > 1}


class ScoreGap(NamedTuple):
    """By how much the score of one method is higher than that of another at equal length, on average over a range of
    tokens, and this range."""

    difference: Estimate
    fewest_tokens: float
    most_tokens: float


def score_gap_at_equal_length(first: pd.DataFrame, second: pd.DataFrame) -> ScoreGap | None:
    r"""Returns by how much the score of the first method is higher at equal length, and the range of tokens compared.

    $$ d_s = \frac{1}{\log b - \log a} \int_{\log a}^{\log b} (A_s - B_s) \, d \log T, \qquad
    \bar d \pm t_{S-1} \, \mathrm{sd}(d) / \sqrt S $$

    $A_s$ and $B_s$ join the points of seed s, one of S seeds, by straight lines, with the score over the logarithm of
    mean tokens T. [a, b] is the range of tokens that the curves of both methods cover for every seed. The integral is
    computed exactly.

    Each frame has one row per point and seed of a method, indexed by point, with columns `seeds`, `score` and
    `mean_tokens`. The result is `None` if points have different seeds, or if there is no range that all curves cover.
    """
    points = pd.concat([first.assign(method="first"), second.assign(method="second")])
    # the seeds of each point, such as ("0", "1")
    seeds_of_points = points.groupby(level=0)["seeds"].agg(lambda seeds: tuple(sorted(seeds)))
    # A method has a curve for each seed. All curves cover the range from the largest of their shortest lengths to the
    # smallest of their longest lengths.
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
