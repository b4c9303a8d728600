"""Dynamic sampling: dead groups give way to fresh prompts, and everything generated counts."""

import dataclasses
import json
import zlib
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from leash_trl.length_control.targets import question_number
from leash_trl.trainer.dynamic_sampling import (
    PromptStream,
    StreamPosition,
    groups_per_process,
    local_rows,
    merged_batch,
    replacements,
    wasted_share,
)


def prompts_of(rows) -> list[str]:
    return [row["prompt"] for row in rows]


def letters(count: int) -> list[dict]:
    return [{"prompt": letter} for letter in "abcdefghijklmnopqrstuvwxyz"[:count]]


def test_the_first_epoch_is_drawn_from_its_end_and_then_from_its_start_by_hand():
    """Batches ab, cd, ef, gh; two replacements each."""
    stream = PromptStream(letters(8), seed=0, is_shuffled=False, batch_size=2)
    # ab, then c to f are ahead when hg are drawn, then ef; now the batches have or had all: from the start
    drawn = ["".join(prompts_of(stream.draw(2, batch=batch))) for batch in range(4)]
    assert drawn == ["hg", "fe", "ab", "cd"]


def test_a_later_epoch_is_drawn_from_where_the_other_visit_is_farther_by_hand():
    """Batches ab, cd, ef, gh again. With ab and cd current, the end is at least as far as the start."""
    stream = PromptStream(letters(8), seed=0, is_shuffled=False, batch_size=2)
    drawn = ["".join(prompts_of(stream.draw(1, batch=4 + batch))) for batch in range(4)]
    # num_ahead, num_behind: 6, 0; 8 - 1 - 4 = 3, 2; 8 - 2 - 6 = 0, 4; and 6 - 1 = 5 behind
    assert drawn == ["h", "g", "a", "b"]


@given(
    st.integers(0, 5),
    st.integers(1, 6),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.booleans(),
)
def test_the_first_epochs_replacements_are_new_until_all_prompts_are_used(seed, batch_size, counts, is_shuffled):
    rows = letters(26)
    stream = PromptStream(rows, seed, is_shuffled, batch_size)
    order = list(RepeatSampler(rows, 1, shuffle=is_shuffled, seed=seed))
    seen: list[str] = []
    for batch, count in enumerate(counts[: 26 // batch_size]):
        current = [rows[place]["prompt"] for place in order[batch * batch_size : (batch + 1) * batch_size]]
        seen += [prompt for prompt in current if prompt not in seen]
        drawn = prompts_of(stream.draw(count, {question_number(prompt) for prompt in current}, batch))
        assert len(set(drawn)) == count
        assert not set(drawn) & set(current)
        new = [prompt for prompt in drawn if prompt not in seen]
        assert len(new) == min(count, 26 - len(seen))
        seen += new


@pytest.mark.parametrize("is_shuffled", [True, False])
def test_a_later_epochs_replacements_come_neither_from_the_last_batches_nor_from_the_next(is_shuffled):
    """24 prompts in batches of 2, a replacement for each second one: the other visit is far away."""
    rows, distances = letters(24), []
    stream = PromptStream(rows, 3, is_shuffled, batch_size=2)
    sampler = RepeatSampler(rows, 1, batch_size=2, shuffle=is_shuffled, seed=3)
    for epoch in range(3):
        place_of = {rows[index]["prompt"]: place for place, index in enumerate(sampler)}
        for index in range(12):
            (drawn,) = prompts_of(stream.draw(1, batch=12 * epoch + index))
            if epoch > 0:
                distances.append(abs(place_of[drawn] // 2 - index))
    # from the end: 11 batches away, then 9.5 and so on, down to 4; from the start the same
    assert min(distances) >= 4


def test_an_epochs_incomplete_last_batch_is_drawn_first():
    stream = PromptStream(letters(5), seed=0, is_shuffled=False, batch_size=2)
    assert prompts_of(stream.draw(1, batch=0)) == ["e"]
    assert prompts_of(stream.draw(1, batch=2)) == ["e"]  # the second epoch: 5 // 2 batches in each


def test_the_position_survives_json():
    stream, resumed = PromptStream(letters(9), seed=3, batch_size=2), PromptStream(letters(9), seed=3, batch_size=2)
    for batch in range(6):
        stream.draw(2, batch=batch)
    resumed.position = StreamPosition(**json.loads(json.dumps(dataclasses.asdict(stream.position))))
    assert [resumed.draw(2, batch=batch) for batch in (6, 7, 8)] == [
        stream.draw(2, batch=batch) for batch in (6, 7, 8)
    ]


def test_a_stream_that_goes_back_an_epoch_draws_that_epochs_order():
    fresh, used = PromptStream(letters(9), seed=3, batch_size=2), PromptStream(letters(9), seed=3, batch_size=2)
    used.draw(2, batch=6)
    used.position = StreamPosition()
    assert used.draw(4, batch=0) == fresh.draw(4, batch=0)


def test_prompt_stream_passes_over_the_prompts_it_is_told():
    order = prompts_of(PromptStream(letters(6), seed=1).draw(5))
    without = {question_number(order[0]), question_number(order[2])}
    assert prompts_of(PromptStream(letters(6), seed=1).draw(3, without)) == [order[1], *order[3:]]
    left_out = PromptStream(letters(6), seed=1).draw(3, passes_over=without.__contains__)
    assert prompts_of(left_out) == [order[1], *order[3:]]


def test_prompt_stream_gives_prompts_though_all_are_passed_over():
    assert len(PromptStream(letters(6), seed=1).draw(3, passes_over=lambda question: True)) == 3


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
        is_dead = zlib.crc32(prompt[0]["content"].encode()) % 4 != 0
        rewards.append(1.0 if is_dead or sum(ids) % 2 else -1.0)
    return rewards


def test_a_run_replaces_dead_groups_and_counts_everything_generated(make_trainer):
    fields = {"lambda_init": 0.0, "lambda_lr": 0.0, "max_steps": 4, "per_device_train_batch_size": 16, **SHORT}
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
        max_steps=10,
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


TWELVE_PROMPTS = {
    "dynamic_sampling_rounds": 1,
    "lambda_init": 0.0,
    "lambda_lr": 0.0,
    "per_device_train_batch_size": 8,
    "steps_per_generation": 2,
    "gradient_accumulation_steps": 1,
    **SHORT,
}  # on twelve prompts: two micro-steps a generation batch, three batches an epoch


def spy_on_batches(trainer) -> list[int]:
    """The number of the batch at each draw, filled while it trains; fails if the sampler is at another batch."""
    sampler = RepeatSampler(range(12), 1, batch_size=4, seed=trainer.args.seed)
    order = [trainer.train_dataset[i]["prompt"][0]["content"] for _ in range(5) for i in sampler]
    draw, score, batches, current = trainer.prompt_stream.draw, trainer._score, [], []

    def spy_score(inputs):
        current[:] = [row["prompt"][0]["content"] for row in inputs[::4]]
        return score(inputs)

    def spy_draw(count, without, batch, passes_over):
        batches.append(batch)
        assert current == order[4 * batch : 4 * batch + 4]
        return draw(count, without, batch, passes_over)

    trainer._score, trainer.prompt_stream.draw = spy_score, spy_draw
    return batches


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({"max_steps": 10}, [0, 1, 2, 3, 4], id="two updates a batch"),
        # an epoch's six micro-steps are an update of four and one of two
        pytest.param(
            {"max_steps": 4, "gradient_accumulation_steps": 4}, [0, 1, 2, 3, 4, 5], id="two batches an update"
        ),
        pytest.param({"max_steps": 16, "num_iterations": 2}, [0, 1, 2, 3], id="two visits to each window"),
    ],
)
def test_the_stream_counts_generation_batches_and_not_updates(make_trainer, problems, fields, expected):
    trainer = make_trainer(mostly_dead_reward, dataset=problems.select(range(12)), **{**TWELVE_PROMPTS, **fields})
    batches = spy_on_batches(trainer)
    trainer.train()
    assert batches == expected
    assert trainer.prompt_stream.position.epoch == 1


@pytest.mark.parametrize(
    ("ignore_data_skip", "expected"),
    [
        (False, [4, 5, 6, 7]),  # two at a time from the fourth of six micro-steps: 1 * 3 + 3 // 2 = 4
        (True, [3, 4, 5, 6]),  # the epoch from its start
    ],
)
def test_the_stream_is_where_the_sampler_is_if_a_window_does_not_fit(
    make_trainer, problems, tmp_path, ignore_data_skip, expected
):
    fields = {**TWELVE_PROMPTS, "dataset": problems.select(range(12))}
    make_trainer(mostly_dead_reward, max_steps=9, save_strategy="steps", save_steps=9, **fields).train()
    (window,) = (tmp_path / "run" / "checkpoint-9").glob("leash_rollouts*")
    window.unlink()
    resumed = make_trainer(mostly_dead_reward, max_steps=16, ignore_data_skip=ignore_data_skip, **fields)
    batches = spy_on_batches(resumed)
    with pytest.warns(UserWarning, match="generated anew"):
        resumed.train(resume_from_checkpoint=str(window.parent))
    assert batches == expected
    assert resumed.prompt_stream.position.epoch == 2


def test_the_stream_is_where_the_sampler_is_in_a_second_call_of_train(make_trainer, problems):
    trainer = make_trainer(
        mostly_dead_reward, dataset=problems.select(range(12)), **{**TWELVE_PROMPTS, "max_steps": 8}
    )
    batches = spy_on_batches(trainer)
    trainer.train()
    assert batches == [0, 1, 2, 3]
    trainer.train()
    assert batches == [0, 1, 2, 3] * 2


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
    assert 0 < drawn[0]["prompts_drawn"]["from_end"] < drawn[1]["prompts_drawn"]["from_end"]
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
    assert trainer.prompt_stream.position.from_end > 0


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


OVERSAMPLED = {
    "dynamic_sampling_oversample": 1.0,
    "lambda_init": 0.0,
    "lambda_lr": 0.0,  # no length signal: many dead groups
    "per_device_train_batch_size": 16,
    **SHORT,
}


def spy_on_calls(trainer) -> list[list[int]]:
    """For each step, the number of groups that each call generates; filled while the trainer trains."""
    calls: list[list[int]] = []
    score, complete = trainer._score, trainer._generate_and_score_completions

    def spy_score(inputs):
        calls[-1].append(len(inputs) // 4)
        return score(inputs)

    def spy_complete(inputs):
        calls.append([])
        return complete(inputs)

    trainer._score, trainer._generate_and_score_completions = spy_score, spy_complete
    return calls


def test_extra_groups_come_in_the_same_call_and_everything_generated_counts(make_trainer):
    trainer = make_trainer(mostly_dead_reward, max_steps=4, **OVERSAMPLED)
    calls, observed, kept = spy_on_calls(trainer), [], []
    observe, complete = trainer.length_control.observe, trainer._generate_and_score_completions

    def spy_observe(rollouts):
        observed.append(len(rollouts.lengths))
        observe(rollouts)

    def spy_kept(inputs):
        kept.append(complete(inputs))
        return kept[-1]

    trainer.length_control.observe, trainer._generate_and_score_completions = spy_observe, spy_kept
    trainer.train()
    assert [len(step) for step in calls] == [1, 1, 1, 1]
    assert calls[0] == [4]  # nothing is known yet
    assert 4 < max(groups for (groups,) in calls) <= 8
    assert observed == [4 * groups for (groups,) in calls]
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert [row["leash/extra_groups"] for row in rows] == [groups - 4 for (groups,) in calls]
    assert [row["leash/sampling_rounds"] for row in rows] == [0] * 4
    assert [row["leash/wasted_share"] for row in rows] == pytest.approx([1 - 4 / groups for (groups,) in calls])
    for output in kept:
        assert output["completion_ids"].shape[0] == output["prompt_ids"].shape[0] == len(output["advantages"]) == 16
        assert output["num_items_in_batch"] == output["completion_mask"].sum()
    for output, row in zip(kept, rows, strict=True):
        dead = sum(not group.any() for group in output["advantages"].view(-1, 4)) / 4
        assert row["leash/zero_signal_share"] == pytest.approx(dead)


def test_the_kept_completions_keep_their_own_advantages(make_trainer):
    """Each row that is trained on has the length that its advantage was computed from."""
    trainer = make_trainer(mostly_dead_reward, max_steps=4, **OVERSAMPLED)
    complete, pairs = trainer._generate_and_score_completions, []

    def spy(inputs):
        output = complete(inputs)
        pairs.append((output["completion_mask"].sum(dim=1).tolist(), trainer._batch.scored.rollouts.lengths.tolist()))
        assert output["advantages"].tolist() == pytest.approx(trainer._batch.advantages.tolist(), abs=1e-6)
        return output

    trainer._generate_and_score_completions = spy
    trainer.train()
    assert all(widths == lengths for widths, lengths in pairs)


def test_rounds_fill_only_what_extra_groups_left(make_trainer):
    trainer = make_trainer(mostly_dead_reward, max_steps=4, dynamic_sampling_rounds=2, **OVERSAMPLED)
    calls = spy_on_calls(trainer)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert [row["leash/sampling_rounds"] for row in rows] == [len(step) - 1 for step in calls]
    assert max(len(step) for step in calls) > 1
    assert all(step == sorted(step, reverse=True) for step in calls)


def test_no_extra_group_asks_what_the_batch_asks(make_trainer, problems):
    """The second batch's questions stand once more at the end of the data, where replacements come from."""
    dataset = problems.select([*range(12), *range(4, 8)])
    trainer = make_trainer(mostly_dead_reward, dataset=dataset, max_steps=2, shuffle_dataset=False, **OVERSAMPLED)
    score, asked = trainer._score, []

    def spy(inputs):
        asked.append([row["prompt"][0]["content"] for row in inputs[::4]])
        return score(inputs)

    trainer._score = spy
    trainer.train()
    assert len(asked[1]) > 4
    assert len(set(asked[1])) == len(asked[1])


def test_where_nothing_is_dead_oversampling_changes_nothing(make_trainer):
    fields = {**OVERSAMPLED, "lambda_init": 0.1, "max_steps": 3}

    def by_length(completion_ids, **kwargs):
        return [0.01 * len(ids) + 0.001 * (sum(ids) % 7) + 0.0001 * i for i, ids in enumerate(completion_ids)]

    ours = make_trainer(by_length, **fields)
    ours.train()
    plain = make_trainer(by_length, **{**fields, "dynamic_sampling_oversample": 0.0})
    plain.train()
    for key in ("loss", "grad_norm", "leash/generated_tokens", "leash/lambda"):
        assert [row.get(key) for row in ours.state.log_history] == [row.get(key) for row in plain.state.log_history]
    assert ours.prompt_stream.position.from_end == 0
    assert [row["leash/extra_groups"] for row in ours.state.log_history if "loss" in row] == [0, 0, 0]


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_resumed_run_with_oversampling_repeats_the_uninterrupted_one(make_trainer, problems, tmp_path, rounds):
    """Into a second epoch, where the record passes prompts over."""
    fields = {**OVERSAMPLED, "dynamic_sampling_rounds": rounds, "save_strategy": "steps", "save_steps": 1}
    fields.update(max_steps=7, dataset=problems.select(range(16)))
    whole = make_trainer(mostly_dead_reward, output_dir=str(tmp_path / "whole"), **fields)
    whole.train()
    resumed = make_trainer(mostly_dead_reward, output_dir=str(tmp_path / "resumed"), **fields)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    rows = [
        [
            {name: value for name, value in row.items() if name in ("loss", "grad_norm") or name.startswith("leash/")}
            for row in trainer.state.log_history
            if "loss" in row and row["step"] > 3
        ]
        for trainer in (whole, resumed)
    ]
    assert len(rows[0]) == 4
    assert rows[0] == rows[1]
    assert resumed.prompt_stream.position == whole.prompt_stream.position
    assert resumed.signal_record.state_dict() == whole.signal_record.state_dict()
    assert max(len(text) for text in whole.signal_record.state_dict()["outcomes"].values()) > 1


def test_a_checkpoint_of_an_earlier_version_still_resumes(make_trainer, tmp_path):
    fields = {"dynamic_sampling_rounds": 1, "save_strategy": "steps", "save_steps": 1, "lambda_init": 0.0, **SHORT}
    make_trainer(mostly_dead_reward, output_dir=str(tmp_path / "old"), max_steps=1, **fields).train()
    path = tmp_path / "old" / "checkpoint-1" / "leash_state.json"
    state = json.loads(path.read_text())
    state["counters"]["prompts_drawn"] = 5
    path.write_text(json.dumps(state))
    resumed = make_trainer(mostly_dead_reward, max_steps=1, **fields)
    resumed.train(resume_from_checkpoint=str(path.parent))
    assert resumed.prompt_stream.position == StreamPosition(0, from_end=5)
