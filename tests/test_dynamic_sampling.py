"""Dynamic sampling: dead groups give way to fresh prompts, and everything generated counts."""

import json
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl import GRPOTrainer

from leash_trl.length_control.targets import question_number
from leash_trl.trainer.dynamic_sampling import (
    PromptStream,
    groups_per_process,
    local_rows,
    merged_batch,
    replacements,
    wasted_share,
)


def test_prompt_stream_goes_through_the_data_set_in_another_order_every_pass():
    rows = [{"prompt": letter} for letter in "abcde"]
    stream = PromptStream(rows, seed=0)
    passes = [[row["prompt"] for row in stream.draw(5)] for _ in range(3)]
    assert all(sorted(one) == list("abcde") for one in passes)
    assert len({tuple(one) for one in passes}) > 1


def test_prompt_stream_goes_on_where_it_was():
    rows = [{"prompt": str(number)} for number in range(7)]
    stream, resumed = PromptStream(rows, seed=3), PromptStream(rows, seed=3)
    stream.draw(10)
    resumed.position = stream.position
    assert resumed.draw(4) == stream.draw(4)


def test_prompt_stream_passes_over_the_prompts_it_is_told():
    rows = [{"prompt": str(number)} for number in range(6)]
    order = [row["prompt"] for row in PromptStream(rows, seed=1).draw(6)]
    without = {question_number(order[0]), question_number(order[2])}
    drawn = [row["prompt"] for row in PromptStream(rows, seed=1).draw(4, without)]
    assert drawn == [order[1], *order[3:]]


def test_prompt_stream_repeats_no_prompt_where_one_pass_ends_and_the_next_begins():
    rows = [{"prompt": str(number)} for number in range(5)]
    for seed in range(20):
        stream = PromptStream(rows, seed)
        stream.draw(3)
        assert len({row["prompt"] for row in stream.draw(4)}) == 4


def test_a_data_set_smaller_than_the_batch_still_gives_prompts():
    rows = [{"prompt": str(number)} for number in range(3)]
    assert len(PromptStream(rows, seed=0).draw(5, {question_number(row["prompt"]) for row in rows})) == 5


def test_a_streamed_data_set_is_an_error(problems):
    with pytest.raises(ValueError, match="dataset_streaming: false"):
        PromptStream(problems.to_iterable_dataset(), seed=0).check()


@given(
    st.lists(st.booleans(), min_size=6, max_size=6), st.sampled_from([1, 2, 3]), st.lists(st.booleans(), min_size=6)
)
def test_every_dead_group_a_process_can_replace_is_replaced_by_its_own(alive, processes, fresh_alive):
    has_signal = torch.tensor(alive)
    share = groups_per_process(has_signal, processes)
    fresh = torch.tensor((fresh_alive * 6)[: share * processes], dtype=torch.bool)
    sources = replacements(has_signal, fresh, processes)
    per_process = 6 // processes
    for process in range(processes):
        own = range(process * per_process, (process + 1) * per_process)
        own_fresh = {6 + f for f in range(process * share, (process + 1) * share) if fresh[f]}
        used = [sources[g] for g in own if sources[g] != g]
        assert set(used) <= own_fresh
        assert len(set(used)) == len(used) == min(len(own_fresh), sum(not alive[g] for g in own))
        assert all(sources[g] == g for g in own if alive[g])
        # what a process takes from its own two batches is what `sources` says about all of them
        old_rows = [f"{g}" for g in own]
        fresh_rows = [f"{6 + f}" for f in range(process * share, (process + 1) * share)]
        rows = local_rows(sources, 6, share, process, processes, num_generations=1)
        assert [(old_rows + fresh_rows)[row] for row in rows.tolist()] == [str(sources[g]) for g in own]


def test_merged_batch_pads_prompts_on_the_left_and_completions_on_the_right():
    old = {
        "prompt_ids": torch.tensor([[5, 6]]),
        "completion_ids": torch.tensor([[7, 8, 9]]),
        "tool_mask": torch.tensor([[1, 0, 1]]),
        "advantages": torch.tensor([0.0]),
        "num_items_in_batch": torch.tensor(3),
    }
    fresh = {
        "prompt_ids": torch.tensor([[1, 2, 3], [0, 2, 3]]),
        "completion_ids": torch.tensor([[4, 4], [5, 5]]),
        "tool_mask": torch.tensor([[1, 1], [0, 0]]),
        "advantages": torch.tensor([1.0, 2.0]),
        "num_items_in_batch": torch.tensor(4),
    }
    merged = merged_batch(old, fresh, torch.tensor([2, 0]), pad_token_id=99)
    assert merged["prompt_ids"].tolist() == [[0, 2, 3], [99, 5, 6]]
    assert merged["completion_ids"].tolist() == [[5, 5, 99], [7, 8, 9]]
    assert merged["tool_mask"].tolist() == [[0, 0, 1], [1, 0, 1]]
    assert merged["advantages"].tolist() == [2.0, 0.0]


def test_importance_ratios_keep_their_weight_when_a_longer_batch_joins():
    """TRL's VESPO multiplies the ratios of all columns, so that padding must be neutral."""
    ratios = torch.tensor([[0.9, 1.2]])
    advantages, logs, mask = torch.tensor([[1.0]]), torch.tensor([[0.1, -0.2]]), torch.tensor([[1, 1]])
    alone = GRPOTrainer.get_gamma_weights(advantages, logs, mask, ratios)
    fresh = {"importance_sampling_ratio": torch.tensor([[1.1, 0.8, 1.0, 1.3]])}
    merged = merged_batch({"importance_sampling_ratio": ratios}, fresh, torch.tensor([0]), pad_token_id=0)
    wider = [torch.nn.functional.pad(values, (0, 2)) for values in (logs, mask)]
    weight = GRPOTrainer.get_gamma_weights(advantages, *wider, merged["importance_sampling_ratio"])
    torch.testing.assert_close(weight, alone)


def test_what_cannot_be_replaced_is_an_error():
    with pytest.raises(ValueError, match="pixel_values"):
        merged_batch({"pixel_values": torch.zeros(1)}, {"pixel_values": torch.zeros(1)}, torch.tensor([0]), 0)


def test_wasted_share_by_hand():
    assert wasted_share(num_generated=10, num_kept=8) == pytest.approx(0.2)


SHORT = {"target_length": 6, "max_completion_length": 12}


def mostly_dead_reward(prompts, completion_ids, tag=None, **kwargs):
    """All completions of most prompts are right; one prompt in four has signal."""
    assert tag is None or tag == list(range(len(prompts)))
    rewards = []
    for prompt, ids in zip(prompts, completion_ids, strict=True):
        is_dead = sum(map(ord, prompt[0]["content"])) % 4 != 0
        rewards.append(1.0 if is_dead or sum(ids) % 2 else -1.0)
    return rewards


def test_a_run_replaces_dead_groups_and_counts_everything_generated(make_trainer):
    fields = {"lambda_init": 0.0, "lambda_lr": 0.1, "max_steps": 4, "per_device_train_batch_size": 16, **SHORT}
    trainer = make_trainer(mostly_dead_reward, dynamic_sampling_rounds=3, **fields)
    observed, kept = [], []
    observe, score = trainer.length_control.observe, trainer._generate_and_score_completions

    def spy_observe(rollouts):
        observed.append(len(rollouts.lengths))
        observe(rollouts)

    def spy_score(inputs):
        output = score(inputs)
        kept.append(output)
        return output

    trainer.length_control.observe, trainer._generate_and_score_completions = spy_observe, spy_score
    trainer.train()
    plain = make_trainer(mostly_dead_reward, **fields)
    plain.train()

    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert sum(observed) > 4 * 16
    wasted = [row["leash/wasted_share"] for row in rows]
    assert sum(16 / (1 - share) for share in wasted) == pytest.approx(sum(observed))
    for output in kept:
        assert output["completion_ids"].shape[0] == output["prompt_ids"].shape[0] == 16
        assert output["num_items_in_batch"] == output["completion_mask"].sum()
        # a row's mask and ids belong together: nothing but padding is masked
        width = output["completion_mask"].sum(dim=1)
        assert all((output["completion_ids"][i, w:] == 0).all() for i, w in enumerate(width.tolist()))
    alive = [sum(bool(group.any()) for group in output["advantages"].view(-1, 4)) for output in kept]
    plain_dead = [row["leash/zero_signal_share"] for row in plain.state.log_history if "loss" in row]
    assert sum(alive) / (4 * 4) > 1 - sum(plain_dead) / 4 + 0.2


@pytest.mark.parametrize("is_shuffled", [True, False])
def test_replacements_are_fresh_until_the_data_set_is_used_up(make_trainer, is_shuffled):
    """No prompt comes twice while the batches and their replacements together are fewer than the data set."""
    trainer = make_trainer(
        mostly_dead_reward,
        dynamic_sampling_rounds=2,
        lambda_init=0.0,
        lambda_lr=0.0,  # no length signal: many dead groups
        max_steps=5,
        per_device_train_batch_size=16,
        shuffle_dataset=is_shuffled,
        **SHORT,
    )
    drawn, batches = [], []
    draw, score = trainer._draw_groups, trainer._score

    def spy_draw(*args):
        rows = draw(*args)
        drawn.extend({row["prompt"][0]["content"] for row in rows})
        return rows

    def spy_score(inputs):
        batches.append({row["prompt"][0]["content"] for row in inputs})
        return score(inputs)

    trainer._draw_groups, trainer._score = spy_draw, spy_score
    trainer.train()
    assert 10 < len(drawn) < sum(map(len, batches)) <= len(trainer.train_dataset)
    assert len(set().union(*batches)) == sum(map(len, batches))


def test_no_replacement_comes_from_the_batch_itself(make_trainer, problems):
    trainer = make_trainer(
        mostly_dead_reward,
        dataset=problems.select(range(8)),
        dynamic_sampling_rounds=1,
        lambda_init=0.0,
        lambda_lr=0.0,
        max_steps=6,
        per_device_train_batch_size=16,
        **SHORT,
    )
    rounds = []
    score = trainer._score

    def spy(inputs):
        rounds.append({row["prompt"][0]["content"] for row in inputs})
        return score(inputs)

    trainer._score = spy
    trainer.train()
    replaced = [(batch, fresh) for batch, fresh in pairwise(rounds) if len(batch) == 4 > len(fresh)]
    assert len(replaced) > 3
    assert all(batch.isdisjoint(fresh) for batch, fresh in replaced)


def test_a_resumed_run_with_dynamic_sampling_repeats_the_uninterrupted_one(make_trainer, tmp_path):
    fields = {"dynamic_sampling_rounds": 2, "max_steps": 4, "save_strategy": "steps", "save_steps": 2, **SHORT}
    fields.update(lambda_init=0.0, lambda_lr=0.0, per_device_train_batch_size=16)  # no length signal: many dead groups
    whole = make_trainer(mostly_dead_reward, output_dir=str(tmp_path / "whole"), **fields)
    whole.train()
    resumed = make_trainer(mostly_dead_reward, output_dir=str(tmp_path / "resumed"), **fields)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    for key in ("loss", "leash/lambda", "leash/generated_tokens", "leash/wasted_share"):
        ours, theirs = (
            [row.get(key) for row in t.state.log_history if "loss" in row and row["step"] > 2]
            for t in (resumed, whole)
        )
        assert ours == theirs
    drawn = [
        json.loads((tmp_path / "whole" / f"checkpoint-{step}" / "leash_state.json").read_text())["counters"]
        for step in (2, 4)
    ]
    assert 0 < drawn[0]["prompts_drawn"] < drawn[1]["prompts_drawn"]
    assert resumed.prompt_stream.position == whole.prompt_stream.position


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
    assert trainer.prompt_stream.position > 0


def test_the_log_pools_everything_generated(make_trainer):
    trainer = make_trainer(
        mostly_dead_reward, dynamic_sampling_rounds=3, lambda_init=0.0, per_device_train_batch_size=16, max_steps=2
    )
    lengths = []
    observe = trainer.length_control.observe

    def spy(rollouts):
        lengths[-1].extend(rollouts.lengths.tolist())
        observe(rollouts)

    step = trainer.length_control.step
    trainer.length_control.observe = spy
    trainer.length_control.step = lambda: (lengths.append([]), step())
    lengths.append([])
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    for row, batch in zip(rows, lengths, strict=False):
        assert row["leash/mean_length"] == pytest.approx(sum(batch) / len(batch))
        assert row["leash/violation"] == pytest.approx(sum(batch) / len(batch) / 12 - 1)
