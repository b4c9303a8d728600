"""GRLC: reference vectors and by hand. The vectors come from secondary descriptions of the report."""

import pytest
import torch

from leash_trl.length_control.grlc import GRLC, centred_weights


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


def weights(lengths):
    return centred_weights(torch.tensor([lengths], dtype=torch.float64)).flatten()


@pytest.mark.parametrize("name", ["grlc_zero_mean", "grlc_two"])
def test_unverified_golden_weights(golden, name):
    vector = golden(name)
    close(weights(vector["inputs"]["think_length"]), vector["expected"])


def test_unverified_golden_reward_of_thinking_and_answer(golden):
    vector = golden("grlc_reward")
    inputs, params = vector["inputs"], vector["params"]
    rewards = torch.tensor(inputs["base_reward"], dtype=torch.float64)
    rewards += params["lambda_think"] * weights(inputs["think_length"])
    rewards += params["lambda_answer"] * weights(inputs["answer_length"])
    close(rewards, vector["expected"])
    assert GRLC().weight == params["lambda_think"]


def test_by_hand_two_groups(make_rollouts):
    # w = (1, 0.5, 0), mean 0.5; equal lengths: 0
    rollouts = make_rollouts([1, -1, 1, 1, 0, 1], [100, 200, 300, 7, 7, 7], num_generations=3)
    close(GRLC().shape(rollouts), [1.25, 0.0, 0.75, 1.0, 0.0, 1.0])


def test_an_unscorable_completion_is_not_counted(make_rollouts):
    whole = make_rollouts([1, 0, 1], [10, 20, 40])
    holed = make_rollouts([1, 0, float("nan"), 1], [10, 20, 9000, 40])
    close(GRLC().shape(holed)[torch.tensor([0, 1, 3])], GRLC().shape(whole).tolist())
