"""LASER-D's choice of targets: golden vectors, the grid and the borders between difficulties."""

import pytest
import torch

from leash_trl.length_control.laser import (
    LaserD,
    candidate_targets,
    difficulty,
    lengths_by_difficulty,
    right_answers,
    smallest_target,
)


@pytest.mark.parametrize(
    ("size", "rounding", "expected"),
    [
        (8, "paper", [1, 3, 6]),
        (8, "release", [1, 2, 5]),
        (6, "paper", [1, 2, 4]),
        (6, "release", [1, 2, 4]),
        (2, "paper", [1, 1, 2]),
        (2, "release", [1, 1, 1]),
        (16, "paper", [1, 6, 11]),
    ],
)
def test_right_answers_of_a_difficulty_follow_from_its_lower_border(size, rounding, expected):
    assert right_answers(size, rounding) == expected


@pytest.mark.parametrize("num_correct_of_3", [0, 1, 2, 3])
def test_borders_belong_to_the_easier_side_when_shaping_and_the_harder_when_monitoring(num_correct_of_3):
    rate = torch.tensor([float(num_correct_of_3)] * 2, dtype=torch.float64) / 3
    assert difficulty(rate, "shaping").tolist() == [[0, 1, 2, 2][num_correct_of_3]] * 2
    assert difficulty(rate, "monitoring").tolist() == [[0, 0, 1, 2][num_correct_of_3]] * 2


def test_all_lengths_of_a_prompt_count_towards_its_difficulty_except_where_nothing_could_be_scored(make_rollouts):
    nan = float("nan")
    batch = make_rollouts([1, 1, 1, 0, nan, 1, nan, nan, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], num_generations=2)
    # solve rates 1, 1/2, 1, none, 0
    assert lengths_by_difficulty(batch) == [[9, 10], [3, 4], [1, 2, 5, 6]]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ((4096, 6144), [4096, 5120, 6144]),
        ((1024, 2048), [1024, 2048]),
        ((12, 2500), [12, 1024, 2048]),
        ((1500, 2523), [1500]),
        ((700, 700), [700]),
    ],
)
def test_candidates_by_hand(bounds, expected):
    assert candidate_targets(*bounds, interval=1024) == expected


def test_more_expected_answers_need_a_longer_target():
    lengths = [100, 200, 300, 400]
    assert [smallest_target(lengths, lengths, num_right=4, expected=n) for n in (1, 2, 4, 5)] == [100, 200, 400, None]
    assert smallest_target([], lengths, num_right=4, expected=1) is None


def test_lower_bound_above_the_upper_one_is_refused():
    with pytest.raises(ValueError, match="upper_bound is 16384"):
        LaserD().check(20000, 32768, 8)
