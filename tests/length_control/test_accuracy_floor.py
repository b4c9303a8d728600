"""The floor under accuracy: how much of the price acts, by hand, and what it leaves alone."""

from random import Random
from statistics import fmean

import pytest
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.accuracy_floor import RunningAccuracy
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.laconic import Laconic
from leash_trl.length_control.leash import Leash, LeashC
from leash_trl.length_control.leash_predictive import Forecast, LeashPredictive


NAN = float("nan")
FAMILY = (Leash, LeashC, Laconic, LeashPredictive)


def batch(num_correct, length=200, num=4, unscorable=0, levels=None):
    rewards = [1.0] * num_correct + [-1.0] * (num - num_correct) + [NAN] * unscorable
    rollouts = toy_rollouts(rewards, [length] * len(rewards), [100.0] * len(rewards))
    rollouts.columns.update({"level": levels} if levels else {})
    return rollouts


def after(method, *batches):
    for each in batches:
        method.observe(each)
        method.step()
    return method


def test_a_running_accuracy_by_hand():
    running = RunningAccuracy().after(0.5)
    assert running[:3] == (0.5, 0.0, 1)
    # e = 0.5, half of it in the second batch; the trend takes 0.02 of it
    assert running.after(1.0)[:3] == pytest.approx((0.75, 0.01, 2))
    # e = 0.25 - 0.76 = -0.51: 0.76 - 0.17, 0.01 - 0.0102
    assert running.after(1.0).after(0.25)[:3] == pytest.approx((0.59, -0.0002, 3))
    assert RunningAccuracy(0.9, 0.0, num_batches=10).after(0.8)[:3] == pytest.approx((0.89, -0.002, 10))


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
def test_the_share_of_the_price_that_acts_by_hand(level, trend, share):
    assert RunningAccuracy(level, trend, 10).above(0.9).penalty_share == pytest.approx(share)


def test_what_lies_above_the_floor_adds_to_the_share_and_what_lies_below_takes_from_it():
    running = RunningAccuracy(0.93, 0.0, 10)
    for _ in range(10):
        running = running.above(0.9)
    assert running.penalty_share == pytest.approx(0.03 / 0.16 + 10 * 0.05 * 0.02)
    lower = running._replace(level=0.9).above(0.9)
    assert (lower.penalty_share, lower.integral) == pytest.approx((0.01 - 0.0005, 0.01 - 0.0005))
    assert RunningAccuracy(1.0, 0.0, 10, integral=1.0).above(0.5).integral == 1.0
    assert RunningAccuracy(0.1, 0.0, 10, integral=0.0).above(0.5).integral == 0.0


def test_noise_does_not_turn_the_price_off():
    """Batches of 256 at an accuracy of 0.74, eight points above the floor: the share is near that without noise."""
    random, running, shares = Random(0), RunningAccuracy(), []
    for _ in range(200):
        accuracy = fmean(random.random() < 0.74 for _ in range(256))
        running = running.after(accuracy).above(0.66)
        shares.append(running.penalty_share)
    assert fmean(shares[:50]) == pytest.approx(0.08 / 0.16, abs=0.15)
    assert fmean(shares[150:]) > 0.9


@pytest.mark.parametrize("kind", FAMILY)
def test_below_the_floor_length_costs_nothing_and_far_above_it_all(kind):
    low, high = (after(kind(lambda_init=0.1, min_accuracy=0.6), batch(num)) for num in (2, 4))
    assert low.penalty(batch(4)).tolist() == [0.0] * 4
    assert (high.penalty(batch(4)) > 0).all()
    free = after(kind(lambda_init=0.1), batch(4))
    close(high.penalty(batch(4)), free.penalty(batch(4)))


def test_within_the_margin_a_share_of_lambda_acts():
    method = after(LeashC(lambda_init=0.5, min_accuracy=0.71), batch(3))
    # (0.75 - 0.71) / 0.16 + 0.05 * 0.03 of 0.5, for an overshoot of 1
    close(method.penalty(batch(4)), [0.2515 * 0.5] * 4)
    assert method.statistics() == pytest.approx({"lambda": 0.5, "running_accuracy": 0.75, "price_share": 0.2515})


def test_a_multiplier_that_is_held_back_climbs_by_the_share_that_acts_and_may_fall():
    method = after(Leash(lambda_init=0.1, lambda_lr=0.1, min_accuracy=0.6), batch(2))
    climbed = method.lam
    assert climbed == pytest.approx(0.2)  # the floor was not yet known
    after(method, batch(2))
    assert method.lam == climbed
    after(method, batch(2, length=50))
    assert method.lam == pytest.approx(climbed - 0.05)
    half = after(Leash(lambda_init=0.1, lambda_lr=0.1, min_accuracy=0.71), batch(3), batch(3))
    assert half.lam == pytest.approx(0.2 + 0.1 * 0.2515)


def test_the_forecast_is_told_the_price_that_acted():
    method = after(LeashPredictive(min_accuracy=0.6), batch(2), batch(2))
    assert Forecast(*method.forecasts[""]).last_lambda == 0.0
    assert Forecast(*after(LeashPredictive(), batch(2), batch(2)).forecasts[""]).last_lambda > 0


def test_below_the_floor_answers_that_are_too_short_still_become_longer():
    """More tokens do not cost accuracy, so the floor leaves a negative lambda as it is."""
    method = after(LeashPredictive(min_accuracy=0.6, lambda_min=-1.0), batch(2, length=50))
    assert (method.penalty_share(""), method.lam, method.penalty_coefficient("")) == (0.0, -1.0, -1.0)
    # 50 of 100 tokens: half of the target is missing
    close(method.penalty(batch(4, length=50)), [0.5] * 4)
    free = after(LeashPredictive(lambda_min=-1.0), batch(2, length=50))
    lengths = [40, 50, 60, 150]
    mixed = toy_rollouts([1.0] * 4, lengths, [100.0] * 4)
    close(method.score(mixed, AdvantageRule()).advantages, free.score(mixed, AdvantageRule()).advantages)


def test_the_forecast_is_told_a_negative_lambda_that_acted_below_the_floor():
    method = after(LeashPredictive(min_accuracy=0.6, lambda_min=-1.0), batch(2, length=50), batch(2, length=50))
    assert Forecast(*method.forecasts[""]).last_lambda == -1.0


def test_what_could_not_be_scored_does_not_count():
    method = after(Leash(min_accuracy=0.6), batch(4, unscorable=4), batch(0, num=0, unscorable=4))
    assert method.statistics()["running_accuracy"] == 1.0


def test_each_value_of_a_column_has_its_own_floor():
    method = Leash(lambda_init=0.5, multiplier_per="level", min_accuracy=0.6)
    after(method, batch(2, levels=["a", "a", "b", "b"]))  # all of a are right, none of b
    shares = [method.budget_statistics(name)["price_share"] for name in "ab"]
    assert shares == [1.0, 0.0]
    assert (method.penalty(batch(4, levels=["a", "b", "a", "b"])) > 0).tolist() == [True, False, True, False]


@pytest.mark.parametrize("kind", FAMILY)
def test_a_restored_method_goes_on_as_if_it_had_never_stopped(kind):
    method, restored = (kind(lambda_init=0.1, min_accuracy=0.7) for _ in range(2))
    after(method, batch(3), batch(2)).observe(batch(1))
    restored.load_state_dict(method.state_dict())
    for each in (method, restored):
        each.step()
        after(each, batch(4))
    assert method.state_dict() == restored.state_dict()
    close(method.shaped_rewards(batch(3)), restored.shaped_rewards(batch(3)))


@pytest.mark.parametrize("kind", FAMILY)
def test_without_a_floor_accuracy_changes_nothing(kind):
    low, high = (after(kind(), batch(num), batch(num)) for num in (1, 4))
    assert (low.lambdas, low.accuracies) == (high.lambdas, {})


def test_a_run_that_goes_on_without_the_floor_pays_in_full():
    resumed = LeashC(lambda_init=0.5)
    resumed.load_state_dict(after(LeashC(lambda_init=0.5, min_accuracy=0.9), batch(2)).state_dict())
    close(resumed.penalty(batch(4)), [0.5] * 4)
