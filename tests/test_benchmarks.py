"""Speed, as ratios in one run; `make bench`. Not part of the default suite."""

import statistics
import time

import pytest
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer, leash_grpo_trainer
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems
from leash_trl.length_control.leash import Leash
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
    arms = {"stock": (GRPOTrainer, GRPOConfig, {}), "ours": (LeashGRPOTrainer, LeashGRPOConfig, leash)}
    for round_ in range(ROUNDS):
        seconds = {}
        for name in sorted(arms, reverse=round_ % 2 == 0):  # who goes second is faster by some per cent
            trainer_class, config_class, fields = arms[name]
            seconds[name] = step_seconds(trainer_class, config_class, tmp_path, **fields)
            tokens.add(step_seconds.tokens)
        ratios += [mine / theirs for mine, theirs in zip(seconds["ours"][1:], seconds["stock"][1:], strict=True)]
    assert len(tokens) == 1  # the same work
    quartiles = statistics.quantiles(ratios, n=4)
    print(
        f"\nLeashGRPOTrainer / GRPOTrainer, step time: median {statistics.median(ratios):.3f}, "
        f"quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f}, {len(ratios)} pairs of steps"
    )


@pytest.mark.benchmark
def test_time_spent_in_our_own_code(tmp_path, monkeypatch):
    """The same ratio without the machine's noise: our functions' seconds against the steps they are part of."""
    seconds = []

    def timed(owner, name):
        function = getattr(owner, name)

        def wrapper(*args, **kwargs):
            start = time.perf_counter()
            result = function(*args, **kwargs)
            seconds.append(time.perf_counter() - start)
            return result

        monkeypatch.setattr(owner, name, wrapper)

    for name in ("_gather_rollouts", "_log_length_control"):
        timed(LeashGRPOTrainer, name)
    for name in ("shape", "observe", "dual_step"):
        timed(Leash, name)
    timed(leash_grpo_trainer, "group_advantages")
    steps = sum(step_seconds(LeashGRPOTrainer, LeashGRPOConfig, tmp_path, target_length=40))
    ratio = steps / (steps - sum(seconds))
    print(f"\nstep time with our code / without it: {ratio:.4f}")
    assert len(seconds) == 6 * STEPS
    assert ratio <= 1.02
