"""GFPO by hand: who is kept, and their advantages."""

import pytest
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.gfpo import GFPO


NAN = float("nan")
TWO_GROUPS = toy_rollouts([1, 0.5, -1, 0, 1, NAN, -1, 1], [40, 10, 20, 30, 25, 1, 50, 100], num_generations=4)


def test_each_group_keeps_its_own_and_never_an_unscorable_completion():
    assert GFPO(num_kept=2).kept(TWO_GROUPS).tolist() == [False, True, True, False, True, False, True, False]
    # rewards per token 0.025, 0.05, -0.05, 0; 0.04, none, -0.02, 0.01
    by_efficiency = GFPO(num_kept=2, metric="token_efficiency").kept(TWO_GROUPS).tolist()
    assert by_efficiency == [True, True, False, False, True, False, False, True]
    assert GFPO(num_kept=4).kept(TWO_GROUPS).tolist() == [True] * 5 + [False] + [True] * 2


# kept rewards 0.5, -1 (mean -0.25) and 1, -1 (mean 0)
# all four: mean -0.125, variance (0.390625 + 0.765625 + 1.265625 + 0.765625) / 4 = 0.796875
@pytest.mark.parametrize(
    ("scale", "epsilon", "deviations"),
    [("none", 0, (1, 1)), ("group", 0, (0.75, 1)), ("batch", 0, (0.796875**0.5,) * 2), ("group", 0.25, (1, 1.25))],
)
def test_advantages_on_every_scale_by_hand(scale, epsilon, deviations):
    (first, second), score = deviations, GFPO(num_kept=2).score(TWO_GROUPS, AdvantageRule(scale, epsilon))
    close(score.advantages, [0, 0.75 / first, -0.75 / first, 0, 1 / second, 0, -1 / second, 0])


@pytest.mark.parametrize(("size", "kept"), [(2, 2), (3, 2), (8, 4), (16, 8), (24, 8)])
def test_half_of_a_group_is_kept_by_default_from_2_to_8(size, kept):
    is_kept = GFPO().kept(toy_rollouts([1.0] * size, list(range(1, size + 1)))).tolist()
    assert is_kept == [True] * kept + [False] * (size - kept)
