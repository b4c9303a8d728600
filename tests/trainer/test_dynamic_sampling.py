"""Dynamic sampling in runs: dead groups give way to fresh prompts, and everything generated counts."""

import zlib
from itertools import pairwise

import pytest
from trl.trainer.utils import RepeatSampler

from leash_trl.engines.checkpoint_path import length_control_state


SHORT = {"target_length": 6, "max_completion_length": 12}


@pytest.fixture(autouse=True)
def no_check_of_acting(monkeypatch):
    """The check tries a copy of the method, spies included."""
    monkeypatch.setattr("leash_trl.trainer.checks.cannot_act", lambda *settings: None)


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
    draw, score = trainer._fresh_rows, trainer._new_round

    def spy_draw(*args):
        rows = draw(*args)
        drawn.extend({row["prompt"][0]["content"] for row in rows})
        return rows

    def spy_score(inputs):
        batches.append({row["prompt"][0]["content"] for row in inputs})
        return score(inputs)

    trainer._fresh_rows, trainer._new_round = spy_draw, spy_score
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
    score = trainer._new_round

    def spy(inputs):
        rounds.append({row["prompt"][0]["content"] for row in inputs})
        return score(inputs)

    trainer._new_round = spy
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
    draw, score, batches, current = trainer._refill.draw, trainer._new_round, [], []

    def spy_score(inputs):
        current[:] = [row["prompt"][0]["content"] for row in inputs[::4]]
        return score(inputs)

    def spy_draw(count, without):
        if count == 0:  # no extra groups
            return []
        batches.append(batch := trainer._refill.batches)
        assert current == order[4 * batch : 4 * batch + 4]
        return draw(count, without)

    trainer._new_round, trainer._refill.draw = spy_score, spy_draw
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
    assert trainer._refill.epoch == 1


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
    drawn = [length_control_state(tmp_path / "whole" / f"checkpoint-{step}")["prompts_drawn"] for step in (2, 4)]
    assert 0 < drawn[0]["from_end"] < drawn[1]["from_end"]
    assert resumed._refill.state_dict() == whole._refill.state_dict()


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
    assert trainer._refill.from_end > 0


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
    score, complete = trainer._new_round, trainer._generate_and_score_completions

    def spy_score(inputs):
        calls[-1].append(len(inputs) // 4)
        return score(inputs)

    def spy_complete(inputs):
        calls.append([])
        return complete(inputs)

    trainer._new_round, trainer._generate_and_score_completions = spy_score, spy_complete
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
    complete, new_batch, pairs, kept = trainer._generate_and_score_completions, trainer._new_batch, [], []

    def spy_batch(inputs):
        kept.append(new_batch(inputs)[0])
        return kept[-1], [kept[-1]]

    def spy(inputs):
        output = complete(inputs)
        widths = output["completion_mask"].sum(dim=1).tolist()
        pairs.append((widths, kept[-1].rollouts.lengths.tolist()))
        assert output["advantages"].tolist() == pytest.approx(kept[-1].score.advantages.tolist(), abs=1e-6)
        return output

    trainer._generate_and_score_completions, trainer._new_batch = spy, spy_batch
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
    score, asked = trainer._new_round, []

    def spy(inputs):
        asked.append([row["prompt"][0]["content"] for row in inputs[::4]])
        return score(inputs)

    trainer._new_round = spy
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
    assert ours._refill.from_end == 0
    assert [row["leash/extra_groups"] for row in ours.state.log_history if "loss" in row] == [0, 0, 0]


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_resumed_run_with_oversampling_repeats_the_uninterrupted_one(make_trainer, problems, tmp_path, rounds):
    """Into a second epoch."""
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
    assert resumed._refill.state_dict() == whole._refill.state_dict()
