"""LACONIC: reference vectors and by hand. The vectors come from the README of the release, not from its code."""

import pytest
import torch

from leash_trl.length_control.laconic import Laconic


def test_by_hand_two_groups_with_targets_of_their_own(make_rollouts):
    # overshoot (150 / 100 - 1, 0, 300 / 200 - 1, 400 / 200 - 1) = (0.5, 0, 0.5, 1) at 0.1 each
    rollouts = make_rollouts(
        [1, 1, -1, 1], [150, 100, 300, 400], target=[100.0, 100.0, 200.0, 200.0], num_generations=2
    )
    shaped = Laconic(lambda_init=0.1).shape(rollouts)
    torch.testing.assert_close(shaped, torch.tensor([0.95, 1.0, -0.05, 0.9], dtype=torch.float64))


def test_there_is_no_clip_below(make_rollouts):
    method = Laconic(lambda_init=1.0, lambda_max=1.0)
    assert method.shape(make_rollouts([0], [1000], target=100.0)).tolist() == [-9.0]


def test_bounds_out_of_order_are_refused():
    with pytest.raises(ValueError, match=r"lambda_max=0\.1"):
        Laconic(lambda_init=0.2)
    with pytest.raises(ValueError, match="outside"):
        Laconic().load_state_dict({"lambda": 0.2})
