"""LEASH-Predictive: its forecast, its length advantage and its state, by hand."""

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.leash_predictive import Forecast, LeashPredictive
from leash_trl.length_control.none import NoControl


EXACT = AdvantageRule("group", 0.0)


def rollouts(lengths, rewards, target=10.0, **kwargs):
    return toy_rollouts(rewards, lengths, target, limit=100, **kwargs)


def updated(method, lengths, target=10.0, effort=None):
    """lambda after an update on completions of these lengths."""
    columns = {} if effort is None else {"effort": [effort] * len(lengths)}
    method.observe(rollouts(lengths, [1] * len(lengths), target, columns=columns))
    method.step()
    return method.lam


def only(method):
    (forecast,) = method.forecasts.values()
    return Forecast(*forecast)


KNOWN = Forecast(level=0.5, push=0.5, response=0.1, drift=0.01, covariance=(0.03, -0.02, 0.001, 0.5, 0.0, 1e-4))


def test_a_correction_by_hand():
    # the first batch is taken as it is
    assert Forecast().update(1.0)[:4] == pytest.approx((math.log(2), 0.0, 0.04, 0.0))
    # P_yy + s^2 = 0.04: k = 0.75, -0.5, 0.025; e = 0.4
    forecast = KNOWN.update(math.expm1(0.9))
    assert forecast[:4] == pytest.approx((0.8, 0.5, 0.1 * math.exp(-0.2), 0.02))
    assert forecast.covariance == pytest.approx((0.0075, -0.005, 0.00025, 0.49, 0.0005, 7.5e-5))


def test_an_update_by_hand():
    # u = 0.9 * 0.5 + 0.1 * 1 = 0.55; y = 0.5 - 0.055 + 0.01; first row of F P: 0.0321, -0.0475, 0.0011
    forecast = KNOWN.predict(1.0, 0.9)
    assert forecast[:5] == pytest.approx((0.455, 0.55, 0.1, 0.01, 1.0))
    changes = (0.0321 + 0.055 * 0.0475 + 0.0011 + 9e-6, -0.0475, 0.0011, 0.5 + 0.36 * 0.045, 0.0, 1e-4 + 9e-8)
    assert forecast.covariance == pytest.approx(changes)


@given(st.lists(st.tuples(st.floats(-0.9, 5), st.floats(0, 1)), min_size=1, max_size=12))
def test_it_is_the_extended_kalman_filter_of_its_model(batches):
    forecast, x, p = Forecast(), None, np.diag([0.01, 0.64, 2.5e-5])
    for violation, lam in batches:
        measured, seen = math.log(max(1 + violation, 0.05)), np.array([1.0, 0.0, 0.0])
        x = np.array([measured, math.log(0.04), 0.0]) if x is None else x
        gain = p @ seen / (seen @ p @ seen + 0.01)
        x, p = x + gain * (measured - x[0]), p - np.outer(gain, seen @ p)
        response = min(max(math.exp(x[1]), 5e-4), 0.4)
        x[1:] = math.log(response), min(max(x[2], 0.0), 0.95 * response)
        push = 0.9 * forecast.push + 0.1 * lam
        move = np.array([[1.0, -response * push, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        x[0] += x[2] - response * push
        p = move @ p @ move.T + np.diag([9e-6, 0.36 * abs(response * push - x[2]), 9e-8])
        forecast = forecast.update(violation).predict(lam, 0.9)
        assert (forecast.level, math.log(forecast.response), forecast.drift) == pytest.approx(x, rel=1e-6, abs=1e-9)
        assert forecast.covariance == pytest.approx(p[np.triu_indices(3)], rel=1e-6, abs=1e-12)


def test_a_batch_far_below_the_target_counts_as_a_twentieth_of_it():
    assert Forecast().update(-1.0).level == pytest.approx(math.log(0.05))


def test_the_needed_push_by_hand():
    def needed(level, drift=0.0, momentum=0.9):
        return Forecast(level=level, push=0.5, response=0.05, drift=drift).control(momentum)

    # the momentum still carries 0.5 * (0.9 + 0.81 + ...) = 4.5 updates of 0.05 each; 0.4 is to go, in 5 updates
    assert needed(0.4) == pytest.approx((0.4 - 0.225) / 0.25)
    # a drift of 0.01 adds as much in each of 5 + 9 updates; one that the push balances at the target needs it again
    assert (needed(0.2, 0.01), needed(0.0, 0.025)) == pytest.approx((0.115 / 0.25, 0.5))
    # without momentum nothing is under way; before the first batch nothing is known
    assert (needed(0.2, momentum=0.0), needed(None)) == (pytest.approx(0.8), math.inf)


def test_completions_that_are_late_lengthen_the_momentum():
    on_time, late = LeashPredictive(), LeashPredictive()
    for lag, method in ((0.0, on_time), (10.0, late)):
        method.observe(replace(rollouts([30, 10], [1, 1]), lag=lag))
        method.step()
    assert only(on_time).push == pytest.approx(0.1)
    assert only(late).push == pytest.approx(0.05)  # m = 9 + 10
    assert late.lam == pytest.approx(min(only(late).control(0.95), 1.0))


@pytest.mark.parametrize(
    ("response", "drift", "deepest"), [(0.01, 0.0, 0.04), (0.04, 0.0, 0.001), (0.08, 0.0, 0.08), (0.02, 0.3, 0.02)]
)
def test_without_noise_it_comes_to_rest_at_the_target(response, drift, deepest):
    """On the plant it assumes, with other responses than the 0.04 it starts from, and a drift of 0.3 of it.

    A response twice as high is learned on the way; so the fall below the target is then the deepest.
    """
    method, level, push, levels = LeashPredictive(), math.log(3.0), 0.0, []
    for _ in range(600):
        levels.append(level)
        push = 0.9 * push + 0.1 * method.lam
        updated(method, [1e6 * math.exp(level)], 1e6)
        level += drift * response - response * push
    assert min(levels) > -deepest
    assert abs(statistics.fmean(levels[-200:])) < max(0.01, deepest if drift == 0 else 0)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_lambda_stays_within_its_bounds_and_the_state_finite(lengths):
    method = LeashPredictive(lambda_min=0.25, lambda_init=0.5, lambda_max=0.75)
    for length in lengths:
        assert 0.25 <= updated(method, [length]) <= 0.75
        assert all(map(math.isfinite, (*only(method)[:-1], *only(method).covariance)))
        assert 0 <= only(method).push <= 0.75


def test_only_new_completions_count_and_an_update_without_any_counts_as_one_more_on_the_last_batch():
    method, twice = LeashPredictive(lambda_init=0.5), LeashPredictive(lambda_init=0.5)
    for each in (method, twice):
        updated(each, [30, 10])
    expected = Forecast(target=10.0).update(1.0).predict(0.5, 0.9)
    assert only(method) == expected
    assert method.statistics() == {"lambda": method.lam, "response": expected.response, "drift": expected.drift}
    twice.step()
    assert only(twice) == expected.predict(0.5, 0.9)
    lam = method.lam
    updated(method, [40, 40])
    assert only(method) == expected.update(3.0).predict(lam, 0.9)


def test_a_budget_that_is_not_sampled_loses_its_push_and_its_lambda_follows():
    method = LeashPredictive(multiplier_per="effort", lambda_init=1.0)
    for _ in range(10):
        updated(method, [30, 30], effort="low")
    before = method.forecasts["low"]
    updated(method, [30, 30], effort="high")
    assert method.forecasts["low"] == before.predict(0.0, 0.9)
    assert method.forecasts["high"].push == pytest.approx(0.1)
    assert method.lambdas["low"] == min(method.forecasts["low"].control(0.9), 1.0)


def test_a_target_that_changes_is_no_surprise():
    method = LeashPredictive()
    for target in (40.0, 40.0, 20.0):
        before, lam = Forecast(*method.forecasts.get("", ())), method.lam
        updated(method, [60, 60], target)
    # a length that is expected at log(60 / 40) is expected at log(60 / 20) after the change
    shifted = before._replace(level=before.level + math.log(2))
    assert only(method)[:5] == pytest.approx(shifted.update(2.0).predict(lam, 0.9)[:5])
    # where completions have several targets, none has changed
    before, lam = only(method), method.lam
    updated(method, [60, 90], [20.0, 30.0])
    assert only(method) == before._replace(target=None).update(2.0).predict(lam, 0.9)


def test_completions_without_a_target_teach_nothing():
    method = LeashPredictive()
    before, lam = (updated(method, [15, 15]), only(method))[::-1]
    updated(method, [15, 15], math.nan)
    assert only(method)[:5] == before.predict(lam, 0.9)[:5]


def test_the_momentum_is_the_optimizers():
    for method in (LeashPredictive(momentum=0.5), LeashPredictive(momentum=0.5, multiplier_per="effort")):
        updated(method, [12, 12], effort="low")
        assert only(method).push == pytest.approx(0.5)
        assert method.lam == pytest.approx(only(method).control(0.5))


def test_correct_answers_are_compared_by_overshoot_and_wrong_ones_left_alone():
    # overshoots of the correct ones 0, 1, 2: mean 1, deviation 1
    score = LeashPredictive(lambda_init=0.5).score(rollouts([10, 20, 30, 90], [1, 1, 1, -1]), EXACT)
    close(score.advantages, [0.5 + 0.5, 0.5, 0.5 - 0.5, -1.5])
    assert score.penalty.tolist() == [0.0, 0.5, 1.0, 0.0]
    assert score.shaped.tolist() == [1.0, 0.5, 0.0, -1.0]


def test_a_negative_lambda_lowers_correct_answers_below_the_target_alone():
    method = LeashPredictive(lambda_min=-1.0)
    method.lambdas = {"": -0.5}
    score = method.score(rollouts([2, 8, 30, 2], [1, 1, 1, -1]), EXACT)
    # excess -0.8, -0.2 and 0: mean -1/3
    deviation = statistics.stdev([-0.8, -0.2, 0.0])
    length = [-0.5 * (-1 / 3 - each) / deviation for each in (-0.8, -0.2, 0.0)]
    assert length[0] < length[1] < length[2]
    close(score.advantages, [0.5 + each for each in length] + [-1.5])
    close(score.penalty, [0.4, 0.1, 0.0, 0.0])


def test_lambda_becomes_negative_below_the_target_where_it_may():
    one_sided, two_sided = LeashPredictive(), LeashPredictive(lambda_min=-1.0)
    assert [updated(each, [5] * 4) for each in (one_sided, two_sided)] == [0.0, -1.0]


@pytest.mark.parametrize("rewards", [[1, -1, -1, -1], [-1, -1, -1, -1], [math.nan, 1, -1, math.nan]])
def test_with_fewer_than_two_correct_answers_length_does_not_count(rewards):
    batch, rule = rollouts([10, 20, 30, 90], rewards), AdvantageRule()
    own, plain = (method.score(batch, rule).advantages for method in (LeashPredictive(), NoControl()))
    assert torch.equal(own, plain)
    # what has no task reward has no advantage, though it is known to be correct
    batch = rollouts([10, 20, 30, 90], [1, 1, math.nan, -1], correctness=[1, 1, 1, 1])
    assert LeashPredictive().score(batch, EXACT).advantages[2] == 0


@pytest.mark.parametrize(("scaling", "deviation"), [("none", 1.0), ("group", 2.0)])
def test_scale_rewards_is_for_the_task_alone(scaling, deviation):
    batch = rollouts([10, 30, 50, 90], [2, 2, 2, -2])  # overshoots 0, 2, 4 with a deviation of 2; rewards too
    score = LeashPredictive(lambda_init=0.5).score(batch, AdvantageRule(scaling, 0.0))
    close(score.advantages, [1 / deviation + 0.5, 1 / deviation, 1 / deviation - 0.5, -3 / deviation])


def test_each_budget_weighs_length_by_its_own_lambda():
    method = LeashPredictive(multiplier_per="effort")
    method.lambdas = {"low": 1.0, "high": 0.25}
    columns = {"effort": ["low"] * 3 + ["high"] * 3}
    batch = rollouts([10, 20, 30, 10, 20, 30], [1] * 6, num_generations=3, columns=columns)
    close(method.score(batch, EXACT).advantages, [1.0, 0.0, -1.0, 0.25, 0.0, -0.25])
