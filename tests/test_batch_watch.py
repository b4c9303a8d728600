"""What only training batches show: completions that never end, and rewards of another scale."""

import pytest
from conftest import parity_reward

from leash_trl.length_control.leash import Leash
from leash_trl.trainer.batch_watch import ENOUGH, BatchWatch


EOS = {"<|endoftext|>": 0}


def batch(make_rollouts, num_ended: int, rewards: list[float]):
    truncated = [index >= num_ended for index in range(len(rewards))]
    return make_rollouts(rewards, [24] * len(rewards), truncated=truncated, limit=24)


def test_rewards_for_completions_without_an_end_are_a_problem_once(make_rollouts):
    watch = BatchWatch(EOS, {"<|im_end|>": 1})
    half = batch(make_rollouts, 0, [1.0, -1.0] * (ENOUGH // 4))
    found = [watch.problems(half, Leash()) for _ in range(4)]
    assert [len(problems) for problems in found] == [0, 1, 0, 0]
    (problem,) = found[1]
    assert f"none of the first {ENOUGH} completions ended with an end token (<|endoftext|>, 0)" in problem
    assert f"{ENOUGH // 2} of them were rewarded as right, so a length of 24 tokens" in problem
    assert "ends answers with <|im_end|> (1), which ends no completion: add 1 to eos_token_id" in problem


@pytest.mark.parametrize("turn_end", [EOS, {}])
def test_without_a_better_end_token_the_limit_is_the_remedy(turn_end, make_rollouts):
    (problem,) = BatchWatch(EOS, turn_end).problems(batch(make_rollouts, 0, [1.0, -1.0] * ENOUGH), Leash())
    assert "raise max_completion_length (now 24)" in problem
    assert "mask_truncated_completions: true" in problem
    assert "eos_token_id" not in problem


@pytest.mark.parametrize(
    ("turn_end", "remedy"), [(EOS, "raise max_completion_length"), ({"<|im_end|>": 1}, "add 1 to eos_token_id")]
)
def test_a_limit_that_no_right_answer_fits_is_a_problem_once(turn_end, remedy, make_rollouts):
    watch = BatchWatch(EOS, turn_end)
    half = batch(make_rollouts, 0, [-1.0] * (ENOUGH // 2))
    found = [watch.problems(half, Leash()) for _ in range(4)]
    assert [len(problems) for problems in found] == [0, 1, 0, 0]
    (problem,) = found[1]
    assert f"all of the first {ENOUGH} completions were cut off at max_completion_length=24, and none" in problem
    assert remedy in problem


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_one_end_is_no_problem_then_or_later(reward, make_rollouts):
    watch = BatchWatch(EOS, EOS)
    assert watch.problems(batch(make_rollouts, 1, [reward] * ENOUGH), Leash()) == []
    assert watch.problems(batch(make_rollouts, 0, [1.0] * ENOUGH), Leash()) == []


def test_a_scale_of_zero_and_one_is_a_problem_once_and_not_after_a_reward_below(make_rollouts):
    zero_one, signed = (batch(make_rollouts, 2, rewards) for rewards in ([0.0, 1.0], [-1.0, 1.0]))
    watch = BatchWatch(EOS, EOS)
    (problem,) = watch.problems(zero_one, Leash())
    assert "wrong answers have task reward 0" in problem
    assert watch.problems(zero_one, Leash()) == []
    watch = BatchWatch(EOS, EOS)
    assert watch.problems(signed, Leash()) == watch.problems(zero_one, Leash()) == []


def test_training_warns_of_both(make_trainer, tokenizer):
    def zero_or_one(completion_ids, **kwargs):
        return [(reward + 1) / 2 for reward in parity_reward(completion_ids)]

    never = {"suppress_tokens": [tokenizer.eos_token_id, tokenizer.pad_token_id]}
    options = {"generation_kwargs": never, "per_device_train_batch_size": ENOUGH, "max_completion_length": 4}
    trainer = make_trainer(zero_or_one, target_length=2, max_steps=2, **options)
    with pytest.warns(UserWarning, match=r"wrong answers have task reward 0.*LEASH is meant for -1 and \+1") as record:
        trainer.train()
    assert len([warning for warning in record if f"none of the first {ENOUGH}" in str(warning.message)]) == 1
