"""ACOER by hand: the bonus, and how its weight and budget change."""

import math

import pytest
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.acoer import ACOER


NAN = math.nan


def update(method, rewards, lengths):
    """A policy update after one batch."""
    method.observe(toy_rollouts(rewards, lengths))
    method.step()


def test_the_bonus_by_hand():
    method = ACOER(alpha_init=0.5, budget_init=100, log_scale=3.0)
    # above the budget nothing, without a token all of it; at half of it log(1 + 3 * 0.5) / log(1 + 3)
    at_half = math.log(2.5) / math.log(4)
    expected = [1.0, 1.5, 1 + 0.5 * at_half, 0.0, NAN]
    close(method.shaped_rewards(toy_rollouts([1, 1, 1, -1, NAN], [150, 0, 50, 10, 10])), expected)


def test_weight_and_budget_change_once_the_window_is_full():
    method = ACOER(alpha_init=0.1, window=2, warmup_steps=0, ema_span=1, min_budget=20, budget_init=100)
    update(method, [1, 1], [60, 100])
    assert method.alpha == 0.1
    assert method.budget == 100
    # accuracy is stable: 0.1 * 1.02; the mean length is 80
    update(method, [1, 1], [60, 100])
    assert method.alpha == pytest.approx(0.102)
    assert method.budget == pytest.approx(0.85 * 80)
    # accuracy falls; the mean length 10 would give 8.5 tokens, below the smallest budget
    update(method, [1, -1], [10, 100])
    assert method.alpha == pytest.approx(0.102 * 0.95)
    assert method.budget == pytest.approx(20)


def test_averages_are_exponential_and_the_warm_up_counts_updates():
    method = ACOER(window=2, warmup_steps=3, ema_span=3, min_budget=1)  # the newest batch has weight 2 / (3 + 1)
    update(method, [1, 1], [40, 40])
    update(method, [-1, -1], [9, 9])
    update(method, [1, NAN], [80, 7])
    assert method.alpha == 0.02
    assert method.budget == 4096
    # 1, then (1 + 0) / 2, then (0.5 + 1) / 2; the window has the last two
    assert method.accuracies == [0.5, 0.75]
    # (40 + 80) / 2; the batch without a correct answer does not count
    assert method.mean_length == 60
    update(method, [1, 1], [60, 60])
    assert method.statistics() == pytest.approx({"alpha": 0.02 * 1.02, "budget": 0.85 * 60})


def test_a_batch_without_a_reward_changes_nothing():
    method = ACOER(window=2, warmup_steps=0)
    update(method, [1], [9])
    update(method, [NAN], [9])
    assert method.num_updates == 1
    assert method.accuracies == [1.0]
