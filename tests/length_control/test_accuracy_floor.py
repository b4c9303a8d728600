"""The floor under accuracy: which share of the penalty applies, by hand, and what it leaves alone."""

import pytest
from toy_rollouts import close, toy_rollouts, updated

from leash_trl.length_control.accuracy_floor import RunningAccuracy
from leash_trl.length_control.laconic import Laconic
from leash_trl.length_control.leash import Leash, LeashC
from leash_trl.length_control.leash_predictive import LeashPredictive


NAN = float("nan")


def batch(num_correct, length=200, rewards=None, **kwargs):
    """Four completions with a target of 100, of which so many are correct."""
    rewards = rewards or [1.0] * num_correct + [-1.0] * (4 - num_correct)
    return toy_rollouts(rewards, [length] * len(rewards), 100.0, **kwargs)


ALL_CORRECT = batch(4)


def test_a_running_accuracy_by_hand():
    assert RunningAccuracy().after_batch(0.5)[:3] == (0.5, 0.0, 1)
    # e = 0.8 - 0.9 = -0.1, a tenth of it from the tenth batch on; the trend takes 0.02 of it
    assert RunningAccuracy(0.9, 0.0, num_batches=10).after_batch(0.8)[:3] == pytest.approx((0.89, -0.002, 10))


@pytest.mark.parametrize(
    ("level", "trend", "share"),
    [
        (0.98, 0.0, 0.5 + 0.05 * 0.07),
        (0.94, 0.0, 0.25 + 0.05 * 0.03),
        (0.89, 0.0, 0.0),
        (0.96, -0.002, 0.25 + 0.05 * 0.05),  # in ten updates it is at 0.94
        (0.92, 0.1, 1.0),
    ],
)
def test_the_share_of_the_penalty_that_applies_by_hand(level, trend, share):
    assert RunningAccuracy(level, trend, 10).with_penalty_share(0.9).penalty_share == pytest.approx(share)


def test_what_lies_above_the_floor_adds_to_the_share_and_what_lies_below_takes_from_it():
    running = RunningAccuracy(0.93, 0.0, 10)
    for _ in range(10):
        running = running.with_penalty_share(0.9)
    assert running.penalty_share == pytest.approx(0.03 / 0.16 + 10 * 0.05 * 0.02)
    lower = running._replace(mean_accuracy=0.9).with_penalty_share(0.9)
    assert lower[3:] == pytest.approx((0.01 - 0.0005, 0.01 - 0.0005))


@pytest.mark.parametrize("method_class", [Leash, LeashC, Laconic, LeashPredictive])
def test_length_costs_nothing_below_the_floor_and_all_far_above_it(method_class):
    below = updated(method_class(lambda_init=0.1, min_accuracy=0.6), batch(2))
    above = updated(method_class(lambda_init=0.1, min_accuracy=0.6), ALL_CORRECT)
    without_floor = updated(method_class(lambda_init=0.1), ALL_CORRECT)
    assert below.penalty(ALL_CORRECT).tolist() == [0.0] * 4
    assert (above.penalty(ALL_CORRECT) > 0).all()
    close(above.penalty(ALL_CORRECT), without_floor.penalty(ALL_CORRECT))


def test_within_the_margin_a_share_of_lambda_applies():
    method = updated(LeashC(lambda_init=0.5, min_accuracy=0.71), batch(3))
    # (0.75 - 0.71) / 0.16 + 0.05 * 0.03 of 0.5, for an overshoot of 1
    close(method.penalty(ALL_CORRECT), [0.2515 * 0.5] * 4)
    assert method.statistics() == pytest.approx({"lambda": 0.5, "running_accuracy": 0.75, "penalty_share": 0.2515})


def test_a_multiplier_climbs_by_the_share_that_applies_and_falls_in_full():
    method = updated(Leash(lambda_init=0.1, lambda_lr=0.1, min_accuracy=0.71), batch(3), batch(3))
    # the floor was not yet known in the first update
    climbed = 0.1 + 0.1 + 0.1 * 0.2515
    assert method.lam == pytest.approx(climbed)
    assert updated(method, batch(3, length=50)).lam == pytest.approx(climbed - 0.05)


def test_the_forecast_is_told_the_multiplier_that_applied():
    held_back = updated(LeashPredictive(min_accuracy=0.6), batch(2), batch(2))
    free = updated(LeashPredictive(), batch(2), batch(2))
    assert held_back.multiplier("").forecast.last_lambda == 0.0
    assert free.multiplier("").forecast.last_lambda > 0


def test_below_the_floor_answers_that_are_too_short_still_become_longer():
    """More tokens do not cost accuracy, so the floor leaves a negative lambda as it is."""
    short = batch(2, length=50)
    method = updated(LeashPredictive(min_accuracy=0.6, lambda_min=-1.0), short)
    assert method.penalty_share(method.multiplier("")) == 0.0
    assert method.penalty_coefficient(method.multiplier("")) == -1.0
    # 50 of 100 tokens: half of the target is missing
    close(method.penalty(batch(4, length=50)), [0.5] * 4)


def test_what_could_not_be_scored_does_not_count():
    half_scored = batch(4, rewards=[1.0] * 4 + [NAN] * 4)
    unscored = batch(0, rewards=[NAN] * 4)
    method = updated(Leash(min_accuracy=0.6), half_scored, unscored)
    assert method.statistics()["running_accuracy"] == 1.0


def test_each_value_of_a_column_has_its_own_floor():
    method = Leash(lambda_init=0.5, multiplier_per="level", min_accuracy=0.6)
    updated(method, batch(2, columns={"level": ["a", "a", "b", "b"]}))  # all of a are right, none of b
    assert method.budget_statistics("a")["penalty_share"] == 1.0
    assert method.budget_statistics("b")["penalty_share"] == 0.0
    mixed = batch(4, columns={"level": ["a", "b", "a", "b"]})
    penalty = method.penalty(mixed)
    assert (penalty > 0).tolist() == [True, False, True, False]


def test_a_run_that_goes_on_without_the_floor_pays_in_full():
    held_back = updated(LeashC(lambda_init=0.5, min_accuracy=0.9), batch(2))
    resumed = LeashC(lambda_init=0.5)
    resumed.load_state_dict(held_back.state_dict())
    close(resumed.penalty(ALL_CORRECT), [0.5] * 4)
