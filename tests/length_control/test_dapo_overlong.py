"""DAPO's soft overlong punishment and overlong filter: golden vectors, limits and errors."""

import pytest
import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.dapo_overlong import DapoOverlong


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected).double(), rtol=1e-6, atol=0)


@pytest.fixture
def punishments(make_rollouts):
    def punish(lengths, max_length, cache_length):
        batch = make_rollouts([-1.0] * len(lengths), lengths)
        return 1.0 + DapoOverlong(cache_length=cache_length, max_length=max_length).shape(batch)

    return punish


def test_two_groups_by_hand(make_rollouts):
    batch = make_rollouts([1, 0, float("nan"), 1], [80, 95, 100, 100], num_generations=2, limit=100)
    method = DapoOverlong(cache_length=20)
    # 1, -1 - 15 / 20, unscorable, 1 - 1
    close(method.shape(batch)[[0, 1, 3]], [1.0, -1.75, 0.0])
    assert method.shape(batch)[2].isnan()
    close(method.score(batch, AdvantageRule()).penalty[[0, 1, 3]], [0.0, 0.75, 1.0])


def test_own_maximum_goes_before_the_generation_limit(make_rollouts):
    batch = make_rollouts([1, 1], [90, 150], limit=1000)
    close(DapoOverlong(cache_length=20, max_length=100).shape(batch), [0.5, 0.0])


def test_cache_that_is_not_below_the_maximum_is_refused(make_rollouts):
    with pytest.raises(ValueError, match="cache_length is 100, but must be below the maximum of 100"):
        DapoOverlong(cache_length=100, max_length=100)
    with pytest.raises(ValueError, match="cache_length is 4096, but must be below the maximum of 512"):
        DapoOverlong().shape(make_rollouts([1], [5], limit=512))
