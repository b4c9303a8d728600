"""LEASH's shaping and controller, by hand; `tests/fixtures/method_vectors.jsonl` has the release's numbers."""

import pytest
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.leash import Leash


NAN = float("nan")


def rollouts(rewards, lengths, targets=None):
    return toy_rollouts(rewards, lengths, targets or [4096.0] * len(lengths))


def test_rewards_are_clipped_after_the_penalty():
    # 1.5 - 0.1 * 0.5; 0.5 - 0.5 * 4
    assert Leash(0.1).shaped_rewards(rollouts([1.5], [6144])).tolist() == [1.0]
    assert Leash(0.5).shaped_rewards(rollouts([0.5], [20480])).tolist() == [-1.0]


def test_a_dual_step_pools_the_lengths_of_all_batches_since_the_last_one_and_counts_them_once():
    split, whole = Leash(), Leash()
    for each, batches in ((split, [[5000, 6000, 7001], [9000]]), (whole, [[5000, 6000, 7001, 9000]])):
        each.step()
        assert each.lam == 0.1
        for lengths in batches:
            each.observe(rollouts([1.0] * len(lengths), lengths))
        each.step()
        each.step()
    assert split.lam == whole.lam == pytest.approx(0.1 + 0.005 * (27001 / 4 / 4096 - 1))


def test_unscorable_completions_stay_unscorable_but_count_in_the_violation():
    method, batch = Leash(), rollouts([NAN, 1.0], [12288, 4096])
    close(method.shaped_rewards(batch), [NAN, 1.0])
    method.observe(batch)
    method.step()
    assert method.lam == pytest.approx(0.105)  # mean 8192


def test_per_prompt_targets_are_each_their_own_measure():
    method, batch = Leash(0.5), rollouts([1.0, 1.0], [200, 200], [100.0, 200.0])
    assert method.shaped_rewards(batch).tolist() == [0.5, 1.0]  # twice its target, and exactly at it
    method.observe(batch)
    method.step()
    assert method.lam == pytest.approx(0.5 + 0.005 * 0.5)  # mean of 1 and 0


def test_a_scale_of_rewards_that_is_not_the_papers_is_named():
    for rewards in ([1.0, -1.0, 0.0], [1.0, 1.0, NAN], [-0.5, 0.0], [NAN]):  # some do not tell
        assert Leash().reward_scale_problem(rollouts(rewards, [1] * len(rewards))) is None
    for rewards, problem in (([0.0, 1.0], "reward 0"), ([-3.0, 1.0], "reach 3")):
        assert problem in Leash().reward_scale_problem(rollouts(rewards, [1, 1]))
