"""Which problems a filter keeps, and what it says of them."""

import pytest
from datasets import Dataset
from sampled_run import completion, problem

from leash_trl.evaluation.filter import filtered_rows


LENGTHS = (40, 10, 30, 20)


def samples(*passes):
    """Problems with four completions of 40, 10, 30 and 20 tokens, the first `passes` of them right."""
    problems = []
    for index, num_right in enumerate(passes):
        completions = [completion("1", length, number < num_right) for number, length in enumerate(LENGTHS)]
        problems.append(problem(index, *completions))
    return problems


def kept_of(sampled, *bounds, **options):
    rows = Dataset.from_list([{"id": row["id"], "prompt": "q", "solution": "1"} for row in sampled])
    return list(filtered_rows(rows, sampled, *bounds, **options))


def test_the_papers_rule_keeps_what_is_neither_always_nor_never_solved():
    common = {"num_samples": 4, "mean_length": 25.0, "prompt": "q", "solution": "1"}
    assert kept_of(samples(0, 1, 2, 3, 4), 1, 3) == [
        {"id": "p1", "pass_rate": 0.25, "correct_lengths": [40], **common},
        {"id": "p2", "pass_rate": 0.5, "correct_lengths": [40, 10], **common},
        {"id": "p3", "pass_rate": 0.75, "correct_lengths": [40, 10, 30], **common},
    ]


# right lengths of p0: 10, 30, 40; its quantiles lie at 0, 0.5 and 1, between two the longer
@pytest.mark.parametrize(("quantile", "target"), [(0.0, 10), (0.4, 30), (0.51, 40)])
def test_the_target_is_a_quantile_of_the_right_lengths(quantile, target):
    (row,) = kept_of(samples(3), 1, 3, target_quantile=quantile)
    assert row["target_length"] == target


def test_a_problem_is_kept_if_it_would_be_whatever_its_unscorable_completions_are():
    right = completion("1", 10, True)
    wrong = completion("1", 10, False)
    lost = completion("1", 10, None)
    ungraded = [
        problem(0, right, right, lost, wrong),
        problem(1, right, right, right, lost),
        problem(2, lost, lost, right, wrong),
        problem(3, lost, lost, lost, lost),
    ]
    kept = [(row["id"], row["pass_rate"], row["num_samples"]) for row in kept_of(ungraded, 1, 3)]
    assert kept == [("p0", 2 / 3, 3), ("p2", 1 / 2, 2)]


def test_a_problem_without_a_right_completion_has_no_target_and_is_left_out():
    assert [row["id"] for row in kept_of(samples(0, 2), 0, 3, target_quantile=0.5)] == ["p1"]
    assert [row["id"] for row in kept_of(samples(0, 2), 0, 3)] == ["p0", "p1"]
