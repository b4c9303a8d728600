"""Shaped rewards by hand, with the arithmetic; each group is a prompt, NAN could not be scored."""

import math

import pytest
import torch
from toy_rollouts import toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.alp import ALP
from leash_trl.length_control.cosine import Cosine
from leash_trl.length_control.dapo_overlong import DapoOverlong
from leash_trl.length_control.efficient import Efficient
from leash_trl.length_control.gr3 import GR3
from leash_trl.length_control.grlc import GRLC
from leash_trl.length_control.hapo import HAPO
from leash_trl.length_control.kimi import Kimi
from leash_trl.length_control.l1 import L1Exact, L1Max
from leash_trl.length_control.laconic import Laconic
from leash_trl.length_control.laser import Laser
from leash_trl.length_control.mai import MAI
from leash_trl.length_control.prime_rl import PrimeRL
from leash_trl.length_control.shorter_better import ShorterBetter


NAN, ROOT = math.nan, math.sqrt(0.5)


def remembering(method, length, question):
    method.observe(toy_rollouts([1], [length], questions=[question]))
    return method


# what happens: method, rewards and lengths of its groups, shaped rewards, other parts of the rollouts
CASES = {
    # p = 1/2 among the two scorable ones, then p = 0, priced as 1/3
    "alp": (
        ALP(beta=0.001),
        [[1, 0, NAN], [0, 0, 0]],
        [[100, 200, 300], [100, 200, 300]],
        [0.95, -0.1, NAN, -0.1 / 3, -0.2 / 3, -0.1],
        {},
    ),
    # mean lengths 100 and 50: 1 / (1 + 0.5), 0, then 1 / (1 + 0.6), 1 / (1 + 1.4)
    "gr3": (GR3(1.0), [[1, -1], [1, 1]], [[50, 150], [30, 70]], [1 / 1.5, 0, 1 / 1.6, 1 / 2.4], {}),
    # w = (1, 0.5, 0), mean 0.5; equal lengths: 0
    "grlc": (GRLC(), [[1, -1, 1], [1, 0, 1]], [[100, 200, 300], [7, 7, 7]], [1.25, 0, 0.75, 1, 0, 1], {}),
    # ranges 100 to 300 and 50 to 150
    "kimi": (
        Kimi(),
        [[1, 1, -1], [1, -1, -1]],
        [[100, 300, 250], [50, 75, 150]],
        [1 + 0.4 * 0.5, 1 - 0.4 * 0.5, -0.4 * 0.25, 1 + 0.4 * 0.5, 0, -0.4 * 0.5],
        {},
    ),
    "kimi, unscorable": (Kimi(), [[1, 1, NAN, NAN]], [[100, 300, 50, 900]], [1.2, 0.8, NAN, NAN], {}),
    # a right answer without an end is right all the same
    "laser": (
        Laser(alpha=0.25),
        [[1, 0, NAN], [1, 1, 0]],
        [[50, 50, 50], [50, 10, 90]],
        [1.25, -0.5, NAN, 1, 1.25, -1],
        {"target": [60.0] * 3 + [40.0] * 3, "truncated": [False, False, True, True, False, True]},
    ),
    # SOL 400: distances 0, 600, 300 and 1600 at 0.001; without a right answer their mean: 300, at 0.01
    "shorter_better": (ShorterBetter(), [[1, 1, -1, -1]], [[400, 1000, 100, 2000]], [2, 1.4, -0.3, -1.6], {}),
    "shorter_better, wrong": (ShorterBetter(beta=0.01), [[0, 0, 0]], [[100, 200, 600]], [-2, -1, -3], {}),
    # SOLs 50 and (10 + 30) / 2 = 20; alpha 1, beta 0.1
    "shorter_better, two": (ShorterBetter(1.0, 0.1), [[1, 1], [-1, -1]], [[50, 60], [10, 30]], [1, 0, -1, -1], {}),
    "shorter_better, unscorable": (ShorterBetter(beta=0.01), [[NAN, 0, 0]], [[9000, 100, 300]], [NAN, -1, -1], {}),
    # halfway: cos(pi / 2) = 0, the mean of both ends; 84 + 16 reaches 100, which costs right answers as much
    "cosine": (Cosine(), [[1, -1], [1, 0]], [[50, 50], [0, 84]], [1.5, -5, 2, -10], {"limit": 100}),
    "cosine, at the limit": (
        Cosine(),
        [[1, 1, NAN]],
        [[83, 84, 100]],
        [1.5 + 0.5 * math.cos(0.83 * math.pi), -10, NAN],
        {"limit": 100},
    ),
    "cosine, own maximum": (Cosine(max_length=200, exceeded=None), [[1]], [[100]], [1.5], {"limit": 100}),
    # 1, -1 - 15 / 20, unscorable, 1 - 1
    "dapo_overlong": (
        DapoOverlong(cache_length=20),
        [[1, 0], [NAN, 1]],
        [[80, 95], [100, 100]],
        [1, -1.75, NAN, 0],
        {"limit": 100},
    ),
    "dapo_overlong, own maximum": (
        DapoOverlong(cache_length=20, max_length=100),
        [[1, 1]],
        [[90, 150]],
        [0.5, 0],
        {"limit": 1000},
    ),
    "dapo_overlong, a fifth": (DapoOverlong(cache_length=None), [[1, 1]], [[80, 90]], [1, 0.5], {"limit": 100}),
    # z = -1 and 1: 1 - 0.1 / (1 + e), 1 - 0.1 / (1 + 1 / e); the second group's right ones are equally long
    "efficient": (
        Efficient(alpha=0.1),
        [[1, 1, NAN, 0], [1, 1, 0, NAN]],
        [[100, 300, 9999, 5], [100, 100, 1, 2]],
        [0.97310585786, 0.92689414214, NAN, 0, 0.95, 0.95, 0, NAN],
        {},
    ),
    "efficient, without an end": (Efficient(), [[1, NAN]], [[10, 20]], [0, NAN], {"truncated": [True, True]}),
    "efficient, needs no end": (
        Efficient(alpha=0.2, requires_eos=False),
        [[1, NAN]],
        [[10, 20]],
        [0.9, NAN],
        {"truncated": [True, True]},
    ),
    # overshoot 150 / 100 - 1, 0, 300 / 200 - 1, 400 / 200 - 1 at 0.1 each; no clip below
    "laconic": (
        Laconic(lambda_init=0.1),
        [[1, 1], [-1, 1]],
        [[150, 100], [300, 400]],
        [0.95, 1, -0.05, 0.9],
        {"target": [100.0, 100.0, 200.0, 200.0]},
    ),
    "laconic, no clip": (Laconic(1.0, lambda_max=1.0), [[0]], [[1000]], [-9], {"target": 100.0}),
    # history 100 for question 7 only: cos(pi / 4), then cos(3 pi / 4) = -0.707 for a wrong answer
    "hapo": (
        remembering(HAPO(), 100, 7),
        [[1, -1], [1, -1]],
        [[50, 150], [50, 150]],
        [1 + ROOT, -ROOT, 1, 0],
        {"questions": [7, 7, 8, 8]},
    ),
    # however long, a right answer beats the longest wrong one
    "hapo, bounds": (remembering(HAPO(), 100, 0), [[1, 0, 0]], [[100_000, 1, 100_000]], [0.3, 0, -1], {}),
    # solve rates 2/3 and 1, longest right 400 and 50, weight 0.3: 1 - 0.3 * 2/3 * 100/400, 1 - 0.3 * 2/3;
    # 1 - 0.3 * 10/50, 1 - 0.3 twice
    "mai": (
        MAI(0.3),
        [[1, 1, 0], [1, 1, 1]],
        [[100, 400, 900], [10, 50, 50]],
        [0.95, 0.8, 0, 0.94, 0.7, 0.7],
        {},
    ),
    # solve rate 1/2, longest 20: 1 - 0.2 * 0.5
    "mai, unscorable": (MAI(), [[1, NAN, 0]], [[20, 9000, 40]], [0.9, NAN, 0], {}),
    # mean rewards 0.5 and 1, longest 200 and 50: 0.25 * 0.5 * (0.5, 1) and 0.25 * 1 * (1, 0.2)
    "prime_rl": (PrimeRL(), [[1, -1], [1, 1]], [[100, 200], [50, 10]], [0.9375, -0.125, 0.75, 0.95], {}),
    "prime_rl, nobody solved it": (PrimeRL(), [[0, 0]], [[100, 200]], [0, 0], {}),
    # of the limit: 0.25 * 0.5 * (0.25, 0.5); the gate spares wrong answers
    "prime_rl, june": (PrimeRL("june"), [[1, 0]], [[100, 200]], [0.96875, -0.0625], {"limit": 400}),
    "prime_rl, gate": (
        PrimeRL("june", gate_by_correctness=True),
        [[1, 0]],
        [[100, 200]],
        [0.96875, 0],
        {"limit": 400},
    ),
    # 1 - 0.001 * 100, 0 - 0.001 * 200, 1 - 0.001 * 100
    "l1_exact": (
        L1Exact(alpha=0.001),
        [[1, -1], [1, NAN]],
        [[900, 1200], [600, 100]],
        [0.9, -0.2, 0.9, NAN],
        {"target": [1000.0, 1000.0, 500.0, 500.0]},
    ),
    # 0.001 * 100 + 0.5, wrong, 0.5 - 0.001 * 100
    "l1_max": (
        L1Max(alpha=0.001),
        [[1, -1], [1, NAN]],
        [[900, 1200], [600, 100]],
        [0.6, 0, 0.4, NAN],
        {"target": [1000.0, 1000.0, 500.0, 500.0]},
    ),
}


def flat(groups):
    return [each for group in groups for each in group]


@pytest.mark.parametrize("name", CASES)
def test_shaped_rewards_by_hand(name):
    method, rewards, lengths, expected, others = CASES[name]
    batch = toy_rollouts(flat(rewards), flat(lengths), num_generations=len(rewards[0]), **others)
    score = method.score(batch, AdvantageRule())
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(score.shaped, expected, rtol=1e-9, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(score.penalty, score.base - expected, rtol=1e-9, atol=1e-12, equal_nan=True)


def test_during_kimis_warm_up_length_has_no_part():
    method, rollouts = Kimi(warmup_steps=2), toy_rollouts([1, 1], [100, 300])
    for is_warm in (False, False, True):
        assert (method.shape(rollouts).tolist() != [1.0, 1.0]) == is_warm
        method.step()


def test_the_deviation_has_the_releases_1e_7_added():
    # mean 1.5, deviation 0.5
    rewards = Efficient(alpha=0.1).shape(toy_rollouts([1, 1], [1, 2]))
    place = torch.tensor([-0.5, 0.5], dtype=torch.float64).div(0.5 + 1e-7).sigmoid()
    torch.testing.assert_close(rewards, 1 - 0.1 * place, rtol=1e-12, atol=0)


def test_a_cache_that_is_not_below_the_maximum_is_refused():
    with pytest.raises(ValueError, match="cache_length is 100"):
        DapoOverlong(cache_length=100, max_length=100).check(None, 512, 8)
    with pytest.raises(ValueError, match="cache_length is 4096"):
        DapoOverlong().check(None, 512, 8)


def test_budgets_of_l1_are_uniform_over_the_range_and_the_same_every_time():
    method = L1Max(budget_range=(10, 19))
    drawn = [method.target_for(question, None) for question in range(2000)]
    assert drawn == [L1Exact(budget_range=[10, 19]).target_for(question, 5.0) for question in range(2000)]
    assert {drawn.count(float(n)) // 100 for n in range(10, 20)} <= {1, 2}
    assert L1Max(budget_range=None).target_for(7, 300.0) == 300.0
    assert (L1Exact(suffix="").prompt_suffix(9.0, 99), L1Exact().prompt_suffix(None, 99)) == ("", "")


def test_l1_needs_a_target_or_a_range_within_the_limit():
    with pytest.raises(ValueError, match="budget_range"):
        L1Max(budget_range=None).check(None, 4000, 8)
    with pytest.raises(ValueError, match="budget_range"):
        L1Max(budget_range=(1, 4001)).check(None, 4000, 8)
    L1Max(budget_range=(1, 4000)).check(None, 4000, 8)
