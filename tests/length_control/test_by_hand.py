"""Shaped rewards by hand, with the arithmetic; each group is a prompt, NAN could not be scored."""

import math
from itertools import chain

import pytest
import torch
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.a_dlp import ADLP
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.alp import ALP
from leash_trl.length_control.cosine import Cosine
from leash_trl.length_control.dapo_overlong import DapoOverlong
from leash_trl.length_control.efficient import Efficient
from leash_trl.length_control.gr3 import GR3
from leash_trl.length_control.grlc import GRLC
from leash_trl.length_control.grpo_lead import GRPOLead
from leash_trl.length_control.hapo import HAPO
from leash_trl.length_control.kimi import Kimi
from leash_trl.length_control.l1 import L1Exact, L1Max
from leash_trl.length_control.laconic import Laconic
from leash_trl.length_control.laser import Laser
from leash_trl.length_control.mai import MAI
from leash_trl.length_control.shorter_better import ShorterBetter
from leash_trl.length_control.thinkprune import ThinkPrune


NAN, ROOT = math.nan, math.sqrt(0.5)


def case(method, rewards, lengths, shaped, **others):
    """Groups of rewards and lengths, the shaped rewards of all, and other parts of the rollouts."""
    batch = toy_rollouts([*chain(*rewards)], [*chain(*lengths)], num_generations=len(rewards[0]), **others)
    return method, batch, shaped


def remembering(method, length, question):
    method.observe(toy_rollouts([1], [length], questions=[question]))
    return method


CASES = {
    # p = 1/2 among the two scorable ones, then p = 0, priced as 1/3
    "alp": case(
        ALP(0.001), [[1, 0, NAN], [0, 0, 0]], [[100, 200, 300]] * 2, [0.95, -0.1, NAN, -0.1 / 3, -0.2 / 3, -0.1]
    ),
    # mean lengths 100 and 50: 1 / (1 + 0.5), 0, then 1 / (1 + 0.6), 1 / (1 + 1.4)
    "gr3": case(GR3(1.0), [[1, -1], [1, 1]], [[50, 150], [30, 70]], [1 / 1.5, 0, 1 / 1.6, 1 / 2.4]),
    # w = (1, 0.5, 0), mean 0.5; equal lengths: 0
    "grlc": case(GRLC(), [[1, -1, 1], [1, 0, 1]], [[100, 200, 300], [7, 7, 7]], [1.25, 0, 0.75, 1, 0, 1]),
    # range 100 to 300
    "kimi": case(Kimi(), [[1, 1, -1]], [[100, 300, 250]], [1 + 0.4 * 0.5, 1 - 0.4 * 0.5, -0.4 * 0.25]),
    # a right answer without an end is right all the same
    "laser": case(
        Laser(alpha=0.25),
        [[1, 0, NAN], [1, 1, 0]],
        [[50, 50, 50], [50, 10, 90]],
        [1.25, -0.5, NAN, 1, 1.25, -1],
        target=[60.0] * 3 + [40.0] * 3,
        truncated=[False, False, True, True, False, True],
    ),
    # SOL 400: distances 0, 600, 300 and 1600 at 0.001; without a right answer their mean: 300, at 0.01
    "shorter_better": case(ShorterBetter(), [[1, 1, -1, -1]], [[400, 1000, 100, 2000]], [2, 1.4, -0.3, -1.6]),
    "shorter_better, wrong": case(ShorterBetter(beta=0.01), [[0, 0, 0, NAN]], [[100, 200, 600, 9]], [-2, -1, -3, NAN]),
    # halfway: cos(pi / 2) = 0, the mean of both ends; 84 + 16 reaches 100, which costs right answers as much
    "cosine": case(
        Cosine(),
        [[1, -1], [1, 0]],
        [[50, 50], [83, 84]],
        [1.5, -5, 0.5 * math.cos(0.83 * math.pi) + 1.5, -10],
        limit=100,
    ),
    "cosine, own maximum": case(Cosine(max_length=200, exceeded=None), [[1]], [[100]], [1.5], limit=100),
    # 1, -1 - 15 / 20, unscorable, 1 - 1; by default the range is a fifth of the limit
    "dapo_overlong": case(
        DapoOverlong(cache_length=None), [[1, 0], [NAN, 1]], [[80, 95], [100, 100]], [1, -1.75, NAN, 0], limit=100
    ),
    "efficient, no end": case(
        Efficient(0.2, requires_eos=False), [[1, NAN]], [[10, 20]], [0.9, NAN], truncated=[True] * 2
    ),
    # overshoot 1000 / 100 - 1 at 1
    "laconic, no clip": case(Laconic(1.0, lambda_max=1.0), [[0]], [[1000]], [-9], target=100.0),
    # history 100 for question 7 only: cos(pi / 4), then cos(3 pi / 4) = -0.707 for a wrong answer
    "hapo": case(
        remembering(HAPO(), 100, 7),
        [[1, -1], [1, -1]],
        [[50, 150]] * 2,
        [1 + ROOT, -ROOT, 1, 0],
        questions=[7, 7, 8, 8],
    ),
    # solve rates 2/3 and 1, longest right 400 and 50, weight 0.3: 1 - 0.3 * 2/3 * 100/400, 1 - 0.3 * 2/3;
    # 1 - 0.3 * 10/50, 1 - 0.3 twice
    "mai": case(MAI(0.3), [[1, 1, 0], [1, 1, 1]], [[100, 400, 900], [10, 50, 50]], [0.95, 0.8, 0, 0.94, 0.7, 0.7]),
}


@pytest.mark.parametrize("name", CASES)
def test_shaped_rewards_by_hand(name):
    method, batch, expected = CASES[name]
    score = method.score(batch, AdvantageRule())
    close(score.shaped, expected)
    close(score.penalty, score.base - score.shaped)


def test_during_kimis_warm_up_length_has_no_part():
    method, rollouts = Kimi(warmup_steps=2), toy_rollouts([1, 1], [100, 300])
    for is_warm in (False, False, True):
        assert (method.shape(rollouts).tolist() != [1.0, 1.0]) == is_warm
        method.step()


def test_deviations_have_the_releases_epsilon_added():
    # mean 1.5, deviation of the population 0.5, of the sample sqrt(0.5)
    place = torch.tensor([-0.5, 0.5], dtype=torch.float64)
    batch = toy_rollouts([1, 1], [1, 2])
    close(Efficient(alpha=0.1).shape(batch), 1 - 0.1 * place.div(0.5 + 1e-7).sigmoid(), rtol=1e-12)
    close(GRPOLead().shape(batch), (-0.05 * place / (ROOT + 1e-6)).exp(), rtol=1e-12)


def test_a_dlps_price_pools_batches_counts_them_once_and_has_no_ceiling():
    method = ADLP(lambda_init=0.5, lambda_lr=100.0, accuracy_reference=0.5)
    for rewards in ([1, NAN, 1], [1, 0]):
        method.observe(toy_rollouts(rewards, [1] * len(rewards)))
    for _ in range(2):
        method.step()
        assert method.lam == pytest.approx(25.5)  # 0.5 + 100 * (3/4 - 0.5)


def test_budgets_of_l1_are_uniform_over_the_range_and_the_same_every_time():
    method = L1Max(budget_range=(10, 19))
    drawn = [method.target_for(question, None) for question in range(2000)]
    assert drawn == [L1Exact(budget_range=[10, 19]).target_for(question, 5.0) for question in range(2000)]
    assert {drawn.count(float(n)) // 100 for n in range(10, 20)} <= {1, 2}
    assert L1Max(budget_range=None).target_for(7, 300.0) == 300.0
    assert (L1Exact(suffix="").prompt_suffix(9.0, 99), L1Exact().prompt_suffix(None, 99)) == ("", "")


def test_thinkprunes_limit_and_prompt_follow_the_stages():
    method, default = ThinkPrune(stages={"2": "2000", "0": "4000"}), ThinkPrune()  # as JSON has them
    for limit in (4000, 4000, 2000, 2000):
        assert (method.generation_cap(None), method.statistics()) == (limit, {"generation_cap": limit})
        assert method.prompt_suffix(None, math.inf) == f" The output should be within {limit} tokens."
        method.step()
    assert ThinkPrune(suffix="").prompt_suffix(512.0, math.inf) == ""
    assert default.prompt_suffix(None, 512) == " The output should be within 512 tokens."
    caps = [(default.generation_cap(None), default.step())[0] for _ in range(181)]
    assert caps == [4000] * 180 + [3000]
