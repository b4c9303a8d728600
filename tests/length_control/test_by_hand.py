"""Shaped rewards by hand, with the arithmetic, where the vectors of papers and releases in test_vectors.py do not have
them; each group is a prompt, NAN could not be scored.
"""

import math

import pytest
import torch
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.a_dlp import ADLP
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.cosine import Cosine
from leash_trl.length_control.dapo_overlong import DapoOverlong
from leash_trl.length_control.efficient import Efficient
from leash_trl.length_control.gr3 import GR3
from leash_trl.length_control.grlc import GRLC
from leash_trl.length_control.grpo_lead import GRPOLead
from leash_trl.length_control.kimi import Kimi
from leash_trl.length_control.l1 import L1Exact, L1Max
from leash_trl.length_control.laser import Laser
from leash_trl.length_control.shorter_better import ShorterBetter
from leash_trl.length_control.smart_thinker import SmartThinker, optimal_lengths
from leash_trl.length_control.thinkprune import ThinkPrune


NAN = math.nan
ROOT = math.sqrt(0.5)


# method, rollouts with one group per prompt, expected shaped rewards
CASES = {
    # mean lengths 100 and 50: 1 / (1 + 0.5), 0, then 1 / (1 + 0.6), 1 / (1 + 1.4)
    "gr3": (
        GR3(alpha=1.0),
        toy_rollouts([1, -1, 1, 1], [50, 150, 30, 70], num_generations=2),
        [1 / 1.5, 0, 1 / 1.6, 1 / 2.4],
    ),
    # w = (1, 0.5, 0), mean 0.5; equal lengths: 0
    "grlc": (
        GRLC(weight=0.5),
        toy_rollouts([1, -1, 1, 1, 0, 1], [100, 200, 300, 7, 7, 7], num_generations=3),
        [1.25, 0, 0.75, 1, 0, 1],
    ),
    # targets 60 and 40; a correct answer that is truncated is correct all the same
    "laser": (
        Laser(alpha=0.25),
        toy_rollouts(
            [1, 0, NAN, 1, 1, 0],
            [50, 50, 50, 50, 10, 90],
            num_generations=3,
            target=[60.0, 60.0, 60.0, 40.0, 40.0, 40.0],
            truncated=[False, False, True, True, False, True],
        ),
        [1.25, -0.5, NAN, 1, 1.25, -1],
    ),
    # SOL 400: distances 0, 600, 300 and 1600 at 0.001
    "shorter_better": (
        ShorterBetter(alpha=2.0, beta=0.001),
        toy_rollouts([1, 1, -1, -1], [400, 1000, 100, 2000]),
        [2, 1.4, -0.3, -1.6],
    ),
    # without a correct answer, the mean 300 of scorable lengths takes the place of SOL: distances 200, 100, 300
    "shorter_better, wrong": (
        ShorterBetter(beta=0.01),
        toy_rollouts([0, 0, 0, NAN], [100, 200, 600, 9]),
        [-2, -1, -3, NAN],
    ),
    # of all lengths mu = 250 and sigma^2 = 12500, of the correct ones 150 and 2500, so that
    # l_opt = (2500 * 250 - 12500 * 150) / (2500 - 12500) = 125; e = 0, 75, 0, 0, mean 18.75;
    # Lambda = 0.5 / (75 - 18.75). A prompt that is always solved has no penalty.
    "smart_thinker": (
        SmartThinker(),
        toy_rollouts([1, 1, -1, -1, 1, 1, 1, 1], [100, 200, 300, 400, 10, 20, 30, 40], num_generations=4),
        [1, 1 - 75 * 0.5 / (75 * (1 + 1e-6) - 18.75), 0, 0, 1, 1, 1, 1],
    ),
    # sigma_c^2 = 100^2 is above sigma^2, so l_opt is the shortest, 100; e = 0, 200, 0 without the unscorable one,
    # Lambda = (1/3) / (200 - 200/3)
    "smart_thinker, spread": (
        SmartThinker(),
        toy_rollouts([1, 1, 0, NAN], [100, 300, 200, 900]),
        [1, 1 - 200 / 3 / (200 * (1 + 1e-6) - 200 / 3), 0, NAN],
    ),
    "cosine, own maximum": (Cosine(max_length=200, exceeded=None), toy_rollouts([1], [100], limit=100), [1.5]),
    # by default the punishment grows over the last fifth of the limit: 1, -1 - 15 / 20, unscorable, 1 - 1
    "dapo_overlong": (
        DapoOverlong(cache_length=None),
        toy_rollouts([1, 0, NAN, 1], [80, 95, 100, 100], num_generations=2, limit=100),
        [1, -1.75, NAN, 0],
    ),
    # a single correct answer has z = 0, and the sigmoid of 0 is a half
    "efficient, no end": (
        Efficient(alpha=0.2, requires_eos=False),
        toy_rollouts([1, NAN], [10, 20], truncated=[True, True]),
        [1 - 0.2 / 2, NAN],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_shaped_rewards_by_hand(name):
    method, batch, expected = CASES[name]
    score = method.score(batch, AdvantageRule())
    close(score.shaped, expected)
    close(score.penalty, score.base - score.shaped)


def test_during_kimis_warm_up_length_has_no_part():
    method = Kimi(weight=0.4, warmup_steps=2)
    rollouts = toy_rollouts([1, 1], [100, 300])
    for _ in range(2):
        assert method.shaped_rewards(rollouts).tolist() == [1.0, 1.0]
        method.step()
    assert method.shaped_rewards(rollouts).tolist() == [1.2, 0.8]


def test_smart_thinker_never_pushes_a_correct_answer_below_the_mean_of_its_group():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 2, (100 * 8,), generator=generator).tolist()
    lengths = torch.randint(1, 9000, (100 * 8,), generator=generator).tolist()
    batch = toy_rollouts(rewards, lengths, num_generations=8)
    score = SmartThinker().score(batch, AdvantageRule())
    assert score.advantages[batch.is_correct].min() >= 0
    is_pressed = score.penalty > 0
    assert is_pressed[batch.is_correct].double().mean() > 0.3


def test_smart_thinker_does_not_depend_on_the_unit_of_the_cost():
    rewards = [-1, 1, 1, -1, -1, 1, 1, 1]
    lengths = [100, 200, 300, 400, 150, 320, 180, 260]
    in_tokens = toy_rollouts(rewards, lengths)
    in_dollars = toy_rollouts(rewards, [length * 2**-20 for length in lengths])  # exact in float32
    close(SmartThinker().shaped_rewards(in_dollars), SmartThinker().shaped_rewards(in_tokens))


def test_variances_that_differ_by_rounding_are_equal_to_smart_thinker():
    is_correct = torch.tensor([[True, True, True, False, False, False]])
    for scale in range(1, 100):
        lengths = torch.tensor([[1.0, 2.0, 4.0, 1.0, 2.0, 4.0]], dtype=torch.float64) * scale / 7
        close(optimal_lengths(lengths, is_correct), [[scale / 7]])  # the shortest


def test_deviations_have_the_releases_epsilon_added():
    batch = toy_rollouts([1, 1], [1, 2])
    # mean 1.5, deviation of the population 0.5, of the sample sqrt(0.5)
    centered = torch.tensor([-0.5, 0.5], dtype=torch.float64)
    z_of_population = centered / (0.5 + 1e-7)
    z_of_sample = centered / (ROOT + 1e-6)
    close(Efficient(alpha=0.1).shaped_rewards(batch), 1 - 0.1 * torch.sigmoid(z_of_population), rtol=1e-12)
    close(GRPOLead(alpha=0.05).shaped_rewards(batch), torch.exp(-0.05 * z_of_sample), rtol=1e-12)


def test_a_dlps_multiplier_pools_batches_counts_them_once_and_has_no_ceiling():
    method = ADLP(lambda_init=0.5, lambda_lr=100.0, accuracy_reference=0.5)
    method.observe(toy_rollouts([1, NAN, 1], [1, 1, 1]))
    method.observe(toy_rollouts([1, 0], [1, 1]))
    for _ in range(2):  # the second step has nothing new
        method.step()
        assert method.lam == pytest.approx(0.5 + 100 * (3 / 4 - 0.5))


def test_budgets_of_l1_are_uniform_over_the_range_and_the_same_every_time():
    method = L1Max(budget_range=(10, 19))
    drawn = [method.target_for(question, None) for question in range(2000)]
    again = [L1Exact(budget_range=[10, 19]).target_for(question, 5.0) for question in range(2000)]
    assert drawn == again
    # 200 of each are expected
    for budget in range(10, 20):
        assert 100 <= drawn.count(float(budget)) < 300


def test_l1_without_a_range_requests_the_target():
    assert L1Max(budget_range=None).target_for(7, 300.0) == 300.0


def test_l1s_prompt_says_nothing_without_a_suffix_or_a_target():
    assert L1Exact(suffix="").prompt_suffix(9.0, 99) == ""
    assert L1Exact().prompt_suffix(None, 99) == ""


def test_thinkprunes_limit_and_prompt_follow_the_stages():
    method = ThinkPrune(stages={"2": "2000", "0": "4000"})  # as JSON has them
    for limit in (4000, 4000, 2000, 2000):
        assert method.generation_cap(None) == limit
        assert method.statistics() == {"generation_cap": limit}
        assert method.prompt_suffix(None, math.inf) == f" The output should be within {limit} tokens."
        method.step()


@pytest.mark.parametrize("stages", [{}, {180: 3000}, {0: 4000, 180: 0}], ids=str)
def test_thinkprunes_stages_begin_at_the_first_update_and_have_room(stages):
    with pytest.raises(ValueError, match="stages") as error:
        ThinkPrune(stages=stages)
    assert "\n" not in str(error.value)


def test_thinkprunes_prompt_states_the_limit_of_the_run_if_it_is_lower():
    assert ThinkPrune().prompt_suffix(None, 512) == " The output should be within 512 tokens."
    assert ThinkPrune(suffix="").prompt_suffix(512.0, math.inf) == ""
