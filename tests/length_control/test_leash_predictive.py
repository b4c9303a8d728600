"""LEASH-Predictive: its forecast, its length advantage and its state, by hand."""

import math

import numpy as np
import pytest
import torch
from toy_rollouts import close, toy_rollouts, updated

from leash_trl.length_control import AdvantageRule
from leash_trl.length_control.forecast import Forecast
from leash_trl.length_control.leash import Multiplier
from leash_trl.length_control.leash_predictive import LeashPredictive
from leash_trl.length_control.none import NoControl


EXACT = AdvantageRule("group", 0.0)


def batch(lengths, rewards, target=10.0, **kwargs):
    return toy_rollouts(rewards, lengths, target, **kwargs)


def next_lambda(method, lengths, target=10.0, effort=None):
    """lambda after an update on correct completions of these lengths."""
    columns = {"effort": [effort] * len(lengths)}
    return updated(method, batch(lengths, [1] * len(lengths), target, columns=columns)).lam


COVARIANCE = [
    [0.03, -0.02, 0.001],
    [-0.02, 0.5, 0.0],
    [0.001, 0.0, 1e-4],
]
KNOWN = Forecast(log_ratio=0.5, push=0.5, response=0.1, drift=0.01, covariance=COVARIANCE)


def test_the_first_batch_is_taken_as_it_is():
    np.testing.assert_allclose(Forecast().covariance, np.diag([0.1**2, 0.8**2, 0.005**2]))
    assert Forecast().after_batch(1.0)[:4] == pytest.approx((math.log(2), 0.0, 0.04, 0.0))


def test_the_filters_update_by_hand():
    # P_yy + s^2 = 0.04: k = 0.75, -0.5, 0.025; e = 0.4
    forecast = KNOWN.after_batch(math.expm1(0.9))
    assert forecast[:4] == pytest.approx((0.8, 0.5, 0.1 * math.exp(-0.2), 0.02))
    expected = [
        [0.0075, -0.005, 0.00025],
        [-0.005, 0.49, 0.0005],
        [0.00025, 0.0005, 7.5e-5],
    ]
    np.testing.assert_allclose(forecast.covariance, expected)


def test_response_and_drift_are_clipped():
    # log(1.5) - 0.5 = -0.0945 and log(3) - 0.5 = 0.5986; gains of -0.5 and 0.025
    low = KNOWN._replace(response=5e-4).after_batch(2.0)
    assert low.response == 5e-4
    assert low.drift == pytest.approx(0.95 * 5e-4)
    high = KNOWN._replace(response=0.4, drift=0.001).after_batch(0.5)
    assert high.response == 0.4
    assert high.drift == 0.0


def test_a_drift_may_be_as_negative_as_lambda_can_balance():
    # log(1.5) - 0.5 = -0.0945 with a gain of 0.025
    forecast = KNOWN._replace(response=0.4, drift=0.001)
    assert forecast.after_batch(0.5, lambda_min=-0.5).drift == pytest.approx(0.001 - 0.025 * 0.0945349)
    at_bound = forecast._replace(drift=-1.0).after_batch(0.5, lambda_min=-0.5)
    assert at_bound.drift == pytest.approx(-0.5 * 0.95 * 0.4)
    assert forecast.after_batch(0.5, lambda_min=0.1).drift == 0.0


def test_the_drift_may_be_negative_where_lambda_may():
    for lambda_min, sign in ((0.0, 0), (-1.0, -1)):
        method = LeashPredictive(lambda_min=lambda_min)
        for length in (12, 10, 8, 6, 4):
            next_lambda(method, [length] * 4)
        assert np.sign(method.multiplier("").forecast.drift) == sign


def test_the_filters_prediction_by_hand():
    # u = 0.9 * 0.5 + 0.1 * 1 = 0.55; y = 0.5 - 0.055 + 0.01
    forecast = KNOWN.after_update(1.0, 0.9)
    assert forecast[:5] == pytest.approx((0.455, 0.55, 0.1, 0.01, 1.0))
    # first row of F P: 0.0321, -0.0475, 0.0011
    level_variance = 0.0321 + 0.055 * 0.0475 + 0.0011 + 9e-6
    response_variance = 0.5 + 0.36 * 0.045
    # of the 0.0162 by which the variance of log b grows, the drift of 0.01 takes its share: d = 0.01 times log b
    drift_variance = 1e-4 + 9e-8 + 0.01**2 * 0.0162
    expected = [
        [level_variance, -0.0475, 0.0011],
        [-0.0475, response_variance, 0.01 * 0.0162],
        [0.0011, 0.01 * 0.0162, drift_variance],
    ]
    np.testing.assert_allclose(forecast.covariance, expected)


def test_a_batch_far_below_the_target_counts_as_a_twentieth_of_it():
    assert Forecast().after_batch(-1.0).log_ratio == pytest.approx(math.log(0.05))


@pytest.mark.parametrize(
    ("level", "drift", "momentum", "needed"),
    [
        # the momentum still carries 0.5 * (0.9 + 0.81 + ...) = 4.5 updates of 0.05 each; 0.4 is to go, in 5 updates
        (0.4, 0.0, 0.9, (0.4 - 0.225) / 0.25),
        (0.2, 0.01, 0.9, 0.115 / 0.25),  # a drift of 0.01 adds as much in each of 5 + 9 updates
        (0.0, 0.025, 0.9, 0.5),  # one that the push balances at the target needs it again
        (0.2, 0.0, 0.0, 0.8),  # without momentum nothing is under way
        (None, 0.0, 0.9, math.inf),  # before the first batch nothing is known
    ],
)
def test_the_push_to_the_target_by_hand(level, drift, momentum, needed):
    forecast = Forecast(level, push=0.5, response=0.05, drift=drift)
    assert forecast.needed_lambda(momentum) == pytest.approx(needed)


def test_only_new_completions_count():
    method = LeashPredictive(lambda_init=0.5)
    lam = next_lambda(method, [30, 10])
    expected = Forecast(target=10.0).after_batch(1.0).after_update(0.5, 0.9)
    assert method.multiplier("").forecast == expected
    assert method.statistics() == {"lambda": lam, "response": expected.response, "drift": expected.drift}
    next_lambda(method, [40, 40])
    assert method.multiplier("").forecast == expected.after_batch(3.0).after_update(lam, 0.9)


def test_an_update_without_new_completions_counts_as_one_more_on_the_last_batch():
    method = LeashPredictive(lambda_init=0.5)
    next_lambda(method, [30, 10])
    before = method.multiplier("").forecast
    method.step()
    assert method.multiplier("").forecast == before.after_update(0.5, 0.9)


def test_a_budget_that_is_not_sampled_loses_its_push_and_its_lambda_follows():
    method = LeashPredictive(multiplier_per="effort")
    for _ in range(10):
        next_lambda(method, [30, 30], effort="low")
    before = method.multiplier("low").forecast
    next_lambda(method, [30, 30], effort="high")
    low = method.multiplier("low").forecast
    assert low == before.after_update(0.0, 0.9)
    assert method.lambdas["low"] == min(low.needed_lambda(0.9), 1.0)
    assert method.multiplier("high").forecast.push == pytest.approx(0.1)


def test_a_target_that_changes_is_no_surprise():
    method = LeashPredictive()
    lam = next_lambda(method, [60, 60], 40.0)
    before = method.multiplier("").forecast
    next_lambda(method, [60, 60], 20.0)
    # a length that is expected at log(60 / 40) is expected at log(60 / 20) after the change
    shifted = before._replace(log_ratio=before.log_ratio + math.log(2))
    assert method.multiplier("").forecast[:5] == pytest.approx(shifted.after_batch(2.0).after_update(lam, 0.9)[:5])


def test_where_completions_have_several_targets_none_has_changed():
    method = LeashPredictive()
    lam = next_lambda(method, [60, 60], 20.0)
    before = method.multiplier("").forecast
    next_lambda(method, [60, 90], [20.0, 30.0])
    assert method.multiplier("").forecast == before._replace(target=None).after_batch(2.0).after_update(lam, 0.9)


def test_the_momentum_is_the_optimizers():
    method = LeashPredictive(adam_beta1=0.5)
    lam = next_lambda(method, [12, 12])
    forecast = method.multiplier("").forecast
    assert forecast.push == pytest.approx(0.5)
    assert lam == pytest.approx(forecast.needed_lambda(0.5))


def test_correct_answers_are_compared_by_overshoot_and_wrong_ones_left_alone():
    rollouts = batch([10, 20, 30, 90], [1, 1, 1, -1])
    score = LeashPredictive(lambda_init=0.5).score(rollouts, EXACT)
    # overshoots of the correct ones 0, 1, 2: mean 1, deviation 1
    close(score.advantages, [0.5 + 0.5, 0.5, 0.5 - 0.5, -1.5])
    assert score.penalty.tolist() == [0.0, 0.5, 1.0, 0.0]
    assert score.shaped.tolist() == [1.0, 0.5, 0.0, -1.0]


def test_a_negative_lambda_lowers_correct_answers_below_the_target_alone():
    method = LeashPredictive(lambda_min=-1.0)
    method.multipliers = {"": Multiplier(-0.5)}
    score = method.score(batch([2, 8, 30, 2], [1, 1, 1, -1]), EXACT)
    # shortfalls of the correct ones -0.8, -0.2, 0: mean -1/3, deviation sqrt(0.52 / 3)
    deviation = math.sqrt(0.52 / 3)
    length_advantages = [(0.8 - 1 / 3) / deviation, (0.2 - 1 / 3) / deviation, -1 / 3 / deviation]
    close(score.advantages, [*(0.5 - 0.5 * advantage for advantage in length_advantages), -1.5])
    close(score.penalty, [0.4, 0.1, 0.0, 0.0])


@pytest.mark.parametrize("lambda_min", [0.0, -1.0])
def test_lambda_becomes_negative_below_the_target_where_it_may(lambda_min):
    assert next_lambda(LeashPredictive(lambda_min=lambda_min), [5] * 4) == lambda_min


@pytest.mark.parametrize("rewards", [[1, -1, -1, -1], [-1, -1, -1, -1], [math.nan, 1, -1, math.nan]])
def test_with_fewer_than_two_correct_answers_length_does_not_count(rewards):
    rollouts = batch([10, 20, 30, 90], rewards)
    plain = NoControl().score(rollouts, EXACT)
    score = LeashPredictive().score(rollouts, EXACT)
    assert torch.equal(score.advantages, plain.advantages)


def test_what_has_no_task_reward_has_no_advantage_though_it_is_known_to_be_correct():
    rollouts = batch([10, 20, 30, 90], [1, 1, math.nan, -1], correctness=[1, 1, 1, 1])
    score = LeashPredictive().score(rollouts, EXACT)
    assert score.advantages[2] == 0


def test_scale_rewards_is_for_the_task_alone():
    rollouts = batch([10, 30, 50, 90], [2, 2, 2, -2])  # overshoots 0, 2, 4 with a deviation of 2
    score = LeashPredictive(lambda_init=0.5).score(rollouts, AdvantageRule("none", 0.0))
    close(score.advantages, [1.5, 1.0, 0.5, -3.0])


def test_each_budget_weighs_length_by_its_own_lambda():
    method = LeashPredictive(multiplier_per="effort")
    method.multipliers = {"low": Multiplier(1.0), "high": Multiplier(0.25)}
    columns = {"effort": ["low"] * 3 + ["high"] * 3}
    rollouts = batch([10, 20, 30] * 2, [1] * 6, num_generations=3, columns=columns)
    score = method.score(rollouts, EXACT)
    close(score.advantages, [1.0, 0.0, -1.0, 0.25, 0.0, -0.25])
