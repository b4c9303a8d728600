"""One multiplier per budget, by hand."""

import pytest
from toy_rollouts import toy_rollouts, updated

from leash_trl.length_control import AdvantageRule
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.statistics import length_statistics


TARGETS = {"low": 100.0, "high": 400.0}


def batch(lengths, efforts, rewards=None):
    """Groups of two, all correct unless `rewards` says otherwise."""
    targets = [TARGETS[effort] for effort in efforts]
    columns = {"effort": efforts}
    return toy_rollouts(rewards or [1.0] * len(lengths), lengths, targets, num_generations=2, columns=columns)


def logged(method, rollouts):
    return length_statistics(method, rollouts, method.score(rollouts, AdvantageRule()))


@pytest.fixture
def method():
    return Leash(lambda_init=0.25, lambda_lr=0.5, multiplier_per="effort")


LOW = batch([150, 250], ["low", "low"])


def test_each_multiplier_follows_the_violation_of_its_own_prompts(method):
    rollouts = batch([150, 250, 300, 300], ["low", "low", "high", "high"])
    # both start at 0.25: 1 - 0.25 * 0.5, 1 - 0.25 * 1.5, and no penalty under 400
    assert method.shaped_rewards(rollouts).tolist() == [0.875, 0.625, 1.0, 1.0]
    # low: mean of 0.5 and 1.5 is 1, 0.25 + 0.5 * 1; high: -0.25, 0.25 - 0.5 * 0.25
    assert updated(method, rollouts).lambdas == {"low": 0.75, "high": 0.125}
    assert method.shaped_rewards(rollouts).tolist() == [0.625, -0.125, 1.0, 1.0]


def test_a_multiplier_whose_prompts_are_not_sampled_stays_and_a_new_value_starts_at_lambda_init(method):
    late = batch([800, 800], ["high", "high"])
    assert updated(method, LOW).penalty(late).tolist() == [0.25, 0.25]
    assert updated(method, late).lambdas == {"low": 0.75, "high": 0.75}


def test_every_budget_is_logged_by_name(method):
    rollouts = batch([150, 250, 300, 500], ["low", "low", "high", "high"], rewards=[1.0, -1.0, 1.0, 1.0])
    statistics = logged(updated(method, rollouts), rollouts)
    assert {key: value for key, value in statistics.items() if "/" in key} == {
        "lambda/low": 0.75,  # 0.25 + 0.5 * 1
        "mean_length/low": 200,
        "accuracy/low": 0.5,
        "violation/low": 1,
        "target_length/low": 100,
        "satisfaction_rate/low": 0,
        "mean_penalty/low": 0.75,  # 0.75 * (0.5, 1.5)
        "lambda/high": 0.25,  # 0.25 + 0.5 * 0
        "mean_length/high": 400,
        "accuracy/high": 1,
        "violation/high": 0,
        "target_length/high": 400,
        "satisfaction_rate/high": 0.5,
        "mean_penalty/high": 0.03125,  # 0.25 * (0, 100 / 400)
    }
    assert statistics["lambda"] == 0.5
    assert statistics["mean_length"] == 300


def test_a_budget_is_logged_from_its_first_batch_and_lambda_is_the_mean_over_completions(method):
    statistics = logged(updated(method, LOW), batch([100] * 4, ["low", "low", "low", "high"]))
    assert statistics["lambda/low"] == 0.75
    assert statistics["lambda/high"] == 0.25
    assert statistics["lambda"] == (3 * 0.75 + 0.25) / 4


def test_a_state_of_another_column_is_refused(method):
    with pytest.raises(ValueError, match=r"'effort'.*'level'"):
        method.load_state_dict(Leash(multiplier_per="level").state_dict())
