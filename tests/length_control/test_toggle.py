"""Toggle: the report's formula by hand, the method inside it, and when the budget is on."""

import math

import pytest
import torch
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.gfpo import GFPO
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.toggle import HELD, Toggle


NAN, RULE = math.nan, AdvantageRule()
ANY = toy_rollouts([-1, -1], [5, 6])


def off(method: Toggle) -> Toggle:
    """The method at the first batch of a period without a budget, its own state as at the start."""
    for _ in range(method.period):
        method.observe(ANY)
        method.step()
    return method


def test_the_report_by_hand():
    # question 7: correct lengths 10, 20, 40; their median is 20; 3 of 4 correct, so the budget holds: 40 earns 0
    # question 8: 1 of 4 correct, less than the threshold of 0.5: spared
    batch = toy_rollouts(
        [1, 1, -1, 1, 1, -1, -1, -1], [10, 20, 30, 40, 90, 5, 5, 5], num_generations=4, questions=[7] * 4 + [8] * 4
    )
    method = Toggle(period=3, percentile=50.0)
    close(method.score(batch, RULE).shaped, [1, 1, 0, 0, 1, 0, 0, 0])
    close(method.score(batch, RULE).penalty, [0, 0, 0, 1, 0, 0, 0, 0])
    close(off(method).score(batch, RULE).shaped, [1, 1, 0, 1, 1, 0, 0, 0])
    close(method.score(batch, RULE).penalty, [0] * 8)


def test_a_budget_is_estimated_once_from_any_phase_and_stays():
    method = off(Toggle(period=1, percentile=100.0))
    for rewards, lengths in (([-1, -1], [5, 6]), ([1, -1], [50, 6]), ([1, 1], [10, 90])):
        method.observe(toy_rollouts(rewards, lengths, questions=[9, 9]))
    assert method.statistics() == {"budget_on": 0.0, "questions_with_budget": 1.0}
    method.step()
    close(method.shape(toy_rollouts([1, 1, 1], [50, 51, 10], questions=[9] * 3)), [1, 0, 1])


def test_the_budget_holds_from_the_threshold_on_as_in_the_formula():
    batch = toy_rollouts([1, -1, 1, -1, NAN], [10, 20, 90, 20, 20])  # 2 of 4 that were scored
    for threshold, held in ((0.5, True), (0.51, False)):
        assert Toggle(accuracy_threshold=threshold).is_budgeted(batch).tolist() == [held] * 5


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("updates", [1, 2])
def test_half_of_the_batches_have_a_budget_and_the_method_inside_steps_with_their_updates(period, updates):
    method, phases, counted = Toggle("kimi", period=period), [], []
    for _ in range(4 * period):
        phases.append(method.statistics()["budget_on"])
        method.observe(ANY)
        before = method.switched.steps_done
        for _ in range(updates):
            method.step()
        counted.append(method.switched.steps_done - before)
    assert phases == ([True] * period + [False] * period) * 2
    assert counted == [updates * phase for phase in phases]


@pytest.mark.parametrize("column", [None, "effort"])
def test_a_multiplier_moves_by_the_groups_that_pay_and_not_while_the_budget_is_off(column):
    # the first group, low, is over by 0.5 and 1, mean 0.75; the second, high and unsolved, by 9
    columns = {"effort": ["low", "low", "high", "high"]}
    batch = toy_rollouts([1, 1, -1, -1], [15, 20, 100, 100], 10.0, num_generations=2, columns=columns)
    method = Toggle("leash", {"lambda_init": 0.5, "lambda_lr": 0.1, "multiplier_per": column}, period=1)
    for lam in (0.575, 0.575, 0.65, 0.65):
        method.observe(batch)
        method.step()
        assert method.statistics()["lambda"] == pytest.approx(lam, abs=1e-12)
    if column:
        assert method.columns_read() == ("effort",)
        assert method.budgets(batch) == columns["effort"]
        assert method.budget_statistics("low") == pytest.approx({"lambda": 0.65})
        assert method.budget_statistics("high") == {"lambda": 0.5}  # it has no multiplier yet


def test_while_it_is_off_a_group_is_as_in_plain_grpo():
    # GFPO learns from the shorter half alone; plain advantages are (r - mean) / std = +-sqrt(3)/2 by hand
    batch, half = toy_rollouts([1, -1, 1, -1], [10, 20, 30, 40]), math.sqrt(3) / 2
    method = Toggle("gfpo", period=1)
    assert torch.equal(method.score(batch, RULE).advantages, GFPO().score(batch, RULE).advantages)
    close(off(method).score(batch, AdvantageRule("group", 0.0)).advantages, [half, -half, half, -half])


def test_groups_that_are_off_are_compared_and_scaled_with_the_others_by_the_rule_of_the_run():
    # the first group pays 0.5 * (0, 1), the second, unsolved, nothing: 1, 0.5, 1, -1, mean 0.375,
    # squares 0.390625 + 0.015625 + 0.390625 + 1.890625 = 2.6875, over 3
    batch = toy_rollouts([1, 1, 1, -1], [10, 20, 90, 90], 10.0, num_generations=2)
    method = Toggle("leash", {"lambda_init": 0.5}, accuracy_threshold=0.75)
    std = math.sqrt(2.6875 / 3)
    close(method.score(batch, AdvantageRule("batch", 0.0)).advantages, [0.25 / std, -0.25 / std, 1 / std, -1 / std])


@pytest.mark.parametrize("name", ["leash", "laser", "gfpo", "dler"])
def test_it_answers_for_the_method_inside(name):
    kwargs = {"dler": {"cut_generation": False}}.get(name)
    method, alone = Toggle(name, kwargs), METHODS[name](**(kwargs or {}))
    for attribute in ("target_use", "needs_truncated", "own_advantages"):
        assert getattr(method, attribute) == getattr(alone, attribute)
    assert method.uses_correctness  # the threshold asks what is correct
    assert method.needs_group
    assert Toggle("l1_exact", {"suffix": "", "budget_range": [5, 5]}).target_for(0, None) == 5


def test_every_hook_of_a_method_is_its_own_or_handed_on():
    """What it does neither would be lost in silence; it refuses methods that cut generation or write into prompts."""
    hooks = {name for name, value in vars(LengthControl).items() if callable(value) and not name.startswith("_")}
    left = hooks - vars(Toggle).keys() - {*HELD}
    assert left == {"penalty", "generation_cap", "prompt_suffix", "state_dict", "load_state_dict"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"method": "leash", "method_kwargs": {"lambda_lr": "1"}}, "lambda_lr is '1'"),
        ({"method": "leash", "method_kwargs": [1]}, r"method_kwargs is \[1\]"),
        ({"method": "leash", "percentile": 50.0}, "percentile is 50.0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line_that_names_it(fields, named):
    with pytest.raises(ValueError, match=named) as refused:
        Toggle(**fields)
    assert "\n" not in str(refused.value)


def test_a_state_of_another_method_is_refused():
    with pytest.raises(ValueError, match=r"'grlc'.*'leash'"):
        Toggle("grlc").load_state_dict(Toggle("leash").state_dict())
