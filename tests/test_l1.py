"""L1-Exact and L1-Max: golden vectors, the drawn budgets and the prompt's request."""

import pytest
import torch

from leash_trl.length_control.l1 import L1Exact, L1Max


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["l1_exact_paper", "l1_exact_code"])
def test_exact_matches_the_golden_vectors(golden, make_rollouts, name):
    vector = golden(name)
    inputs = vector["inputs"]
    batch = make_rollouts(inputs["correct"], inputs["length"], target=[float(n) for n in inputs["target"]])
    close(L1Exact(alpha=vector["params"]["alpha"]).shape(batch), vector["expected"])


def test_exact_default_slope_is_the_papers(golden, make_rollouts):
    inputs = golden("l1_exact_eval_budgets")["inputs"]
    batch = make_rollouts(inputs["correct"], inputs["length"], target=[float(n) for n in inputs["target"]])
    close(L1Exact().shape(batch), golden("l1_exact_eval_budgets")["expected"])


@pytest.mark.parametrize(
    ("name", "alpha"),
    [("l1_max_code_first_release", 0.001), ("l1_max_paper_alpha_0003", 0.0003), ("l1_max_alpha_01", 0.01)],
)
def test_max_matches_the_golden_vectors(golden, make_rollouts, name, alpha):
    inputs = golden(name)["inputs"]
    batch = make_rollouts(inputs["correct"], inputs["length"], target=1000.0)
    close(L1Max(alpha=alpha).shape(batch), golden(name)["expected"])


def test_max_of_the_later_release_has_half_its_alpha_as_slope(golden, make_rollouts):
    vector = golden("l1_max_head_slope_half")
    inputs = vector["inputs"]
    batch = make_rollouts(inputs["correct"], inputs["length"], target=[-float(n) for n in inputs["num_tokens"]])
    close(L1Max(alpha=vector["params"]["alpha"] / 2).shape(batch), vector["expected"])


def test_request_is_worded_as_in_the_paper(golden):
    exact, most = golden("l1_prompts")["expected"]
    assert (L1Exact().prompt_suffix(1500.0), L1Max().prompt_suffix(1500.0)) == (exact, most)
    assert L1Exact(suffix="").prompt_suffix(1500.0) == L1Exact().prompt_suffix(None) == ""


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
    close(L1Max(alpha=0.001).penalty(batch)[:3], [0.4, 0.0, 0.6])


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
