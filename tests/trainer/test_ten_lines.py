"""Do you need this? Each number of that table in recipes/any_trainer.md is one of these runs; `-s` prints its rows."""

import importlib
import multiprocessing
import re
from functools import partial

import pytest
import ten_lines_run
import torch
from processes import in_two_processes
from reward_worker import serve
from stock_run import LAMBDA_INIT, LAMBDA_LR, TAKEN, TARGET
from ten_lines_run import COLUMNS, PAGE, STOCK, SUBCLASS, TEN_LINES, Calls, lambdas_by_hand, run_all, write_module
from transformers import AutoModelForCausalLM, TrainerState
from trl.experimental.async_grpo import AsyncGRPOConfig

from leash_trl import LengthControlCallback, LengthControlledReward
from leash_trl.gym import CHECKPOINT
from leash_trl.length_control.leash import Leash


STILL = {"learning_rate": 0.0, "max_steps": 3}  # all three sample the same completions
EVALUATION = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
TWO_BATCHES = {"steps_per_generation": 2, "gradient_accumulation_steps": 4}
IN_ONE_PROCESS = [  # row of the page, settings, and which columns are right
    ("one process, 15 updates", {"max_steps": 15}, COLUMNS),
    (
        "three updates a batch: `steps_per_generation=3`",
        {"learning_rate": 0.0, "max_steps": 5, "steps_per_generation": 3},
        COLUMNS,
    ),
    (
        "two updates a batch: `num_iterations=2`",
        {"learning_rate": 0.0, "max_steps": 5, "num_iterations": 2},
        COLUMNS,
    ),
    ("two batches an update: `steps_per_generation=2` of 4", STILL | TWO_BATCHES, [STOCK, SUBCLASS]),
    ("evaluation after each update", STILL | EVALUATION, [STOCK, SUBCLASS]),
]


@pytest.fixture
def run(tiny_model_path, tmp_path, monkeypatch):
    write_module(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(importlib.sys.modules, "ten_lines", raising=False)
    return partial(run_all, tiny_model_path, tmp_path)


def lambdas(*processes):
    """By column, lambda at the end of each process."""
    return {column: [seen[column]["lambda"] for seen in processes] for column in COLUMNS}


def check(row, exact, values, right, tolerance=1e-12):
    """That those of the columns that the page calls right are exact and no others, and that the page has these
    numbers, up to a token that another processor samples otherwise."""
    numbers = [[exact]]
    for column in COLUMNS:
        numbers.append(values[column])
        for value in values[column]:
            is_exact = value == pytest.approx(exact, abs=tolerance)
            assert is_exact == (column in right)
    cells = [" and ".join(f"{number + 1e-9:.4f}" for number in cell) or "none" for cell in numbers]  # ties go up
    print(f"| {row} | {' | '.join(cells)} |")
    for cell, expected in zip(PAGE[row], numbers, strict=True):
        assert [float(number) for number in re.findall(r"[\d.]+", cell)] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("row", "settings", "right"), IN_ONE_PROCESS)
def test_lambda_in_one_process(row, settings, right, run):
    seen = run(**settings)
    assert seen[TEN_LINES]["mean lengths"] == seen[STOCK]["mean lengths"] == seen[SUBCLASS]["mean lengths"]
    exact = lambdas_by_hand(seen[SUBCLASS]["calls"], settings["max_steps"])[-1]
    check(row, exact, lambdas(seen), right)


@pytest.mark.slow
def test_on_the_gym_nothing_but_the_epsilon_differs(run, tmp_path):
    settings = {"max_steps": 15, "max_completion_length": 48, "start": {"lambda_init": 0.1, "lambda_lr": 0.005}}
    lines = ten_lines_run.run(TEN_LINES, str(CHECKPOINT), tmp_path / "lines", **settings)
    ours = ten_lines_run.run(SUBCLASS, str(CHECKPOINT), tmp_path / "ours", advantage_epsilon=1e-4, **settings)
    assert lines["lambda"] == ours["lambda"]
    assert lines["mean lengths"] == ours["mean lengths"]


def test_lambda_in_two_processes(run, tmp_path):
    """Two processes of six completions share a group of four."""
    first, second = in_two_processes(partial(run, per_device_train_batch_size=6, **STILL), tmp_path)
    calls = first[SUBCLASS]["calls"] + second[SUBCLASS]["calls"]
    exact = lambdas_by_hand(calls, 3)[-1]
    check("two processes: the first and the second", exact, lambdas(first, second), [STOCK, SUBCLASS])


def test_lambda_after_a_restart(run):
    settings = {"learning_rate": 0.0, "save_strategy": "steps", "save_steps": 1}
    first = run(max_steps=1, **settings)
    second = run(max_steps=3, resume="checkpoint-1", **settings)
    calls = first[SUBCLASS]["calls"] + second[SUBCLASS]["calls"]
    assert [step for _, step, _ in calls] == [0, 1, 2]
    exact = lambdas_by_hand(calls, 3)[-1]
    check("resumed after the first of three updates", exact, lambdas(second), [STOCK, SUBCLASS])


def test_lambda_with_tools(run, tokenizer):
    """Each completion has seven tokens of the model's, the end among them, and five of a tool's."""
    token = tokenizer.encode("7")[0]

    def rollout(prompts, trainer):
        return {
            "prompt_ids": [[token] for _ in prompts],
            "completion_ids": [[token] * 11 + [tokenizer.eos_token_id] for _ in prompts],
            "logprobs": [[-1.0] * 12 for _ in prompts],
            "env_mask": [[1] * 6 + [0] * 5 + [1] for _ in prompts],
        }

    exact = lambdas_by_hand([("train", update, [7]) for update in range(3)], 3)[-1]
    check("tools: 7 tokens and 5 of a tool's", exact, lambdas(run(rollout=rollout, **STILL)), [SUBCLASS])


def test_lambda_where_another_process_scores(run, tokenizer, tiny_model_path, tmp_path):
    """Four groups of nine tokens an update: what penalizes the last of the third, and what the trainer has then."""
    ten_lines = importlib.import_module("ten_lines")
    method = Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR)
    reward = LengthControlledReward(ten_lines.math_reward, method, TARGET)
    callback = LengthControlCallback(reward)
    state = TrainerState()
    sizes = {"num_generations": 2, "per_device_train_batch_size": 8, "max_completion_length": 12}
    args = AsyncGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **sizes)
    here, there = multiprocessing.Pipe()
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    callback.on_train_begin(args, state, None, model=model, processing_class=tokenizer)
    reward_funcs = [ten_lines.leash_reward, reward]
    worker = multiprocessing.get_context("spawn").Process(target=serve, args=(there, reward_funcs), daemon=True)
    worker.start()
    group = {"prompts": [""] * 2, "completions": [""] * 2, "completion_ids": [[2] * 9] * 2}  # by half over
    scores = [[], []]
    for _ in range(3):
        lambda_of_update = method.lam
        for number in [0, 1] * 4:
            here.send((number, group))
            assert here.poll(120)
            scores[number] = here.recv()
        callback.on_step_end(args, state, None, optimizer=TAKEN)
    here.close()
    worker.join(60)
    by_ten_lines, by_reward = ((1 - rewards[0]) / 0.5 for rewards in scores)  # lambda
    exact = lambdas_by_hand([("train", update, [9]) for update in range(2)], 2)[-1]
    values = {TEN_LINES: [by_ten_lines, ten_lines.lam], STOCK: [by_reward, lambda_of_update], SUBCLASS: []}
    check("asynchronous, third update: worker and trainer", exact, values, [STOCK, SUBCLASS])


def test_advantages_at_a_small_lambda(run):
    class AllRight(Calls):
        def __call__(self, **columns):
            return [1.0 for _ in super().__call__(**columns)]

    start = {"lambda_init": 0.001, "lambda_lr": 0.0}
    seen = run(calls=AllRight(), start=start, learning_rate=0.0, max_steps=1)
    _, _, lengths = seen[TEN_LINES]["calls"][0]
    violations = torch.tensor(lengths, dtype=torch.float64).view(-1, 4) / TARGET - 1
    penalties = 0.001 * violations.clamp(min=0)
    deviation = penalties.std(dim=1, keepdim=True) + 1e-8
    advantages = (penalties - penalties.mean(dim=1, keepdim=True)) / deviation
    exact = advantages.abs().sum().item()
    shares = {column: [sum(map(abs, seen[column]["advantages"])) / exact] for column in COLUMNS}
    check("lambda of 0.001: advantages, as a share of the exact ones", 1.0, shares, [SUBCLASS], tolerance=1e-4)


def test_the_page_has_no_other_rows():
    assert len(PAGE) == 1 + len(IN_ONE_PROCESS) + 5  # with the head
