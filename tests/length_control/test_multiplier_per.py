"""One multiplier per budget: by hand, and equal to LEASH where there is one value."""

import pytest
import torch
from toy_rollouts import toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.leash import Leash, LeashC
from leash_trl.length_control.leash_predictive import LeashPredictive
from leash_trl.length_control.statistics import length_statistics


def batch(lengths, efforts, targets, rewards=None):
    columns = {"effort": efforts} if efforts else {}
    return toy_rollouts(
        rewards or [1.0] * len(lengths), lengths, targets, num_generations=2, limit=1000, columns=columns
    )


def moved_by(method, rollouts):
    method.observe(rollouts)
    method.step()
    return method


@pytest.fixture
def method():
    return Leash(lambda_init=0.25, lambda_lr=0.5, multiplier_per="effort")


LOW_AND_HIGH = (["low", "low", "high", "high"], [100.0, 100.0, 400.0, 400.0])
LOW = batch([150, 250], ["low", "low"], [100.0, 100.0])


def test_each_multiplier_follows_the_violation_of_its_own_prompts(method):
    rollouts = batch([150, 250, 300, 300], *LOW_AND_HIGH)
    # both start at 0.25: 1 - 0.25 * 0.5, 1 - 0.25 * 1.5, and nothing to pay under 400
    assert method.shape(rollouts).tolist() == [0.875, 0.625, 1.0, 1.0]
    # low: mean of 0.5 and 1.5 is 1, 0.25 + 0.5 * 1; high: -0.25, 0.25 - 0.5 * 0.25
    assert moved_by(method, rollouts).lambdas == {"low": 0.75, "high": 0.125}
    assert method.shape(rollouts).tolist() == [0.625, -0.125, 1.0, 1.0]


def test_a_multiplier_whose_prompts_are_not_sampled_stays_and_a_new_value_starts_at_lambda_init(method):
    late = batch([800, 800], ["high", "high"], [400.0, 400.0])
    assert moved_by(method, LOW).score(late, AdvantageRule()).penalty.tolist() == [0.25, 0.25]
    assert moved_by(method, late).lambdas == {"low": 0.75, "high": 0.75}


@pytest.mark.parametrize("kind", [Leash, LeashPredictive, LeashC])
def test_with_one_value_it_is_the_plain_method_to_the_last_bit(kind):
    plain, per_value = kind(), kind(multiplier_per="effort")
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        lengths = torch.randint(1, 900, (8,), generator=generator).tolist()
        targets = (torch.rand(8, generator=generator) * 400 + 1).double().tolist()
        rewards = (torch.randint(0, 2, (8,), generator=generator) * 2.0 - 1.0).tolist()
        ours, theirs = (batch(lengths, efforts, targets, rewards) for efforts in (["only"] * 8, None))
        own, score = per_value.score(ours, AdvantageRule()), plain.score(theirs, AdvantageRule())
        assert all(
            torch.equal(getattr(own, part), getattr(score, part)) for part in ("penalty", "shaped", "advantages")
        )
        assert moved_by(per_value, ours).lam == moved_by(plain, theirs).lam


def test_every_budget_is_logged_by_name(method):
    rollouts = batch([150, 250, 300, 500], *LOW_AND_HIGH, rewards=[1.0, -1.0, 1.0, 1.0])
    moved_by(method, rollouts)
    logged = length_statistics(method, rollouts, method.score(rollouts, AdvantageRule()))
    low, high = (
        {key.partition("/")[0]: value for key, value in logged.items() if key.endswith(f"/{name}")}
        for name in ("low", "high")
    )
    # high is at 400 on the mean: 0.25 + 0.5 * 0, and pays 0.25 * (0, 100 / 400); low pays 0.75 * (0.5, 1.5)
    expected = {"lambda": 0.75, "mean_length": 200, "accuracy": 0.5, "violation": 1, "target_length": 100}
    assert low == expected | {"satisfaction_rate": 0, "mean_penalty": 0.75}
    expected = {"lambda": 0.25, "mean_length": 400, "accuracy": 1, "violation": 0, "target_length": 400}
    assert high == expected | {"satisfaction_rate": 0.5, "mean_penalty": 0.03125}
    assert (logged["lambda"], logged["mean_length"]) == (0.5, 300)


def test_a_budget_is_logged_from_its_first_batch_and_lambda_is_what_completions_paid_on_average(method):
    three_to_one = batch([100] * 4, ["low", "low", "low", "high"], [100.0] * 4)
    logged = length_statistics(moved_by(method, LOW), three_to_one, method.score(three_to_one, AdvantageRule()))
    # (3 * 0.75 + 0.25) / 4
    assert [logged[key] for key in ("lambda/low", "lambda/high", "lambda")] == [0.75, 0.25, 0.625]


def test_a_state_of_another_column_is_refused(method):
    with pytest.raises(ValueError, match=r"'effort'.*'level'"):
        method.load_state_dict(Leash(multiplier_per="level").state_dict())


def test_a_column_of_more_than_50_values_gives_a_warning(method):
    for count in (50, 51):
        problem = method.check_columns({"effort": list(range(count)) * 2})
        assert (problem is not None and f"{count} values in {2 * count} rows" in problem) == (count > 50)
