"""The end of a run with a lower price: when lambda is released, by how much, and what goes on meanwhile."""

import pytest
from toy_rollouts import close, toy_rollouts, updated

from leash_trl.length_control.leash import Leash, LeashC
from leash_trl.length_control.leash_predictive import LeashPredictive


def batch(*lengths, num_correct=4):
    """Four completions with a target of 100, of which so many are correct."""
    return toy_rollouts([1.0] * num_correct + [-1.0] * (4 - num_correct), lengths, 100.0)


def released(method, num_done=5):
    """The method before a later one of ten updates."""
    method.begin_update(num_done, 10)
    return method


@pytest.mark.parametrize(
    ("share", "num_updates", "first"), [(0.5, 10, 5), (0.28, 178, 128), (1.0, 3, 0), (0.05, 6, 5)]
)
def test_the_released_updates_are_the_last_share_of_the_run(share, num_updates, first):
    method = Leash(release_share=share)
    is_released = []
    for num_done in range(num_updates + 1):
        method.begin_update(num_done, num_updates)
        is_released.append(method.is_released)
    assert is_released.index(True) == first  # 178 - round(0.28 * 178)
    assert all(is_released[first:])


def test_without_a_share_nothing_is_released_not_even_after_the_last_update():
    assert released(Leash(), num_done=10).lam == 0.1


def test_the_multiplier_stands_still_and_a_run_that_is_extended_goes_on_from_it():
    long = batch(200, 200, 200, 200)
    method = released(updated(Leash(lambda_init=0.2, lambda_lr=0.1, release_share=0.5), long))
    assert method.statistics() == pytest.approx({"lambda": 0.25 * 0.3})  # 0.2 + 0.1 * (200 / 100 - 1)
    close(updated(method, long).penalty(long), [0.25 * 0.3] * 4)
    method.begin_update(6, 20)
    assert updated(method, long).lam == pytest.approx(0.4)


def test_the_floor_goes_on_holding_back_what_is_left_of_the_price():
    method = released(LeashC(lambda_init=0.5, min_accuracy=0.71, release_share=0.5))
    solved = batch(200, 200, 200, 200)
    close(method.penalty(solved), [0.25 * 0.5] * 4)
    updated(method, batch(200, 200, 200, 200, num_correct=3))
    # (0.75 - 0.71) / 0.16 + 0.05 * 0.03
    close(method.penalty(solved), [0.2515 * 0.25 * 0.5] * 4)


def test_a_negative_multiplier_is_released_too_and_the_forecast_is_told_what_applied():
    short = batch(50, 50, 50, 50)
    method = released(updated(LeashPredictive(lambda_min=-1.0, release_share=0.5, release_factor=0.5), short))
    close(method.penalty(short), [-0.5 * -0.5] * 4)  # half of lambda = -1, half of the target is missing
    assert updated(method, short).multiplier("").forecast.last_lambda == -0.5
