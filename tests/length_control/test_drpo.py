"""DRPO's advantages: by hand, and against the gradient of the released objective."""

import math
from random import Random

import torch
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.drpo import DRPO


def advantages_of(rewards, lengths, limit, method=None, **batch):
    rollouts = toy_rollouts(rewards, lengths, limit=limit, **batch)
    return (method or DRPO()).score(rollouts, AdvantageRule("group", 1e-8)).advantages


def test_weights_and_advantages_by_hand():
    # lambda C = 0.1 * 1000 = 100: weights of the correct answers e^0 and e^-(270 - 200) / 100 = e^-0.7
    rewards, lengths, weight = [1, 1, -1, -1, -1], [200, 270, 10, 999, 500], math.exp(-0.7)
    close(DRPO().shape(toy_rollouts(rewards, lengths, limit=1000)), [1.0, weight, 0.0, 0.0, 0.0])
    # shares 1 / (1 + e^-0.7) and e^-0.7 / (1 + e^-0.7) of G = 5; three wrong answers share -5
    first, second = 5 / (1 + weight), 5 * weight / (1 + weight)
    close(advantages_of(rewards, lengths, 1000), [first, second, -5 / 3, -5 / 3, -5 / 3])


def test_right_and_wrong_answers_are_compared_with_each_other():
    # an unscorable one counts as neither: two wrong ones share -4; then there is nothing to compare
    rewards = [1, -1, -1, math.nan, 1, 1, 1, math.nan, -1, -1, -1, math.nan]
    close(advantages_of(rewards, [10, 10, 90, 50] * 3, 100, num_generations=4), [4, -2, -2, 0] + [0] * 8)


def test_a_small_temperature_neither_overflows_nor_loses_the_group():
    close(advantages_of([1, 1, -1], [900, 990, 100], 1000, DRPO(1e-4)), [3.0, 0.0, -3.0])


def released_gradient(scores, is_right, lengths, limit, tau, temperature):
    """Gradient of the released objective with respect to the scores, one group."""
    scores = scores.clone().requires_grad_()
    weights = torch.softmax((1 - lengths[is_right] / limit) / temperature, dim=0)
    objective = (weights * scores[is_right]).sum() - tau * torch.logsumexp(scores[~is_right] / tau, dim=0)
    return torch.autograd.grad(objective, scores)[0]


def test_for_large_tau_it_is_the_gradient_of_the_released_objective_times_group_size():
    random = Random(0)
    is_right = torch.tensor([True, False, *(random.random() < 0.5 for _ in range(6))])
    lengths = [random.randint(1, 800) for _ in is_right]
    scores = torch.tensor([-random.random() for _ in is_right], dtype=torch.float64)
    given = (scores, is_right, torch.tensor(lengths, dtype=torch.float64), 800)
    advantages = advantages_of(is_right.tolist(), lengths, 800)
    close(advantages, 8 * released_gradient(*given, tau=1e9, temperature=0.1), 1e-6)
    # at the release's tau, scores in [-1, 0] move the weight of a wrong answer by at most e^0.1
    released = 8 * released_gradient(*given, tau=10.0, temperature=0.1)
    assert (advantages / released).log().abs().max() <= 0.1
