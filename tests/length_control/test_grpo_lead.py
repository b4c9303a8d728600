"""GRPO-LEAD: reference vectors and by hand."""

import math

import torch

from leash_trl.length_control.grpo_lead import GRPOLead


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


def test_by_hand_two_groups(make_rollouts):
    # correct lengths 100 and 300: mean 200, sample std sqrt(2) * 100, z = -+1 / sqrt(2); alone: z = 0
    rollouts = make_rollouts([1, 1, 0, -1, 1, -1], [100, 300, 900, 5, 70, 6], num_generations=3)
    up = math.exp(0.05 / math.sqrt(2))
    close(GRPOLead().shape(rollouts), [up, 1 / up, -1.0, -1.0, 1.0, -1.0])


def test_the_gate_is_open_one_token_later_and_for_each_prompt_alone(make_rollouts):
    rollouts = make_rollouts([1, 1, 1, 1, 1, 1], [10, 20, 30, 10, 20, 33], num_generations=3)
    shaped = GRPOLead(gate=20).shape(rollouts)
    assert shaped[:3].tolist() == [1, 1, 1]
    assert shaped[3] > shaped[4] > shaped[5]


def test_the_gate_does_not_see_unscorable_completions(make_rollouts):
    rollouts = make_rollouts([1, 1, 1, float("nan")], [30, 40, 50, 1])
    shaped = GRPOLead(gate=30).shape(rollouts)
    assert shaped[0] > shaped[1] > shaped[2]
    shaped = GRPOLead(gate=30).shape(make_rollouts([1, 1, float("nan")], [30, 40, 1]))
    assert shaped[0] > 1 > shaped[1]
