"""Which problems a filter keeps, and what it says about them."""

import pytest
from datasets import Dataset
from sampled_run import completion, problem

from leash_trl.cli.filter import _summary
from leash_trl.evaluation.pass_rate_filter import check_bounds, correct_lengths, filtered_rows


LENGTHS = (40, 10, 30, 20)


def samples(*passes):
    """Problems with four completions of 40, 10, 30 and 20 tokens, the first `passes` of them right."""
    return [
        problem(index, *(completion("1", length, number < right) for number, length in enumerate(LENGTHS)))
        for index, right in enumerate(passes)
    ]


def rows(count):
    return Dataset.from_list([{"id": f"p{i}", "prompt": f"q{i}", "solution": "1"} for i in range(count)])


def test_the_papers_rule_keeps_what_is_neither_always_nor_never_solved():
    kept = list(filtered_rows(rows(5), samples(0, 1, 2, 3, 4), min_passes=1, max_passes=3))
    assert [row["id"] for row in kept] == ["p1", "p2", "p3"]
    assert [row["pass_rate"] for row in kept] == [0.25, 0.5, 0.75]
    assert [row["correct_lengths"] for row in kept] == [[40], [40, 10], [40, 10, 30]]
    assert [row["mean_length"] for row in kept] == [25.0] * 3
    assert kept[0]["prompt"] == "q1"
    assert "target_length" not in kept[0]


# right lengths of p3: 10, 30, 40; its quantiles lie at 0, 0.5 and 1, between two the longer
@pytest.mark.parametrize(("quantile", "target"), [(0.0, 10), (0.4, 30), (0.5, 30), (0.51, 40), (1.0, 40)])
def test_the_target_is_a_quantile_of_the_right_lengths(quantile, target):
    (row,) = filtered_rows(rows(1), samples(3), 1, 3, target_quantile=quantile)
    assert row["target_length"] == target


def test_correct_lengths_leave_wrong_completions_out():
    assert correct_lengths(samples(2)[0]) == [40, 10]


def test_samples_of_another_problem_are_refused():
    with pytest.raises(ValueError, match="problem p1 has the samples of p0"):
        list(filtered_rows(rows(2).select([1, 0]), samples(1, 1), 1, 3))


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((3, 2), "min_passes=3 and max_passes=2"),
        ((0, 5), "max_passes=5"),
        ((-1, 3), "min_passes=-1"),
        ((1, 3, 1.5), "target_quantile is 1.5"),
        ((0, 3, 0.5), "set min_passes to 1"),
    ],
)
def test_bounds_that_keep_nothing_are_refused_early(bounds, message):
    with pytest.raises(ValueError, match=message):
        check_bounds(4, *bounds)
    check_bounds(4, 1, 3, 0.5)


def test_a_problem_is_kept_if_it_would_be_whatever_its_unscorable_completions_are():
    outcomes = [(True, True, None, False), (True, True, True, None), (None, None, True, False), (None,) * 4]
    samples = [
        problem(index, *(completion("1", 10 * (number + 1), right) for number, right in enumerate(row)))
        for index, row in enumerate(outcomes)
    ]
    kept = list(filtered_rows(rows(4), samples, min_passes=1, max_passes=3))
    assert [(row["id"], row["pass_rate"], row["num_samples"]) for row in kept] == [
        ("p0", 2 / 3, 3),
        ("p2", 1 / 2, 2),
    ]
    assert list(filtered_rows(rows(4), samples, min_passes=0, max_passes=4))[-1]["id"] == "p2"


def test_the_summary_says_what_could_not_be_graded():
    graded, not_graded = problem(0, completion("1", 10, True)), problem(0, completion("1", 10, None))
    assert "1 completions could not be graded" in _summary([not_graded], num_samples=1, num_kept=0)
    assert "could not be graded" not in _summary([graded], num_samples=1, num_kept=1)
