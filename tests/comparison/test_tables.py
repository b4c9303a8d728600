"""The tables of a comparison: made anew from the committed files, and by hand."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from written_runs import evaluated, said, write_evaluation

from leash_trl.comparison.tables import (
    DIFFERENCE_COLUMNS,
    common_measure,
    comparison_markdown,
    comparison_rows,
    comparison_sentences,
    read_comparison_rows,
    result_columns,
    score_gap_at_equal_length,
    settling_columns,
)
from leash_trl.evaluation.intervals import mean_share, mean_unbounded
from leash_trl.evaluation.runs import load_evaluated_run
from leash_trl.evaluation.tables import csv


GYM = Path("recipes/gym")
NO_DIFFERENCES = pd.DataFrame(columns=[*DIFFERENCE_COLUMNS])  # over problems
BASE = {
    "measure": "accuracy",
    "score": 0.8,
    "mean_tokens": 100.0,
    "p95_tokens": 158.0,
}


def point(method, target, accuracies, tokens, seeds=None, **settings):
    """The seeds of a point, with the columns of `seeds.csv`."""
    rows = {
        "name": method,
        "seeds": [str(seed) for seed in (range(len(accuracies)) if seeds is None else seeds)],
        "measure": "accuracy",
        "score": np.array(accuracies, dtype=float),
        "mean_tokens": np.array(tokens, dtype=float),
        "target_length": math.nan if target is None else float(target),
    }
    columns = pd.read_csv(GYM / "budgets_seeds.csv", nrows=0).columns
    return pd.DataFrame(rows).reindex(columns=columns).fillna({"num_reached": 0}).assign(**settings)


def near(method, target, accuracy, tokens, **settings):
    """A point of three seeds that differ little."""
    steps = np.array([-0.001, 0.0, 0.001])
    return point(method, target, accuracy + steps, tokens * (1 + steps), **settings)


def with_base(*points):
    return pd.concat([pd.DataFrame([{"name": "base", "seeds": "", **BASE}]), *points]).reset_index(drop=True)


def cells(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_every_cell_of_the_gyms_comparison_is_that_of_its_seeds():
    written = (GYM / "compare_results.md").read_text(encoding="utf-8")
    seeds = read_comparison_rows(GYM / "compare_seeds.csv")
    assert comparison_markdown(seeds, NO_DIFFERENCES) + "\n" == written[written.index("| method |") :]


PROBLEMS = [[said(10), said(24, False)], [said(24), said(42)]]


@pytest.fixture
def run(tmp_path):
    return with_target(tmp_path / "run", PROBLEMS)


def with_target(folder, problems):
    return load_evaluated_run(write_evaluation(folder, "run", {"gym": problems}, target_length=24))


def seed(run, number=100, target=24, base=BASE):
    """The row of a seed that comes to 24 tokens at its seventh update."""
    lengths = pd.Series([60.0] * 6 + [24.0] * 10, range(1, 17))
    row = result_columns(run, base, target, lengths, pd.Series([0.1, 0.4, 0.2]))
    return {
        "name": "ALP",
        "seeds": str(number),
        **row,
        "generated_tokens": 1000.0,
    }


def test_a_seed_by_hand(run):
    accuracy = mean_share(np.array([0.5, 1.0]))
    length = mean_unbounded(np.array([17.0, 33.0]))
    expected = {
        "score": accuracy.value,
        "score_interval_low": accuracy.low,
        "score_interval_high": accuracy.high,
        "mean_tokens": length.value,
        "mean_tokens_interval_low": length.low,
        "mean_tokens_interval_high": length.high,
        "p95_tokens": 24 + 0.85 * 18,
        "token_change": -0.75,
        "efficiency_score": 0.75 - 5 * 0.0625,
        "target_length": 24,
        "satisfaction_rate": 3 / 4,  # at the target counts
        "settling_error": 0,
        "near_target_share": 1,
        "overshoot": 0,
        "steps_to_target": 7,
        "worst_settling_error": 0,
        "num_reached": 1,
        "lambda_end": 0.2,
        "lambda_peak": 0.4,
    }
    row = seed(run)
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_a_seed_without_a_target_has_no_measures_of_one(run):
    row = seed(run, target=None)
    measures = [row[name] for name in ("settling_error", "steps_to_target")]
    assert [*map(math.isnan, measures)] == [True] * 2
    assert row["num_reached"] == 0


def test_several_benchmarks_weigh_the_same(tmp_path):
    run = evaluated(tmp_path, gym=PROBLEMS, other=[[said(64), said(40)]])
    row = seed(run)
    assert row["score"] == (0.75 + 1) / 2
    assert row["mean_tokens"] == (25 + 52) / 2
    assert row["truncated_rate"] == (0 + 1 / 2) / 2


def test_the_share_of_truncated_completions_has_a_column():
    seeds = with_base(near("none", None, 0.5, 40)).assign(truncated_rate=[0.0, 0.2, 0.25, 0.3])
    heading, _, *rows = cells(comparison_markdown(seeds, NO_DIFFERENCES).split("\n\n")[0])
    assert [row[heading.index("truncated rate")] for row in rows] == ["0.0%", "25.0%"]


def test_a_row_that_was_asked_otherwise_than_the_base_has_no_change_from_it():
    seeds = with_base(near("low", 8, 0.5, 40)).assign(token_change=math.nan)
    rows = comparison_rows(seeds)
    assert rows["token_change"].isna().all()
    assert rows["score"].notna().all()


def test_a_seed_has_the_columns_of_the_committed_files(tmp_path, run):
    rows = [
        {**seed(run), "length_control_kwargs.alpha": "0.5"},
        seed(run, 101),
    ]
    (tmp_path / "seeds.csv").write_text(csv(pd.DataFrame(rows)))
    back = read_comparison_rows(tmp_path / "seeds.csv")
    assert {*back.columns} == {*read_comparison_rows(GYM / "compare_seeds.csv").columns}
    assert back["length_control_kwargs.alpha"].tolist() == ["0.5", ""]
    assert back["score"].tolist() == [0.75, 0.75]


@pytest.mark.parametrize(
    ("rewards", "measure"),
    [
        ([0, 1, 1, 0], "accuracy"),
        ([-1, 0, 1, 1], "reward"),
        ([-1, -0.5, 1, 1], "accuracy"),
        ([0, 2, 0, 2], "reward"),
    ],
)
def test_rewards_that_only_say_right_or_wrong_are_accuracies(tmp_path, run, rewards, measure):
    rewarded = [{**said(10, reward > 0), "reward": reward} for reward in rewards]
    assert common_measure([run, evaluated(tmp_path, "rewarded", gym=[rewarded])]) == measure
    undecided = [{**completion, "is_correct": None} for completion in rewarded]
    assert common_measure([evaluated(tmp_path, "undecided", gym=[undecided])]) == "reward"


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([128.0, 96.0, 80.0, 48.0], (0.25, 0.0, 0.0, 4)),  # one batch below 64; the mean of all is 88
        ([128.0, 80.0], (0.25, math.nan, math.nan, math.nan)),
        ([64.0] * 4, (0.0, 1.0, 0.0, 1)),
        ([64.0, 54.0, 54.0, 54.0], (0.15625, 0.0, 0.1171875, 1)),  # the mean of all is 56.5, 12 % below
        ([128.0] * 6 + [40.0] * 6 + [48.0] * 4, (0.25, 0.0, 0.325, 7)),  # the last ten have 43.2
    ],
)
def test_settling_by_hand(lengths, expected):
    measures = settling_columns(pd.Series(lengths, range(1, len(lengths) + 1)), 64)
    assert [*measures.values()] == pytest.approx(expected, nan_ok=True)


def test_seeds_become_their_mean_with_an_interval_over_seeds(tmp_path, run):
    other_run = with_target(tmp_path / "other", [[said(24)] * 2] * 2)
    rows = pd.DataFrame([seed(run), seed(other_run, 101)])
    _, row = comparison_rows(with_base(rows)).to_dict("records")
    assert (row["seeds"], row["score"], row["mean_tokens"]) == ("100 101", 0.875, 24.5)
    # standard deviation 1 / sqrt(2), over sqrt(2), times 12.7062
    assert row["mean_tokens_interval_high"] == pytest.approx(24.5 + 6.3531, abs=1e-4)
    assert row["score_interval_high"] == 1
    assert (row["satisfaction_rate"], row["num_reached"]) == (0.875, 2)
    assert row["token_change"] == pytest.approx(-0.755)


@pytest.mark.parametrize(
    ("bounds", "ends"),
    [
        ((0.0, 1.0), (0.0, 1.0)),
        ((-math.inf, math.inf), (0.5 - 6.3531, 0.5 + 6.3531)),
    ],
)
def test_intervals_of_rewards_over_seeds_stay_within_the_bounds_of_all_rewards(bounds, ends):
    seeds = with_base(point("LEASH", 24, [0.0, 1.0], [10.0, 10.0])).assign(measure="reward", token_change=0.0)
    seeds.insert(3, "lowest_score", [0.0, bounds[0], 0.0])
    seeds.insert(3, "highest_score", [1.0, 1.0, bounds[1]])
    _, row = comparison_rows(seeds).to_dict("records")
    assert math.isnan(row["efficiency_score"])
    # standard deviation 1 / sqrt(2), over sqrt(2), times 12.7062
    assert (row["score_interval_low"], row["score_interval_high"]) == pytest.approx(ends, abs=1e-4)


def test_points_differ_from_the_first_one_over_seeds_and_single_seeds_are_left_out():
    points = (
        near("LEASH", 12, 0.5, 12, alpha="1"),
        near("L1", 12, 0.6, 12, alpha=""),
        point("lonely", 12, [0.5], [9.0]),
    )
    seeds = with_base(*points).fillna({"alpha": ""})
    _, _, table, _ = comparison_markdown(seeds, NO_DIFFERENCES).split("\n\n")
    heading, _, *rows = cells(table)
    assert heading == [
        "minus LEASH, alpha 1 at 12",
        "accuracy over seeds",
        "tokens over seeds",
        "seeds needed (accuracy, tokens)",
    ]
    # accuracies vary by 0.001, so the t interval of 4 degrees of freedom is 2.776 * 0.001 * sqrt(2 / 3)
    assert rows == [["L1 at 12", "+0.100 [+0.098, +0.102] *", "+0.0 [-0.0, +0.0]", "2, inf"]]


def test_another_cost_than_tokens_has_its_mean_and_its_differences_and_targets_are_named_with_theirs():
    points = with_base(near("none", None, 0.5, 40), near("LEASH", 1, 0.5, 40))
    for column in ("mean_cost", "mean_cost_interval_low", "mean_cost_interval_high"):
        points.insert(3, column, [3.0, 2.0, 2.0, 2.3, 1.0, 1.3, 1.0])
    points.insert(3, "length_of", "costs.py:num_sentences")
    points.insert(3, "target_of", ["", *["tool_calls"] * 6])  # trained by another cost than it is evaluated by
    paired = pd.DataFrame(
        [("LEASH at 1 tool calls", "mean_cost", -1.0, -1.25, -0.75)],
        columns=[*DIFFERENCE_COLUMNS],
    )
    methods, _, differences, _ = comparison_markdown(points, paired).split("\n\n", 3)
    heading, _, base, _, leash = cells(methods)
    column = heading.index("num_sentences [95 % interval over seeds]")
    # standard deviation 0.1 * sqrt(3), so the t interval of 2 degrees of freedom is 4.303 * 0.1
    assert (base[column], leash[column]) == ("3 [3, 3] over problems", "1.1 [0.67, 1.53]")
    _, _, sentence = comparison_sentences(comparison_rows(points))
    assert sentence.startswith("LEASH at 1 tool calls: ")
    assert sentence.endswith(", 1.1 [0.67, 1.53] num_sentences")

    heading, _, row = cells(differences)
    by_column = dict(zip(heading, row, strict=True))
    assert "tokens over problems" not in by_column  # of which there is no difference
    assert by_column["num_sentences over problems"] == "-1 [-1.25, -0.75]"
    # standard deviation 0.1 * sqrt(3) of each, so the t interval of 4 degrees of freedom is 2.776 * 0.1 * sqrt(2)
    assert by_column["num_sentences over seeds"] == "-1 [-1.39, -0.607] *"
    # accuracies and tokens do not differ
    assert by_column["seeds needed (accuracy, tokens, num_sentences)"] == "inf, inf, 2"


def test_an_interval_of_another_kind_than_its_columns_says_so():
    base = {"score_interval_low": 0.7, "score_interval_high": 0.9}
    seeds = with_base(near("none", None, 0.5, 40)).assign(p95_tokens=50.0)
    seeds.loc[0, [*base]] = [*base.values()]
    heading, _, of_base, of_seeds = cells(comparison_markdown(seeds, NO_DIFFERENCES).split("\n\n")[0])
    assert heading[2] == "accuracy [95 % interval over seeds]"
    assert of_base[2] == "0.800 [0.700, 0.900] over problems"
    assert of_seeds[2] == "0.500 [0.498, 0.502]"


def curve(lengths, accuracies, seeds=(0, 1)):
    """One point for each of the lengths (logarithms of tokens), and for each seed its accuracies there."""
    points = []
    for number, length in enumerate(lengths):
        scores = [of_seed[number] for of_seed in accuracies]
        points.append(point("A", length, scores, np.exp([length] * 2), seeds).set_axis([length] * 2))
    return pd.concat(points)


def test_score_at_equal_length_by_hand():
    tent = curve([0, 2, 1], [[0, 0, 1], [0, 0, 0.8]])
    # both cover 0.5 to 2. below the first tent lie 0.375 + 0.5, so its mean is 7/12, that of the other 0.8 of it
    difference, shortest, longest = score_gap_at_equal_length(tent, curve([0.5, 3], [[0, 0], [0.1, 0.1]]))
    assert difference.value == pytest.approx((7 / 12 + 0.8 * 7 / 12 - 0.1) / 2)
    # standard deviation 13/60 / sqrt(2), over sqrt(2)
    assert difference.low == pytest.approx(difference.value - 12.7062 * 13 / 120, abs=1e-5)
    assert (shortest, longest) == pytest.approx((math.e**0.5, math.e**2))


# touching in one point, and of other seeds
@pytest.mark.parametrize(("lengths", "seeds"), [([2, 4], (0, 1)), ([0, 1], (4, 5))])
def test_where_curves_cannot_be_compared_there_is_no_number(lengths, seeds):
    flat = [[0, 0], [0, 0]]
    assert score_gap_at_equal_length(curve([0, 2], flat), curve(lengths, flat, seeds)) is None
