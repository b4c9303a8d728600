"""The cosine reward: reference vectors and by hand."""

import torch

from leash_trl.length_control.cosine import Cosine


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


def test_by_hand_two_groups(make_rollouts):
    # halfway: cos(pi / 2) = 0, the mean of both ends; 84 + 16 reaches 100
    rollouts = make_rollouts([1, -1, 1, 0], [50, 50, 0, 84], num_generations=2, limit=100)
    close(Cosine().shape(rollouts), [1.5, -5.0, 2.0, -10.0])
    close(Cosine().base_rewards(rollouts), [2.0, -10.0, 2.0, -10.0])


def test_the_limit_costs_right_answers_as_much(make_rollouts):
    rollouts = make_rollouts([1, 1], [83, 84], limit=100)
    below, at = Cosine().shape(rollouts).tolist()
    assert below > 1
    assert at == -10


def test_unscorable_stays_so_beyond_the_limit(make_rollouts):
    assert Cosine().shape(make_rollouts([float("nan")], [100], limit=100)).isnan().all()
