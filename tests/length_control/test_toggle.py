"""Toggle: the report's formula by hand, and when the budget is on."""

import math

import pytest
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.toggle import Toggle


NAN = math.nan
RULE = AdvantageRule()
ANY = toy_rollouts([-1, -1], [5, 6])


def off(method):
    """The method at the first batch of a period without a budget, before any question was solved."""
    for _ in range(method.period):
        method.observe(ANY)
        method.step()
    return method


def test_the_report_by_hand():
    # first question: correct lengths 10, 20, 40; their median is 20; 3 of 4 correct, so the budget holds: 40 earns 0
    # second question: 1 of 4 correct, less than the threshold of 0.5: spared
    batch = toy_rollouts([1, 1, -1, 1, 1, -1, -1, -1], [10, 20, 30, 40, 90, 5, 5, 5], num_generations=4)
    method = Toggle(period=3, percentile=50.0)
    score = method.score(batch, RULE)
    close(score.shaped, [1, 1, 0, 0, 1, 0, 0, 0])
    close(score.penalty, [0, 0, 0, 1, 0, 0, 0, 0])
    score_without_budget = off(method).score(batch, RULE)
    close(score_without_budget.shaped, [1, 1, 0, 1, 1, 0, 0, 0])
    close(score_without_budget.penalty, [0] * 8)


def test_a_budget_is_estimated_once_from_any_phase_and_stays():
    method = off(Toggle(period=1, percentile=100.0))
    method.observe(ANY)
    method.observe(toy_rollouts([1, -1], [50, 6]))
    method.observe(toy_rollouts([1, 1], [10, 90]))
    assert method.statistics() == {"budget_on": 0.0, "questions_with_budget": 1.0}
    method.step()
    shaped = method.shaped_rewards(toy_rollouts([1, 1, 1], [50, 51, 10]))
    close(shaped, [1, 0, 1])


def test_the_budget_holds_from_the_threshold_on_as_in_the_formula():
    batch = toy_rollouts([1, -1, 1, -1, NAN], [10, 20, 90, 20, 20])  # 2 of 4 that were scored
    for threshold, held in ((0.5, True), (0.51, False)):
        assert Toggle(accuracy_threshold=threshold).has_budget(batch).tolist() == [held] * 5


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("updates", [1, 2])
def test_half_of_the_batches_have_a_budget_whatever_their_updates(period, updates):
    method = Toggle(period=period)
    phases = []
    for _ in range(4 * period):
        phases.append(method.statistics()["budget_on"])
        method.observe(ANY)
        for _ in range(updates):
            method.step()
    assert phases == ([True] * period + [False] * period) * 2
