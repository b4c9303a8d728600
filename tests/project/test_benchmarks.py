"""Speed, as ratios in one run; `make bench`. Not part of the default suite."""

import itertools
import json
import random
import statistics
import time

import pytest
from conftest import parity_reward, quiet
from math_verify import parse, verify
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems
from leash_trl.rewards import grading


pytestmark = pytest.mark.benchmark
ROUNDS, STEPS = 4, 8


class StepTimes(TrainerCallback):
    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *args, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        self.seconds.append(time.perf_counter() - self.start)


def test_overhead_over_grpo_trainer(tmp_path):
    # with lambda at 0 both trainers do the same work, token for token
    sizes = {"per_device_train_batch_size": 64, "max_completion_length": 96, "max_steps": STEPS, "learning_rate": 1e-6}
    leash = {"target_length": 40, "lambda_init": 0.0, "lambda_lr": 0.0}
    settings = {name: value for name, value in quiet(tmp_path, **sizes).items() if name not in leash}
    ours = LeashGRPOConfig(**settings, **leash, advantage_epsilon=1e-4)  # TRL's
    arms = {"stock": (GRPOTrainer, GRPOConfig(**settings)), "ours": (LeashGRPOTrainer, ours)}
    ratios, tokens, problems = [], set(), gym_problems("train", 256)
    for round_ in range(ROUNDS):
        seconds = {}
        for name in sorted(arms, reverse=round_ % 2 == 0):  # who goes second is faster by some per cent
            trainer_class, args = arms[name]
            times = StepTimes()
            trainer = trainer_class(str(CHECKPOINT), parity_reward, args, train_dataset=problems, callbacks=[times])
            trainer.train()
            tokens.add(trainer.state.num_input_tokens_seen)
            seconds[name] = times.seconds[1:]
        ratios += [mine / theirs for mine, theirs in zip(seconds["ours"], seconds["stock"], strict=True)]
    assert len(tokens) == 1  # the same work
    low, median, high = statistics.quantiles(ratios, n=4)
    print(f"\nLeashGRPOTrainer / GRPOTrainer, step time: median {median:.3f}, quartiles {low:.3f} to {high:.3f}")


@pytest.mark.parametrize("num_generations", [8, 1])
def test_grading_against_direct_calls_of_math_verify(shared_data, num_generations):
    """512 completions of 30,000 characters, half right and half with another's answer; same verdicts."""
    rng = random.Random(num_generations)
    texts, rows = (
        [json.loads(line) for line in (shared_data / f"{name}.jsonl").open(encoding="utf-8")]
        for name in ("traces", "math500")
    )
    text = "".join(row["completion"].replace("\\boxed", "").replace("think>", "") for row in texts)
    golds = [str(row["answer"]) for row in rng.sample(rows, 512 // num_generations) for _ in range(num_generations)]
    starts = [rng.randrange(len(text) - 30_000) for _ in golds]
    answers = [gold if rng.random() < 0.5 else rng.choice(golds) for gold in golds]
    completions = [
        f"{text[start : start + 30_000]}</think>\n\\boxed{{{answer}}}"
        for start, answer in zip(starts, answers, strict=True)
    ]
    grading.grade(completions[:1], golds[:1])  # starts the worker processes
    times = [time.perf_counter()]
    ours = [bool(one.is_correct) for one in grading.grade(completions, golds)]
    times.append(time.perf_counter())
    direct = [verify(parse(f"${gold}$"), parse(text)) for gold, text in zip(golds, completions, strict=True)]
    times.append(time.perf_counter())
    ours_s, direct_s = (end - start for start, end in itertools.pairwise(times))
    print(f"\n512 completions, groups of {num_generations}: direct {direct_s:.2f} s, ours {ours_s:.2f} s")
    assert ours == direct
    assert 0.4 < sum(direct) / len(direct) < 0.65
    assert ours_s < direct_s
