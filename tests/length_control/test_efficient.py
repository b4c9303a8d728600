"""Arora and Zanette: golden vectors, and who counts among the right answers."""

import pytest
import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.efficient import Efficient


def test_unscorable_completions_do_not_move_mean_and_deviation(make_rollouts):
    nan = float("nan")
    with_others = make_rollouts([1, 1, nan, 0, 1, 1, 0, nan], [100, 300, 9999, 5, 100, 100, 1, 2], num_generations=4)
    rewards = Efficient(alpha=0.1).shape(with_others)
    # z = -1 and 1: 1 - 0.1 / (1 + e), 1 - 0.1 / (1 + 1 / e); the second group's right ones are equally long
    expected = [0.97310585786, 0.92689414214, 0.0, 0.95, 0.95, 0.0]
    assert rewards[[0, 1, 3, 4, 5, 6]].tolist() == pytest.approx(expected, rel=1e-6)
    assert rewards[[2, 7]].isnan().all()


def test_deviation_has_the_releases_1e_7_added(make_rollouts):
    # mean 1.5, deviation 0.5
    rewards = Efficient(alpha=0.1).shape(make_rollouts([1, 1], [1, 2]))
    place = torch.tensor([-0.5, 0.5], dtype=torch.float64).div(0.5 + 1e-7).sigmoid()
    torch.testing.assert_close(rewards, 1 - 0.1 * place, rtol=1e-12, atol=0)


def test_groups_without_a_right_answer_are_all_0(make_rollouts):
    assert Efficient().shape(make_rollouts([0, -1], [3, 5])).tolist() == [0, 0]


def test_without_requires_eos_a_truncated_right_answer_counts(make_rollouts):
    batch = make_rollouts([1, float("nan")], [10, 20], truncated=[True, True])
    assert Efficient(alpha=0.2, requires_eos=False).shape(batch)[0].item() == pytest.approx(0.9)
    strict = Efficient(alpha=0.2)
    assert strict.shape(batch)[0] == strict.base_rewards(batch)[0] == 0
    assert strict.shape(batch)[1].isnan()


def test_the_longer_right_answer_pays_more(make_rollouts):
    penalty = Efficient().score(make_rollouts([1, 1, 0], [10, 20, 30]), AdvantageRule()).penalty
    assert 0 < penalty[0] < 0.05 < penalty[1] < 0.1
    assert penalty[2] == 0
