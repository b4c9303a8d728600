"""The baseline that a configuration chooses for advantages, OPO's, by hand."""

import pytest
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.kimi import Kimi
from leash_trl.length_control.none import NoControl


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
