"""One multiplier per budget: by hand, equal to LEASH where there is one value, and in a real trainer."""

import pytest
import torch
from toy_rollouts import toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.leash import Leash, LeashC
from leash_trl.length_control.leash_predictive import LeashPredictive
from leash_trl.length_control.statistics import length_statistics


def batch(lengths, efforts, targets, rewards=None, column="effort"):
    columns = {column: efforts} if column else {}
    rewards = [1.0] * len(lengths) if rewards is None else rewards
    return toy_rollouts(rewards, lengths, targets, num_generations=2, limit=1000, columns=columns)


LOW_AND_HIGH = (["low", "low", "high", "high"], [100.0, 100.0, 400.0, 400.0])


def test_each_multiplier_follows_the_violation_of_its_own_prompts():
    method = Leash(lambda_init=0.25, lambda_lr=0.5, multiplier_per="effort")
    rollouts = batch([150, 250, 300, 300], *LOW_AND_HIGH)
    # both start at 0.25: 1 - 0.25 * 0.5, 1 - 0.25 * 1.5, and nothing to pay under 400
    assert method.shape(rollouts).tolist() == [0.875, 0.625, 1.0, 1.0]
    method.observe(rollouts)
    method.step()
    # low: mean of 0.5 and 1.5 is 1, 0.25 + 0.5 * 1; high: -0.25, 0.25 - 0.5 * 0.25
    assert method.lambdas == {"low": 0.75, "high": 0.125}
    assert method.shape(rollouts).tolist() == [0.625, -0.125, 1.0, 1.0]


def test_a_multiplier_whose_prompts_are_not_sampled_stays_and_a_new_value_starts_at_lambda_init():
    method = Leash(lambda_init=0.25, lambda_lr=0.5, multiplier_per="effort")
    method.observe(batch([150, 250], ["low", "low"], [100.0, 100.0]))
    method.step()
    late = batch([800, 800], ["high", "high"], [400.0, 400.0])
    assert method.score(late, AdvantageRule()).penalty.tolist() == [0.25, 0.25]
    method.observe(late)
    method.step()
    assert method.lambdas == {"low": 0.75, "high": 0.75}


@pytest.mark.parametrize("kind", [Leash, LeashPredictive, LeashC])
def test_with_one_value_it_is_the_plain_method_to_the_last_bit(kind):
    plain, per_value = kind(), kind(multiplier_per="effort")
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        lengths = torch.randint(1, 900, (8,), generator=generator).tolist()
        targets = (torch.rand(8, generator=generator) * 400 + 1).double().tolist()
        rewards = (torch.randint(0, 2, (8,), generator=generator) * 2.0 - 1.0).tolist()
        ours = batch(lengths, ["only"] * 8, targets, rewards)
        theirs = batch(lengths, None, targets, rewards, column=None)
        assert torch.equal(per_value.shape(ours), plain.shape(theirs))
        assert torch.equal(per_value.penalty(ours), plain.penalty(theirs))
        advantages = [
            method.score(rollouts, AdvantageRule("group", 1e-8)).advantages
            for method, rollouts in ((per_value, ours), (plain, theirs))
        ]
        assert torch.equal(*advantages)
        assert per_value.lam == plain.lam
        for method, rollouts in ((plain, theirs), (per_value, ours)):
            method.observe(rollouts)
            method.step()
    assert [*per_value.lambdas.values()] == [*plain.lambdas.values()]


def test_every_budget_is_logged_by_name():
    method = Leash(lambda_init=0.25, lambda_lr=0.5, multiplier_per="effort")
    rollouts = batch([150, 250, 300, 500], *LOW_AND_HIGH, rewards=[1.0, -1.0, 1.0, 1.0])
    method.observe(rollouts)
    method.step()
    logged = length_statistics(method, rollouts, method.score(rollouts, AdvantageRule()))
    assert (logged["lambda/low"], logged["lambda/high"]) == (0.75, 0.25)  # 400 on the mean: 0.25 + 0.5 * 0
    assert logged["lambda"] == 0.5
    assert (logged["mean_length/low"], logged["mean_length/high"], logged["mean_length"]) == (200, 400, 300)
    assert (logged["accuracy/low"], logged["accuracy/high"]) == (0.5, 1.0)
    assert (logged["violation/low"], logged["violation/high"]) == (1.0, 0.0)
    assert (logged["target_length/low"], logged["target_length/high"]) == (100, 400)


def test_a_budget_is_logged_from_its_first_batch_and_lambda_is_what_completions_paid_on_average():
    method = Leash(lambda_init=0.25, lambda_lr=0.5, multiplier_per="effort")
    method.observe(batch([150, 250], ["low", "low"], [100.0, 100.0]))
    method.step()
    three_to_one = batch([100] * 4, ["low", "low", "low", "high"], [100.0] * 4)
    logged = length_statistics(method, three_to_one, method.score(three_to_one, AdvantageRule()))
    assert (logged["lambda/low"], logged["lambda/high"]) == (0.75, 0.25)
    assert logged["lambda"] == 0.625  # (3 * 0.75 + 0.25) / 4


def test_a_state_of_another_column_is_refused():
    saved = Leash(multiplier_per="level").state_dict()
    with pytest.raises(ValueError, match=r"'effort'.*'level'"):
        Leash(multiplier_per="effort").load_state_dict(saved)


def test_a_column_with_a_value_for_every_row_gives_a_warning():
    problem = Leash(multiplier_per="id").check_columns({"id": list(range(100))})
    assert "100 values in 100 rows" in problem
    assert Leash(multiplier_per="id").check_columns({"id": [1, 2] * 50}) is None
