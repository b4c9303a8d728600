"""LEASH's shaping and controller: golden vectors by hand, and the properties of Algorithm 1."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.length_control.advantages import group_advantages
from leash_trl.length_control.leash import Leash, clip_reward, relative_overshoot
from leash_trl.length_control.rollouts import Rollouts


TARGET = 4096
NAN = float("nan")


def leash(lam=0.1, lr=0.005, minimum=0.0, maximum=1.0) -> Leash:
    return Leash(lam, lr, minimum, maximum)


def rollouts(rewards, lengths, targets=None) -> Rollouts:
    size = len(lengths)
    return Rollouts(
        task_rewards=torch.tensor(rewards, dtype=torch.float64),
        lengths=torch.tensor(lengths),
        target_lengths=torch.tensor(targets or [TARGET] * size, dtype=torch.float64),
        is_truncated=torch.zeros(size, dtype=torch.bool),
        questions=torch.zeros(size, dtype=torch.long),
        num_generations=size,
        max_completion_length=32768,
    )


LAMBDAS = st.floats(0, 1)


def test_overshoot_is_zero_at_the_target_and_starts_one_token_later():
    overshoot = relative_overshoot(torch.tensor([1, 4095, 4096, 4097, 8192]), 4096)
    assert overshoot.tolist() == [0, 0, 0, 1 / 4096, 1.0]


def test_full_step_by_hand():
    # golden leash_full_step: shape with the old lambda, then move it
    controller = leash(lam=0.2)
    batch = rollouts([1, 1, -1, 1], [2048, 6144, 8192, 12288])
    shaped = controller.shape(batch)
    controller.observe(batch)
    controller.step()
    torch.testing.assert_close(shaped, torch.tensor([1.0, 0.9, -1.0, 0.6], dtype=torch.float64))
    assert controller.lam == pytest.approx(0.20375)  # mean 7168: 0.2 + 0.005 * 0.75
    advantages = group_advantages(shaped, 4, "group", epsilon=1e-6)
    expected = [0.6703907608323627, 0.5631282390991847, -1.4748596738311979, 0.24134067389965055]
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=0)


def test_lambda_cancels_in_all_correct_groups():
    # golden leash_lambda_cancels_when_all_correct: the group's standard deviation divides it out
    batch = rollouts([1, 1, 1, 1], [2048, 6144, 8192, 12288])
    expected = {
        0.01: [1.0245750906472657, 0.439103610277394, -0.14636787009247768, -1.317310830832221],
        0.4: [1.0246920766047432, 0.43915374711631877, -0.14638458237210594, -1.317461241348955],
    }
    for lam, advantages in expected.items():
        ours = group_advantages(leash(lam).shape(batch), 4, "group", epsilon=1e-6)
        torch.testing.assert_close(ours, torch.tensor(advantages, dtype=torch.float64), rtol=1e-9, atol=0)


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
        ([-3.0, 1.0], "reaches 3"),
        ([NAN], None),
    ],
)
def test_reward_scale(rewards, problem):
    found = leash().reward_scale_problem(rollouts(rewards, [1] * len(rewards)))
    assert found is None if problem is None else problem in found


def test_frozen_lambda_is_frozen_to_the_last_bit():
    controller = leash(lam=0.1, lr=0.0)
    controller.observe(rollouts([1.0], [32768]))
    controller.step()
    assert controller.lam == 0.1


@given(LAMBDAS)
def test_state_round_trip_through_json_is_exact(lam):
    import json

    controller = leash(0.5)
    controller.load_state_dict(json.loads(json.dumps(leash(lam).state_dict())))
    assert controller.lam == lam


def test_what_awaits_a_step_in_a_checkpoint_of_an_older_version_is_taken_over():
    older, newer = leash(), leash()
    older.load_state_dict({"lambda": 0.1, "observed": [[4096.0, 18001, 3], [100.0, 150, 1]]})
    newer.observe(rollouts([1.0] * 4, [5000, 6000, 7001, 150], targets=[4096, 4096, 4096, 100]))
    for each in (older, newer):
        each.step()
    assert older.lam == pytest.approx(newer.lam, rel=1e-12)


def test_state_outside_the_bounds_is_an_error():
    with pytest.raises(ValueError, match="widen the bounds"):
        leash(maximum=0.5).load_state_dict({"lambda": 0.7})


def test_clip_keeps_nan():
    assert torch.isnan(clip_reward(torch.tensor([float("nan")]))).all()
