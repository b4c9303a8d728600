"""A-DLP: golden vectors of the reward and of the multiplier."""

import math

import pytest
import torch

from leash_trl.length_control.a_dlp import ADLP


def with_accuracy(make_rollouts, accuracy):
    right = round(accuracy * 100)
    return make_rollouts([1.0] * right + [-1.0] * (100 - right), [10] * 100)


def test_golden_vector_of_the_reward(golden, make_rollouts):
    vector = golden("adlp_reward")
    batch = make_rollouts(vector["inputs"]["correct"], vector["inputs"]["length"])
    rewards = ADLP(lambda_init=vector["params"]["lam"]).shape(batch)
    torch.testing.assert_close(rewards, torch.tensor(vector["expected"]).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["adlp_update_up", "adlp_update_down", "adlp_update_floor"])
def test_golden_vectors_of_one_step(golden, make_rollouts, name):
    vector = golden(name)
    params, inputs = vector["params"], vector["inputs"]
    method = ADLP(lambda_init=inputs["lam"], lambda_lr=params["eta"], accuracy_reference=params["acc_ref"])
    method.observe(with_accuracy(make_rollouts, inputs["batch_accuracy"]))
    assert method.lam == inputs["lam"]
    method.step()
    assert method.lam == pytest.approx(vector["expected"], rel=1e-6, abs=1e-15)


def test_golden_trajectory_with_the_defaults(golden, make_rollouts):
    vector = golden("adlp_trajectory")
    method, seen = ADLP(), []
    for accuracy in vector["inputs"]["batch_accuracy"]:
        method.observe(with_accuracy(make_rollouts, accuracy))
        method.step()
        seen.append(method.statistics()["lambda"])
    assert seen == pytest.approx(vector["expected"], rel=1e-6)


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
