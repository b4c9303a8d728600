"""ACOER by hand: the bonus, and the moves of its weight and budget."""

import math

import pytest
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.acoer import ACOER


NAN = float("nan")


def after(method, *batches):
    for rewards, lengths in batches:
        method.observe(toy_rollouts(rewards, lengths))
        method.step()
    return method


def test_the_bonus_by_hand():
    method = ACOER(alpha_init=0.5, budget_init=100, log_scale=3.0)
    # at the budget nothing, without a token all of it; 3 * (1 - 1/3) + 1 = 3, log 3 / log 4
    expected = [1.0, 1.5, 1 + 0.5 * math.log(2.5) / math.log(4), 0.0, NAN]
    close(method.shape(toy_rollouts([1, 1, 1, -1, NAN], [150, 0, 50, 10, 10])), expected)


def test_weight_and_budget_move_once_the_window_is_full():
    method = ACOER(alpha_init=0.1, window=2, warmup_steps=0, ema_span=1, min_budget=20, budget_init=100)
    after(method, ([1, 1], [60, 100]))
    assert (method.alpha, method.budget) == (0.1, 100)
    after(method, ([1, 1], [60, 100]))
    assert (method.alpha, method.budget) == pytest.approx((0.102, 0.85 * 80))
    after(method, ([1, -1], [10, 100]))  # accuracy falls; 8.5 tokens are below the least budget
    assert (method.alpha, method.budget) == pytest.approx((0.102 * 0.95, 20))


def test_means_are_exponential_and_warm_up_counts_updates():
    method = ACOER(window=2, warmup_steps=3, ema_span=3, min_budget=1)  # the newest batch weighs a half
    after(method, ([1, 1], [40, 40]), ([-1, -1], [9, 9]), ([1, NAN], [80, 7]))
    assert (method.alpha, method.budget) == (0.02, 4096)
    assert method.accuracies == [0.5, 0.75]
    assert method.mean_length == 60  # the batch without a correct answer counts nothing
    assert after(method, ([1, 1], [60, 60])).statistics() == pytest.approx({"alpha": 0.0204, "budget": 0.85 * 60})


def test_a_batch_without_a_reward_moves_nothing():
    method = after(ACOER(window=2, warmup_steps=0), ([1], [9]), ([NAN], [9]))
    assert (method.num_updates, method.accuracies) == (1, [1.0])
