"""LEAD by hand: target lengths, weights, advantages over tokens."""

from dataclasses import replace

import pytest
import torch
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.lead import LEAD, correctness_weight, efficiency_rewards
from leash_trl.length_control.rollouts import selected


# group 1: L* = 100 from the correct 50 and 150; group 2: L* = 80
FOUR = toy_rollouts([1, 1, -1, -1], [150, 250, 600, 50], limit=1000)
TWO_GROUPS = toy_rollouts([1, 1, -1, 1, -1, -1], [50, 150, 300, 80, 40, 120], num_generations=3, limit=400)


def test_efficiency_by_hand():
    is_correct = torch.tensor([[True, True, False, False], [True, False, False, False], [False] * 4, [True] * 4])
    lengths = torch.tensor([[1500, 2500, 9000, 500], [200, 500, 1000, 1500], [4000, 8000, 2000, 6000], [9000] * 4])
    expected = [
        [0.75, 0.75, -1.0, 0.25],  # L* = 2000: 1 - 500/2000 twice, 1 - 7000/2000 = -2.5 held at -1, 1 - 1500/2000
        [0.2, 0.5, 1.0, 0.5],  # L* = 1000, the lower bound: 1 - 0.8, 1 - 0.5, 1, 1 - 0.5
        [0.5, 1.0, 0.25, 0.75],  # L* = 8000, as nothing is correct: 1 - 0.5, 1, 1 - 0.75, 1 - 0.25
        [0.875, 0.875, 0.875, 0.875],  # L* = 8000, the upper bound: 1 - 0.125
    ]
    close(efficiency_rewards(is_correct, lengths, lower_bound=1000, upper_bound=8000), expected)


def test_the_wanted_weight_by_hand():
    # correctness: means 0.5 and 1, variances 0.25 and 0: mu 0.75, sigma^2 = 0.1875, v = 0.43301 / 0.75 = 0.57735
    # efficiency: means 0.5 and 0.7, variances 0.02 and 0.04: mu 0.6, sigma^2 = 0.03 + 0.01, v = 0.2 / 0.6 = 0.33333
    # potentials 0.25 and 0.2, squared: D_c : D_e = 0.57735 * 0.0625 : 0.33333 * 0.04 = 0.0360844 : 0.0133333
    correctness = [[0.5, 0.25], [1.0, 0.0]]
    efficiency = [[0.5, 0.02], [0.7, 0.04]]
    wanted = correctness_weight(correctness, efficiency, alpha=2.0)
    assert wanted == pytest.approx(0.0360844 / (0.0360844 + 0.0133333), rel=1e-5)


def test_advantages_by_hand_where_efficiency_differs_from_correctness():
    # L* = 200: e = 0.75, 0.75, -1 and 1 - 150/200 = 0.25
    # correctness 1, 1, 0, 0: mean 0.5, std sqrt(4 * 0.25 / 3) = 0.577350: c = 0.866025 (twice), -0.866025 (twice)
    # e: mean 0.1875, std sqrt((2 * 0.5625^2 + 1.1875^2 + 0.0625^2) / 3) = 0.825999: 0.680985 (twice), -1.437635,
    # 0.075666; 0.8 c + 0.2 e: 0.829017 (twice), -0.980347, -0.677687
    # over tokens 150 * 0.829017 + 250 * 0.829017 - 600 * 0.980347 - 50 * 0.677687 = -290.486, of 1050: -0.276653
    # variance (400 * 1.105670^2 + 600 * 0.703694^2 + 50 * 0.401034^2) / 1049 = 0.757060, root 0.870092
    method = LEAD(lower_bound=100)
    method.weight = 0.8
    advantages = method.score(FOUR, AdvantageRule("group", epsilon=1e-12)).advantages
    close(advantages, [1.2707516, 1.2707516, -0.8087586, -0.4609102], rtol=1e-6)


def test_advantages_are_centered_over_all_tokens_where_only_the_thinking_is_controlled():
    num_tokens = torch.tensor([170, 400, 610, 300])
    method = LEAD(lower_bound=100)
    advantages = method.score(replace(FOUR, num_tokens=num_tokens), AdvantageRule("group", epsilon=1e-12)).advantages
    assert (num_tokens * advantages).sum().item() == pytest.approx(0, abs=1e-9)


def test_the_weight_changes_after_the_batches_of_an_update_by_what_they_ask_for_together():
    method = LEAD(lower_bound=10, beta=0.9)
    for rows in torch.arange(6).split(3):
        method.observe(selected(TWO_GROUPS, rows))
        assert method.statistics() == {"correctness_weight": 0.5}
    # correctness: means 2/3 and 1/3, variances 2/9 each; efficiency of correct ones: 0.5, 0.5 | 1: means 0.5, 1
    wanted = correctness_weight([[2 / 3, 2 / 9], [1 / 3, 2 / 9]], [[0.5, 0.0], [1.0, 0.0]], alpha=1.0)
    for _ in range(2):  # the second step has nothing new
        method.step()
        assert method.statistics()["correctness_weight"] == pytest.approx(0.9 * 0.5 + 0.1 * wanted, abs=1e-12)


def test_correctness_keeps_its_least_weight_and_the_state_goes_below_it():
    method = LEAD(lower_bound=10, beta=0.5)
    solved = toy_rollouts([1, 1], [50, 90], limit=400)
    for _ in range(3):
        method.observe(solved)
        method.step()
    assert method.weight == pytest.approx(0.5**4)  # all correct: the wanted weight is 0
    assert method.statistics() == {"correctness_weight": 0.3}
    # L* = 70: e = 1 - 20/70 for both
    close(method.shaped_rewards(solved), [0.3 + 0.7 * (1 - 2 / 7)] * 2)
