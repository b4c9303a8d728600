"""LEASH-Predictive: its forecast, its length advantage and its state, by hand; its laws."""

import json
import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_rollouts import toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.leash_predictive import RESPONSE_BOUNDS, Forecast, LeashPredictive
from leash_trl.length_control.none import NoControl


EXACT = AdvantageRule("group", 0.0)
violations = st.lists(st.floats(-1, 5), min_size=1, max_size=40)


def doubles(*values):
    return torch.tensor(values, dtype=torch.float64)


def rollouts(lengths, rewards, target=10.0, **kwargs):
    return toy_rollouts(rewards, lengths, target, limit=100, **kwargs)


def moved(method, *violations):
    """lambda after an update on a completion with each violation of its target."""
    for violation in violations:
        method.observed[""] = [[1e6, 1e6 * (1.0 + violation)]]
        method.lambdas.setdefault("", method.lambda_init)
        method.step()
    return method.lam


def only(method):
    (forecast,) = method.forecasts.values()
    return Forecast(*forecast)


def test_the_first_batch_is_taken_as_it_is():
    assert Forecast().corrected(1.0)[:4] == pytest.approx((math.log(2), 0.0, 0.04, 0.0))


def test_a_surprise_by_hand():
    # expected 0.5, measured 0.9: e = 0.4; b = 0.1 - 0.02 * 0.4 * 0.5 / 0.35, d = 0.01 + 0.005 * 0.4 * 0.1 / 0.35
    forecast = Forecast(level=0.5, push=0.5, response=0.1, drift=0.01)
    longer, shorter = (forecast.corrected(math.expm1(level))[:4] for level in (0.9, 0.1))
    assert longer == pytest.approx((0.5 + 0.15 * 0.4, 0.5, 0.1 - 0.004 / 0.35, 0.01 + 0.0002 / 0.35))
    assert shorter == pytest.approx((0.5 - 0.15 * 0.4, 0.5, 0.1 + 0.004 / 0.35, 0.01 - 0.0002 / 0.35))


def test_response_and_drift_keep_within_their_bounds():
    forecast = Forecast(level=0.0, push=1.0, response=0.001, drift=0.0005)
    assert forecast.corrected(19.0)[2:4] == (1e-4, 1e-4)
    assert Forecast(level=5.0, push=1.0, response=0.29, drift=0.001).corrected(-0.9)[2:4] == (0.3, 0.0)


def test_an_empty_batch_counts_as_one_at_a_twentieth_of_the_target():
    assert Forecast().corrected(-1.0) == Forecast().corrected(-0.99)
    assert Forecast().corrected(-1.0)[:4] == pytest.approx((math.log(0.05), 0.0, 0.04, 0.0))


def test_an_update_by_hand():
    # u = 0.9 * 0.5 + 0.1 * 1 = 0.55; 0.4 - 0.1 * 0.55 + 0.02
    forecast = Forecast(level=0.4, push=0.5, response=0.1, drift=0.02).after_update(1.0, 0.9)
    assert forecast[:5] == pytest.approx((0.365, 0.55, 0.1, 0.02, 1.0))


def test_the_needed_push_by_hand():
    # the momentum still carries 0.5 * (0.9 + 0.81 + ...) = 4.5 updates of 0.05 each; 0.4 is to go, in 10 updates
    assert Forecast(level=0.4, push=0.5, response=0.05).needed_push(0.9) == pytest.approx((0.4 - 0.225) / 0.5)
    assert Forecast(level=0.2, push=0.5, response=0.05).needed_push(0.9) == pytest.approx((0.2 - 0.225) / 0.5)
    # a drift of 0.01 adds as much in each of 10 + 9 updates
    assert Forecast(level=0.2, push=0.5, response=0.05, drift=0.01).needed_push(0.9) == pytest.approx(0.165 / 0.5)
    # without momentum nothing is under way
    assert Forecast(level=0.2, push=0.5, response=0.05).needed_push(0.0) == pytest.approx(0.4)
    assert Forecast().needed_push(0.9) == math.inf


@given(st.floats(0.01, 0.3), st.floats(0.05, 0.95), st.floats(0, 0.99))
def test_a_push_that_balances_the_drift_at_the_target_stays(response, push, momentum):
    at_rest = Forecast(0.0, push, response, response * push, used=push)
    after = at_rest.corrected(0.0).after_update(push, momentum)
    assert after[:5] == pytest.approx(at_rest[:5], abs=1e-12)
    assert at_rest.needed_push(momentum) == pytest.approx(push)


@pytest.mark.parametrize(
    ("response", "drift", "deepest"),
    [
        (0.01, 0.0, 0.02),
        (0.02, 0.0, 0.02),
        (0.04, 0.0, 0.001),
        (0.08, 0.0, 0.08),
        (0.01, 0.3, 0.01),
        (0.02, 0.3, 0.02),
    ],
)
def test_without_noise_it_comes_to_rest_at_the_target(response, drift, deepest):
    """On the plant it assumes, with other responses than the 0.04 it starts from, and a drift of 0.3 of it.

    A response twice as high is learned on the way; so the fall below the target is then the deepest.
    """
    method = LeashPredictive()
    level, push, levels = math.log(3.0), 0.0, []
    for _ in range(600):
        levels.append(level)
        push = 0.9 * push + 0.1 * method.lam
        moved(method, math.expm1(level))
        level += drift * response - response * push
    assert min(levels) > -deepest
    assert abs(statistics.fmean(levels[-200:])) < max(0.01, deepest if drift == 0 else 0)


@given(violations)
def test_lambda_stays_within_its_bounds_and_the_state_finite(violations):
    method = LeashPredictive(lambda_min=0.25, lambda_init=0.5, lambda_max=0.75)
    for violation in violations:
        assert 0.25 <= moved(method, violation) <= 0.75
        forecast = only(method)
        assert all(map(math.isfinite, forecast[:5]))
        assert RESPONSE_BOUNDS[0] <= forecast.response <= RESPONSE_BOUNDS[1]
        assert 0 <= forecast.push <= 0.75


@given(violations, st.floats(0.01, 2))
def test_a_longer_batch_never_asks_for_less(violations, more):
    forecast = Forecast()
    for violation in violations:
        forecast = forecast.corrected(violation).after_update(0.5, 0.9)
    shorter, longer = (forecast._replace(push=0.0).corrected(v).needed_push(0.9) for v in (0.5, 0.5 + more))
    assert longer >= shorter


def updated(method, lengths, target=10.0, effort=None):
    columns = {} if effort is None else {"effort": [effort] * len(lengths)}
    method.observe(rollouts(lengths, [1] * len(lengths), target, columns=columns))
    method.step()


def test_only_new_completions_count_and_an_update_without_any_counts_as_one_more_on_the_last_batch():
    method, twice = LeashPredictive(lambda_init=0.5), LeashPredictive(lambda_init=0.5)
    for each in (method, twice):
        updated(each, [30, 10])
    expected = Forecast(target=10.0).corrected(1.0).after_update(0.5, 0.9)
    assert only(method) == expected
    twice.step()
    assert only(twice) == expected.after_update(0.5, 0.9)
    lam = method.lam
    updated(method, [40, 40])
    assert only(method) == expected.corrected(3.0).after_update(lam, 0.9)


def test_a_budget_that_is_not_sampled_loses_its_push_and_its_lambda_follows():
    method = LeashPredictive(multiplier_per="effort", lambda_init=1.0)
    for _ in range(10):
        updated(method, [30, 30], effort="low")
    before = method.forecasts["low"]
    updated(method, [30, 30], effort="high")
    assert method.forecasts["low"] == before.after_update(0.0, 0.9)
    assert method.forecasts["high"].push == pytest.approx(0.1)


def test_a_target_that_changes_is_no_surprise():
    method = LeashPredictive()
    for target in (40.0, 40.0, 20.0):
        before, lam = Forecast(*method.forecasts.get("", ())), method.lam
        updated(method, [60, 60], target)
    # a length that is expected at log(60 / 40) is expected at log(60 / 20) after the change
    shifted = before._replace(level=before.level + math.log(2))
    assert only(method)[:5] == pytest.approx(shifted.corrected(2.0).after_update(lam, 0.9)[:5])


def test_completions_without_a_target_teach_nothing():
    method = LeashPredictive()
    lam = moved(method, 0.5)
    before = only(method)
    moved(method, math.nan)
    assert only(method)[:5] == before.after_update(lam, 0.9)[:5]


def test_the_momentum_is_the_optimizers():
    for method in (LeashPredictive(momentum=0.5), LeashPredictive(momentum=0.5, multiplier_per="effort")):
        updated(method, [30, 30], effort="low")
        assert only(method).push == pytest.approx(0.5)


def test_correct_answers_are_compared_by_overshoot_and_wrong_ones_left_alone():
    # overshoots of the correct ones 0, 1, 2: mean 1, deviation 1
    score = LeashPredictive(lambda_init=0.5).score(rollouts([10, 20, 30, 90], [1, 1, 1, -1]), EXACT)
    expected = doubles(0.5, 0.5, 0.5, -1.5) + 0.5 * doubles(1.0, 0.0, -1.0, 0.0)
    torch.testing.assert_close(score.advantages, expected)
    assert score.penalty.tolist() == [0.0, 0.5, 1.0, 0.0]
    assert score.shaped.tolist() == [1.0, 0.5, 0.0, -1.0]


@pytest.mark.parametrize("lam", [0.0, 0.25, 0.5, 1.0])
def test_half_of_lambda_pushes_half_as_hard_where_all_are_correct(lam):
    batch = rollouts([10, 20, 30, 90], [1, 1, 1, 1])
    pushed, fully = (LeashPredictive(lambda_init=each).score(batch, EXACT).advantages for each in (lam, 1.0))
    torch.testing.assert_close(pushed, lam * fully)
    assert fully.abs().max() > 1


@pytest.mark.parametrize("rewards", [[1, -1, -1, -1], [-1, -1, -1, -1], [math.nan, 1, -1, math.nan]])
def test_with_fewer_than_two_correct_answers_length_does_not_count(rewards):
    batch, rule = rollouts([10, 20, 30, 90], rewards), AdvantageRule()
    own, plain = (method.score(batch, rule).advantages for method in (LeashPredictive(), NoControl()))
    assert torch.equal(own, plain)


def test_what_has_no_task_reward_has_no_advantage_though_it_is_known_to_be_correct():
    batch = rollouts([10, 20, 30, 90], [1, 1, math.nan, -1], correctness=[1, 1, 1, 1])
    assert LeashPredictive().score(batch, EXACT).advantages[2] == 0


@pytest.mark.parametrize(("scaling", "deviation"), [("none", 1.0), ("group", 2.0)])
def test_scale_rewards_is_for_the_task_alone(scaling, deviation):
    batch = rollouts([10, 30, 50, 90], [2, 2, 2, -2])  # overshoots 0, 2, 4 with a deviation of 2; rewards too
    by_hand = doubles(1.0, 1.0, 1.0, -3.0) / deviation + 0.5 * doubles(1.0, 0.0, -1.0, 0.0)
    score = LeashPredictive(lambda_init=0.5).score(batch, AdvantageRule(scaling, 0.0))
    torch.testing.assert_close(score.advantages, by_hand)


def test_each_budget_weighs_length_by_its_own_lambda():
    method = LeashPredictive(multiplier_per="effort")
    method.lambdas = {"low": 1.0, "high": 0.25}
    columns = {"effort": ["low"] * 3 + ["high"] * 3}
    batch = rollouts([10, 20, 30, 10, 20, 30], [1] * 6, num_generations=3, columns=columns)
    torch.testing.assert_close(method.score(batch, EXACT).advantages, doubles(1.0, 0.0, -1.0, 0.25, 0.0, -0.25))


def test_the_log_has_lambda_response_and_drift():
    method = LeashPredictive()
    method.forecasts[""] = Forecast(level=0.5, push=0.5, response=0.25, drift=0.125)
    assert method.statistics() == {"lambda": 1.0, "response": 0.25, "drift": 0.125}


def test_a_state_from_json_goes_on_with_the_same_multipliers():
    one, other = LeashPredictive(), LeashPredictive()
    moved(one, 1.5, 0.9, -0.4)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for violation in (0.1, 0.15, 0.3):
        assert moved(other, violation) == moved(one, violation)
    assert other.state_dict() == one.state_dict()
