"""Do you need this? Each number of that table in recipes/any_trainer.md is one of these runs; `-s` prints its rows."""

import importlib
import multiprocessing
import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from processes import in_two_processes
from reward_worker import serve
from stock_run import LAMBDA_INIT, LAMBDA_LR, TARGET, Calls, lambdas_by_hand
from ten_lines_run import COLUMNS, OWN, SECTION, STOCK, SUBCLASS, run_all, write_module
from transformers import AutoModelForCausalLM, TrainerState
from trl.experimental.async_grpo import AsyncGRPOConfig

from leash_trl import LengthControlCallback, LengthControlledReward
from leash_trl.length_control.leash import Leash


PAGE = {first: rest for first, *rest in re.findall(r"^\| (.+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", SECTION, re.M)}
STILL = {"learning_rate": 0.0, "max_steps": 3}  # all three sample the same completions
EVALUATION = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
TWO_BATCHES = {"steps_per_generation": 2, "gradient_accumulation_steps": 4}
IN_ONE_PROCESS = {
    "one process, 15 updates": ({"max_steps": 15}, {*COLUMNS}),
    "three updates a batch: `steps_per_generation=3`": (
        {**STILL, "steps_per_generation": 3, "max_steps": 5},
        {*COLUMNS},
    ),
    "two updates a batch: `num_iterations=2`": ({**STILL, "num_iterations": 2, "max_steps": 5}, {*COLUMNS}),
    "two batches an update: `steps_per_generation=2` of 4": ({**STILL, **TWO_BATCHES}, {STOCK, SUBCLASS}),
    "evaluation after each update": ({**STILL, **EVALUATION}, {STOCK, SUBCLASS}),
}


@pytest.fixture
def run(tiny_model_path, tmp_path, monkeypatch):
    """Runs all three with some settings."""
    write_module(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(importlib.sys.modules, "ten_lines", raising=False)
    return partial(run_all, tiny_model_path, tmp_path)


def lambdas(*processes: dict[str, dict]) -> dict[str, list[float]]:
    return {column: [seen[column]["lambda"] for seen in processes] for column in COLUMNS}


def shown(number: float) -> str:
    return f"{number + 1e-9:.4f}"  # 0.15625 goes up, whichever way a sum was rounded


def check(row: str, exact: float, values: dict[str, list[float]], right: set[str], tolerance=1e-12) -> None:
    """That the page has these numbers, and that those of the columns that it calls right are exact and no others."""
    cells = [" and ".join(map(shown, each)) or "none" for each in ([exact], *(values[column] for column in COLUMNS))]
    print(f"| {row} | {' | '.join(cells)} |")
    for column in values:
        is_exact = [value == pytest.approx(exact, abs=tolerance) for value in values[column]]
        assert all(is_exact) if column in right else not any(is_exact)
    assert PAGE[row] == cells


@pytest.mark.parametrize("row", IN_ONE_PROCESS)
def test_lambda_in_one_process(row, run):
    settings, right = IN_ONE_PROCESS[row]
    seen = run(**settings)
    assert seen[OWN]["mean lengths"] == seen[STOCK]["mean lengths"] == seen[SUBCLASS]["mean lengths"]
    exact = lambdas_by_hand(seen[SUBCLASS]["calls"], settings["max_steps"])[-1]
    check(row, exact, lambdas(seen), right)


def test_lambda_in_two_processes(run, tmp_path):
    """Two processes of six completions share a group of four."""
    ranks = in_two_processes(partial(run, per_device_train_batch_size=6, **STILL), tmp_path)
    exact = lambdas_by_hand([call for rank in ranks for call in rank[SUBCLASS]["calls"]], 3)[-1]
    check("two processes: the first and the second", exact, lambdas(*ranks), {STOCK, SUBCLASS})


def test_lambda_after_a_restart(run):
    settings = {**STILL, "save_strategy": "steps", "save_steps": 1}
    first, second = run(**{**settings, "max_steps": 1}), run(resume="checkpoint-1", **settings)
    calls = [*first[SUBCLASS]["calls"], *second[SUBCLASS]["calls"]]
    assert [step for _, step, _ in calls] == [0, 1, 2]
    check(
        "resumed after the first of three updates", lambdas_by_hand(calls, 3)[-1], lambdas(second), {STOCK, SUBCLASS}
    )


def test_lambda_with_tools(run, tokenizer):
    """Each completion has seven tokens of the model's, the end among them, and five of a tool's."""
    token, end = tokenizer.encode("7")[0], tokenizer.eos_token_id

    def rollout(prompts, trainer):
        return {
            "prompt_ids": [[token] for _ in prompts],
            "completion_ids": [[token] * 11 + [end] for _ in prompts],
            "logprobs": [[-1.0] * 12 for _ in prompts],
            "env_mask": [[1] * 6 + [0] * 5 + [1] for _ in prompts],
        }

    exact = lambdas_by_hand([("train", update, [7]) for update in range(3)], 3)[-1]
    check("tools: 7 tokens and 5 of a tool's", exact, lambdas(run(rollout=rollout, **STILL)), {SUBCLASS})


def test_lambda_where_another_process_scores(run, tokenizer, tiny_model_path, tmp_path):
    """Four groups an update, of nine tokens a completion: what prices the last group of the third update, and what
    the trainer's own process has then."""
    own, method = importlib.import_module("ten_lines"), Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR)
    reward = LengthControlledReward(own.math_reward, method, TARGET)
    callback, state = LengthControlCallback(reward), TrainerState()
    sizes = {"num_generations": 2, "per_device_train_batch_size": 8, "max_completion_length": 12}
    args = AsyncGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **sizes)
    here, there = multiprocessing.Pipe()
    rewards = [own.leash_reward, reward]
    worker = multiprocessing.get_context("spawn").Process(target=serve, args=(there, rewards), daemon=True)
    worker.start()
    taken = SimpleNamespace(step_was_skipped=False, scaler=None)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    given = {"model": model, "processing_class": tokenizer, "optimizer": taken}
    callback.on_train_begin(args, state, None, **given)
    columns = {"prompts": [""] * 2, "completions": [""] * 2, "completion_ids": [[2] * 9] * 2}  # by half over
    for _ in range(3):
        before = method.lam
        for number in [0, 1] * 4:
            here.send((number, columns))
            assert here.poll(120)
            rewards[number] = here.recv()
        callback.on_step_end(args, state, None, **given)
    here.close()
    worker.join(60)
    price = [(1 - scored[0]) / 0.5 for scored in rewards]
    exact = lambdas_by_hand([("train", update, [9]) for update in range(2)], 2)[-1]
    values = {OWN: [price[0], own.lam], STOCK: [price[1], before], SUBCLASS: []}
    check("asynchronous, third update: worker and trainer", exact, values, {STOCK, SUBCLASS})


def test_advantages_at_a_small_lambda(run):
    class AllRight(Calls):
        def __call__(self, **given):
            return [1.0 for _ in super().__call__(**given)]

    seen = run(calls=AllRight(), start={"lambda_init": 0.001, "lambda_lr": 0.0}, **{**STILL, "max_steps": 1})
    lengths = torch.tensor(seen[OWN]["calls"][0][2], dtype=torch.float64).view(-1, 4)
    prices = 0.001 * (lengths / TARGET - 1).clamp(min=0)
    exact = ((prices - prices.mean(dim=1, keepdim=True)) / (prices.std(dim=1, keepdim=True) + 1e-8)).abs().sum().item()
    shares = {column: [sum(map(abs, seen[column]["advantages"])) / exact] for column in COLUMNS}
    check("lambda of 0.001: advantages, as a share of the exact ones", 1.0, shares, {SUBCLASS}, tolerance=1e-4)
