"""Dynamic sampling in runs: dead groups give way to fresh prompts, and everything generated counts."""

import zlib
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from conftest import generation_batches, log_rows


# without a length signal most groups are dead; four groups of four a batch
DEAD = {
    "lambda_init": 0.0,
    "lambda_lr": 0.0,
    "target_length": 6,
    "max_completion_length": 12,
    "per_device_train_batch_size": 16,
    "max_steps": 4,
}


def mostly_dead_reward(prompts, completion_ids, tag=None, **kwargs):
    """+1 for most prompts; one in four has signal."""
    assert tag is None or tag == list(range(len(prompts)))
    rewards = []
    for prompt, ids in zip(prompts, completion_ids, strict=True):
        is_dead = zlib.crc32(prompt[0]["content"].encode()) % 4 != 0
        rewards.append(1.0 if is_dead or sum(ids) % 2 else -1.0)
    return rewards


def watched(trainer):
    """Filled while it trains, with the completions of each call of generation for each batch, as the method observes
    them."""
    batches = []
    observe = trainer._dual_step.observe

    def spy(parts):
        batches.append(parts)
        observe(parts)

    trainer._dual_step.observe = spy
    return batches


def questions_of(rollouts):
    return rollouts.questions[::4].tolist()


@pytest.fixture
def run(make_trainer):
    """A run of four updates with three rounds."""
    trainer = make_trainer(mostly_dead_reward, dynamic_sampling_rounds=3, **DEAD)
    generated = watched(trainer)
    batches = generation_batches(trainer)
    trainer.train()
    return SimpleNamespace(generated=generated, batches=batches, log=log_rows(trainer))


def test_everything_generated_counts(run):
    for parts, row in zip(run.generated, run.log, strict=True):
        num_groups = [len(questions_of(part)) for part in parts]
        mean_length = torch.cat([part.lengths for part in parts]).double().mean()
        assert row["leash/mean_length"] == pytest.approx(mean_length)
        assert row["leash/violation"] == pytest.approx(mean_length / 6 - 1)
        assert row["leash/wasted_share"] == pytest.approx(1 - 4 / sum(num_groups))
        assert row["leash/sampling_rounds"] == len(num_groups) - 1
        assert num_groups == sorted(num_groups, reverse=True)  # rounds fill only what is missing


def test_dead_groups_are_replaced_as_far_as_live_ones_were_generated(run):
    most_generated = 0
    for parts, batch, row in zip(run.generated, run.batches, run.log, strict=True):
        rewards = torch.cat([part.task_rewards for part in parts]).view(-1, 4)
        num_generated = (rewards.std(dim=1) > 0).sum()
        num_alive = batch["advantages"].view(-1, 4).any(dim=1).sum()
        assert num_alive == min(4, num_generated)
        assert row["leash/zero_signal_share"] == 1 - num_alive / 4
        most_generated = max(most_generated, num_generated)
    assert most_generated > 0


def test_rows_of_a_refilled_batch_belong_together(run):
    for batch in run.batches:
        assert len(batch["completion_ids"]) == len(batch["prompt_ids"]) == len(batch["advantages"]) == 16
        is_masked = batch["completion_mask"] == 0
        assert batch["num_items_in_batch"] == (~is_masked).sum()
        assert (batch["completion_ids"][is_masked] == 0).all()  # nothing but padding is masked
        # an advantage is that of the row's own tokens
        advantages = batch["advantages"].view(-1, 4)
        is_alive = advantages.any(dim=1)
        is_right = (batch["completion_ids"].sum(dim=1) % 2 == 1).view(-1, 4)
        assert torch.equal((advantages > 0)[is_alive], is_right[is_alive])


def test_no_replacement_asks_what_the_batch_asks(make_trainer, problems):
    """The second batch's questions stand once more at the end of the data, where replacements come from."""
    dataset = problems.select([*range(12), *range(4, 8)])
    trainer = make_trainer(
        mostly_dead_reward, dataset=dataset, dynamic_sampling_rounds=1, shuffle_dataset=False, **DEAD
    )
    batches = watched(trainer)
    trainer.train()
    questions = list(chain.from_iterable(map(questions_of, batches[1])))
    assert 4 < len(questions) == len(set(questions))


def test_each_fresh_completion_has_a_row_of_its_own(make_trainer, tokenizer):
    """TRL writes what a rollout_func returns into the rows, so that completions must not share one."""
    token = tokenizer.encode("7")[0]

    def rollout(prompts, trainer):
        return {
            "prompt_ids": [tokenizer.encode(prompt[0]["content"]) for prompt in prompts],
            "completion_ids": [[token] * (1 + i % 3) + [tokenizer.eos_token_id] for i in range(len(prompts))],
            "logprobs": None,
            "tag": list(range(len(prompts))),
        }

    trainer = make_trainer(
        mostly_dead_reward, dynamic_sampling_rounds=2, rollout_func=rollout, lambda_init=0.0, max_steps=2
    )
    trainer.train()
    assert trainer._dynamic_sampling.num_drawn > 0
