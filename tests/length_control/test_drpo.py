"""DRPO's advantages: by hand, and against the gradient of the released objective."""

import math
from random import Random

import torch
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.drpo import DRPO


def advantages_of(rollouts, method=None):
    method = method or DRPO()
    return method.score(rollouts, AdvantageRule("group", epsilon=1e-8)).advantages


def test_weights_and_advantages_by_hand():
    rollouts = toy_rollouts([1, 1, -1, -1, -1], [200, 270, 10, 999, 500], limit=1000)
    # lambda C = 0.1 * 1000 = 100: weights of the correct answers e^0 and e^-((270 - 200) / 100)
    weight = math.exp(-0.7)
    close(DRPO().shaped_rewards(rollouts), [1.0, weight, 0.0, 0.0, 0.0])
    # the correct answers share G = 5 by their weights, three wrong ones share -5
    first = 5 / (1 + weight)
    second = 5 * weight / (1 + weight)
    close(advantages_of(rollouts), [first, second, -5 / 3, -5 / 3, -5 / 3])


def test_right_and_wrong_answers_are_compared_with_each_other():
    # the unscorable answer counts as neither, so two wrong ones share -4; in the other groups, all are alike
    rewards = [1, -1, -1, math.nan, 1, 1, 1, math.nan, -1, -1, -1, math.nan]
    rollouts = toy_rollouts(rewards, [10, 10, 90, 50] * 3, num_generations=4, limit=100)
    close(advantages_of(rollouts), [4, -2, -2] + [0] * 9)


def test_a_small_temperature_neither_overflows_nor_loses_the_group():
    rollouts = toy_rollouts([1, 1, -1], [900, 990, 100], limit=1000)
    close(advantages_of(rollouts, DRPO(temperature=1e-4)), [3.0, 0.0, -3.0])


def released_gradient(scores, is_right, lengths, limit, tau, temperature):
    """Gradient of the released objective with respect to the scores, one group."""
    scores = scores.clone().requires_grad_()
    length_rewards = 1 - lengths[is_right] / limit
    weights = torch.softmax(length_rewards / temperature, dim=0)
    gain = (weights * scores[is_right]).sum()
    loss = tau * torch.logsumexp(scores[~is_right] / tau, dim=0)
    (gradient,) = torch.autograd.grad(gain - loss, scores)
    return gradient


def test_for_large_tau_it_is_the_gradient_of_the_released_objective_times_group_size():
    random = Random(0)
    is_right = torch.tensor([True, False] + [random.random() < 0.5 for _ in range(6)])
    lengths = [random.randint(1, 800) for _ in range(8)]
    scores = torch.tensor([-random.random() for _ in range(8)], dtype=torch.float64)
    group = {
        "scores": scores,
        "is_right": is_right,
        "lengths": torch.tensor(lengths, dtype=torch.float64),
        "limit": 800,
        "temperature": 0.1,
    }
    rollouts = toy_rollouts(is_right.tolist(), lengths, limit=800)
    advantages = advantages_of(rollouts)
    close(advantages, 8 * released_gradient(**group, tau=1e9), rtol=1e-6)
    # at the release's tau, scores in [-1, 0] change the weight of a wrong answer by at most e^0.1
    released = 8 * released_gradient(**group, tau=10.0)
    assert (advantages / released).log().abs().max() <= 0.1
