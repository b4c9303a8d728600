"""LEASH's shaping and controller, by hand; `tests/fixtures/method_vectors.jsonl` has the release's numbers."""

import json
import math

import pytest
from toy_rollouts import close, toy_rollouts, updated

from leash_trl.length_control.leash import Leash
from leash_trl.length_control.leash_predictive import LeashPredictive


def right_answers(*lengths):
    return toy_rollouts([1.0] * len(lengths), lengths, 4096.0)


def test_a_dual_step_pools_the_lengths_of_all_batches_since_the_last_one_and_counts_them_once():
    whole = updated(Leash(), right_answers(5000, 6000, 7001, 9000))
    split = Leash()
    split.step()
    assert split.lam == 0.1
    split.observe(right_answers(5000, 6000, 7001))
    updated(split, right_answers(9000)).step()
    assert split.lam == whole.lam == pytest.approx(0.1 + 0.005 * (27001 / 4 / 4096 - 1))


def test_unscorable_completions_stay_unscorable_but_count_in_the_violation():
    rollouts = toy_rollouts([math.nan, 1.0], [12288, 4096], 4096.0)
    close(Leash().shaped_rewards(rollouts), [math.nan, 1.0])
    assert updated(Leash(), rollouts).lam == pytest.approx(0.105)  # mean 8192


@pytest.mark.parametrize("make", [Leash, LeashPredictive])
def test_a_state_from_a_checkpoint_equals_the_one_that_was_saved(make):
    method = updated(make(min_accuracy=0.5), right_answers(5000, 6000))
    method.observe(right_answers(7000))  # mixed precision has skipped the update of this batch
    loaded = make(min_accuracy=0.5)
    loaded.load_state_dict(json.loads(json.dumps(method.state_dict())))
    assert loaded == method
    (completion,) = loaded.multiplier("").observed
    assert (completion.length, completion.target, completion.correctness) == (7000.0, 4096.0, 1.0)


@pytest.mark.parametrize(("rewards", "warning"), [([0.0, 1.0], "reward 0"), ([-3.0, 1.0], "reach 3")])
def test_a_scale_of_rewards_that_is_not_the_papers_is_named(rewards, warning):
    assert warning in Leash().reward_warning(toy_rollouts(rewards, [1, 1]))


# the last three do not tell
@pytest.mark.parametrize("rewards", [[1.0, -1.0, 0.0], [1.0, 1.0, math.nan], [-0.5, 0.0], [math.nan]])
def test_a_scale_of_rewards_that_may_be_the_papers_is_not_named(rewards):
    assert Leash().reward_warning(toy_rollouts(rewards, [1] * len(rewards))) is None
