"""The rules that a configuration chooses for advantages, OPO's baseline and GDPO, in methods and in training."""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.kimi import Kimi
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import METHODS
from leash_trl.trainer.run_settings import differences


GDPO = {"multi_objective_aggregation": "normalize_then_sum"}
OPO = {"reward_baseline": "length_weighted", "scale_rewards": "none"}


def decoupled(method, weight=1.0):
    method = copy.copy(method)
    method.multi_objective_aggregation, method.length_objective_weight = "normalize_then_sum", weight
    return method


def advantages_of(method, rollouts, epsilon=1e-12):
    return method.score(rollouts, AdvantageRule("group", epsilon)).advantages


def close(actual, expected, tolerance=1e-9):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_leash_with_gdpo_by_hand(make_rollouts):
    # target 100, lambda 0.2: the second pays 0.2 * (150 / 100 - 1) = 0.1; wrong answers sit on the clip, at -1
    rollouts = make_rollouts([1, 1, -1, -1], [80, 150, 300, 90], target=100)
    # task 1 1 -1 -1 gives +-0.8660, length 0 -0.1 0 0 gives 0.5 -1.5 0.5 0.5; squares of the sums 2.5359, over 3
    sums = torch.tensor([1.3660254, -0.6339746, -0.3660254, -0.3660254], dtype=torch.float64)
    close(advantages_of(decoupled(Leash(lambda_init=0.2)), rollouts), sums / (2.5358984 / 3) ** 0.5, 1e-7)


def test_lambda_cancels_in_every_group(make_rollouts):
    rewards, lengths = [1, 1, 1, 1, 1, 1, -1, -1], [80, 150, 120, 400, 90, 130, 300, 20]
    rollouts = make_rollouts(rewards, lengths, target=100, num_generations=4)
    strong, weak = (advantages_of(decoupled(Leash(lambda_init=lam)), rollouts) for lam in (0.3, 0.001))
    close(strong, weak, 1e-6)
    assert not torch.allclose(*(advantages_of(Leash(lambda_init=lam), rollouts) for lam in (0.3, 0.001)))
    # without a penalty, groups of equal task rewards teach nothing
    assert advantages_of(decoupled(Leash(lambda_init=0.0)), rollouts)[:4].tolist() == [0.0] * 4


def test_a_large_epsilon_gives_lambda_its_meaning_back(make_rollouts):
    rollouts = make_rollouts([1, 1, -1, -1], [80, 150, 300, 90], target=100)
    gaps = [
        (advantages[0] - advantages[1]).item()
        for advantages in (advantages_of(decoupled(Leash(lambda_init=lam)), rollouts, 0.1) for lam in (0.01, 0.3))
    ]
    assert 0 < gaps[0] < gaps[1] / 2


def test_the_weight_of_length_is_what_is_left_to_set(make_rollouts):
    rollouts = make_rollouts([1, 1, -1, -1], [80, 150, 300, 90], target=100)
    unweighted, half = (advantages_of(decoupled(Leash(), weight), rollouts) for weight in (1.0, 0.5))
    assert unweighted[1] < unweighted[2]  # the long correct answer lies below the wrong ones
    assert half[1] > half[2]
    # without length the task is left: +-0.8660, squares 3, over 3
    close(advantages_of(decoupled(Leash(), 0.0), rollouts), [0.75**0.5, 0.75**0.5, -(0.75**0.5), -(0.75**0.5)])


def test_opos_baseline_works_on_shaped_rewards(make_rollouts):
    rollouts = make_rollouts([1, 1, -1], [100, 300, 200])
    method = Kimi(weight=0.4)
    shaped = method.shape(rollouts)  # 1.2, 0.8 and 0 - 0.4 * 0
    close(shaped, [1.2, 0.8, 0.0])
    method.reward_baseline = "length_weighted"
    # b = (100 * 1.2 + 300 * 0.8) / 600 = 0.6
    close(method.score(rollouts, AdvantageRule("none", 1e-8)).advantages, [0.6, 0.2, -0.6])


def test_the_methods_with_a_rule_of_their_own_are_known():
    own = {name for name, method in METHODS.items() if method().own_advantages}
    assert {"dler", "drpo", "gfpo", "gr3", "grpo_lead", "lead", "prime_rl"} <= own
    assert own.isdisjoint({"leash", "kimi", "shorter_better", "none"})


def test_a_resumed_run_must_have_the_rule_of_its_checkpoint():
    assert differences({}, {"reward_baseline": "length_weighted"}) == {"reward_baseline": "mean -> length_weighted"}
    assert differences(GDPO, {}).keys() == GDPO.keys()
    assert differences({"length_objective_weight": 0.5}, {}).keys() == {"length_objective_weight"}


@dataclass
class PricePerToken(LengthControl):
    """Task reward and length as two reward functions of TRL would have them."""

    name: ClassVar[str] = "price_per_token"
    uses_correctness: ClassVar[bool] = False

    def shape(self, rollouts):
        return self.base_rewards(rollouts) - 0.01 * rollouts.lengths


def length_reward(completion_ids, **kwargs):
    return [-0.01 * len(ids) for ids in completion_ids]
