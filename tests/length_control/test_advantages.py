"""Group-relative advantages in float64."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.length_control.advantages import decoupled_advantages, group_advantages, has_signal


NAN = float("nan")


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


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


@given(st.floats(-1, 1), st.integers(2, 64))
def test_equal_rewards_give_no_advantage_worth_the_name(reward, size):
    # in float32 this fails with advantages up to 0.9
    advantages = group_advantages(torch.full((size,), reward, dtype=torch.float64), size, "group", 1e-8)
    assert advantages.abs().max() < 1e-6


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=32))
def test_advantages_of_a_group_sum_to_zero(rewards):
    advantages = group_advantages(torch.tensor(rewards, dtype=torch.float64), len(rewards), "none", 1e-8)
    assert abs(advantages.sum().item()) < 1e-9


def test_a_baseline_weighted_by_length_by_hand():
    # group 1: b = (300 * 1 + 100 * 0) / 400 = 0.75; group 2: b = (10 * 1 - 40 * 1) / 50 = -0.6
    rewards, lengths = torch.tensor([1.0, 0.0, 1.0, -1.0]), torch.tensor([300, 100, 10, 40])
    advantages = group_advantages(rewards, 2, "none", 1e-8, weights=lengths)
    torch.testing.assert_close(advantages, doubles(0.25, -0.75, 1.6, -0.4))
    # the deviations are those without weights: sqrt(1/2) and sqrt(2)
    scaled = group_advantages(rewards, 2, "group", 1e-12, weights=lengths)
    torch.testing.assert_close(scaled, advantages / doubles(0.5, 0.5, 2, 2).sqrt())


def test_an_unscorable_completion_has_no_weight_in_the_baseline():
    advantages = group_advantages(
        torch.tensor([1.0, NAN, 0.0]), 3, "none", 1e-8, weights=torch.tensor([300, 9000, 100])
    )
    torch.testing.assert_close(advantages, doubles(0.25, 0.0, -0.75))


def test_decoupled_advantages_by_hand():
    # group 1, task 1 1 0 0: mean 1/2, std sqrt(1/3), so +-0.5 * sqrt(3) = +-0.8660; length 0 -0.1 0 0: mean -0.025,
    # std 0.05, so 0.5 -1.5 0.5 0.5; sums 1.3660 -0.6340 -0.3660 -0.3660
    # group 2, task 1 1 1 1: 0; length 0 0 -2 -2: mean -1, std sqrt(4/3), so +-1 / sqrt(4/3) = +-0.8660
    task = doubles(1, 1, 0, 0, 1, 1, 1, 1)
    length = doubles(0, -0.1, 0, 0, 0, 0, -2, -2)
    half = 3**0.5 / 2
    sums = doubles(half + 0.5, half - 1.5, 0.5 - half, 0.5 - half, half, half, -half, -half)
    # squares: 1.8660 + 0.4019 + 2 * 0.1340 = 2.5359 and 4 * 0.75 = 3; over n - 1 = 7
    std = ((sums**2).sum() / 7).sqrt()
    assert std.item() == pytest.approx((5.5358984 / 7) ** 0.5, rel=1e-7)
    torch.testing.assert_close(decoupled_advantages([task, length], [1, 1], 4, 1e-12), sums / std)
    # the weight of length is 1/2: sums 1.1160 0.1160 -0.6160 -0.6160 and +-0.4330
    halved = doubles(half + 0.25, half - 0.75, 0.25 - half, 0.25 - half, half / 2, half / 2, -half / 2, -half / 2)
    halved = halved / ((halved**2).sum() / 7).sqrt()
    torch.testing.assert_close(decoupled_advantages([task, length], [1, 0.5], 4, 1e-12), halved)


def test_no_length_reward_anywhere_leaves_the_task_alone():
    task = doubles(1, 0, 0, 0, 1, 1, 1, 1)
    alone = group_advantages(task, 4, "group", 1e-12)
    # of the eight values only the first four are not 0: squares 2.25 + 3 * 0.25 = 3, over 7
    advantages = decoupled_advantages([task, torch.zeros(8)], [1, 1], 4, 1e-12)
    torch.testing.assert_close(advantages, alone / (3 / 7) ** 0.5)


def test_objectives_that_cancel_out_give_exactly_nothing_and_no_signal():
    task, length = doubles(1, -1, 1, -1), doubles(-0.3, 0, -0.1, 0)  # in pairs, both come to +-1 / sqrt(2)
    advantages = decoupled_advantages([task, length], [1, 1], 2, 1e-8)
    assert advantages.tolist() == [0.0] * 4
    assert has_signal(task + length, advantages, 2).tolist() == [False, False]


def test_rounding_errors_of_equal_rewards_are_no_objective():
    length = doubles(1, 1, -1, -1) - 0.1 - doubles(1, 1, -1, -1)
    assert len(set(length.tolist())) > 1
    assert decoupled_advantages([torch.ones(4), length], [1, 1], 4, 1e-8).tolist() == [0.0] * 4


def test_what_no_objective_can_score_has_no_advantage_and_does_not_move_the_others():
    task, length = doubles(1, NAN, 0, 1), doubles(-0.1, NAN, 0, -0.3)
    advantages = decoupled_advantages([task, length], [1, 1], 4, 1e-8)
    others = torch.tensor([0, 2, 3])
    assert advantages[1] == 0
    torch.testing.assert_close(
        advantages[others], decoupled_advantages([task[others], length[others]], [1, 1], 3, 1e-8)
    )


def test_what_is_below_a_millionth_is_a_rounding_error_and_what_is_above_is_a_signal():
    rewards = doubles(1, 0, 1, 0)
    for size, is_signal in ((0.9e-6, False), (2e-6, True)):
        assert has_signal(rewards, doubles(0, 0, size, -size), 2).tolist() == [False, is_signal]
    for spread, is_signal in ((0.9e-12, False), (2e-12, True)):
        assert has_signal(doubles(1, 0, 0, spread), doubles(1, -1, 1, -1), 2).tolist() == [True, is_signal]
    # the same bound decides where two objectives cancel out: sums of 4e-6 and less than 1e-6
    task, length = doubles(1, -1), doubles(-1, 1)
    assert (decoupled_advantages([task, length], [1 + 4e-6, 1], 2, 0.0) != 0).all()
    assert (decoupled_advantages([task, length], [1 + 9e-7, 1], 2, 0.0) == 0).all()
