"""Kimi k1.5's length reward: reference vectors, by hand, warm-up and state."""

import pytest

from leash_trl.length_control.kimi import Kimi


def test_shaped_rewards_by_hand(make_rollouts):
    # the groups have ranges of their own: 100 to 300 and 50 to 150
    rollouts = make_rollouts([1, 1, -1, 1, -1, -1], [100, 300, 250, 50, 75, 150], num_generations=3)
    expected = [1 + 0.4 * 0.5, 1 - 0.4 * 0.5, -0.4 * 0.25, 1 + 0.4 * 0.5, 0.0, -0.4 * 0.5]
    assert Kimi().shape(rollouts).tolist() == pytest.approx(expected)


def test_an_unscorable_completion_is_not_in_the_range(make_rollouts):
    rollouts = make_rollouts([1, 1, float("nan"), float("nan")], [100, 300, 50, 900])
    assert Kimi().shape(rollouts)[:2].tolist() == pytest.approx([1 + 0.4 * 0.5, 1 - 0.4 * 0.5])


def test_during_the_warm_up_length_has_no_part(make_rollouts):
    method, rollouts = Kimi(warmup_steps=2), make_rollouts([1, 1], [100, 300])
    for is_warm in (False, False, True):
        assert (method.shape(rollouts).tolist() != [1.0, 1.0]) == is_warm
        method.step()
