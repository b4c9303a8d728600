"""GR3: the reference vector and by hand."""

import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.gr3 import GR3


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


class Graded(GR3):
    def base_rewards(self, rollouts):
        return rollouts.task_rewards


def test_by_hand_two_groups(make_rollouts):
    # mean lengths 100 and 50: 1 / (1 + 0.5), 0, then 1 / (1 + 0.6), 1 / (1 + 1.4)
    rollouts = make_rollouts([1, -1, 1, 1], [50, 150, 30, 70], num_generations=2)
    method = GR3(alpha=1.0)
    shaped = method.shape(rollouts)
    close(shaped, [1 / 1.5, 0.0, 1 / 1.6, 1 / 2.4])
    half = (1 / 1.6 - 1 / 2.4) / 2
    for scale_rewards in ("group", "batch", "none"):
        close(method.score(rollouts, AdvantageRule(scale_rewards, 1e-8)).advantages, [1 / 3, -1 / 3, half, -half])


def test_an_unscorable_completion_is_not_counted(make_rollouts):
    whole = make_rollouts([1, 0, 1], [10, 20, 40])
    holed = make_rollouts([1, 0, float("nan"), 1], [10, 20, 9000, 40])
    close(GR3().shape(holed)[torch.tensor([0, 1, 3])], GR3().shape(whole).tolist())
