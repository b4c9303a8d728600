"""The trainer against plain GRPO and against an independent oracle of Algorithm 1."""

import asyncio
import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import eos_bias, parity_reward
from trl import GRPOConfig, GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer


TARGET = 12


class Recorder:
    """A reward function that keeps what it was shown: an account of the completions independent of the trainer's."""

    __name__ = "recorder"

    def __init__(self):
        self.batches = []

    def __call__(self, completion_ids, **kwargs):
        rewards = parity_reward(completion_ids)
        self.batches.append(([len(ids) for ids in completion_ids], rewards))
        return rewards


def oracle_advantages(task_rewards, lengths, lam, group_size, scale="group", epsilon=1e-8):
    """Algorithm 1, lines 9 to 11, in plain numpy loops."""
    shaped = [
        math.nan if math.isnan(r) else min(1.0, max(-1.0, r - lam * max(0.0, length / TARGET - 1.0)))
        for r, length in zip(task_rewards, lengths, strict=True)
    ]
    advantages = []
    everything = [r for r in shaped if not math.isnan(r)]
    for start in range(0, len(shaped), group_size):
        group = shaped[start : start + group_size]
        valid = [r for r in group if not math.isnan(r)]
        if len(valid) < 2:
            advantages += [0.0] * len(group)
            continue
        divisor = {"group": np.std(valid, ddof=1), "batch": np.std(everything, ddof=1), "none": 1.0 - epsilon}[scale]
        advantages += [0.0 if math.isnan(r) else (r - np.mean(valid)) / (divisor + epsilon) for r in group]
    return np.array(advantages)


def logged(trainer, key):
    return [row[key] for row in trainer.state.log_history if key in row]


@pytest.mark.parametrize(
    "fields", [{"lambda_init": 0.0, "lambda_lr": 0.0}, {"length_control": "none", "lambda_lr": None}], ids=str
)
def test_zero_lambda_and_no_control_are_plain_grpo(make_trainer, make_args, fields):
    # at 1e-8 Adam makes a full step of a gradient that is rounding, which differs between the two on some processors
    ours = make_trainer(args=make_args(advantage_epsilon=1e-4, adam_epsilon=1e-5, max_steps=4, **fields))
    own_fields = LeashGRPOConfig.__dataclass_fields__.keys() - GRPOConfig.__dataclass_fields__.keys()
    arguments = {
        f: getattr(ours.args, f)
        for f in LeashGRPOConfig.__dataclass_fields__
        if LeashGRPOConfig.__dataclass_fields__[f].init and f not in own_fields and f != "generation_batch_size"
    }
    ours.train()
    stock = make_trainer(trainer_class=GRPOTrainer, args=GRPOConfig(**arguments))  # seeds the generators anew
    stock.train()
    for key in ("loss", "grad_norm", "reward", "completions/mean_length"):
        assert len(logged(ours, key)) == 4
        np.testing.assert_allclose(logged(ours, key), logged(stock, key), rtol=2e-5, atol=1e-8)
    assert max(map(abs, logged(ours, "grad_norm"))) > 0
    for mine, theirs in zip(ours.model.parameters(), stock.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_penalty_changes_training(make_trainer):
    """Guards the test above: with lambda on, the same run must differ."""
    zero = make_trainer(lambda_init=0.0, lambda_lr=0.0)
    zero.train()
    one = make_trainer(lambda_init=1.0, lambda_lr=0.0)
    one.train()
    assert logged(zero, "completions/mean_length")[0] == logged(one, "completions/mean_length")[0]
    assert logged(zero, "grad_norm") != logged(one, "grad_norm")


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_and_lambda_follow_algorithm_1(make_trainer, scale):
    recorder = Recorder()
    trainer = make_trainer(recorder, scale_rewards=scale, per_device_train_batch_size=16, max_steps=4)
    used = []
    original = trainer._calculate_rewards

    def spy(*args):
        used.append(trainer.length_control.lam)
        return original(*args)

    trainer._calculate_rewards = spy
    trainer.train()

    lam = 0.1
    for (lengths, _), lam_used in zip(recorder.batches, used, strict=True):
        assert lam_used == pytest.approx(lam, abs=1e-12)
        lam = min(1.0, max(0.0, lam + 0.1 * (sum(lengths) / len(lengths) / TARGET - 1.0)))
    assert trainer.length_control.lam == pytest.approx(lam, abs=1e-12)
    lengths, rewards = recorder.batches[-1]
    expected = oracle_advantages(rewards, lengths, used[-1], 4, scale)
    np.testing.assert_allclose(list(trainer._logs["advantages"]), expected, atol=1e-7)
    assert list(trainer._logs["extra"]["length"]) == lengths
    assert logged(trainer, "leash/lambda") == pytest.approx(used)


def test_the_loss_is_computed_from_the_shaped_advantages(make_trainer):
    trainer = make_trainer(max_steps=1, lambda_init=1.0, target_length=4, skip_zero_signal=False)
    trainer.train()
    batch = trainer._buffered_inputs[0]
    assert sorted(batch["advantages"].tolist()) == pytest.approx(sorted(trainer._logs["advantages"]), abs=1e-6)
    assert len(set(trainer._logs["extra"]["penalty"])) > 1


def test_weighted_rewards_none_rewards_and_async_rewards(make_trainer):
    seen = {}

    def main_reward(completion_ids, **kwargs):
        seen["lengths"] = [len(ids) for ids in completion_ids]
        seen["main"] = [None if i % 5 == 0 else r for i, r in enumerate(parity_reward(completion_ids))]
        return seen["main"]

    async def bonus(completion_ids, **kwargs):
        await asyncio.sleep(0)
        seen["bonus"] = [None if i % 5 == 0 or i % 3 == 0 else 0.5 for i, _ in enumerate(completion_ids)]
        return seen["bonus"]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make_trainer(
            [main_reward, bonus],
            reward_weights=[0.8, 0.4],
            max_steps=1,
            per_device_train_batch_size=16,
            lambda_init=0.5,
        )
        trainer.train()
    task = [
        math.nan if m is None and b is None else 0.8 * (m or 0.0) + 0.4 * (b or 0.0)
        for m, b in zip(seen["main"], seen["bonus"], strict=True)
    ]
    np.testing.assert_allclose(
        list(trainer._logs["advantages"]), oracle_advantages(task, seen["lengths"], 0.5, 4), atol=1e-6
    )
    violation = sum(seen["lengths"]) / 16 / TARGET - 1.0  # unscorable completions count
    assert logged(trainer, "leash/violation") == pytest.approx([violation])
    assert "rewards/main_reward/mean" in trainer.state.log_history[0]


def test_reward_model(make_trainer, tiny_model_path, tmp_path):
    from transformers import AutoTokenizer, LlamaForSequenceClassification

    model = LlamaForSequenceClassification.from_pretrained(tiny_model_path, num_labels=1)
    model.save_pretrained(tmp_path / "rm")
    AutoTokenizer.from_pretrained(tiny_model_path).save_pretrained(tmp_path / "rm")
    trainer = make_trainer(str(tmp_path / "rm"), max_steps=1, lambda_init=0.5)
    trainer.train()
    (name,) = trainer._logs["rewards"]
    expected = oracle_advantages(list(trainer._logs["rewards"][name]), list(trainer._logs["extra"]["length"]), 0.5, 4)
    np.testing.assert_allclose(list(trainer._logs["advantages"]), expected, atol=1e-5)


def test_environment_tokens_do_not_count(make_trainer, tokenizer):
    """A rollout function marks the tokens it did not generate; only the model's own are its length."""
    words, eos = tokenizer.encode("so the total is 7"), tokenizer.eos_token_id

    def rollout(prompts, trainer):
        completions = [[*words, *words, *words[: i % 4], eos] for i, _ in enumerate(prompts)]
        masks = [[1] * (len(ids) - len(words) - 1) + [0] * len(words) + [1] for ids in completions]
        return {
            "prompt_ids": [tokenizer.encode("7 + 1 = ?") for _ in prompts],
            "completion_ids": completions,
            "logprobs": [[-1.0] * len(ids) for ids in completions],
            "env_mask": masks,
        }

    trainer = make_trainer(max_steps=1)
    trainer.rollout_func = rollout
    trainer.train()
    expected = [len(words) + i % 4 + 1 for i in range(8)]
    assert list(trainer._logs["extra"]["length"]) == expected
    assert logged(trainer, "leash/mean_length") == logged(trainer, "completions/mean_length")


def test_truncated_completions_count_in_full_even_when_masked(make_trainer):
    with pytest.warns(UserWarning, match="mask_truncated_completions"):
        trainer = make_trainer(
            max_steps=1, mask_truncated_completions=True, generation_kwargs=None, max_completion_length=16
        )
    trainer.train()
    assert logged(trainer, "completions/clipped_ratio")[0] > 0
    assert logged(trainer, "leash/mean_length") == logged(trainer, "completions/mean_length")


def test_evaluation_logs_but_does_not_move_lambda(make_trainer, problems):
    with_eval = make_trainer(
        eval_dataset=problems.select(range(12)),
        eval_strategy="steps",
        eval_steps=1,
        per_device_eval_batch_size=24,  # more than a generation batch holds
        num_generations_eval=2,
        max_steps=2,
    )
    with_eval.evaluate()
    assert with_eval.length_control.lam == 0.1
    with_eval.train()
    lam = 0.1
    for violation in logged(with_eval, "leash/violation"):
        lam += 0.1 * violation
    assert len(logged(with_eval, "leash/violation")) == 2
    assert with_eval.length_control.lam == pytest.approx(lam, abs=1e-9)
    assert len(logged(with_eval, "eval_leash/shaped_reward")) == 2
    assert len(logged(with_eval, "eval_leash/task_reward")) == 2


def test_evaluation_with_a_generator_that_leaves_train_mode_on(make_trainer, problems, monkeypatch):
    """TRL's continuous batching does; lambda must not move and eval metrics must not end up among train's."""
    original = GRPOTrainer._generate_single_turn

    def leaves_train_mode_on(self, *args, **kwargs):
        output = original(self, *args, **kwargs)
        self.model.train()
        return output

    monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", leaves_train_mode_on)
    trainer = make_trainer(eval_dataset=problems.select(range(8)), eval_strategy="steps", per_device_eval_batch_size=8)
    metrics = trainer.evaluate()
    assert trainer.length_control.lam == 0.1
    assert "eval_leash/lambda" in {**metrics, **trainer.state.log_history[-1]}
    trainer.length_control.step()
    assert trainer.length_control.lam == 0.1


def test_every_step_logs_the_same_keys(make_trainer):
    trainer = make_trainer(max_steps=3)
    trainer.train()
    keys = [{k for k in row if k.startswith("leash/")} for row in trainer.state.log_history if "loss" in row]
    assert len(keys) == 3
    assert keys[0] == keys[1] == keys[2]
    assert {"leash/lambda", "leash/violation", "leash/satisfaction_rate", "leash/paying_share"} <= keys[0]


def test_iterable_dataset(make_trainer, problems):
    trainer = make_trainer(dataset=problems.to_iterable_dataset(), max_steps=2)
    trainer.train()
    assert len(logged(trainer, "leash/lambda")) == 2


def test_lora(make_trainer):
    from peft import LoraConfig

    trainer = make_trainer(
        peft_config=LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"]), max_steps=2
    )
    before = {n: p.clone() for n, p in trainer.model.named_parameters() if p.requires_grad}
    trainer.train()
    assert all("lora" in name for name in before)
    assert any(not torch.equal(p, before[n]) for n, p in trainer.model.named_parameters() if p.requires_grad)
    assert trainer.length_control.lam != 0.1


def test_completions_table_has_our_columns(make_trainer, tmp_path):
    import pandas as pd

    trainer = make_trainer(max_steps=1, log_completions=True)
    trainer.train()
    (file,) = (tmp_path / "run" / "completions").glob("*.parquet")
    table = pd.read_parquet(file)
    assert {"length", "task_reward", "penalty", "shaped_reward", "advantage"} <= set(table.columns)
    np.testing.assert_allclose(
        table["shaped_reward"], (table["task_reward"] - table["penalty"]).clip(-1, 1), atol=1e-12
    )


def test_wrong_kind_of_configuration_is_an_error(tiny_model_path, tmp_path):
    with pytest.raises(TypeError, match="LeashGRPOConfig"):
        LeashGRPOTrainer(tiny_model_path, parity_reward, GRPOConfig(str(tmp_path), use_cpu=True, bf16=False))


def test_zero_one_rewards_are_pointed_out(make_trainer):
    def zero_one(completion_ids, **kwargs):
        return [float(sum(ids) % 2) for ids in completion_ids]

    calls = []

    def all_right_at_first(completion_ids, **kwargs):
        calls.append(len(completion_ids))
        return zero_one(completion_ids) if len(calls) > 1 else [1.0] * len(completion_ids)

    for reward in (zero_one, all_right_at_first):
        trainer = make_trainer(reward, max_steps=3)
        with pytest.warns(UserWarning, match="wrong answers") as caught:
            trainer.train()
        assert len([w for w in caught if "wrong answers" in str(w.message)]) == 1


def test_rewards_beyond_the_clip_are_pointed_out(make_trainer):
    def reward(completion_ids, **kwargs):
        return [3.0 if len(ids) % 2 else 4.0 for ids in completion_ids]

    trainer = make_trainer(reward, max_steps=1)
    with pytest.warns(UserWarning, match="clipped to"):
        trainer.train()


def test_model_card_names_the_method_and_the_paper(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=1)
    trainer.train()
    trainer.create_model_card(model_name="shorter")
    card = (tmp_path / "run" / "README.md").read_text()
    assert "The method is `leash`" in card
    assert "2512.21540" in card
    assert "- leash" in card


def test_eos_bias_gives_lengths_worth_testing(make_trainer, tokenizer):
    recorder = Recorder()
    make_trainer(recorder, max_steps=1, generation_kwargs=eos_bias(tokenizer)).train()
    lengths, rewards = recorder.batches[0]
    assert len(set(lengths)) > 2
    assert set(rewards) == {-1.0, 1.0}


def test_a_path_is_taken_for_a_model_s_folder(make_args, tiny_model_path, problems):
    trainer = LeashGRPOTrainer(Path(tiny_model_path), parity_reward, make_args(), train_dataset=problems)
    assert trainer.model.config._name_or_path == tiny_model_path


@pytest.mark.parametrize(
    ("fields", "in_training"),
    [({}, 10), ({"length_control": "dler", "target_length": 6}, 6), ({"length_control": "thinkprune"}, 10)],
    ids=str,
)
def test_generation_kwargs_set_the_limit_as_in_trl_and_methods_lower_it_in_training(
    make_trainer, problems, fields, in_training
):
    batches = []
    trainer = make_trainer(
        generation_kwargs={"max_new_tokens": 10},
        max_steps=1,
        eval_dataset=problems.select(range(8)),
        **{"target_length": 8, "lambda_lr": None, **fields},
    )
    shape = trainer.length_control.shape
    trainer.length_control.shape = lambda rollouts: (batches.append(rollouts), shape(rollouts))[1]
    trainer.train()
    trainer.evaluate()
    trained, evaluated = batches[0], batches[-1]
    assert (trained.lengths.max(), trained.max_completion_length) == (in_training, in_training)
    assert (evaluated.lengths.max(), evaluated.max_completion_length) == (10, 10)
    assert trainer.max_completion_length == 24  # the dr_grpo loss divides by it


def test_a_cap_reaches_vllm_past_its_own_limit_and_ends_with_the_batch(make_trainer, monkeypatch):
    engine = SimpleNamespace(max_completion_length=24, generation_kwargs={"max_tokens": 10, "seed": 1})
    seen = []

    def generate(trainer, prompts):
        seen.append((dict(engine.generation_kwargs), trainer.max_completion_length))
        return [[1]] * len(prompts), [[1, 2]] * len(prompts), None

    monkeypatch.setattr(GRPOTrainer, "_generate", generate)
    trainer = make_trainer(length_control="dler", lambda_lr=None, target_length=6)
    trainer.use_vllm, trainer.vllm_generation = True, engine
    trainer.model.train()
    trainer._generate(["2 + 2 = ?"])
    trainer.model.eval()
    trainer._generate(["2 + 2 = ?"])
    assert seen == [({"max_tokens": 6, "seed": 1}, 6), ({"max_tokens": 10, "seed": 1}, 24)]
    assert (engine.generation_kwargs["max_tokens"], trainer.max_completion_length) == (10, 24)
