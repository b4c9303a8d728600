"""`LeashGRPOTrainer` in runs of a few updates: against plain GRPO, and against an Algorithm 1 of its own in numpy."""

import asyncio
import math
import warnings
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import generation_batches, log_rows, logged, parity_reward
from gradient_run import stock_arguments
from stock_run import lambda_after
from trl import GRPOTrainer

from leash_trl import LeashGRPOTrainer
from leash_trl.rewards import math_reward
from leash_trl.trainer.prompt_rows import prompt_facts


TARGET = 12


def oracle_shaped(task_reward, length, lam):
    """Algorithm 1, line 9; NaN stays NaN."""
    if math.isnan(task_reward):
        return math.nan
    return min(1.0, max(-1.0, task_reward - lam * max(0.0, length / TARGET - 1.0)))


def oracle_advantages(task_rewards, lengths, lam, scale="group", epsilon=1e-8):
    """Algorithm 1, lines 9 to 11, number by number, in groups of four."""
    shaped = [oracle_shaped(reward, length, lam) for reward, length in zip(task_rewards, lengths, strict=True)]
    advantages = []
    for start in range(0, len(shaped), 4):
        group = shaped[start : start + 4]
        valid = [reward for reward in group if not math.isnan(reward)]
        spread_over = {"group": group, "batch": shaped}
        divisor = np.nanstd(spread_over[scale], ddof=1) + epsilon if scale in spread_over else 1.0
        for reward in group:
            has_rival = len(valid) > 1 and not math.isnan(reward)
            advantages.append((reward - np.mean(valid)) / divisor if has_rival else 0.0)
    return advantages


@pytest.mark.parametrize(
    "fields",
    [
        {"lambda_init": 0.0, "lambda_lr": 0.0},
        {"length_control": "none", "lambda_lr": None},
    ],
    ids=str,
)
def test_without_a_penalty_it_is_plain_grpo_to_the_last_bit(make_trainer, make_args, fields):
    """Where TRL's float32 is exact too: undivided rewards of +1 and -1, and sums over TRL's own micro-batches."""
    exact = {"scale_rewards": "none", "length_grouped_microbatches": False, "skip_zero_signal": False}
    ours = make_trainer(args=make_args(max_steps=4, num_iterations=2, beta=0.04, **exact, **fields))
    ours.train()
    stock = make_trainer(trainer_class=GRPOTrainer, args=stock_arguments(ours.args))  # seeds anew
    stock.train()
    for row, stock_row in zip(log_rows(ours), log_rows(stock), strict=True):
        for key in stock_row:
            assert "time" in key or row[key] == stock_row[key]
    assert max(logged(ours, "grad_norm")) > 0
    assert all(map(torch.equal, ours.model.parameters(), stock.model.parameters()))


def within_ten_tokens(completion_ids, **kwargs):
    """A length reward as a user writes it; `None` for two completions of each batch."""
    rewards = [0.7 if len(ids) <= 10 else 0.1 for ids in completion_ids]
    return [None, None, *rewards[2:]]


def parity_or_none(completion_ids, **kwargs):
    """Leaves the first completion of each batch without any reward."""
    return [None, *parity_reward(completion_ids)[1:]]


@pytest.mark.parametrize("decides", [{}, {"correctness_func": math_reward}], ids=["unknown", "no reward"])
def test_rewards_that_are_normalized_apart_have_trls_advantages_to_the_last_bit(decides, make_trainer, make_args):
    """GDPO: TRL normalizes each reward in its group, sums them, and normalizes over the batch. A function that only
    decides what is correct has no part in it."""
    apart = {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [1.0, 0.5]}
    plain = {"length_grouped_microbatches": False, "skip_zero_signal": False, "per_device_train_batch_size": 16}
    args = make_args(length_control="none", lambda_lr=None, max_steps=3, **apart, **plain)
    reward_funcs = [parity_or_none, within_ten_tokens]
    ours = make_trainer(reward_funcs, args=args, **decides)
    batches = generation_batches(ours)
    ours.train()
    stock = make_trainer(reward_funcs, trainer_class=GRPOTrainer, args=stock_arguments(args))  # seeds anew
    stock_batches = generation_batches(stock)
    stock.train()
    for batch, stock_batch in zip(batches, stock_batches, strict=True):
        assert torch.equal(batch["advantages"], stock_batch["advantages"])
    assert batches[0]["advantages"].unique().numel() > 2
    assert list(ours._logs["advantages"]) == list(stock._logs["advantages"])
    assert all(map(torch.equal, ours.model.parameters(), stock.model.parameters()))


def test_equal_sums_of_different_rewards_are_a_signal_where_each_is_normalized(make_trainer):
    """In each group, the sums are equal, but one reward has twice the weight of the other."""

    def parity(completion_ids, **kwargs):
        return [float(row % 2) for row, _ in enumerate(completion_ids)]

    def half_of_the_opposite(completion_ids, **kwargs):
        return [(1 - row % 2) / 2 for row, _ in enumerate(completion_ids)]

    trainer = make_trainer(
        [parity, half_of_the_opposite],
        length_control="none",
        lambda_lr=None,
        multi_objective_aggregation="normalize_then_sum",
        reward_weights=[1.0, 2.0],
        max_steps=1,
    )
    trainer.train()
    assert min(abs(advantage) for advantage in trainer._logs["advantages"]) > 0.5
    assert logged(trainer, "leash/zero_signal_share") == [0]


@pytest.mark.filterwarnings("ignore:mask_truncated_completions")
@pytest.mark.parametrize(
    ("scale", "masks"),
    [
        ("group", False),
        ("batch", False),
        ("none", False),
        ("group", True),
    ],
)
def test_advantages_and_lambda_follow_algorithm_1(make_trainer, scale, masks):
    """Truncated completions count in full even where the loss does not see them."""
    batches = []

    def reward(completion_ids, **kwargs):
        lengths = [len(ids) for ids in completion_ids]
        rewards = parity_reward(completion_ids)
        batches.append((lengths, rewards))
        return rewards

    trainer = make_trainer(
        reward,
        scale_rewards=scale,
        mask_truncated_completions=masks,
        per_device_train_batch_size=16,
        max_steps=4,
        skip_zero_signal=False,
        max_completion_length=20,
    )
    trainer.train()
    lambdas = [0.1]
    for lengths, _ in batches:
        lambdas.append(lambda_after(lambdas[-1], lengths, TARGET, lambda_lr=0.1))
    assert [*logged(trainer, "leash/lambda"), trainer.length_control.lam] == pytest.approx(lambdas, abs=1e-12)

    lengths, rewards = batches[-1]
    assert len(set(lengths)) > 2
    assert 20 in lengths
    assert logged(trainer, "leash/mean_length")[-1] == pytest.approx(fmean(lengths))
    expected = oracle_advantages(rewards, lengths, lambdas[-2], scale)
    assert list(trainer._logs["advantages"]) == pytest.approx(expected, abs=1e-9)
    (trained_on,) = trainer._buffered_inputs
    assert sorted(trained_on["advantages"].tolist()) == pytest.approx(sorted(expected), abs=1e-6)
    num_loss_tokens = [0 if masks and length == 20 else length for length in lengths]
    assert sorted(trained_on["completion_mask"].sum(dim=1).tolist()) == sorted(num_loss_tokens)


@pytest.mark.filterwarnings("error::UserWarning")  # their sum is 1.00000001 in float32, and 1 in truth
def test_rewards_are_weighted_and_what_none_could_score_has_no_advantage_but_a_length(make_trainer):
    lengths = []
    task_rewards = []

    def main_reward(completion_ids, **kwargs):
        rewards = parity_reward(completion_ids)
        lengths.extend(map(len, completion_ids))
        for i, reward in enumerate(rewards):
            task_rewards.append(0.8 * reward + (0.4 * 0.5 if i % 3 else 0.0))
        for i in (0, 5, 10, 15):
            rewards[i] = None
            task_rewards[i] = math.nan
        return rewards

    async def bonus(completion_ids, **kwargs):
        await asyncio.sleep(0)
        return [0.5 if i % 5 and i % 3 else None for i, _ in enumerate(completion_ids)]

    fields = {"max_steps": 1, "per_device_train_batch_size": 16, "lambda_init": 0.5, "correctness_func": "main_reward"}
    trainer = make_trainer([main_reward, bonus], reward_weights=[0.8, 0.4], **fields)
    trainer.train()
    expected = oracle_advantages(task_rewards, lengths, 0.5)
    assert list(trainer._logs["advantages"]) == pytest.approx(expected, abs=1e-6)
    assert logged(trainer, "leash/violation") == pytest.approx([fmean(lengths) / TARGET - 1.0])


def test_evaluation_logs_but_moves_nothing(make_trainer, problems, monkeypatch):
    """Even where the generator leaves train mode on, as TRL's continuous batching does."""
    original = GRPOTrainer._generate_single_turn

    def leaves_train_mode_on(self, *args, **kwargs):
        output = original(self, *args, **kwargs)
        self.model.train()
        return output

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", leaves_train_mode_on)
    trainer = make_trainer(
        eval_dataset=problems.select(range(12)),
        eval_strategy="steps",
        eval_steps=1,
        num_generations_eval=2,
        per_device_eval_batch_size=24,  # more than a generation batch holds
        max_steps=2,
    )
    trainer.train()
    assert trainer.length_control.lam == pytest.approx(0.1 + 0.1 * sum(logged(trainer, "leash/violation")), abs=1e-9)
    for key in ("shaped_reward", "task_reward", "lambda", "mean_length"):
        assert len(logged(trainer, f"eval_leash/{key}")) == 2
    assert len(logged(trainer, "leash/generated_tokens")) == 2
    # TRL keeps of them as many as a generation batch has.
    evaluated = trainer._score(trainer._rollouts).advantages.tolist()
    in_table = list(trainer._logs["advantages"])
    assert in_table == evaluated[-len(in_table) :]


def test_a_plain_run_says_nothing_and_logs_the_same_keys_at_every_step(make_trainer, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer = make_trainer(max_steps=3)
        trainer.train()
    assert [record for record in caplog.records if record.name.startswith("leash_trl")] == []
    first, second, third = ({key for key in row if "/" in key} for row in log_rows(trainer))
    assert first == second == third
    assert "leash/lambda" in first


def test_a_stream_trains_in_bf16_on_the_cpu_and_a_path_is_a_models_name(make_args, tiny_model_path, problems):
    args = make_args(bf16=True, max_steps=2)
    trainer = LeashGRPOTrainer(
        Path(tiny_model_path), parity_reward, args, train_dataset=problems.to_iterable_dataset()
    )
    before = [weights.clone() for weights in trainer.model.parameters()]
    trainer.train()
    assert not all(map(torch.equal, before, trainer.model.parameters()))
    assert all(weights.isfinite().all() for weights in trainer.model.parameters())


@pytest.mark.parametrize(
    ("fields", "limit_in_training"),
    [
        ({}, 10),
        ({"length_control": "dler", "lambda_lr": None, "target_length": 6}, 6),
    ],
)
def test_a_cap_lowers_the_limit_in_training_alone(make_trainer, problems, fields, limit_in_training):
    """As in TRL, `generation_kwargs` set the run's limit, and the loss divides by `max_completion_length`."""
    fields = {"target_length": 8, "generation_kwargs": {"max_new_tokens": 10}, "max_steps": 1} | fields
    trainer = make_trainer(eval_dataset=problems.select(range(8)), **fields)
    trainer.train()
    assert logged(trainer, "leash/max_length") == [limit_in_training]
    assert trainer._rollouts.max_completion_length == limit_in_training
    trainer.evaluate()
    assert logged(trainer, "eval_leash/max_length") == [10]
    assert trainer._rollouts.max_completion_length == 10
    assert trainer.max_completion_length == 24


def test_a_cap_reaches_vllm_past_its_own_limit_and_ends_with_the_batch(make_trainer, monkeypatch):
    engine = SimpleNamespace(max_completion_length=24, generation_kwargs={"max_tokens": 10, "seed": 1})
    seen = []

    def generate(trainer, prompts):
        seen.append((dict(engine.generation_kwargs), trainer.max_completion_length))
        return [[1]] * len(prompts), [[1, 2]] * len(prompts), None

    trainer = make_trainer(length_control="dler", lambda_lr=None, target_length=6)
    monkeypatch.setattr(GRPOTrainer, "_generate", generate)
    trainer.use_vllm = True
    trainer.vllm_generation = engine
    for is_training in (True, False):
        trainer.model.train(is_training)
        trainer._prompts = [prompt_facts({"prompt": "2 + 2 = ?"}, trainer.length_control, 6, 6, 24)]
        trainer._generate(["2 + 2 = ?"])
    assert seen == [({"max_tokens": 6, "seed": 1}, 6), ({"max_tokens": 10, "seed": 1}, 24)]
    assert engine.generation_kwargs["max_tokens"] == 10
    assert trainer.max_completion_length == 24
