"""The rules that a configuration chooses for advantages, OPO's baseline and GDPO, by hand."""

import pytest
import torch
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.kimi import Kimi
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.none import NoControl


@pytest.mark.parametrize(
    ("weight", "sums", "squares"),
    [
        # task 1 1 -1 -1 gives +-0.8660, length 0 -0.1 0 0 gives 0.5 -1.5 0.5 0.5
        (1.0, [1.3660254, -0.6339746, -0.3660254, -0.3660254], 2.5358984),
        (0.5, [1.1160254, 0.1160254, -0.6160254, -0.6160254], 2.0179492),
        # without length the task is left
        (0.0, [0.8660254, 0.8660254, -0.8660254, -0.8660254], 3),
    ],
)
@pytest.mark.parametrize("lam", [0.2, 0.002])  # it cancels out in every group
def test_leash_with_gdpo_by_hand(weight, sums, squares, lam):
    # target 100, lambda 0.2: the second pays 0.2 * (150 / 100 - 1) = 0.1; wrong answers sit on the clip, at -1
    rollouts = toy_rollouts([1, 1, -1, -1], [80, 150, 300, 90], target=100)
    rule = AdvantageRule("group", 1e-12, "mean", "normalize_then_sum", weight)
    expected = torch.tensor(sums, dtype=torch.float64) / (squares / 3) ** 0.5
    close(Leash(lambda_init=lam).score(rollouts, rule).advantages, expected, 1e-7, 1e-7)


def test_opos_baseline_works_on_shaped_rewards():
    rollouts = toy_rollouts([1, 1, -1], [100, 300, 200])
    score = Kimi(weight=0.4).score(rollouts, AdvantageRule("none", reward_baseline="length_weighted"))
    close(score.shaped, [1.2, 0.8, 0.0])  # 0 - 0.4 * 0
    # b = (100 * 1.2 + 300 * 0.8) / 600 = 0.6
    close(score.advantages, [0.6, 0.2, -0.6])


@pytest.mark.parametrize(
    ("masks", "baseline"),
    [
        (False, 50 / 100),
        (True, 10 / 60),
    ],
)
def test_opos_baseline_is_weighted_by_the_tokens_that_are_trained_on(masks, baseline):
    rollouts = toy_rollouts([1, 0, 0, 1], [10, 20, 30, 40], truncated=[False, False, False, True])
    score = NoControl().score(rollouts, AdvantageRule())
    rule = AdvantageRule("none", reward_baseline="length_weighted", mask_truncated=masks)
    close(rule(score, rollouts), rollouts.task_rewards - baseline)
