"""Do you need this? Each number of that table in recipes/any_trainer.md is one of these runs; `-s` prints its rows."""

import importlib
import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest
import reward_worker
from processes import in_two_processes
from stock_run import LAMBDA_INIT, LAMBDA_LR, TAKEN, TARGET
from ten_lines_run import COLUMNS, PAGE, STOCK, SUBCLASS, TEN_LINES, lambda_by_hand, run_all, write_module
from transformers import AutoModelForCausalLM, TrainerState
from trl.experimental.async_grpo import AsyncGRPOConfig

from leash_trl import LengthControlCallback, LengthControlledReward
from leash_trl.length_control.leash import Leash


STILL = {"learning_rate": 0.0, "max_steps": 3}  # all three sample the same completions
EVALUATION = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
TWO_BATCHES = {"steps_per_generation": 2, "gradient_accumulation_steps": 4}
IN_ONE_PROCESS = [  # row of the page, settings, and which columns are right
    ("one process, 15 updates", {"max_steps": 15}, COLUMNS),
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


def check(row, exact, values, right):
    """That those of the columns that the page calls right are exact and no others, and that the page has these
    numbers, up to a token that another processor samples otherwise."""
    numbers = [[exact]]
    for column in COLUMNS:
        numbers.append(values[column])
        for value in values[column]:
            is_exact = value == pytest.approx(exact, abs=1e-12)
            assert is_exact == (column in right)
    cells = [" and ".join(f"{number + 1e-9:.4f}" for number in cell) or "none" for cell in numbers]  # ties go up
    print(f"| {row} | {' | '.join(cells)} |")
    for cell, expected in zip(PAGE[row], numbers, strict=True):
        assert [float(number) for number in re.findall(r"[\d.]+", cell)] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(("row", "settings", "right"), IN_ONE_PROCESS)
def test_lambda_in_one_process(row, settings, right, run):
    seen = run(**settings)
    assert seen[TEN_LINES]["mean lengths"] == seen[STOCK]["mean lengths"] == seen[SUBCLASS]["mean lengths"]
    exact = lambda_by_hand(seen[SUBCLASS]["calls"], settings["max_steps"])
    check(row, exact, lambdas(seen), right)


def test_lambda_in_two_processes(run, tmp_path):
    """Two processes of six completions share a group of four."""
    first, second = in_two_processes(partial(run, per_device_train_batch_size=6, **STILL), tmp_path)
    calls = first[SUBCLASS]["calls"] + second[SUBCLASS]["calls"]
    exact = lambda_by_hand(calls, 3)
    check("two processes: the first and the second", exact, lambdas(first, second), [STOCK, SUBCLASS])


def test_lambda_after_a_restart(run):
    settings = {"learning_rate": 0.0, "save_strategy": "steps", "save_steps": 1}
    first = run(max_steps=1, **settings)
    second = run(max_steps=3, resume="checkpoint-1", **settings)
    calls = first[SUBCLASS]["calls"] + second[SUBCLASS]["calls"]
    assert [step for _, step, _ in calls] == [0, 1, 2]
    exact = lambda_by_hand(calls, 3)
    check("resumed after the first of three updates", exact, lambdas(second), [STOCK, SUBCLASS])


def test_lambda_where_another_process_scores(run, tokenizer, tiny_model_path, tmp_path):
    """Four groups of nine tokens an update: what penalizes the last of the third, and what the trainer has then."""
    ten_lines = importlib.import_module("ten_lines")
    method = Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR)
    reward = LengthControlledReward(ten_lines.math_reward, method, TARGET)
    callback = LengthControlCallback(reward)
    state = TrainerState()
    sizes = {"num_generations": 2, "per_device_train_batch_size": 8, "max_completion_length": 12}
    args = AsyncGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **sizes)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    callback.on_train_begin(args, state, None, model=model, processing_class=tokenizer)
    reward_funcs = [ten_lines.leash_reward, reward]
    group = {"prompts": [""] * 2, "completions": [""] * 2, "completion_ids": [[2] * 9] * 2}  # by half over
    scores = [[], []]
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=reward_worker.keep, initargs=[reward_funcs]) as worker:
        for _ in range(3):
            lambda_of_update = method.lam
            for number in [0, 1] * 4:
                scores[number] = worker.submit(reward_worker.score, number, group).result()
            callback.on_step_end(args, state, None, optimizer=TAKEN)
    by_ten_lines, by_reward = ((1 - rewards[0]) / 0.5 for rewards in scores)  # lambda
    exact = lambda_by_hand([("train", update, [9]) for update in range(2)], 2)
    values = {TEN_LINES: [by_ten_lines, ten_lines.lam], STOCK: [by_reward, lambda_of_update], SUBCLASS: []}
    check("asynchronous, third update: worker and trainer", exact, values, [STOCK, SUBCLASS])


def test_the_page_has_no_other_rows():
    assert len(PAGE) == 1 + len(IN_ONE_PROCESS) + 3  # with the head
