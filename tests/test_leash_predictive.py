"""Our controller: its forecast, its length advantage and its state, by hand; its laws; what it replaces."""

import dataclasses
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.checkpoints.state_file import restore_method
from leash_trl.length_control.leash_predictive import RESPONSE_BOUNDS, Forecast, LeashPredictive
from leash_trl.length_control.methods import find_method
from leash_trl.length_control.rollouts import Rollouts


violations = st.lists(st.floats(-1, 5), min_size=1, max_size=40)


def rollouts(lengths, rewards, target=10.0, generations=4):
    count = len(lengths)
    return Rollouts(
        lengths=torch.tensor(lengths),
        target_lengths=torch.full((count,), target, dtype=torch.float64),
        task_rewards=torch.tensor(rewards, dtype=torch.float64),
        is_truncated=torch.zeros(count, dtype=torch.bool),
        questions=torch.arange(count // generations).repeat_interleave(generations),
        num_generations=generations,
        max_completion_length=100,
    )


def moved(method, *violations):
    (multiplier,) = method.multipliers.values()
    for violation in violations:
        multiplier.move(violation)
    return method.lam


def of_ratio(ratio):
    return ratio - 1.0


def test_the_first_batch_is_taken_as_it_is():
    forecast = Forecast().updated(of_ratio(2.0), lam=1.0)
    # u = 0.1; log 2 less one update of 0.04 * 0.1
    assert forecast == pytest.approx((math.log(2) - 0.004, 0.1, 0.04))


def test_a_surprise_by_hand():
    # expected 0.5, measured 0.9: e = 0.4; b = 0.1 - 0.02 * 0.4 * 0.5 / (0.25 + 0.1); u = 0.9 * 0.5 + 0.1 * 1
    response = 0.1 - 0.004 / 0.35
    forecast = Forecast(level=0.5, push=0.5, response=0.1).updated(math.expm1(0.9), lam=1.0)
    assert forecast == pytest.approx((0.5 + 0.25 * 0.4 - response * 0.55, 0.55, response))
    shorter = Forecast(level=0.5, push=0.5, response=0.1).updated(math.expm1(0.1), lam=0.0)
    response = 0.1 + 0.004 / 0.35
    assert shorter == pytest.approx((0.5 - 0.25 * 0.4 - response * 0.45, 0.45, response))


def test_the_needed_push_by_hand():
    # the momentum still carries 0.5 * (0.9 + 0.81 + ...) = 4.5 updates of 0.05 each; 0.4 is to go, in 10 updates
    assert Forecast(level=0.4, push=0.5, response=0.05).needed_push() == pytest.approx((0.4 - 0.225) / 0.5)
    assert Forecast(level=0.2, push=0.5, response=0.05).needed_push() == pytest.approx((0.2 - 0.225) / 0.5)
    assert Forecast().needed_push() == math.inf


def test_without_noise_it_eases_off_before_the_target_and_comes_to_rest_on_it():
    """On the plant it assumes: a logarithm that falls by 0.04 times the running mean of lambda."""
    method = LeashPredictive()
    level, push, levels = math.log(3.0), 0.0, []
    for _ in range(200):
        levels.append(level)
        push = 0.9 * push + 0.1 * method.lam
        moved(method, math.expm1(level))
        level -= 0.04 * push
    assert min(levels) > -0.01
    assert abs(levels[-1]) < 0.01
    first = next(i for i, value in enumerate(levels) if value < 0.05)
    assert first < 60  # at full push all the way it would take 36


@given(violations)
def test_lambda_stays_within_its_bounds_and_the_state_finite(violations):
    method = LeashPredictive(lambda_min=0.25, lambda_init=0.5, lambda_max=0.75)
    for violation in violations:
        assert 0.25 <= moved(method, violation) <= 0.75
        state = method.state_dict()
        assert all(map(math.isfinite, (state["level"], state["push"], state["response"])))
        assert RESPONSE_BOUNDS[0] <= state["response"] <= RESPONSE_BOUNDS[1]
        assert 0 <= state["push"] <= 0.75


@given(violations, st.floats(0.01, 2))
def test_longer_batches_never_ask_for_less_when_nothing_is_under_way(violations, more):
    forecast = Forecast(level=0.1)
    assert forecast.updated(0.1 + more, 0.0).needed_push() > forecast.updated(0.1, 0.0).needed_push()


def test_empty_completions_are_finite():
    assert math.isfinite(moved(LeashPredictive(), -1.0, -1.0))


def test_correct_answers_are_compared_by_overshoot_and_wrong_ones_left_alone():
    method = LeashPredictive(lambda_init=0.5)
    batch = rollouts([10, 20, 30, 90], [1, 1, 1, -1])
    # overshoots of the correct ones 0, 1, 2: mean 1, deviation 1
    task = torch.tensor([0.5, 0.5, 0.5, -1.5], dtype=torch.float64)
    expected = task + 0.5 * torch.tensor([1.0, 0.0, -1.0, 0.0])
    torch.testing.assert_close(method.advantages(method.shape(batch), batch, "group", 0.0), expected)
    assert method.penalty(batch).tolist() == [0.0, 0.5, 1.0, 0.0]
    assert method.shape(batch).tolist() == [1.0, 0.5, 0.0, -1.0]


@pytest.mark.parametrize("lam", [0.0, 0.25, 0.5, 1.0])
def test_half_of_lambda_pushes_half_as_hard_where_all_are_correct(lam):
    method, full = LeashPredictive(lambda_init=lam), LeashPredictive(lambda_init=1.0)
    batch = rollouts([10, 20, 30, 90], [1, 1, 1, 1])
    pushed, fully = (m.advantages(m.shape(batch), batch, "group", 1e-8) for m in (method, full))
    torch.testing.assert_close(pushed, lam * fully)
    assert fully.abs().max() > 1


@pytest.mark.parametrize("rewards", [[1, -1, -1, -1], [-1, -1, -1, -1], [math.nan, 1, -1, math.nan]])
def test_with_fewer_than_two_correct_answers_length_does_not_count(rewards):
    method = LeashPredictive()
    batch = rollouts([10, 20, 30, 90], rewards)
    plain = find_method("none")().advantages(batch.task_rewards, batch, "group", 1e-8)
    assert torch.equal(method.advantages(method.shape(batch), batch, "group", 1e-8), plain)


def test_what_has_no_task_reward_has_no_advantage_though_it_is_known_to_be_correct():
    batch = dataclasses.replace(rollouts([10, 20, 30, 90], [1, 1, math.nan, -1]), correctness_rewards=torch.ones(4, dtype=torch.float64))
    method = LeashPredictive()
    assert method.advantages(method.shape(batch), batch, "group", 1e-8)[2] == 0


def test_scale_rewards_is_for_the_task_alone():
    method = LeashPredictive(lambda_init=0.5)
    batch = rollouts([10, 20, 30, 90], [1, 1, 1, -1])
    by_hand = torch.tensor([0.5 + 0.5, 0.5, 0.5 - 0.5, -1.5], dtype=torch.float64)
    torch.testing.assert_close(method.advantages(method.shape(batch), batch, "none", 0.0), by_hand)


def test_any_scale_of_rewards_will_do():
    assert LeashPredictive().reward_scale_problem(rollouts([10, 20, 30, 90], [5, 1, 0, 0])) is None


def test_state_round_trip_goes_on_with_the_same_multipliers():
    one, other = LeashPredictive(), LeashPredictive()
    moved(one, 1.5, 0.9, -0.4)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.statistics() == one.statistics()
    for violation in (0.1, 0.15, 0.3):
        assert moved(other, violation) == moved(one, violation)
    assert other.state_dict() == one.state_dict()


@pytest.mark.parametrize("retired", ["leash_pi", "leash_gated"])
def test_the_retired_controllers_name_their_successor(retired):
    with pytest.raises(ValueError, match=rf"^length_control is '{retired}', which is retired; use 'leash_predictive'"):
        find_method(retired)
    record = {"method": retired, "controller": {"lambda": 0.1, "integral": 0.2, "level": 0.3}}
    with pytest.raises(ValueError, match=rf"saved by length control '{retired}', this is 'leash_pred.*start a run"):
        restore_method(LeashPredictive(), record, "checkpoint-5")
