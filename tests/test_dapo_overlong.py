"""DAPO's soft overlong punishment and overlong filter: golden vectors, limits and errors."""

import pytest
import torch

from leash_trl.length_control.dapo_overlong import DapoOverlong


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected).double(), rtol=1e-6, atol=0)


@pytest.fixture
def punishments(make_rollouts):
    def punish(lengths, max_length, cache_length):
        batch = make_rollouts([-1.0] * len(lengths), lengths)
        return 1.0 + DapoOverlong(cache_length=cache_length, max_length=max_length).shape(batch)

    return punish


@pytest.mark.parametrize("name", ["dapo_soft_overlong_paper", "dapo_trl_docstring"])
def test_golden_vectors_of_the_punishment(golden, punishments, name):
    vector = golden(name)
    params = vector["params"]
    close(punishments(vector["inputs"]["length"], params["Lmax"], params["Lcache"]), vector["expected"])


def test_verl_agrees_wherever_generation_stops_at_the_maximum(golden, punishments):
    vector = golden("dapo_soft_overlong_verl")
    within = [i for i, length in enumerate(vector["inputs"]["length"]) if length <= 20480]
    lengths = [vector["inputs"]["length"][i] for i in within]
    close(punishments(lengths, 20480, 4096), [vector["expected"][i] for i in within])


def test_golden_vector_of_the_total_reward(golden, make_rollouts):
    vector = golden("dapo_total_reward")
    batch = make_rollouts(vector["inputs"]["correct"], vector["inputs"]["length"], limit=20480)
    close(DapoOverlong().shape(batch), vector["expected"])


def test_golden_vector_of_the_filter(golden, make_rollouts):
    vector = golden("dapo_overlong_filtering")
    finished = vector["inputs"]["finished"]
    batch = make_rollouts([1, 1, 1], vector["inputs"]["length"], truncated=[not end for end in finished])
    assert DapoOverlong(mask_truncated=True).is_trained_on(batch).int().tolist() == vector["expected"]
    assert DapoOverlong().is_trained_on(batch) is None


def test_two_groups_by_hand(make_rollouts):
    batch = make_rollouts([1, 0, float("nan"), 1], [80, 95, 100, 100], num_generations=2, limit=100)
    method = DapoOverlong(cache_length=20)
    # 1, -1 - 15 / 20, unscorable, 1 - 1
    close(method.shape(batch)[[0, 1, 3]], [1.0, -1.75, 0.0])
    assert method.shape(batch)[2].isnan()
    close(method.penalty(batch)[[0, 1, 3]], [0.0, 0.75, 1.0])


def test_own_maximum_goes_before_the_generation_limit(make_rollouts):
    batch = make_rollouts([1, 1], [90, 150], limit=1000)
    close(DapoOverlong(cache_length=20, max_length=100).shape(batch), [0.5, 0.0])


def test_no_cache_length_is_a_fifth_of_the_maximum(golden, make_rollouts):
    lengths = golden("dapo_soft_overlong_paper")["inputs"]["length"]
    batch = make_rollouts([1] * len(lengths), lengths, limit=20480)
    assert torch.equal(DapoOverlong(cache_length=None).shape(batch), DapoOverlong(cache_length=4096).shape(batch))


def test_cache_that_is_not_below_the_maximum_is_refused(make_rollouts):
    with pytest.raises(ValueError, match="cache_length is 100, but must be below the maximum of 100"):
        DapoOverlong(cache_length=100, max_length=100)
    with pytest.raises(ValueError, match="cache_length is 4096, but must be below the maximum of 512"):
        DapoOverlong().shape(make_rollouts([1], [5], limit=512))
