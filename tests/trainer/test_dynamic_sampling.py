"""Dynamic sampling in runs: dead groups give way to fresh prompts, and everything generated counts."""

import zlib
from itertools import chain
from types import SimpleNamespace

import pytest
import torch
from conftest import generation_batches, log_rows
from trl.trainer.utils import RepeatSampler

from leash_trl.data.questions import question_of


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
    """Filled while it trains, with one entry a batch: its number, and the completions of each call of generation, as
    the method observes them."""
    steps = []
    observe = trainer._dual_step.observe

    def spy(parts):
        steps.append(SimpleNamespace(number=trainer._dynamic_sampling.batches - 1, parts=parts))
        observe(parts)

    trainer._dual_step.observe = spy
    return steps


def questions_of(rollouts):
    return rollouts.questions[::4].tolist()


@pytest.fixture
def run(make_trainer):
    """A run of four updates with three rounds."""
    trainer = make_trainer(mostly_dead_reward, dynamic_sampling_rounds=3, **DEAD)
    steps = watched(trainer)
    batches = generation_batches(trainer)
    trainer.train()
    return SimpleNamespace(steps=steps, batches=batches, log=log_rows(trainer))


def test_everything_generated_counts(run):
    for step, row in zip(run.steps, run.log, strict=True):
        num_groups = [len(questions_of(part)) for part in step.parts]
        mean_length = torch.cat([part.lengths for part in step.parts]).double().mean()
        assert row["leash/mean_length"] == pytest.approx(mean_length)
        assert row["leash/violation"] == pytest.approx(mean_length / 6 - 1)
        assert row["leash/wasted_share"] == pytest.approx(1 - 4 / sum(num_groups))
        assert row["leash/sampling_rounds"] == len(num_groups) - 1
        assert num_groups == sorted(num_groups, reverse=True)  # rounds fill only what is missing


def test_dead_groups_are_replaced_as_far_as_live_ones_were_generated(run):
    most_generated = 0
    for step, batch, row in zip(run.steps, run.batches, run.log, strict=True):
        rewards = torch.cat([part.task_rewards for part in step.parts]).view(-1, 4)
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
    steps = watched(trainer)
    trainer.train()
    questions = list(chain.from_iterable(map(questions_of, steps[1].parts)))
    assert 4 < len(questions) == len(set(questions))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"max_steps": 10}, [0, 1, 2, 3, 4]),
        # an epoch's six micro-steps are an update of four and one of two
        ({"max_steps": 4, "gradient_accumulation_steps": 4}, [0, 1, 2, 3, 4, 5]),
        ({"max_steps": 16, "num_iterations": 2}, [0, 1, 2, 3]),
    ],
    ids=["two updates a batch", "two batches an update", "two visits to each window"],
)
def test_the_stream_counts_generation_batches_where_the_sampler_is(make_trainer, problems, fields, expected):
    """Two micro-steps a generation batch and three batches an epoch, in two calls of train."""
    sizes = {"per_device_train_batch_size": 8, "steps_per_generation": 2, "gradient_accumulation_steps": 1}
    settings = DEAD | sizes | fields
    trainer = make_trainer(
        mostly_dead_reward, dataset=problems.select(range(12)), dynamic_sampling_rounds=1, **settings
    )
    steps = watched(trainer)
    sampler = RepeatSampler(range(12), 1, batch_size=4, seed=trainer.args.seed)
    order = []
    for _ in range(5):
        order += [question_of(problems[index]) for index in sampler]
    trainer.train()
    assert trainer._dynamic_sampling.epoch == 1
    for step in steps:
        assert questions_of(step.parts[0]) == order[4 * step.number : 4 * step.number + 4]
    trainer.train()
    assert [step.number for step in steps] == expected * 2


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
    assert trainer._dynamic_sampling.from_end > 0
