"""The logged statistics of one generation batch."""

import math
from dataclasses import replace

import pytest
import torch

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.none import NoControl
from leash_trl.length_control.rollouts import ScoredRollouts
from leash_trl.length_control.statistics import length_statistics


@pytest.fixture
def statistics(make_rollouts):
    def make(rewards, lengths, target=100, method=None, correctness=None):
        rollouts = make_rollouts(rewards, lengths, target, num_generations=2)
        if correctness is not None:
            rollouts = replace(rollouts, correctness_rewards=torch.tensor(correctness).double())
        method = method or Leash(lambda_init=0.5)
        scored = ScoredRollouts(
            rollouts,
            method.base_rewards(rollouts),
            method.score(rollouts, AdvantageRule()).penalty,
            method.shape(rollouts),
        )
        return length_statistics(method, scored)

    return make


def test_statistics_by_hand(statistics):
    logged = statistics([1, 1, -1, -1], [50, 150, 200, 300])
    expected = {
        "lambda": 0.5,
        "target_length": 100,
        "violation": 0.75,  # mean length 175
        "satisfaction_rate": 0.25,
        "mean_penalty": 0.5 * (0.5 + 1.0 + 2.0) / 4,
        "mean_effective_penalty": 0.5 * 0.5 / 4,  # the wrong one pays nothing
        "paying_share": 0.5,
        "mean_length": 175,
        "p95_length": 285,  # 200 + 0.85 * 100
        "max_length": 300,
        "mean_correct_length": 100,
        "mean_wrong_length": 250,
        "truncated_share": 0,
        "accuracy": 0.5,
        "task_reward": 0,
        "shaped_reward": -0.0625,
        "clipped_share": 0.5,  # the wrong ones, below -1
    }
    assert logged == pytest.approx(expected, abs=1e-12)


def test_what_the_clip_takes_without_a_penalty_is_no_penalty(statistics):
    assert statistics([1.5, -1.5], [50, 50])["mean_effective_penalty"] == 0
    # 1.5 - 0.75 is below the clip, 0.25 less than the clipped reward of 1
    assert statistics([1.5, 1.5], [50, 250])["mean_effective_penalty"] == pytest.approx(0.125)


def test_without_a_target_its_statistics_are_nan_and_the_others_are_not(statistics):
    logged = statistics([1, -1], [50, 150], target=None, method=NoControl())
    missing = {key for key, value in logged.items() if math.isnan(value)}
    assert missing == {"target_length", "violation", "satisfaction_rate"}
    assert logged["mean_penalty"] == 0


def test_keys_do_not_depend_on_the_batch(statistics):
    nan = float("nan")
    mixed, none_right, unscorable = ([1, -1], [-1, -1], [nan, nan])
    keys = {tuple(statistics(rewards, [50, 150])) for rewards in (mixed, none_right, unscorable)}
    assert len(keys) == 1
    assert math.isnan(statistics(none_right, [50, 150])["mean_correct_length"])
    assert math.isnan(statistics(unscorable, [50, 150])["accuracy"])


def test_accuracy_leaves_out_what_the_deciding_function_could_not_score_and_rewards_do_not(statistics):
    logged = statistics([1, 0.5, -1, 1], [50, 150, 200, 300], correctness=[1, math.nan, -1, 1])
    assert logged["accuracy"] == pytest.approx(2 / 3)
    assert logged["mean_wrong_length"] == 200
    assert logged["task_reward"] == 0.375
    assert logged["mean_effective_penalty"] == pytest.approx((0 + 0.25 + 0 + 1.0) / 4)


def test_the_logged_violation_is_what_the_dual_step_takes(make_rollouts):
    class ByTheLongest(Leash):
        def violation(self, lengths, target_lengths):
            return super().violation([max(lengths)], [min(target_lengths)])

    method, rollouts = ByTheLongest(lambda_init=0.5, lambda_lr=0.1), make_rollouts([1, 1], [50, 300], target=100.0)
    scored = ScoredRollouts(
        rollouts, *(part(rollouts) for part in (method.base_rewards, method.penalty, method.shape))
    )
    assert length_statistics(method, scored)["violation"] == 2.0
    method.observe(rollouts)
    method.step()
    assert method.lam == pytest.approx(0.7)
