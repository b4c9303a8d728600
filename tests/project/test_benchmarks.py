"""Speed, as ratios in one run; `make bench`. Not part of the default suite."""

import functools
import json
import random
import statistics
import time

import psutil
import pytest
from math_verify import parse, verify
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems
from leash_trl.rewards import grading, math_reward


ROUNDS, STEPS = 4, 8


class StepTimes(TrainerCallback):
    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *args, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        self.seconds.append(time.perf_counter() - self.start)


def step_seconds(trainer_class, config_class, output_dir, **fields) -> tuple[list[float], int]:
    """Seconds of each step of a gym run, and its tokens."""
    sizes = {"per_device_train_batch_size": 64, "max_completion_length": 96, "max_steps": STEPS, "logging_steps": 1}
    step = {"epsilon_high": 0.28, "weight_decay": 0.1, "lr_scheduler_type": "constant", "use_cpu": True, "bf16": False}
    silent = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "gradient_checkpointing": False}
    args = config_class(output_dir=str(output_dir), **sizes, **step, **silent, **fields)
    times, problems = StepTimes(), gym_problems("train", 256)
    trainer = trainer_class(str(CHECKPOINT), math_reward, args, train_dataset=problems, callbacks=[times])
    trainer.train()
    return times.seconds, trainer.state.num_input_tokens_seen


@pytest.mark.benchmark
def test_overhead_over_grpo_trainer(tmp_path):
    # with lambda at 0 both trainers do the same work, token for token
    leash = {"target_length": 40, "lambda_init": 0.0, "lambda_lr": 0.0, "advantage_epsilon": 1e-4}
    ratios, tokens = [], set()
    arms = {"stock": (GRPOTrainer, GRPOConfig, {}), "ours": (LeashGRPOTrainer, LeashGRPOConfig, leash)}
    for round_ in range(ROUNDS):
        seconds = {}
        for name in sorted(arms, reverse=round_ % 2 == 0):  # who goes second is faster by some per cent
            trainer_class, config_class, fields = arms[name]
            seconds[name], num_tokens = step_seconds(trainer_class, config_class, tmp_path, **fields)
            tokens.add(num_tokens)
        ratios += [mine / theirs for mine, theirs in zip(seconds["ours"][1:], seconds["stock"][1:], strict=True)]
    assert len(tokens) == 1  # the same work
    quartiles = statistics.quantiles(ratios, n=4)
    print(
        f"\nLeashGRPOTrainer / GRPOTrainer, step time: median {statistics.median(ratios):.3f}, "
        f"quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f}, {len(ratios)} pairs of steps"
    )


def completions_to_grade(data, seed: int, num_generations: int) -> list[tuple[str, str]]:
    """512 completions of 30,000 characters with their golds: half right, half with an answer of the same kind."""
    rng = random.Random(seed)
    rows = {
        name: [json.loads(line) for line in (data / f"{name}.jsonl").open(encoding="utf-8")]
        for name in ("traces", "aime24", "math500")
    }
    text = "".join(row["completion"].replace("\\boxed", "").replace("think>", "") for row in rows["traces"])
    golds = [str(row["answer"]) for name in ("aime24", "math500") for row in rows[name]]
    kinds = {is_number: [gold for gold in golds if gold.isdigit() == is_number] for is_number in (True, False)}
    cases = []
    for gold in rng.sample(golds, 512 // num_generations):
        for _ in range(num_generations):
            answer = gold if rng.random() < 0.5 else rng.choice(kinds[gold.isdigit()])
            tail = f"</think>\n\n**Final Answer**\n\\[\n\\boxed{{{answer}}}\n\\]"
            start = rng.randrange(len(text) - 30_000)
            cases.append((text[start : start + 30_000 - len(tail)] + tail, gold))
    return cases


def seconds_of(function) -> tuple[float, float, list[bool]]:
    """Wall-clock seconds of a call, CPU seconds of it and of running children, and its result."""

    def cpu() -> float:
        process = psutil.Process()
        times = [process.cpu_times(), *(child.cpu_times() for child in process.children(recursive=True))]
        return sum(time.user + time.system for time in times)

    start, cpu_start = time.perf_counter(), cpu()
    result = function()
    return time.perf_counter() - start, cpu() - cpu_start, result


@pytest.mark.benchmark
@pytest.mark.parametrize("num_generations", [8, 1])
def test_grading_against_direct_calls_of_math_verify(shared_data, num_generations):
    """Same completions, same verdicts: worker processes not yet started, and started on a batch before."""
    batches = [completions_to_grade(shared_data, seed, num_generations) for seed in (0, 1)]
    grading._pool.cache_clear()

    def ours(batch):
        return [bool(one.is_correct) for one in grading.grade(*map(list, zip(*batch, strict=True)))]

    def direct(batch):
        return [verify(parse(f"${gold}$"), parse(completion)) for completion, gold in batch]

    for name, batch in zip(("cold", "warm"), batches, strict=True):
        our_wall, our_cpu, our_verdicts = seconds_of(functools.partial(ours, batch))
        wall, cpu, verdicts = seconds_of(functools.partial(direct, batch))
        print(
            f"\ngrading 512 completions, groups of {num_generations}, {name}: "
            f"direct {wall:.2f} s, ours {our_wall:.2f} s, ratio {wall / our_wall:.1f}; "
            f"CPU {cpu:.2f} s, {our_cpu:.2f} s, ratio {cpu / our_cpu:.1f}"
        )
        assert our_verdicts == verdicts
        assert 0.4 < sum(verdicts) / len(verdicts) < 0.65
    assert our_wall < wall
