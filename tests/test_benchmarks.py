"""Speed, as ratios in one run; `make bench`. Not part of the default suite."""

import statistics
import time

import pytest
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems
from leash_trl.rewards import math_reward


ROUNDS, STEPS = 4, 8


class StepTimes(TrainerCallback):
    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *args, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        self.seconds.append(time.perf_counter() - self.start)


def step_seconds(trainer_class, config_class, output_dir, **fields) -> list[float]:
    """Seconds of each step of a gym run; with lambda at 0 both trainers do the same work, token for token."""
    args = config_class(
        output_dir=str(output_dir),
        per_device_train_batch_size=64,
        max_completion_length=96,
        epsilon_high=0.28,
        weight_decay=0.1,
        lr_scheduler_type="constant",
        max_steps=STEPS,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **fields,
    )
    times = StepTimes()
    trainer = trainer_class(
        str(CHECKPOINT), math_reward, args, train_dataset=gym_problems("train", 256), callbacks=[times]
    )
    trainer.train()
    step_seconds.tokens = trainer.state.num_input_tokens_seen
    return times.seconds


@pytest.mark.benchmark
def test_overhead_over_grpo_trainer(tmp_path):
    leash = {"target_length": 40, "lambda_init": 0.0, "lambda_lr": 0.0, "advantage_epsilon": 1e-4}
    ratios, tokens = [], set()
    for _ in range(ROUNDS):
        stock = step_seconds(GRPOTrainer, GRPOConfig, tmp_path)
        tokens.add(step_seconds.tokens)
        ours = step_seconds(LeashGRPOTrainer, LeashGRPOConfig, tmp_path, **leash)
        tokens.add(step_seconds.tokens)
        ratios += [mine / theirs for mine, theirs in zip(ours[1:], stock[1:], strict=True)]
    assert len(tokens) == 1  # the same work
    quartiles = statistics.quantiles(ratios, n=4)
    print(
        f"\nLeashGRPOTrainer / GRPOTrainer, step time: median {statistics.median(ratios):.3f}, "
        f"quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f}, {len(ratios)} pairs of steps"
    )
    assert statistics.median(ratios) < 1.1
