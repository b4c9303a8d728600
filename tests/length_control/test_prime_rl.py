"""prime-rl's penalties: reference vectors and by hand."""

import pytest
import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.prime_rl import PrimeRL


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


def advantages_of(method, rollouts, scale_rewards="none"):
    return method.score(rollouts, AdvantageRule(scale_rewards, 1e-8)).advantages


def test_by_hand_two_groups(make_rollouts):
    # mean rewards 0.5 and 1, longest 200 and 50: 0.25 * 0.5 * (0.5, 1) and 0.25 * 1 * (1, 0.2)
    rollouts = make_rollouts([1, -1, 1, 1], [100, 200, 50, 10], num_generations=2)
    close(PrimeRL().shape(rollouts), [0.9375, -0.125, 0.75, 0.95])


def test_a_prompt_that_nobody_solved_pays_nothing(make_rollouts):
    assert PrimeRL().shape(make_rollouts([0, 0], [100, 200])).tolist() == [0, 0]


def test_the_gate_spares_wrong_answers(make_rollouts):
    rollouts = make_rollouts([1, 0], [100, 200], limit=400)
    close(PrimeRL("june").shape(rollouts), [1 - 0.25 * 0.5 * 0.25, -0.25 * 0.5 * 0.5])
    close(PrimeRL("june", gate_by_correctness=True).shape(rollouts), [1 - 0.25 * 0.5 * 0.25, 0.0])


@pytest.mark.parametrize(
    "method", [PrimeRL(), PrimeRL("june", 0.25, True, True), PrimeRL("april")], ids=["head", "june", "april"]
)
def test_an_unscorable_completion_is_not_counted(make_rollouts, method):
    whole = make_rollouts([1, 0, 1], [10, 20, 40])
    holed = make_rollouts([1, 0, float("nan"), 1], [10, 20, 9000, 40])
    kept = torch.tensor([0, 1, 3])
    advantages = advantages_of(method, holed)
    close(advantages[kept], advantages_of(method, whole).tolist())
    assert advantages[2] == 0
