"""ALP: golden vectors, whose formula is from secondary sources only, in float64."""

import pytest
import torch

from leash_trl.length_control.alp import ALP


@pytest.mark.parametrize("name", ["alp_half", "alp_all_solved", "alp_none_solved"])
def test_golden_vectors_of_the_unverified_formula(golden, make_rollouts, name):
    vector = golden(name)
    batch = make_rollouts(vector["inputs"]["correct"], vector["inputs"]["length"])
    expected = torch.tensor(vector["expected"], dtype=torch.float64)
    method = ALP()
    torch.testing.assert_close(method.shape(batch), expected, rtol=1e-12, atol=0)
    # the price itself: 1e-7 per token drowns in a tolerance relative to a reward near 1
    torch.testing.assert_close(method.penalty(batch), method.base_rewards(batch) - expected, rtol=1e-6, atol=1e-15)


def test_golden_advantages_of_the_unverified_formula_have_full_strength(golden, make_rollouts):
    vector = golden("alp_all_solved_grpo_advantage")
    batch = make_rollouts(vector["inputs"]["correct"], vector["inputs"]["length"])
    method = ALP(beta=vector["params"]["beta"])
    advantages = method.advantages(method.shape(batch), batch, "group", vector["params"]["adv_eps"])
    torch.testing.assert_close(advantages, torch.tensor(vector["expected"]).double(), rtol=1e-6, atol=0)


def test_two_groups_by_hand(make_rollouts):
    batch = make_rollouts([1, 0, float("nan"), 0, 0, 0], [100, 200, 300, 100, 200, 300], num_generations=3)
    rewards = ALP(beta=0.001).shape(batch)
    # p = 1/2 among the two scorable ones, then p = 0, priced as 1/3
    assert rewards[[0, 1, 3, 4, 5]].tolist() == pytest.approx([0.95, -0.1, -0.1 / 3, -0.2 / 3, -0.1])
    assert rewards[2].isnan()
