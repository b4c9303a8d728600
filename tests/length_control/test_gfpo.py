"""GFPO by hand: who is kept, and their advantages."""

import math

import pytest
from toy_rollouts import close, toy_rollouts

from leash_trl.errors import TrainingError
from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.gfpo import GFPO


NAN = math.nan
TWO_GROUPS = toy_rollouts([1, 0.5, -1, 0, 1, NAN, -1, 1], [40, 10, 20, 30, 25, 1, 50, 100], num_generations=4)


def kept_rows(method):
    return method.is_kept(TWO_GROUPS).nonzero().flatten().tolist()


def test_the_shortest_of_each_group_are_kept_but_never_an_unscorable_completion():
    assert kept_rows(GFPO(num_kept=2)) == [1, 2, 4, 6]
    assert kept_rows(GFPO(num_kept=4)) == [0, 1, 2, 3, 4, 6, 7]


# kept rewards 0.5, -1 (mean -0.25) and 1, -1 (mean 0)
# all four: mean -0.125, variance (0.390625 + 0.765625 + 1.265625 + 0.765625) / 4
BATCH_STD = math.sqrt(0.796875)


@pytest.mark.parametrize(
    ("scale", "epsilon", "first_divisor", "second_divisor"),
    [
        ("batch", 0, BATCH_STD, BATCH_STD),
        ("group", 0.25, 1, 1.25),
    ],
)
def test_advantages_by_hand(scale, epsilon, first_divisor, second_divisor):
    first = 0.75 / first_divisor
    second = 1 / second_divisor
    score = GFPO(num_kept=2).score(TWO_GROUPS, AdvantageRule(scale, epsilon))
    close(score.advantages, [0, first, -first, 0, second, 0, -second, 0])


@pytest.mark.parametrize(("size", "kept"), [(2, 2), (3, 2), (8, 4), (16, 8), (24, 8)])
def test_half_of_a_group_is_kept_by_default_from_2_to_8(size, kept):
    group = toy_rollouts([1.0] * size, [9] * size)
    assert GFPO().is_kept(group).sum() == kept


def test_keeping_all_completions_is_refused_in_training():
    rollouts = TWO_GROUPS
    GFPO(num_kept=rollouts.num_generations - 1).observe(rollouts)
    with pytest.raises(TrainingError, match=f"num_kept is {rollouts.num_generations}"):
        GFPO(num_kept=rollouts.num_generations).observe(rollouts)
