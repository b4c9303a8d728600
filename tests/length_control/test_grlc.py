"""GRLC: reference vectors and by hand. The vectors come from secondary descriptions of the report."""

import torch

from leash_trl.length_control.grlc import GRLC, centred_weights


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


def weights(lengths):
    return centred_weights(torch.tensor([lengths], dtype=torch.float64)).flatten()


def test_by_hand_two_groups(make_rollouts):
    # w = (1, 0.5, 0), mean 0.5; equal lengths: 0
    rollouts = make_rollouts([1, -1, 1, 1, 0, 1], [100, 200, 300, 7, 7, 7], num_generations=3)
    close(GRLC().shape(rollouts), [1.25, 0.0, 0.75, 1.0, 0.0, 1.0])


def test_an_unscorable_completion_is_not_counted(make_rollouts):
    whole = make_rollouts([1, 0, 1], [10, 20, 40])
    holed = make_rollouts([1, 0, float("nan"), 1], [10, 20, 9000, 40])
    close(GRLC().shape(holed)[torch.tensor([0, 1, 3])], GRLC().shape(whole).tolist())
