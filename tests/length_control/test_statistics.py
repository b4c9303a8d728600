"""The logged statistics of one generation batch."""

import math

import pytest
from toy_rollouts import toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.kimi import Kimi
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.none import NoControl
from leash_trl.length_control.statistics import length_accuracy_correlation, length_statistics


NAN = math.nan


def statistics(rewards, lengths, target=100, method=None, **others):
    rollouts = toy_rollouts(rewards, lengths, target, num_generations=2, **others)
    if method is None:
        method = Leash(lambda_init=0.5)
    return length_statistics(method, rollouts, method.score(rollouts, AdvantageRule()))


def test_statistics_by_hand():
    logged = statistics([1, 1, -1, -1], [50, 150, 200, 300], truncated=[False, False, False, True])
    expected = {
        "lambda": 0.5,
        "target_length": 100,
        "common_target": 100,
        "violation": 0.75,  # mean length 175
        "satisfaction_rate": 0.25,
        "mean_penalty": 0.5 * (0.5 + 1.0 + 2.0) / 4,
        "mean_effective_penalty": 0.5 * 0.5 / 4,  # wrong answers cannot fall below -1
        "paying_share": 0.5,  # of the correct ones, 150
        "length_accuracy_correlation": NAN,  # no prompt has both right and wrong
        "mean_length": 175,
        "p95_length": 285,  # 200 + 0.85 * 100
        "max_length": 300,
        "mean_correct_length": 100,
        "mean_wrong_length": 250,
        "truncated_share": 0.25,
        "accuracy": 0.5,
        "task_reward": 0,
        "shaped_reward": -0.0625,
        "clipped_share": 0.5,  # the wrong ones, below -1
    }
    assert logged == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_what_the_clip_takes_without_a_penalty_is_no_penalty():
    assert statistics([1.5, -1.5], [50, 50])["mean_effective_penalty"] == 0
    # 1.5 - 0.75 is below the clip, 0.25 less than the clipped reward of 1
    assert statistics([1.5, 1.5], [50, 250])["mean_effective_penalty"] == pytest.approx(0.125)


def test_targets_are_logged_only_for_methods_that_have_one():
    without_target = statistics([1, -1], [50, 150], method=Kimi()).keys()
    assert statistics([1, -1], [50, 150]).keys() - without_target == {
        "lambda",
        "target_length",
        "common_target",
        "satisfaction_rate",
    }


class TargetOfSomePrompts(NoControl):
    target_use = "optional"


def test_a_completion_at_its_target_satisfies_it_and_one_without_a_target_does_not_count():
    targets = [100.0, 100.0, 100.0, 100.0, NAN, NAN]
    logged = statistics([1, -1, 1, 1, 1, 1], [99, 100, 101, 300, 1, 1], targets, TargetOfSomePrompts())
    assert logged["satisfaction_rate"] == 0.5


def test_without_a_target_only_the_violation_is_not_known():
    logged = statistics([1, -1], [50, 150], target=None, method=NoControl())
    assert [key for key, value in logged.items() if math.isnan(value)] == ["violation"]


def test_keys_do_not_depend_on_the_batch():
    mixed = statistics([1, -1], [50, 150])
    wrong = statistics([-1, -1], [50, 150])
    unscorable = statistics([NAN, NAN], [50, 150])
    assert list(mixed) == list(wrong) == list(unscorable)
    assert math.isnan(wrong["mean_correct_length"])
    assert math.isnan(unscorable["accuracy"])


def test_accuracy_leaves_out_what_the_deciding_function_could_not_score_and_rewards_do_not():
    logged = statistics([1, 0.5, -1, 1], [50, 150, 200, 300], correctness=[1, NAN, -1, 1])
    assert logged["accuracy"] == pytest.approx(2 / 3)
    assert logged["mean_wrong_length"] == 200
    assert logged["task_reward"] == 0.375
    assert logged["mean_effective_penalty"] == pytest.approx((0 + 0.25 + 0 + 1.0) / 4)


FIRST_CORRELATION = -5 / (math.sqrt(125) * 0.5)


def test_the_correlation_of_length_and_correctness_by_hand():
    rewards = [1, 1, -1, -1, 1, -1, 1, -1, 1, 1, 1, 1]
    lengths = [10, 20, 30, 40, 7, 7, 7, 7, 5, 6, 7, 8]
    rollouts = toy_rollouts(rewards, lengths, num_generations=4)
    # of the first group, covariance -20 / 4, deviations sqrt(125) and 0.5; the second has equal lengths, and the third
    # only correct answers
    assert length_accuracy_correlation(rollouts) == pytest.approx(FIRST_CORRELATION)


def test_unscorable_completions_have_no_part_in_the_correlation():
    # of the first group, only 10, which is wrong, and 30, which is correct, count: their correlation is 1
    rollouts = toy_rollouts([-1, 1, NAN, NAN, 1, 1, -1, -1], [10, 30, 1, 999, 10, 20, 30, 40], num_generations=4)
    assert length_accuracy_correlation(rollouts) == pytest.approx((1 + FIRST_CORRELATION) / 2)


def test_a_budget_may_have_the_name_of_a_statistic():
    names = ["accuracy", "accuracy", "lambda", "lambda"]
    method = Leash(multiplier_per="effort", lambda_init=0.5)
    logged = statistics([1, 1, 1, 1], [50, 150, 200, 300], method=method, columns={"effort": names})
    means = {key: value for key, value in logged.items() if key.startswith("mean_length/")}
    assert means == {"mean_length/accuracy": 100, "mean_length/lambda": 250}
