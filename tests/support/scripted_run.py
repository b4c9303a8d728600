"""Runs whose completions are fixed by prompt and place in the batch, the same for one and for two processes."""

from pathlib import Path
from typing import Any

import torch
from conftest import gym_tokenizer, log_rows, quiet
from gradient_run import scripted_rollout

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym.dataset import gym_problems
from leash_trl.trainer.callbacks import STATE_ENTRY


REFILLED = {"per_device_train_batch_size": 8, "num_generations": 2, "dynamic_sampling_rounds": 1}
OVERSAMPLED = {**REFILLED, "dynamic_sampling_oversample": 0.5, "save_steps": 3}
SCENARIOS: dict[str, dict[str, Any]] = {
    "plain": {},  # two processes of six completions share the second group of four
    "budgets": {"length_control_kwargs": {"multiplier_per": "level"}},
    "thinking": {"length_of": "thinking", "min_accuracy": 0.2},
    "dynamic sampling": {**REFILLED, "dynamic_sampling_rounds": 2},
    "oversampling": OVERSAMPLED,
    "resumed oversampling": {**OVERSAMPLED, "resume_from_checkpoint": "oversampling/checkpoint-3"},
    "oversampled window": {**OVERSAMPLED, "per_device_train_batch_size": 4, "steps_per_generation": 2},
}


def odd_length_reward(completion_ids, **kwargs) -> list[float]:
    """+1 for an odd number of tokens, -1 for an even one."""
    return [1.0 if len(ids) % 2 else -1.0 for ids in completion_ids]


def run(scenario: str, model_path: str, folder: Path, **changes) -> dict[str, Any]:
    """Trains four steps and returns what this process saw."""
    fields = {
        "max_completion_length": 40,
        "per_device_train_batch_size": 6,
        "max_steps": 4,
        "save_strategy": "steps",
        **SCENARIOS[scenario],
        **changes,
    }
    resume = fields.pop("resume_from_checkpoint", None)
    args = LeashGRPOConfig(**quiet(folder / scenario, **fields))
    # an epoch of eight prompts a batch has two batches
    trainer = LeashGRPOTrainer(model_path, odd_length_reward, args, train_dataset=gym_problems("train", 16))
    tokenizer = gym_tokenizer()
    answer = [*tokenizer.encode("</think>7"), tokenizer.eos_token_id]
    thinking_token = answer[1]

    def completion(_, place, code):
        return [thinking_token] * (1 + code % 30) + answer

    trainer.rollout_func = scripted_rollout(tokenizer, completion)
    rounds = []
    new_batch = trainer._new_batch

    def spy(inputs):
        round_, generated = new_batch(inputs)
        rounds.append(round_)
        return round_, generated

    trainer._new_batch = spy
    trainer.train(resume_from_checkpoint=None if resume is None else str(folder / resume))
    rows = log_rows(trainer)
    keys = ["loss", *(key for key in rows[0] if key.startswith("leash/"))]
    last = rounds[-1]
    trained_lengths = [part["completion_mask"].sum(dim=1) for part in trainer._buffered_inputs]
    return {
        "rank": (trainer.accelerator.process_index, trainer.accelerator.num_processes),
        "log": [{key: row[key] for key in keys if key in row} for row in rows],
        "state": trainer.state.stateful_callbacks[STATE_ENTRY],
        "lengths": last.rollouts.completion_lengths.tolist(),
        "advantages": last.score.advantages.tolist(),
        "trained": torch.cat(trained_lengths).tolist(),
        "loss_tokens": int(trainer._buffered_inputs[0]["num_items_in_batch"]),
        "table": (list(trainer._logs["advantages"]), list(trainer._logs["extra"]["length"])),
    }
