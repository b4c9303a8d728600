"""A-DLP: golden vectors of the reward and of the multiplier."""

import math

import pytest

from leash_trl.length_control.a_dlp import ADLP


def test_two_groups_by_hand_with_an_unscorable_completion(make_rollouts):
    method = ADLP(lambda_init=0.01, lambda_lr=0.3, accuracy_reference=0.5)
    batch = make_rollouts([1, float("nan"), 1, 0], [50, 60, 200, 100], num_generations=2)
    rewards = method.shape(batch)
    assert rewards[[0, 2, 3]].tolist() == pytest.approx([0.5, -1.0, -1.0])
    assert rewards[1].isnan()
    method.observe(batch)
    method.step()
    assert method.lam == pytest.approx(0.01 + 0.3 * (2 / 3 - 0.5))


def test_batches_between_two_steps_are_pooled_and_counted_once(make_rollouts):
    method = ADLP(lambda_init=0.0, lambda_lr=1.0, accuracy_reference=0.5)
    method.observe(make_rollouts([1, 1, 1], [1, 1, 1]))
    method.observe(make_rollouts([0], [1]))
    method.step()
    assert method.lam == pytest.approx(0.25)
    method.step()
    assert method.lam == pytest.approx(0.25)


def test_nothing_scorable_moves_nothing(make_rollouts):
    method = ADLP()
    method.observe(make_rollouts([math.nan], [5]))
    method.step()
    assert method.lam == 0.001


def test_there_is_no_ceiling(make_rollouts):
    method = ADLP(lambda_lr=100.0)
    method.observe(make_rollouts([1], [5]))
    method.step()
    assert method.lam == pytest.approx(38.001)
