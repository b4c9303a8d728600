"""DOT: the cut by hand."""

import pytest
from toy_rollouts import toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.dot import DOT


# eleven of 100 and one of 100 + d: mean 100 + d / 12, std d / sqrt(12)
# d = 1200: T = floor(200 + 3 * 346.410) = 1239, and 1300 - 1239 = 61 >= 32
# d = 612: T = floor(151 + 3 * 176.669) = 681, 712 - 681 = 31; d = 624: T = floor(692.400) = 692, 724 - 692 = 32
@pytest.mark.parametrize(("outlier", "kept"), [(1300, 1239), (712, 712), (724, 692)])
def test_the_cut_by_hand(outlier, kept):
    lengths = [100] * 11 + [outlier]
    assert DOT().cut_lengths(toy_rollouts([1.0] * 12, lengths)).tolist() == [100] * 11 + [kept]


# median 115, MAD 10: T = floor(115 + 3 * 14.826) = floor(159.478) = 159; 191 - 159 = 32 is enough
@pytest.mark.parametrize(("outlier", "kept"), [(400, 159), (191, 159), (190, 190)])
def test_the_robust_cut_by_hand(outlier, kept):
    lengths = [100, 110, 120]
    assert DOT(robust=True).cut_lengths(toy_rollouts([1.0] * 4, [*lengths, outlier])).tolist() == [*lengths, kept]
    hardly_spread = [1000, 1000, 1001, 2000]
    assert DOT(robust=True).cut_lengths(toy_rollouts([1.0] * 4, hardly_spread)).tolist() == hardly_spread


def test_only_groups_of_right_answers_are_cut():
    # G = 4, alpha = 1: mean 20, std 20, T = 40 for lengths 10, 10, 10, 50
    lengths, method = [10, 10, 10, 50], DOT(alpha=1.0, min_excess=8)
    rewards = [*(1, 1, 1, 1), *(1, 1, -1, 1), *(1, 0, 1, 1), *(-1, -1, -1, -1), *[float("nan")] * 4]
    kept = method.cut_lengths(toy_rollouts(rewards, lengths * 5, num_generations=4))
    assert kept.tolist() == [10, 10, 10, 40, *lengths * 4]
    # all positive, but what is right is what the deciding function says
    rollouts = toy_rollouts([1.5, 1.5, 0.5, 1.5], lengths, correctness=[1, 1, 0, 1])
    score = method.score(rollouts, AdvantageRule())
    assert (score.cut.tolist(), score.base.tolist()) == (lengths, [1.5, 1.5, 0.5, 1.5])


@pytest.mark.parametrize("unscorable", [1, 60, 999])
def test_unscorable_completions_neither_stop_nor_move_nor_suffer_a_cut(unscorable):
    rollouts = toy_rollouts([1, 1, float("nan"), 1, 1], [10, 10, unscorable, 10, 50])
    assert DOT(alpha=1.0, min_excess=8).cut_lengths(rollouts).tolist() == [10, 10, unscorable, 10, 40]
