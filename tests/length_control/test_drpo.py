"""DRPO's advantages: by hand, and against the gradient of the released objective."""

import math
from random import Random

import pytest
import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.drpo import DRPO


def close(actual, expected, tolerance=1e-9):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def advantages_of(method, rollouts):
    return method.score(rollouts, AdvantageRule("group", 1e-8)).advantages


def test_by_hand(make_rollouts):
    # lambda C = 0.1 * 1000 = 100: weights of the correct answers e^0 and e^-(270 - 200) / 100 = e^-0.7
    rollouts = make_rollouts([1, 1, -1, -1, -1], [200, 270, 10, 999, 500], limit=1000)
    weight = math.exp(-0.7)
    close(DRPO().shape(rollouts), [1.0, weight, 0.0, 0.0, 0.0])
    # shares 1 / (1 + e^-0.7) and e^-0.7 / (1 + e^-0.7) of G = 5; three wrong answers share -5
    first, second = 5 / (1 + weight), 5 * weight / (1 + weight)
    close(advantages_of(DRPO(), rollouts), [first, second, -5 / 3, -5 / 3, -5 / 3])


def test_groups_that_are_all_correct_or_all_wrong_teach_nothing(make_rollouts):
    rollouts = make_rollouts([1, 1, -1, -1], [10, 90, 10, 90], num_generations=2, limit=100)
    assert advantages_of(DRPO(), rollouts).tolist() == [0.0] * 4


def test_a_small_temperature_neither_overflows_nor_loses_the_group(make_rollouts):
    rollouts = make_rollouts([1, 1, -1], [900, 990, 100], limit=1000)
    close(advantages_of(DRPO(1e-4), rollouts), [3.0, 0.0, -3.0])


def released_gradient(scores, is_right, lengths, limit, tau, temperature):
    """Gradient of the released objective with respect to the scores, one group."""
    scores = scores.clone().requires_grad_()
    weights = torch.softmax((1 - lengths[is_right] / limit) / temperature, dim=0)
    objective = (weights * scores[is_right]).sum() - tau * torch.logsumexp(scores[~is_right] / tau, dim=0)
    return torch.autograd.grad(objective, scores)[0]


@pytest.mark.parametrize("seed", range(5))
def test_for_large_tau_it_is_the_gradient_of_the_released_objective_times_group_size(make_rollouts, seed):
    random = Random(seed)
    is_right = [True, False, *(random.random() < 0.5 for _ in range(6))]
    lengths = [random.randint(1, 800) for _ in is_right]
    rollouts = make_rollouts([1.0 if right else -1.0 for right in is_right], lengths, limit=800)
    scores = torch.tensor([-random.random() for _ in is_right], dtype=torch.float64)
    given = (scores, torch.tensor(is_right), torch.tensor(lengths, dtype=torch.float64), 800)
    advantages = advantages_of(DRPO(), rollouts)
    close(advantages, 8 * released_gradient(*given, tau=1e9, temperature=0.1), 1e-6)
    # at the release's tau, scores in [-1, 0] move the weight of a wrong answer by at most e^0.1
    released = 8 * released_gradient(*given, tau=10.0, temperature=0.1)
    wrong = ~given[1]
    assert (advantages[wrong] / released[wrong]).log().abs().max() <= 0.1
    close(advantages[~wrong], released[~wrong], 1e-9)


def test_an_unscorable_completion_counts_as_neither_right_nor_wrong(make_rollouts):
    # two wrong ones share -4; without them the group has nothing to compare
    advantages = advantages_of(DRPO(), make_rollouts([1, -1, -1, math.nan], [10, 10, 90, 50], limit=100))
    close(advantages, [4.0, -2.0, -2.0, 0.0])
    close(advantages_of(DRPO(), make_rollouts([1, 1, math.nan], [10, 90, 50], limit=100)), [0.0] * 3)
