"""Group-relative advantages in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.length_control.advantages import group_advantages


NAN = float("nan")


def test_group_scaling_by_hand():
    # group 1: mean 0, sample std sqrt(4/3); group 2: mean 0.5, deviations +-0.5, sample std sqrt(1/3)
    rewards = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 0.0, 0.0])
    first, second = 1 / (4 / 3) ** 0.5, 0.5 / (1 / 3) ** 0.5
    expected = [first, first, -first, -first, second, second, -second, -second]
    torch.testing.assert_close(
        group_advantages(rewards, 4, "group", 1e-12), torch.tensor(expected, dtype=torch.float64)
    )


def test_batch_scaling_divides_all_groups_by_one_deviation():
    rewards = torch.tensor([1.0, -1.0, 1.0, 0.0])
    # centred 1, -1, 0.5, -0.5; std of the rewards: mean 0.25, squares 0.5625 + 1.5625 + 0.5625 + 0.0625 over 3
    std = (2.75 / 3) ** 0.5
    expected = torch.tensor([1, -1, 0.5, -0.5], dtype=torch.float64) / std
    torch.testing.assert_close(group_advantages(rewards, 2, "batch", 1e-12), expected)


def test_unscorable_rows_have_no_advantage_and_do_not_move_the_others():
    with_nan = group_advantages(torch.tensor([1.0, NAN, -1.0, 0.5]), 4, "group", 1e-8)
    without = group_advantages(torch.tensor([1.0, -1.0, 0.5]), 3, "group", 1e-8)
    assert with_nan[1] == 0
    torch.testing.assert_close(with_nan[[0, 2, 3]], without)


@pytest.mark.parametrize("rewards", [[NAN] * 4, [1.0, NAN, NAN, NAN]])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_groups_without_two_scores_have_no_advantage(rewards, scale):
    assert group_advantages(torch.tensor(rewards), 4, scale, 1e-8).tolist() == [0.0] * 4


@given(st.floats(-1, 1), st.integers(2, 64))
def test_equal_rewards_give_no_advantage_worth_the_name(reward, size):
    # in float32 this fails with advantages up to 0.9
    advantages = group_advantages(torch.full((size,), reward, dtype=torch.float64), size, "group", 1e-8)
    assert advantages.abs().max() < 1e-6


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=32))
def test_advantages_of_a_group_sum_to_zero(rewards):
    advantages = group_advantages(torch.tensor(rewards, dtype=torch.float64), len(rewards), "none", 1e-8)
    assert abs(advantages.sum().item()) < 1e-9


def test_unknown_scaling_is_an_error():
    with pytest.raises(ValueError, match="scale_rewards"):
        group_advantages(torch.ones(4), 4, "per_token", 1e-8)
