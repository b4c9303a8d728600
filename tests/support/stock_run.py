"""Runs of TRL's own trainers with length control, and what lambda must be by the lengths that were scored.

Used by the tests of any trainer, by themselves and in two processes.
"""

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from conftest import eos_bias, quiet
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

from leash_trl import LengthControlCallback, LengthControlledReward
from leash_trl.gym.dataset import gym_problems
from leash_trl.gym.tokenizer import build_tokenizer
from leash_trl.length_control.leash import Leash


TARGET, LAMBDA_INIT, LAMBDA_LR = 6, 0.1, 0.05
TAKEN = SimpleNamespace(step_was_skipped=False, scaler=None)  # an optimizer that has taken its step
TRAINERS = {"GRPO": (GRPOTrainer, GRPOConfig), "RLOO": (RLOOTrainer, RLOOConfig)}


@dataclass
class Calls:
    """A task reward by the parity of the tokens that keeps what it was asked."""

    lengths: list[tuple[str, int, list[int]]] = field(default_factory=list)  # split, policy updates done, lengths

    def __call__(self, completion_ids, split, trainer_state, **kwargs) -> list[float]:
        self.lengths.append((split[0], trainer_state.global_step, [len(ids) for ids in completion_ids]))
        return [1.0 if sum(ids) % 2 == 0 else -1.0 for ids in completion_ids]


def lambdas_by_hand(calls: list[tuple[str, int, list[int]]], num_updates: int) -> list[float]:
    """Lambda after each update: Algorithm 1 of the paper, in plain numbers."""
    lam, after = LAMBDA_INIT, []
    for update in range(num_updates):
        pool = [length for split, step, lengths in calls if split == "train" and step == update for length in lengths]
        if pool:
            lam = min(1.0, max(0.0, lam + LAMBDA_LR * sum(length / TARGET - 1 for length in pool) / len(pool)))
        after.append(lam)
    return after


def lambda_in(entry: dict) -> float:
    """Lambda of a state that was saved."""
    method = Leash()
    method.load_state_dict(entry["state"])
    return method.lam


class States(TrainerCallback):
    """Keeps what would be saved after each update."""

    def __init__(self):
        self.entries = []

    def on_step_end(self, args, state, control, **kwargs):
        self.entries.append(json.loads(json.dumps(state.stateful_callbacks["LengthControl"])))

    @property
    def lambdas(self) -> list[float]:
        return [lambda_in(entry) for entry in self.entries]


def stock_trainer(kind: str, model_path: str, folder: Path, method=None, callbacks=(), reward_func=None, **settings):
    """A small, quiet trainer of TRL's own with length control, LEASH by default."""
    trainer_class, config_class = TRAINERS[kind]
    reward = LengthControlledReward(
        reward_func or Calls(), method or Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR), target_length=TARGET
    )
    fields = quiet(folder, **{"max_completion_length": 2 * TARGET, "max_steps": 5, **settings})
    del fields["target_length"], fields["lambda_lr"]
    return trainer_class(
        model_path,
        reward_funcs=reward,
        args=config_class(generation_kwargs=eos_bias(build_tokenizer()), **fields),
        callbacks=[LengthControlCallback(reward), *callbacks],
        **data_sets(),
    )


@functools.cache
def data_sets() -> dict[str, Dataset]:
    """Problems for training and for evaluation, which [`Calls`] tells apart."""
    problems = gym_problems("train", 64)
    return {
        "train_dataset": problems.map(lambda row: {"split": "train"}),
        "eval_dataset": problems.select(range(8)).map(lambda row: {"split": "eval"}),
    }


def seen_by_one_of_two(model_path: str, folder: Path) -> dict:
    """What one of two processes of six completions sees; they share a group of four."""
    states, calls = States(), Calls()
    trainer = stock_trainer(
        "GRPO", model_path, folder, callbacks=[states], reward_func=calls, per_device_train_batch_size=6
    )
    trainer.train()
    return {"world_size": trainer.args.world_size, "lambdas": states.lambdas, "calls": calls.lengths}
