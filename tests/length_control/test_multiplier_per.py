"""One multiplier per budget: by hand, and equal to LEASH where there is one value."""

import pytest
import torch
from toy_rollouts import toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.leash import Leash, LeashC
from leash_trl.length_control.leash_predictive import LeashPredictive
from leash_trl.length_control.statistics import length_statistics


def batch(lengths, efforts, targets, rewards=None):
    """Groups of two, all correct unless `rewards` says otherwise."""
    rewards = rewards or [1.0] * len(lengths)
    columns = {"effort": efforts} if efforts else {}
    return toy_rollouts(rewards, lengths, targets, num_generations=2, limit=1000, columns=columns)


def updated(method, rollouts):
    method.observe(rollouts)
    method.step()
    return method


@pytest.fixture
def method():
    return Leash(lambda_init=0.25, lambda_lr=0.5, multiplier_per="effort")


LOW = batch([150, 250], ["low", "low"], [100.0, 100.0])


def low_and_high(lengths, rewards=None):
    return batch(lengths, ["low", "low", "high", "high"], [100.0, 100.0, 400.0, 400.0], rewards)


def test_each_multiplier_follows_the_violation_of_its_own_prompts(method):
    rollouts = low_and_high([150, 250, 300, 300])
    # both start at 0.25: 1 - 0.25 * 0.5, 1 - 0.25 * 1.5, and no penalty under 400
    assert method.shaped_rewards(rollouts).tolist() == [0.875, 0.625, 1.0, 1.0]
    # low: mean of 0.5 and 1.5 is 1, 0.25 + 0.5 * 1; high: -0.25, 0.25 - 0.5 * 0.25
    assert updated(method, rollouts).lambdas == {"low": 0.75, "high": 0.125}
    assert method.shaped_rewards(rollouts).tolist() == [0.625, -0.125, 1.0, 1.0]


def test_a_multiplier_whose_prompts_are_not_sampled_stays_and_a_new_value_starts_at_lambda_init(method):
    late = batch([800, 800], ["high", "high"], [400.0, 400.0])
    assert updated(method, LOW).score(late, AdvantageRule()).penalty.tolist() == [0.25, 0.25]
    assert updated(method, late).lambdas == {"low": 0.75, "high": 0.75}


@pytest.mark.parametrize("method_class", [Leash, LeashPredictive, LeashC])
def test_with_one_value_it_is_the_plain_method_to_the_last_bit(method_class):
    plain = method_class()
    per_value = method_class(multiplier_per="effort")
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        lengths = torch.randint(1, 900, (8,), generator=generator).tolist()
        targets = (torch.rand(8, generator=generator) * 400 + 1).double().tolist()
        rewards = (torch.randint(0, 2, (8,), generator=generator) * 2.0 - 1.0).tolist()
        without_column = batch(lengths, None, targets, rewards)
        with_column = batch(lengths, ["only"] * 8, targets, rewards)
        expected = plain.score(without_column, AdvantageRule())
        score = per_value.score(with_column, AdvantageRule())
        assert torch.equal(score.penalty, expected.penalty)
        assert torch.equal(score.shaped, expected.shaped)
        assert torch.equal(score.advantages, expected.advantages)
        assert updated(per_value, with_column).lam == updated(plain, without_column).lam


def test_every_budget_is_logged_by_name(method):
    rollouts = low_and_high([150, 250, 300, 500], rewards=[1.0, -1.0, 1.0, 1.0])
    updated(method, rollouts)
    logged = length_statistics(method, rollouts, method.score(rollouts, AdvantageRule()))
    assert {key: value for key, value in logged.items() if "/" in key} == {
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
    assert logged["lambda"] == 0.5
    assert logged["mean_length"] == 300


def test_a_budget_is_logged_from_its_first_batch_and_lambda_is_the_mean_over_completions(method):
    three_to_one = batch([100] * 4, ["low", "low", "low", "high"], [100.0] * 4)
    updated(method, LOW)
    logged = length_statistics(method, three_to_one, method.score(three_to_one, AdvantageRule()))
    assert logged["lambda/low"] == 0.75
    assert logged["lambda/high"] == 0.25
    assert logged["lambda"] == (3 * 0.75 + 0.25) / 4


def test_a_state_of_another_column_is_refused(method):
    with pytest.raises(ValueError, match=r"'effort'.*'level'"):
        method.load_state_dict(Leash(multiplier_per="level").state_dict())


def test_a_column_of_more_than_50_values_gives_a_warning(method):
    assert method.check_columns({"effort": list(range(50)) * 2}) is None
    assert "51 values in 102 rows" in method.check_columns({"effort": list(range(51)) * 2})
