"""LASER: golden vectors and the three base scores."""

import pytest
import torch

from leash_trl.length_control.laser import Laser


@pytest.mark.parametrize("name", ["laser_base", "laser_base_2048", "laser_base_8192"])
def test_golden_vectors(golden, make_rollouts, name):
    vector = golden(name)
    scores, params = vector["inputs"]["score"], vector["params"]
    batch = make_rollouts(
        [1.0 if score == 1 else -1.0 for score in scores],
        vector["inputs"]["length"],
        target=float(params["target"]),
        truncated=[score == params["bad_format"] for score in scores],
    )
    assert Laser(alpha=params["alpha"]).base_rewards(batch).tolist() == scores
    torch.testing.assert_close(
        Laser(alpha=params["alpha"]).shape(batch), torch.tensor(vector["expected"]).double(), rtol=1e-6, atol=0
    )


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
    assert Laser(alpha=0.25).penalty(batch)[[0, 1, 3, 4, 5]].tolist() == [-0.25, 0, 0, -0.25, 0]


def test_laser_has_no_state_and_the_papers_bonus():
    assert Laser().state_dict() == {}
    assert Laser().alpha == 0.5
    assert Laser.target_use == "required"
