"""LEASH's shaping and controller: golden vectors by hand, and the properties of Algorithm 1."""

import pytest
import torch
from toy_rollouts import toy_rollouts

from leash_trl.length_control.leash import Leash


TARGET = 4096
NAN = float("nan")


def leash(lam=0.1, lr=0.005, minimum=0.0, maximum=1.0) -> Leash:
    return Leash(lam, lr, minimum, maximum)


def rollouts(rewards, lengths, targets=None):
    return toy_rollouts(rewards, lengths, [float(target) for target in targets or [TARGET] * len(lengths)])


def test_a_sum_of_rewards_above_1_is_clipped_before_the_first_token_of_overshoot_is_felt():
    assert leash(0.1).shape(rollouts([1.5], [6144])).tolist() == [1.0]


def test_dual_step_pools_the_lengths_of_all_batches_since_the_last_one():
    split, whole = leash(), leash()
    split.observe(rollouts([1.0] * 3, [5000, 6000, 7001]))
    split.observe(rollouts([1.0], [9000]))
    whole.observe(rollouts([1.0] * 4, [5000, 6000, 7001, 9000]))
    split.step()
    whole.step()
    assert split.lam == whole.lam > 0.1


def test_dual_step_without_new_completions_changes_nothing():
    controller = leash()
    controller.step()
    assert controller.lam == 0.1
    controller.observe(rollouts([1.0], [8192]))
    controller.step()
    controller.step()
    assert controller.lam == pytest.approx(0.105)


def test_unscorable_completions_stay_unscorable_but_count_in_the_violation():
    controller = leash()
    batch = rollouts([float("nan"), 1.0], [12288, 4096])
    shaped = controller.shape(batch)
    controller.observe(batch)
    controller.step()
    assert torch.isnan(shaped).tolist() == [True, False]
    assert controller.lam == pytest.approx(0.105)  # mean 8192


def test_per_prompt_targets_are_each_their_own_measure():
    controller = leash(lam=0.5)
    batch = rollouts([1.0, 1.0], [200, 200], targets=[100, 200])
    assert controller.shape(batch).tolist() == [0.5, 1.0]  # twice its target, and exactly at it
    controller.observe(batch)
    controller.step()
    assert controller.lam == pytest.approx(0.5 + 0.005 * 0.5)  # mean of 1 and 0


@pytest.mark.parametrize(
    ("rewards", "problem"),
    [
        ([1.0, -1.0], None),
        ([1.0, 1.0, NAN], None),  # does not tell
        ([-0.5, 0.0], None),
        ([0.0, 1.0], "fail fast"),
        ([-3.0, 1.0], "reach 3"),
        ([NAN], None),
    ],
)
def test_reward_scale(rewards, problem):
    found = leash().reward_scale_problem(rollouts(rewards, [1] * len(rewards)))
    assert found is None if problem is None else problem in found
