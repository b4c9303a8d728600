"""Toggle: the report's formula by hand, the method inside it, and what its state does while the budget is off."""

import json
import math
from dataclasses import replace

import pytest
import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.gfpo import GFPO
from leash_trl.length_control.laser import Laser
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.toggle import PercentileBudget, Toggle


NAN = math.nan


def close(actual, expected):
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


def off(method: Toggle) -> Toggle:
    """The method at the first update of a period without a budget."""
    for _ in range(method.period):
        method.step()
    return method


def test_the_report_by_hand(make_rollouts):
    # question 7: correct lengths 10, 20, 40; their median is 20; 3 of 4 correct, so the budget holds: 40 earns 0
    # question 8: 1 of 4 correct, less than the threshold of 0.5: spared
    rewards, lengths = [1, 1, -1, 1, 1, -1, -1, -1], [10, 20, 30, 40, 90, 5, 5, 5]
    batch = make_rollouts(rewards, lengths, num_generations=4, questions=[7] * 4 + [8] * 4)
    method = Toggle(period=3, percentile=50.0)
    close(method.shape(batch), [1, 1, 0, 0, 1, 0, 0, 0])
    close(method.score(batch, AdvantageRule()).penalty, [0, 0, 0, 1, 0, 0, 0, 0])
    close(off(method).shape(batch), [1, 1, 0, 1, 1, 0, 0, 0])
    close(method.score(batch, AdvantageRule()).penalty, [0] * 8)


def test_percentiles_are_interpolated(make_rollouts):
    # place 0.75 * 3 = 2.25 of 10, 20, 40, 80: 40 + 0.25 * 40
    method = PercentileBudget(75.0)
    method.observe(make_rollouts([1, 1, 1, 1, 0, NAN], [80, 10, 40, 20, 1, 1], questions=[3] * 6))
    assert method.limits == {3: 50.0}


def test_a_budget_is_estimated_once_from_any_phase_and_stays(make_rollouts):
    method = off(Toggle(period=1, percentile=100.0))
    unsolved, first = (
        make_rollouts([-1, -1], [5, 6], questions=[9, 9]),
        make_rollouts([1, -1], [50, 6], questions=[9, 9]),
    )
    for batch in (unsolved, first, make_rollouts([1, 1], [10, 90], questions=[9, 9])):
        method.observe(batch)
    assert method.switched.limits == {9: 50.0}
    method.step()
    close(method.shape(make_rollouts([1, 1, 1], [50, 51, 10], questions=[9] * 3)), [1, 0, 1])


def test_the_budget_holds_from_the_threshold_on_as_in_the_formula(make_rollouts):
    batch = make_rollouts([1, -1, 1, -1, NAN], [10, 20, 90, 20, 20])  # 2 of 4 that were scored
    for threshold, held in ((0.5, True), (0.51, False)):
        assert Toggle(accuracy_threshold=threshold).is_budgeted(batch).tolist() == [held] * 5


def test_phases_change_after_every_period():
    method = Toggle(period=3)
    phases = []
    for _ in range(13):
        phases.append(method.is_on)
        assert method.statistics()["budget_on"] == phases[-1]
        method.step()
    assert phases == [True] * 3 + [False] * 3 + [True] * 3 + [False] * 3 + [True]


def test_over_budget_never_beats_wrong_whatever_the_scale_of_the_rewards(make_rollouts):
    for wrong in (0, -1):
        shaped = Toggle(percentile=0.0).shape(make_rollouts([1, 1, wrong], [10, 99, 5]))
        close(shaped, [1, 0, 0])


def test_leash_inside_prices_the_groups_that_are_solved_often(make_rollouts):
    # lambda 0.5; overshoot 15 / 10 - 1 = 0.5 and 20 / 10 - 1 = 1
    batch = make_rollouts([1, 1, 1, -1], [15, 20, 20, 20], 10.0, num_generations=2)
    method = Toggle("leash", {"lambda_init": 0.5}, accuracy_threshold=0.75)
    close(method.shape(batch), [0.75, 0.5, 1, -1])
    close(method.score(batch, AdvantageRule()).penalty, [0.25, 0.5, 0, 0])
    close(off(method).shape(batch), [1, 1, 1, -1])


def test_a_multiplier_moves_by_what_it_prices_and_not_while_the_budget_is_off(make_rollouts):
    # the first group is over by 0.5 and 1, mean 0.75; the second, unsolved, by 9
    batch = make_rollouts([1, 1, -1, -1], [15, 20, 100, 100], 10.0, num_generations=2)
    method = Toggle("leash", {"lambda_init": 0.5, "lambda_lr": 0.1}, period=1)
    seen = []
    for _ in range(4):
        method.observe(batch)
        method.step()
        seen.append(method.statistics()["lambda"])
    assert seen == pytest.approx([0.575, 0.575, 0.65, 0.65], abs=1e-12)
    alone = Leash(lambda_init=0.5, lambda_lr=0.1)
    alone.observe(batch)
    alone.step()
    assert alone.lam == pytest.approx(0.9875, abs=1e-12)  # 0.5 + 0.1 * (0.5 + 1 + 9 + 9) / 4


def test_updates_without_a_budget_do_not_count_for_the_method_inside():
    method = Toggle("kimi", {"warmup_steps": 3}, period=2)
    counted = []
    for _ in range(5):
        method.step()
        counted.append(method.switched.steps_done)
    assert counted == [1, 2, 2, 2, 3]


def test_a_batch_without_a_group_that_pays_is_not_observed(make_rollouts):
    method = Toggle("leash", {"lambda_init": 0.5})
    method.observe(make_rollouts([-1, -1], [100, 100], 10.0))
    method.step()
    assert method.statistics()["lambda"] == 0.5


def test_while_it_is_off_a_group_is_as_in_plain_grpo(make_rollouts):
    # GFPO keeps the shorter half and drops the rest; plain advantages are (r - mean) / std = +-sqrt(3)/2 by hand
    batch = make_rollouts([1, -1, 1, -1], [10, 20, 30, 40], num_generations=4)
    method, alone = Toggle("gfpo", {"drop_unkept": True}, period=1), GFPO(drop_unkept=True)
    shaped = method.shape(batch)
    assert torch.equal(
        method.score(batch, AdvantageRule("group", 1e-8)).advantages,
        alone.score(batch, AdvantageRule("group", 1e-8)).advantages,
    )
    assert (
        method.score(batch, AdvantageRule()).keep.tolist()
        == alone.score(batch, AdvantageRule()).keep.tolist()
        == [True, True, False, False]
    )
    off(method)
    half = math.sqrt(3) / 2
    torch.testing.assert_close(
        method.score(batch, AdvantageRule("group", 0.0)).advantages,
        torch.tensor([half, -half, half, -half], dtype=torch.float64),
    )
    assert method.score(batch, AdvantageRule()).keep.all()


def test_outliers_of_a_method_that_cuts_stay_whole_while_it_is_off(make_rollouts):
    # mean 20, standard deviation sqrt((3 * 10^2 + 30^2) / 3) = 20; the cut is at 20 + 20
    batch = make_rollouts([1, 1, 1, 1], [10, 10, 10, 50])
    method = Toggle("dot", {"alpha": 1.0, "min_excess": 5}, period=1)
    assert method.cuts
    assert not Toggle("leash").cuts
    assert method.cut_lengths(batch).tolist() == [10, 10, 10, 40]
    assert off(method).cut_lengths(batch).tolist() == [10, 10, 10, 50]
    assert Toggle("leash").cut_lengths(batch) is None


def test_it_answers_for_the_method_inside():
    for switched in (Leash(), Laser(), GFPO()):
        method = Toggle(switched.name)
        assert method.target_use == switched.target_use
        assert method.needs_truncated == switched.needs_truncated
        assert method.uses_correctness  # the threshold asks what is correct
    method = Toggle("dler", {"cut_generation": False})
    method.set_for_run(generation_limit=99)
    assert method.switched.generation_limit == method.generation_limit == 99
    with pytest.raises(ValueError, match="upper_bound is 20"):
        Toggle("laser_d", {"upper_bound": 20}).check(21, 100, 4)
    assert Toggle("l1_exact", {"suffix": "", "budget_range": [5, 5]}).target_for(0, None) == 5


def test_a_multiplier_for_each_value_of_a_column_moves_by_its_own_groups_that_pay(make_rollouts):
    # low, over by 0.5 and 1; high is not solved, so it has no multiplier yet
    batch = make_rollouts([1, 1, -1, -1], [15, 20, 100, 100], 10.0, num_generations=2)
    batch = replace(batch, columns={"effort": ["low", "low", "high", "high"]})
    method = Toggle("leash", {"lambda_init": 0.5, "lambda_lr": 0.1, "multiplier_per": "effort"})
    assert method.columns_read() == ("effort",)
    assert method.budgets(batch) == ["low", "low", "high", "high"]
    method.observe(batch)
    method.step()
    assert method.statistics() == pytest.approx({"lambda": 0.575, "budget_on": 1.0})
    assert method.budget_statistics("low") == pytest.approx({"lambda": 0.575})
    assert method.budget_statistics("high") == {"lambda": 0.5}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "dler"}, "cuts generation before the solve rate is known"),
        ({"method": "l1_exact"}, "writes into the prompt before the solve rate is known"),
        ({"method": "none"}, "has no length control"),
        ({"method": "toggle"}, "is the switch itself"),
        ({"method": "lesh"}, "did you mean leash"),
        ({"method": "leash", "method_kwargs": {"lambda_lrr": 1}}, "lambda_lrr, which means nothing to 'leash'"),
        ({"method": "leash", "method_kwargs": {"lambda_lr": "1"}}, "lambda_lr is '1'"),
        ({"method": "leash", "method_kwargs": [1]}, r"method_kwargs is \[1\]"),
        ({"method": "leash", "percentile": 50.0}, "percentile is 50.0"),
        ({"method_kwargs": {"lambda_lr": 1}}, "name a method or drop it"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(fields, message):
    with pytest.raises(ValueError, match=message):
        Toggle(**fields)


def test_a_state_of_another_method_is_refused():
    saved = json.loads(json.dumps(Toggle("leash").state_dict()))
    with pytest.raises(ValueError, match="method='leash', which is not 'grlc', the method of this run"):
        Toggle("grlc").load_state_dict(saved)


LEASH = {"method": "leash", "method_kwargs": {"lambda_lr": 0.1}, "period": 3, "accuracy_threshold": 0.25}
