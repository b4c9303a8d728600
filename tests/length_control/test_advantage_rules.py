"""The rules that a configuration chooses for advantages, OPO's baseline and GDPO, in methods."""

from dataclasses import replace

import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.dapo_overlong import DapoOverlong
from leash_trl.length_control.dot import DOT
from leash_trl.length_control.kimi import Kimi
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.none import NoControl
from leash_trl.length_control.prime_rl import PrimeRL
from leash_trl.length_control.toggle import Toggle


def decoupled(method, rollouts, weight=1.0, epsilon=1e-12):
    rule = AdvantageRule("group", epsilon, "mean", "normalize_then_sum", weight)
    return method.score(rollouts, rule).advantages


def close(actual, expected, tolerance=1e-9):
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_leash_with_gdpo_by_hand(make_rollouts):
    # target 100, lambda 0.2: the second pays 0.2 * (150 / 100 - 1) = 0.1; wrong answers sit on the clip, at -1
    rollouts = make_rollouts([1, 1, -1, -1], [80, 150, 300, 90], target=100)
    # task 1 1 -1 -1 gives +-0.8660, length 0 -0.1 0 0 gives 0.5 -1.5 0.5 0.5; squares of the sums 2.5359, over 3
    sums = torch.tensor([1.3660254, -0.6339746, -0.3660254, -0.3660254], dtype=torch.float64)
    close(decoupled(Leash(lambda_init=0.2), rollouts), sums / (2.5358984 / 3) ** 0.5, 1e-7)


def test_lambda_cancels_in_every_group(make_rollouts):
    rewards, lengths = [1, 1, 1, 1, 1, 1, -1, -1], [80, 150, 120, 400, 90, 130, 300, 20]
    rollouts = make_rollouts(rewards, lengths, target=100, num_generations=4)
    strong, weak = (decoupled(Leash(lambda_init=lam), rollouts) for lam in (0.3, 0.001))
    close(strong, weak, 1e-6)
    assert not torch.allclose(
        *(Leash(lambda_init=lam).score(rollouts, AdvantageRule()).advantages for lam in (0.3, 0.001))
    )
    # without a penalty, groups of equal task rewards teach nothing
    assert decoupled(Leash(lambda_init=0.0), rollouts)[:4].tolist() == [0.0] * 4


def test_the_weight_of_length_is_what_is_left_to_set(make_rollouts):
    rollouts = make_rollouts([1, 1, -1, -1], [80, 150, 300, 90], target=100)
    unweighted, half = (decoupled(Leash(), rollouts, weight) for weight in (1.0, 0.5))
    assert unweighted[1] < unweighted[2]  # the long correct answer lies below the wrong ones
    assert half[1] > half[2]
    # without length the task is left: +-0.8660, squares 3, over 3
    close(decoupled(Leash(), rollouts, 0.0), [0.75**0.5, 0.75**0.5, -(0.75**0.5), -(0.75**0.5)])


def test_opos_baseline_works_on_shaped_rewards(make_rollouts):
    rollouts = make_rollouts([1, 1, -1], [100, 300, 200])
    score = Kimi(weight=0.4).score(rollouts, AdvantageRule("none", reward_baseline="length_weighted"))
    close(score.shaped, [1.2, 0.8, 0.0])  # 0 - 0.4 * 0
    # b = (100 * 1.2 + 300 * 0.8) / 600 = 0.6
    close(score.advantages, [0.6, 0.2, -0.6])


def opo_sum(method, rollouts, cut=None, **rule):
    """Sum of advantage times trained tokens of each group, with OPO's baseline."""
    rule = AdvantageRule("none", reward_baseline="length_weighted", **rule)
    score = method.score(rollouts, rule)
    advantages = score.advantages if cut is None else rule(replace(score, cut=cut), rollouts)
    is_trained = torch.ones_like(rollouts.is_truncated) if score.keep is None else score.keep
    is_trained = is_trained & ~(rollouts.is_truncated & rule.mask_truncated)
    tokens = (rollouts.lengths if cut is None else cut) * is_trained
    assert advantages.abs().max() > 0.1
    return rollouts.by_group(advantages * tokens).sum(dim=1)


def test_advantages_sum_to_zero_over_the_tokens_that_are_trained_on(make_rollouts):
    rollouts = make_rollouts(
        [1, -1, 1, -1, 1, 1], [30, 60, 90, 20, 90, 10], truncated=[False, False, True] * 2, num_generations=3, limit=90
    )
    for method in (NoControl(), Kimi(), DapoOverlong(cache_length=20), Toggle("kimi")):
        for mask_truncated in (False, True):
            close(opo_sum(method, rollouts, mask_truncated=mask_truncated), [0, 0])
    masking = {"cache_length": 20, "mask_truncated": True}
    close(opo_sum(DapoOverlong(**masking), rollouts), [0, 0])
    close(opo_sum(Toggle("dapo_overlong", masking, accuracy_threshold=0.0), rollouts), [0, 0])
    close(opo_sum(DOT(), rollouts, cut=torch.tensor([30, 40, 50, 20, 30, 10])), [0, 0])


def test_prime_rls_own_baseline_is_weighted_by_trained_tokens_too(make_rollouts):
    method, rollouts = PrimeRL("june", length_weighted_baseline=True), make_rollouts([1, 0, 1], [30, 60, 90], limit=90)
    close(opo_sum(method, rollouts), [0])
