"""LASER: golden vectors and the three base scores."""

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.laser import Laser


def test_two_groups_with_targets_of_their_own_by_hand(make_rollouts):
    batch = make_rollouts(
        [1, 0, float("nan"), 1, 1, 0],
        [50, 50, 50, 50, 10, 90],
        target=[60.0] * 3 + [40.0] * 3,
        num_generations=3,
        truncated=[False, False, True, True, False, True],
    )
    rewards = Laser(alpha=0.25).shape(batch)
    # a right answer without an end is right all the same
    assert rewards[[0, 1, 3, 4, 5]].tolist() == [1.25, -0.5, 1.0, 1.25, -1.0]
    assert rewards[2].isnan()
    assert Laser(alpha=0.25).score(batch, AdvantageRule()).penalty[[0, 1, 3, 4, 5]].tolist() == [-0.25, 0, 0, -0.25, 0]


def test_laser_has_no_state_and_the_papers_bonus():
    assert Laser().state_dict() == {}
    assert Laser().alpha == 0.5
    assert Laser.target_use == "required"
