"""Advantages in float64, and the means and deviations that they are made of, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_rollouts import close

from leash_trl.length_control.advantages import group_advantages, group_has_signal, mean_and_std


NAN = math.nan


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_mean_and_sample_standard_deviation_by_hand():
    groups = torch.tensor(
        [
            [100.0, 110.0, NAN, 150.0],  # mean 120, squares 400 + 100 + 900, over n - 1 = 2
            [NAN, 50.0, 90.0, NAN],  # mean 70, squares 400 + 400, over 1
            [7.0, NAN, NAN, NAN],
            [NAN, NAN, NAN, NAN],
        ]
    )
    means, stds = mean_and_std(groups)
    close(means, [[120], [70], [7], [0]])
    close(stds, [[math.sqrt(700)], [math.sqrt(800)], [0], [0]])


@pytest.mark.parametrize(("correction", "variance"), [(0, 24 / 3), (1, 24 / 2)])
def test_weighted_mean_and_standard_deviation_by_hand(correction, variance):
    values = torch.tensor([4.0, 10.0, 1.0, NAN])
    weights = torch.tensor([2, 1, 0, 5])
    # mean (2 * 4 + 10) / 3 = 6, squares 2 * 4 + 16 = 24
    mean, std = mean_and_std(values, weights, correction)
    assert mean.item() == 6
    assert std.item() == pytest.approx(math.sqrt(variance), rel=1e-12)


# standard deviations that the first and the second group of the next test are divided by
SCALES = {
    "none": (1, 1),
    # squares of the first group 4 * 1, of the second, around 0.5, 4 * 0.25; each over 3
    "group": (math.sqrt(4 / 3), math.sqrt(1 / 3)),
    # mean of the batch 0.25, squares 4 * 0.5625 + 2 * 1.5625 + 2 * 0.0625 = 5.5, over 7
    "batch": (math.sqrt(5.5 / 7), math.sqrt(5.5 / 7)),
}


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_by_hand(scale):
    first, second = SCALES[scale]
    rewards = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 0.0, 0.0])
    centered = doubles(1, 1, -1, -1, 0.5, 0.5, -0.5, -0.5)
    stds = doubles(first, second).repeat_interleave(4)
    advantages = group_advantages(rewards, 4, scale, epsilon=1e-14)
    close(advantages, centered / stds)
    advantages = group_advantages(rewards, 4, scale, epsilon=0.25)
    expected = 1 if scale == "none" else 1 / (first + 0.25)
    close(advantages[0], expected)


@given(st.floats(-1, 1), st.integers(2, 64))
def test_equal_rewards_give_no_advantage_worth_the_name(reward, size):
    # in float32 this fails with advantages up to 0.9
    rewards = torch.full((size,), reward, dtype=torch.float64)
    advantages = group_advantages(rewards, size, "group", epsilon=1e-8)
    assert advantages.abs().max() < 1e-6


def test_what_is_below_a_millionth_is_a_rounding_error_and_what_is_above_is_a_signal():
    rewards = doubles(1, 0)
    assert not group_has_signal(rewards, doubles(0.9e-6, -0.9e-6), 2)
    assert group_has_signal(rewards, doubles(2e-6, -2e-6), 2)
    advantages = doubles(1, -1)
    assert not group_has_signal(doubles(0, 0.9e-12), advantages, 2)
    assert group_has_signal(doubles(0, 2e-12), advantages, 2)
