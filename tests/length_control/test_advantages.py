"""Advantages in float64, and the means, deviations and robust scores they are made of, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_rollouts import close

from leash_trl.length_control.advantages import group_advantages, has_signal, mean_and_std


NAN = float("nan")


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_mean_and_sample_standard_deviation_by_hand():
    # 100, 110, 150: mean 120, squares 400 + 100 + 900, over n - 1: 700; 50, 90: mean 70, 2 * 400 / 1; one; none
    means, stds = mean_and_std(
        torch.tensor([[100.0, 110.0, NAN, 150.0], [NAN, 50.0, 90.0, NAN], [7.0] + [NAN] * 3, [NAN] * 4])
    )
    close(means, [[120], [70], [7], [0]])
    close(stds, [[math.sqrt(700)], [math.sqrt(800)], [0], [0]])


@pytest.mark.parametrize(("correction", "variance"), [(0, 8), (1, 12)])
def test_weighted_mean_and_standard_deviation_by_hand(correction, variance):
    # 4 of weight 2, 10 of 1, 1 of 0: mean 18 / 3 = 6; squares 2 * 4 + 16 = 24, over 3 for the population, over 2
    mean, std = mean_and_std(torch.tensor([4.0, 10.0, 1.0, NAN]), torch.tensor([2, 1, 0, 5]), correction)
    assert (mean.item(), std.item()) == (6, pytest.approx(math.sqrt(variance), rel=1e-12))


# deviations: of the first group sqrt(4 / 3); of the second, around 0.5, sqrt(1 / 3)
# of the batch: mean 0.25, squares 4 * 0.5625 + 2 * 1.5625 + 2 * 0.0625 = 5.5, over 7
SCALES = {"none": (1, 1), "group": ((4 / 3) ** 0.5, (1 / 3) ** 0.5), "batch": ((5.5 / 7) ** 0.5,) * 2}


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_by_hand(scale):
    first, second = SCALES[scale]
    rewards = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 0.0, 0.0])
    centered = doubles(1, 1, -1, -1, 0.5, 0.5, -0.5, -0.5)
    close(group_advantages(rewards, 4, scale, 1e-14), centered / doubles(*[first] * 4, *[second] * 4))
    close(group_advantages(rewards, 4, scale, 0.25)[0], 1 / (first + 0.25) if scale != "none" else 1)


@given(st.floats(-1, 1), st.integers(2, 64))
def test_equal_rewards_give_no_advantage_worth_the_name(reward, size):
    # in float32 this fails with advantages up to 0.9
    advantages = group_advantages(torch.full((size,), reward, dtype=torch.float64), size, "group", 1e-8)
    assert advantages.abs().max() < 1e-6


def test_what_is_below_a_millionth_is_a_rounding_error_and_what_is_above_is_a_signal():
    rewards = doubles(1, 0, 1, 0)
    for size, is_signal in ((0.9e-6, False), (2e-6, True)):
        assert has_signal(rewards, doubles(0, 0, size, -size), 2).tolist() == [False, is_signal]
    for spread, is_signal in ((0.9e-12, False), (2e-12, True)):
        assert has_signal(doubles(1, 0, 0, spread), doubles(1, -1, 1, -1), 2).tolist() == [True, is_signal]
