"""Dynamic sampling in runs: dead groups give way to fresh prompts, and everything generated counts."""

import zlib
from types import SimpleNamespace

import pytest
import torch
from conftest import log_rows, logged
from trl.trainer.utils import RepeatSampler


# without a length signal most groups are dead; four groups a batch
DEAD = {"lambda_init": 0.0, "lambda_lr": 0.0, "target_length": 6, "max_completion_length": 12}
DEAD |= {"per_device_train_batch_size": 16, "max_steps": 4}


@pytest.fixture(autouse=True)
def no_check_of_acting(monkeypatch):
    """The check tries a copy of the method, spies included."""
    monkeypatch.setattr("leash_trl.trainer.checks.no_effect_problem", lambda *settings: None)


def reward_of(prompt, ids) -> float:
    """+1 for most prompts; one in four has signal."""
    is_dead = zlib.crc32(prompt[0]["content"].encode()) % 4 != 0
    return 1.0 if is_dead or sum(ids) % 2 else -1.0


def mostly_dead_reward(prompts, completion_ids, tag=None, **kwargs):
    assert tag is None or tag == list(range(len(prompts)))
    return list(map(reward_of, prompts, completion_ids))


def watched(trainer) -> list[SimpleNamespace]:
    """Filled while it trains: of each generation batch its number, the prompts of each call, what is observed of them,
    and what is trained on."""
    steps, method = [], trainer.length_control
    complete, score, observe = trainer._generate_and_score_completions, trainer._new_generation, method.observe

    def spy_complete(inputs):
        steps.append(SimpleNamespace(number=trainer._dynamic_sampling.batches, asked=[], lengths=[], num_alive=0))
        steps[-1].batch = complete(inputs)
        return steps[-1].batch

    def spy_score(inputs):
        steps[-1].asked.append([row["prompt"][0]["content"] for row in inputs[::4]])
        return score(inputs)

    def spy_observe(rollouts):
        steps[-1].lengths += rollouts.lengths.tolist()
        steps[-1].num_alive += int((rollouts.task_rewards.view(-1, 4).std(dim=1) > 0).sum())
        observe(rollouts)

    trainer._generate_and_score_completions, trainer._new_generation, method.observe = (
        spy_complete,
        spy_score,
        spy_observe,
    )
    return steps


@pytest.mark.parametrize("fields", [{"dynamic_sampling_rounds": 3}, {"dynamic_sampling_oversample": 1.0}], ids=str)
def test_a_run_replaces_dead_groups_and_counts_everything_generated(make_trainer, fields):
    trainer = make_trainer(mostly_dead_reward, **{**DEAD, **fields})
    steps = watched(trainer)
    trainer.train()
    for step, row in zip(steps, log_rows(trainer), strict=True):
        groups = [len(call) for call in step.asked]
        assert len(step.lengths) == 4 * sum(groups)
        assert row["leash/wasted_share"] == pytest.approx(1 - 4 / sum(groups))
        assert (row["leash/sampling_rounds"], row["leash/extra_groups"]) == (len(groups) - 1, groups[0] - 4)
        assert groups == sorted(groups, reverse=True)  # rounds fill only what is missing
        assert row["leash/mean_length"] == pytest.approx(sum(step.lengths) / len(step.lengths))
        assert row["leash/violation"] == pytest.approx(sum(step.lengths) / len(step.lengths) / 6 - 1)
        batch, advantages = step.batch, step.batch["advantages"]
        widths = batch["completion_mask"].sum(dim=1)
        assert len(batch["completion_ids"]) == len(batch["prompt_ids"]) == len(advantages) == 16
        assert batch["num_items_in_batch"] == widths.sum()
        is_alive = advantages.view(-1, 4).any(dim=1)
        assert is_alive.sum() == min(4, step.num_alive)
        assert row["leash/zero_signal_share"] == 1 - is_alive.sum() / 4
        # rows belong together: nothing but padding is masked, and an advantage is that of the row's own tokens
        assert all((ids[width:] == 0).all() for ids, width in zip(batch["completion_ids"], widths, strict=True))
        is_right = batch["completion_ids"].sum(dim=1) % 2 == 1
        assert torch.equal((advantages > 0).view(-1, 4)[is_alive], is_right.view(-1, 4)[is_alive])
    extra, rounds = logged(trainer, "leash/extra_groups"), logged(trainer, "leash/sampling_rounds")
    assert extra[0] == 0  # nothing is known yet
    assert (max(extra), max(rounds)) == ((0, 3) if "dynamic_sampling_rounds" in fields else (4, 0))
    assert max(step.num_alive for step in steps) > 0


@pytest.mark.parametrize("fields", [{"dynamic_sampling_rounds": 1}, {"dynamic_sampling_oversample": 1.0}], ids=str)
def test_no_replacement_asks_what_the_batch_asks(make_trainer, problems, fields):
    """The second batch's questions stand once more at the end of the data, where replacements come from."""
    dataset = problems.select([*range(12), *range(4, 8)])
    trainer = make_trainer(mostly_dead_reward, dataset=dataset, shuffle_dataset=False, **{**DEAD, **fields})
    steps = watched(trainer)
    trainer.train()
    asked = [prompt for call in steps[1].asked for prompt in call]
    assert 4 < len(asked) == len(set(asked))


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
    fields = {**DEAD, **sizes, "dynamic_sampling_rounds": 1, **fields}
    trainer = make_trainer(mostly_dead_reward, dataset=problems.select(range(12)), **fields)
    steps = watched(trainer)
    sampler = RepeatSampler(range(12), 1, batch_size=4, seed=trainer.args.seed)
    order = [problems[i]["prompt"][0]["content"] for _ in range(5) for i in sampler]
    trainer.train()
    assert trainer._dynamic_sampling.epoch == 1
    for step in steps:
        assert step.asked[0] == order[4 * step.number : 4 * step.number + 4]
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

    fields = {"dynamic_sampling_rounds": 2, "rollout_func": rollout, "lambda_init": 0.0, "max_steps": 2}
    trainer = make_trainer(mostly_dead_reward, **fields)
    trainer.train()
    assert trainer._dynamic_sampling.from_end > 0
