"""LASER-D and LASER-DE by hand: the grid of targets, the borders of difficulty, and when targets are chosen."""

import math

import pytest
import torch
from toy_rollouts import toy_rollouts

from leash_trl.length_control.laser import (
    LaserD,
    LaserDE,
    candidate_targets,
    difficulty_levels,
    lengths_by_difficulty,
    num_correct_by_difficulty,
)


NAN = math.nan
# an easy prompt, a medium and a hard one, three completions each
WINDOW = toy_rollouts(
    [1, 1, 1, 1, 1, 0, 0, 0, 0],
    [150, 250, 350, 240, 440, 640, 500, 700, 900],
    target=100.0,
    num_generations=3,
)


@pytest.mark.parametrize(("size", "expected"), [(8, [1, 3, 6]), (6, [1, 2, 4]), (2, [1, 1, 2])])
def test_right_answers_of_a_difficulty_follow_from_its_lower_border(size, expected):
    assert num_correct_by_difficulty(size) == expected


def test_borders_belong_to_the_easier_side_when_shaping_and_the_harder_when_monitoring():
    rates = torch.arange(4, dtype=torch.float64) / 3
    assert difficulty_levels(rates, "shaping").tolist() == [0, 1, 2, 2]
    assert difficulty_levels(rates, "monitoring").tolist() == [0, 0, 1, 2]


def test_all_lengths_of_a_prompt_count_toward_its_difficulty_except_where_nothing_could_be_scored():
    # solve rates 1, 1/2, 1, none, 0
    rewards = [1, 1, 1, 0, NAN, 1, NAN, NAN, 0, 0]
    batch = toy_rollouts(rewards, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], num_generations=2)
    assert lengths_by_difficulty(batch) == [[9, 10], [3, 4], [1, 2, 5, 6]]


@pytest.mark.parametrize(
    ("lower_bound", "upper_bound", "expected"),
    [
        (4096, 6144, [4096, 5120, 6144]),
        (1024, 2047, [1024]),
        (12, 2500, [12, 1024, 2048]),
        (700, 700, [700]),
    ],
)
def test_candidates_by_hand(lower_bound, upper_bound, expected):
    assert candidate_targets(lower_bound, upper_bound, interval=1024) == expected


def test_targets_before_the_first_choice_are_those_of_the_batch_itself():
    method = LaserD(interval=100, upper_bound=600)
    # |C_d| = 1, 1, 2 of 3: monitored, the first is easy and half of it lies under 300 (2 of 3); the second is medium
    # and the third hard, both need every response under 600, so both fall back on the longest, 900.
    # Shaped, the second (2/3) is easy as well.
    assert method.limits(WINDOW).tolist() == [300.0] * 6 + [900.0] * 3
    assert method.shaped_rewards(WINDOW).tolist() == [1.5, 1.5, 1.0, 1.5, 1.0, -0.5, -0.5, -0.5, -0.5]
    assert method.targets == []
    assert method.statistics() == {}


def update(method, rollouts):
    method.observe(rollouts)
    method.step()


@pytest.fixture
def refreshed():
    """LASER-D with targets that were chosen from two batches."""
    method = LaserD(interval=100, upper_bound=1000, refresh_steps=2)
    update(method, WINDOW)
    assert method.targets == []
    update(method, WINDOW)
    return method


def test_targets_are_chosen_every_refresh_steps(refreshed):
    assert refreshed.targets == [900, 700, 300]
    assert refreshed.statistics() == {"target_hard": 900.0, "target_medium": 700.0, "target_easy": 300.0}
    for _ in range(3):  # a choice stays due until something was observed
        refreshed.step()
        assert refreshed.targets == [900, 700, 300]
    update(refreshed, toy_rollouts([1, 1, 1], [50, 350, 360], target=250.0))
    assert refreshed.targets == [None, None, 350]


def test_targets_are_chosen_from_the_batches_since_the_last_choice(refreshed):
    update(refreshed, toy_rollouts([1, 1, 1], [50, 350, 360], target=[300.0, 250.0, 250.0]))
    assert refreshed.targets == [900, 700, 300]
    update(refreshed, toy_rollouts([1, 1, 1], [55, 351, 361], target=400.0))
    # easy, |C_d| = 2: the first candidate from the lowest target on, 250, 350, ..., with half of the six under it
    assert refreshed.targets == [None, None, 350]
    assert refreshed.statistics() == {"target_easy": 350.0}


def test_the_fallback_is_the_longest_response_of_the_batch_at_hand():
    method = LaserDE()
    method.targets = [None, 40, 40]
    batch = toy_rollouts([0, 0, 0, 1, 1, 1], [90, 70, 60, 95, 30, 40], target=100.0, num_generations=3)
    # a hard prompt and an easy one
    assert method.limits(batch).tolist() == [95] * 3 + [40] * 3
    assert method.shaped_rewards(batch).tolist() == [-0.5, -0.5, -0.5, 1.0, 1.5, 1.5]
