"""L1-Exact and L1-Max: golden vectors, the drawn budgets and the prompt's request."""

import pytest
import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.l1 import L1Exact, L1Max


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


def test_two_groups_by_hand(make_rollouts):
    nan = float("nan")
    batch = make_rollouts(
        [1, -1, 1, nan], [900, 1200, 600, 100], target=[1000.0, 1000.0, 500.0, 500.0], num_generations=2
    )
    # 1 - 0.001 * 100, 0 - 0.001 * 200, 1 - 0.001 * 100
    close(L1Exact(alpha=0.001).shape(batch)[:3], [0.9, -0.2, 0.9])
    # 0.001 * 100 + 0.5, wrong, 0.5 - 0.001 * 100
    close(L1Max(alpha=0.001).shape(batch)[:3], [0.6, 0.0, 0.4])
    assert L1Exact().shape(batch)[3].isnan()
    assert L1Max().shape(batch)[3].isnan()
    close(L1Max(alpha=0.001).score(batch, AdvantageRule()).penalty[:3], [0.4, 0.0, 0.6])


def test_budgets_are_uniform_over_the_range_and_the_same_every_time():
    budgets = [L1Exact().target_for(question, None) for question in range(4000)]
    assert budgets == [L1Max().target_for(question, 77.0) for question in range(4000)]
    assert 100 <= min(budgets) < 110
    assert 3990 < max(budgets) <= 4000
    assert sum(budgets) / 4000 == pytest.approx(2050, rel=0.03)


def test_both_bounds_of_the_range_can_be_drawn():
    assert {L1Exact(budget_range=[7, 8]).target_for(question, None) for question in range(50)} == {7.0, 8.0}


def test_without_a_range_the_configured_target_is_requested():
    assert L1Max(budget_range=None).target_for(3, 512.0) == 512.0
    with pytest.raises(ValueError, match="budget_range is None and target_length is not set"):
        L1Max(budget_range=None).target_for(3, None)
