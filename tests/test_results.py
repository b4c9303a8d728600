"""Run folders as rows of metrics, and their change against a baseline."""

import json

import numpy as np
import pytest
from sampled_run import completion, problem, write_run

from leash_trl.evaluation.changes import compare_results
from leash_trl.evaluation.intervals import (
    mean_amount,
    mean_over_benchmarks,
    mean_share,
    mean_share_difference,
    ratio_minus_one,
)
from leash_trl.evaluation.results import interval_warning, load_results


# accuracy 3/4 and 1/4, mean 0.5; tokens 10, 20, 30, 64 and 64, 64, 40, 32, means 31 and 50
EASY = problem(
    0, completion("1", 10, True), completion("1.0", 20, True), completion("1", 30, True), completion(None, 64, False)
)
HARD = problem(
    1, completion(None, 64, False), completion("9", 64, False), completion("9", 40, False), completion("1", 32, True)
)
# accuracy 1; tokens 8, 8, 16, 16
SOLVED = problem(0, *(completion("1", tokens, True) for tokens in (8, 8, 16, 16)), name="q")


@pytest.fixture
def run(tmp_path):
    return load_results(write_run(tmp_path / "run", {"aime": [EASY, HARD], "amc": [SOLVED]}))


def values(row):
    return {name: mean.value for name, mean in row.means.items()}


def test_benchmark_by_hand(run):
    aime = run.benchmarks[0]
    assert (aime.name, aime.num_problems, aime.num_graded, aime.num_samples) == ("aime", 2, 2, 4)
    assert values(aime) == pytest.approx(
        {
            "accuracy": 1 / 2,
            "pass_at_2": 3 / 4,  # 6 of 6 pairs and 3 of 6 hold a right one
            "pass_at_4": 1.0,
            "majority": 1 / 2,  # right by 3 to 0; wrong by 2 to 1
            "short_1_accuracy": 1.0,  # 10 and 32 are right
            "short_1_waiting_tokens": (10 + 32) / 2,
            "short_1_total_tokens": (4 * 10 + 4 * 32) / 2,
            "short_3_accuracy": 1.0,  # of 32, 40 and a 64 without answer: a tie that goes to 32
            "short_3_waiting_tokens": (30 + 64) / 2,
            "short_3_total_tokens": (10 + 20 + 30 + 30 + 64 + 64 + 40 + 32) / 2,
            "tokens": (31 + 50) / 2,
            "generated_tokens": (41 + 60) / 2,
            "truncated_rate": 3 / 8,
            "no_answer_rate": 2 / 8,
            "accuracy_within_2": 0.0,
            "accuracy_within_4": 0.0,
            "accuracy_within_8": 0.0,
            "accuracy_within_16": 1 / 8,
            "accuracy_within_32": 4 / 8,
            "accuracy_within_64": 4 / 8,
        }
    )
    assert aime.statistics == {
        "median_tokens": 36.0,  # 10 20 30 32 40 64 64 64
        "p95_tokens": 64.0,
        "right_tokens": (10 + 20 + 30 + 32) / 4,
        "wrong_tokens": (64 + 64 + 64 + 40) / 4,
    }


def test_every_mean_has_the_interval_of_its_kind(run):
    means = run.benchmarks[0].means
    assert run.problems["aime"] == {"p0": (3 / 4, 31.0), "p1": (1 / 4, 50.0)}
    assert means["accuracy"] == mean_share(np.array([3 / 4, 1 / 4]))
    assert means["pass_at_4"] == mean_share(np.ones(2))
    assert means["tokens"] == mean_amount(np.array([31.0, 50.0]))


def test_few_problems_are_warned_of(tmp_path, run):
    assert all(words in interval_warning([run]) for words in ("aime has 2", "amc has 1"))
    rows = [problem(i, completion("1", 8, True)) for i in range(10)]
    assert interval_warning([load_results(write_run(tmp_path / "ten", {"aime": rows}))]) == ""


def test_budget_curve_is_by_rising_budget(run):
    assert {budget: mean.value for budget, mean in run.benchmarks[0].budget_curve.items()} == {
        2: 0.0,
        4: 0.0,
        8: 0.0,
        16: 1 / 8,
        32: 4 / 8,
        64: 4 / 8,
    }


def test_overall_weighs_benchmarks_not_problems(run):
    assert [row.name for row in run.rows] == ["aime", "amc", "overall"]
    assert run.overall.num_problems == 3
    assert run.overall.accuracy.value == (0.5 + 1.0) / 2  # over problems it would be 2/3
    assert run.overall.tokens.value == (40.5 + 12) / 2
    assert run.overall.statistics["median_tokens"] == (36 + 12) / 2


def test_overall_interval_is_that_of_the_mean_over_benchmarks(run):
    assert run.overall.accuracy == mean_over_benchmarks([row.accuracy for row in run.benchmarks])
    # one problem says nothing of the length of others
    assert not run.overall.tokens.has_interval


def test_benchmarks_are_independent_of_each_other(tmp_path):
    rng = np.random.default_rng(0)
    rights = rng.random(40) < 0.5
    rows = [problem(i, completion("1", 8, bool(right))) for i, right in enumerate(rights)]
    run = load_results(write_run(tmp_path / "run", {"a": rows, "b": rows}))
    alone = run.benchmarks[0].accuracy
    # the mean of two independent halves is sqrt(2) times as sure as one; taken together it would be no surer
    ratio = (alone.high - alone.low) / (run.overall.accuracy.high - run.overall.accuracy.low)
    assert ratio == pytest.approx(2**0.5, rel=0.1)


def test_a_benchmark_has_the_same_interval_whatever_else_the_run_holds(tmp_path, run):
    alone = load_results(write_run(tmp_path / "alone", {"aime": [EASY, HARD]}))
    assert alone.benchmarks[0] == run.benchmarks[0]
    assert alone.overall.means == alone.benchmarks[0].means


def test_one_problem_with_one_completion(tmp_path):
    run = load_results(write_run(tmp_path / "run", {"aime": [problem(0, completion("1", 8, True))]}))
    assert (run.overall.accuracy.value, run.overall.accuracy.low, run.overall.accuracy.high) == (1.0, 0.0, 1.0)
    assert not [name for name in run.overall.means if name.startswith(("pass_at", "short"))]
    assert run.overall.statistics["wrong_tokens"] is None


def test_no_right_answer_and_everything_cut_off(tmp_path):
    nothing = problem(0, *[completion(None, 64, False)] * 2)
    run = load_results(write_run(tmp_path / "run", {"hmmt": [nothing]}))
    row = run.benchmarks[0]
    assert row.statistics["right_tokens"] is None
    assert row.statistics["wrong_tokens"] == 64.0
    assert values(row)["truncated_rate"] == values(row)["no_answer_rate"] == 1.0
    assert values(row)["accuracy"] == values(row)["majority"] == values(row)["pass_at_2"] == 0.0


def test_overall_has_no_number_where_one_benchmark_has_none(tmp_path):
    nothing = problem(0, *[completion(None, 64, False)] * 4)
    run = load_results(write_run(tmp_path / "run", {"amc": [SOLVED], "hmmt": [nothing]}))
    assert run.overall.statistics["right_tokens"] is None
    assert run.overall.statistics["median_tokens"] == (12 + 64) / 2


def test_pass_at_k_goes_by_doublings_up_to_k(tmp_path):
    nine = problem(0, *[completion("1", 8, True)] * 9)
    row = load_results(write_run(tmp_path / "run", {"aime": [nine]})).overall
    assert [name for name in row.means if name.startswith("pass")] == [f"pass_at_{k}" for k in (2, 4, 8, 9)]


def test_an_unfinished_run_is_refused(tmp_path):
    folder = write_run(tmp_path / "run", {"aime": [EASY], "amc": [SOLVED]}, expected={"aime": 2, "gpqa": 5})
    with pytest.raises(
        ValueError, match="aime has 1 of 2 problems, gpqa has 0 of 5 problems; run the command that began it"
    ):
        load_results(folder)


@pytest.mark.parametrize(
    ("rows", "expected", "message"),
    [
        ([EASY, EASY], {}, "2 problems have 1 ids"),
        ([EASY, HARD], {"aime": 1}, "2 problems, but the run says 1"),
        ([EASY, problem(1, completion("1", 8, True))], {}, "problem 'p1' has 1 completions, but .* num_samples is 4"),
    ],
)
def test_samples_that_do_not_fit_the_run_are_refused(tmp_path, rows, expected, message):
    with pytest.raises(ValueError, match=message):
        load_results(write_run(tmp_path / "run", {"aime": rows}, expected=expected))


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no run\.json"):
        load_results(tmp_path)


def shorter(tmp_path, label="leash"):
    """Half the tokens of `run` on aime and one more right answer, its problems in another order; amc as it was."""
    easy = problem(0, *(completion("1", tokens, True) for tokens in (5, 10, 15, 32)))
    hard = problem(
        1,
        completion(None, 32, False),
        completion("9", 32, False),
        completion("9", 20, False),
        completion("1", 16, True),
    )
    return load_results(write_run(tmp_path / label, {"aime": [hard, easy], "amc": [SOLVED]}, label=label))


def test_change_by_hand(tmp_path, run):
    aime, amc = compare_results(shorter(tmp_path), run).benchmarks
    assert (aime.name, amc.name) == ("aime", "amc")
    # easy 4/4 against 3/4, hard as it was: a difference of 0.25 and 0 over the two problems
    assert aime.accuracy == mean_share_difference(np.array([0.25, 0.0]), num_samples=4)
    # 15.5 and 25 against 31 and 50: 9.5 apart, half of it times t = 12.7
    ends = (aime.tokens.value, aime.tokens.low, aime.tokens.high)
    assert ends == pytest.approx((-20.25, -20.25 - 60.36, -20.25 + 60.36), abs=0.01)
    # half of each, so half whatever the problems are: the interval of a ratio of means is that of pairs
    assert (aime.relative_tokens.value, aime.relative_tokens.low, aime.relative_tokens.high) == (-0.5, -0.5, -0.5)
    assert amc.tokens.value == 0.0
    assert not amc.tokens.has_interval
    assert not amc.relative_tokens.has_interval


def test_overall_change_is_that_of_the_means_over_benchmarks(tmp_path, run):
    overall = compare_results(shorter(tmp_path), run).overall
    assert overall.name == "overall"
    assert overall.accuracy.value == 0.125 / 2
    assert overall.tokens.value == -20.25 / 2
    # (20.25 + 12) / (40.5 + 12), not the mean of -50 % and 0 %
    assert overall.relative_tokens.value == pytest.approx(32.25 / 52.5 - 1)


def test_overall_relative_change_by_hand():
    # (3 + 6) / (4 + 8) = 0.75; without one problem of the first pair (2 + 6) / 12 and (4 + 6) / 12, and the second
    # pair does not move it: 2 / 12 apart, half of it times t = 12.706
    found = ratio_minus_one([np.array([4.0, 2.0]), np.array([6.0, 6.0])], [np.array([4.0, 4.0]), np.array([8.0, 8.0])])
    assert found.value == -0.25
    assert (found.low, found.high) == (-1.0, pytest.approx(-0.25 + 12.7062 / 12, abs=1e-4))


def test_a_run_does_not_differ_from_itself(run):
    for change in compare_results(run, run).rows:
        assert (change.accuracy.value, change.tokens.value, change.relative_tokens.value) == (0.0, 0.0, 0.0)
        assert change.accuracy.low < 0 < change.accuracy.high


def test_pairing_makes_small_steady_changes_visible(tmp_path):
    rng = np.random.default_rng(0)
    lengths = rng.integers(100, 5000, size=50).tolist()
    runs = [
        load_results(
            write_run(
                tmp_path / str(saved),
                {"aime": [problem(i, completion("1", n - saved, True)) for i, n in enumerate(lengths)]},
                limit=8192,
            )
        )
        for saved in (0, 50)
    ]
    assert runs[0].overall.tokens.low < runs[1].overall.tokens.high  # apart, nothing is to be seen
    change = compare_results(runs[1], runs[0]).overall.tokens
    assert (change.value, change.low, change.high) == pytest.approx((-50.0, -50.0, -50.0))


def test_comparing_other_problems_names_them(tmp_path, run):
    other = load_results(
        write_run(tmp_path / "o", {"aime": [EASY, problem(7, *HARD.completions)], "amc": [SOLVED]}, label="leash")
    )
    message = "'leash' and its baseline 'base' differ in problems of aime: only in the run p7, only in the baseline p1"
    with pytest.raises(ValueError, match=message):
        compare_results(other, run)


def test_comparing_other_benchmarks_names_them(tmp_path, run):
    other = load_results(write_run(tmp_path / "other", {"aime": [EASY, HARD]}))
    with pytest.raises(ValueError, match="differ in benchmarks: only in the run none, only in the baseline amc"):
        compare_results(other, run)


@pytest.mark.parametrize(("size", "rest"), [(6, ""), (8, " and 2 more")])
def test_a_long_list_of_differences_is_cut(tmp_path, size, rest):
    full = load_results(write_run(tmp_path / "a", {"m": [problem(i, completion("1", 8, True)) for i in range(size)]}))
    part = load_results(write_run(tmp_path / "b", {"m": [problem(0, completion("1", 8, True))]}))
    with pytest.raises(ValueError, match=f"only in the baseline p1, p2, p3, p4, p5{rest};"):
        compare_results(part, full)


def test_results_know_what_the_run_says(tmp_path):
    folder = write_run(tmp_path / "run", {"amc": [SOLVED]}, label="leash", step=100)
    run = load_results(folder)
    assert run.label == "leash"
    assert run.run == json.loads((folder / "run.json").read_text())


def test_unscorable_completions_are_left_out_of_accuracy_and_said(tmp_path, caplog):
    # 2 of 3 that could be graded are right, and the unscorable one is as long as the others together
    mixed = problem(
        0, completion("1", 10, True), completion("1", 20, True), completion("9", 30, False), completion("1", 60, None)
    )
    lost = problem(1, *(completion("1", 10, None) for _ in range(4)))
    results = load_results(write_run(tmp_path / "run", {"aime": [mixed, lost]}))
    row = results.benchmarks[0]
    assert (row.num_problems, row.num_graded, results.problems["aime"]["p1"]) == (2, 1, None)
    found = values(row)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["pass_at_2"] == 1.0  # of 3 pairs
    assert found["pass_at_4"] == 1.0
    assert found["majority"] == 1.0
    assert found["accuracy_within_16"] == pytest.approx(1 / 3)
    assert found["tokens"] == 30.0
    assert (row.statistics["right_tokens"], row.statistics["wrong_tokens"]) == (15.0, 30.0)
    assert "5 of 8" in caplog.text


def with_lost(folder, lost, size=4, right=()):
    """A run with one completion per problem, of which those of some problems could not be graded."""
    verdicts = {i: None if i in lost else i in right for i in range(size)}
    rows = [problem(i, completion("1", 10 * (i + 1), verdict)) for i, verdict in verdicts.items()]
    return load_results(write_run(folder, {"aime": rows}, label=folder.name))


def test_runs_are_compared_on_the_problems_that_both_have_graded(tmp_path):
    base, leash = with_lost(tmp_path / "base", {0}), with_lost(tmp_path / "leash", {1}, right={3})
    change = compare_results(leash, base).benchmarks[0]
    assert change.accuracy == mean_share_difference(np.array([0.0, 1.0]), num_samples=1)
    assert change.tokens.value == 0.0
    warning = interval_warning([base, leash])
    assert "\n" not in warning
    assert all(words in warning for words in ("1 of 4 of aime in 'base'", "1 of 4 of aime in 'leash'"))


def test_a_comparison_without_a_problem_that_both_have_graded_is_refused(tmp_path):
    runs = [with_lost(tmp_path / str(lost), {lost}, size=2) for lost in (0, 1)]
    with pytest.raises(ValueError, match=r"no problem of aime graded in both.*again"):
        compare_results(*runs)


def test_a_benchmark_of_which_nothing_could_be_graded_is_refused_with_the_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"aime: .*could be graded.*run the command that made this folder again"):
        with_lost(tmp_path / "run", {0, 1}, size=2)
