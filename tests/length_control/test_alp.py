"""ALP: golden vectors, whose formula is from secondary sources only, in float64."""

import pytest

from leash_trl.length_control.alp import ALP


def test_two_groups_by_hand(make_rollouts):
    batch = make_rollouts([1, 0, float("nan"), 0, 0, 0], [100, 200, 300, 100, 200, 300], num_generations=3)
    rewards = ALP(beta=0.001).shape(batch)
    # p = 1/2 among the two scorable ones, then p = 0, priced as 1/3
    assert rewards[[0, 1, 3, 4, 5]].tolist() == pytest.approx([0.95, -0.1, -0.1 / 3, -0.2 / 3, -0.1])
    assert rewards[2].isnan()
