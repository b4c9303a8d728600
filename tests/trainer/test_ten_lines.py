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
from ten_lines_run import COLUMNS, OWN, PAGE, STOCK, SUBCLASS, Calls, lambdas_by_hand, run_all, write_module
from transformers import AutoModelForCausalLM, TrainerState
from trl.experimental.async_grpo import AsyncGRPOConfig

from leash_trl import LengthControlCallback, LengthControlledReward
from leash_trl.gym import CHECKPOINT
from leash_trl.length_control.leash import Leash


STILL = {"learning_rate": 0.0, "max_steps": 3}  # all three sample the same completions
EVALUATION = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
TWO_BATCHES = {"steps_per_generation": 2, "gradient_accumulation_steps": 4}
IN_ONE_PROCESS = {
    "one process, 15 updates": ({"max_steps": 15}, {*COLUMNS}),
    "three updates a batch: `steps_per_generation=3`": (
        STILL | {"max_steps": 5, "steps_per_generation": 3},
        {*COLUMNS},
    ),
    "two updates a batch: `num_iterations=2`": (STILL | {"max_steps": 5, "num_iterations": 2}, {*COLUMNS}),
    "two batches an update: `steps_per_generation=2` of 4": (STILL | TWO_BATCHES, {STOCK, SUBCLASS}),
    "evaluation after each update": (STILL | EVALUATION, {STOCK, SUBCLASS}),
}


@pytest.fixture
def run(tiny_model_path, tmp_path, monkeypatch):
    write_module(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(importlib.sys.modules, "ten_lines", raising=False)
    return partial(run_all, tiny_model_path, tmp_path)


def lambdas(*processes: dict[str, dict]) -> dict[str, list[float]]:
    return {column: [seen[column]["lambda"] for seen in processes] for column in COLUMNS}


def check(row: str, exact: float, values: dict[str, list[float]], right: set[str], tolerance=1e-12) -> None:
    """That those of the columns that the page calls right are exact and no others, and that the page has these
    numbers, up to a token that another processor samples otherwise."""
    numbers = [[exact], *(values[column] for column in COLUMNS)]
    cells = [" and ".join(f"{x + 1e-9:.4f}" for x in each) or "none" for each in numbers]  # ties go up
    print(f"| {row} | {' | '.join(cells)} |")
    for column, seen in values.items():
        assert [value == pytest.approx(exact, abs=tolerance) for value in seen] == [column in right] * len(seen)
    on_page = [[float(number) for number in re.findall(r"[\d.]+", cell)] for cell in PAGE[row]]
    assert on_page == [pytest.approx(each, abs=0.02) for each in numbers]


@pytest.mark.parametrize("row", IN_ONE_PROCESS)
def test_lambda_in_one_process(row, run):
    settings, right = IN_ONE_PROCESS[row]
    seen = run(**settings)
    assert seen[OWN]["mean lengths"] == seen[STOCK]["mean lengths"] == seen[SUBCLASS]["mean lengths"]
    exact = lambdas_by_hand(seen[SUBCLASS]["calls"], settings["max_steps"])[-1]
    check(row, exact, lambdas(seen), right)


@pytest.mark.slow
def test_on_the_gym_nothing_but_the_epsilon_differs(run, tmp_path):
    settings = {"max_steps": 15, "max_completion_length": 48, "start": {"lambda_init": 0.1, "lambda_lr": 0.005}}
    own = ten_lines_run.run(OWN, str(CHECKPOINT), tmp_path / "own", **settings)
    ours = ten_lines_run.run(SUBCLASS, str(CHECKPOINT), tmp_path / "ours", advantage_epsilon=1e-4, **settings)
    assert (own["lambda"], own["mean lengths"]) == (ours["lambda"], ours["mean lengths"])


def test_lambda_in_two_processes(run, tmp_path):
    """Two processes of six completions share a group of four."""
    ranks = in_two_processes(partial(run, per_device_train_batch_size=6, **STILL), tmp_path)
    exact = lambdas_by_hand([call for rank in ranks for call in rank[SUBCLASS]["calls"]], 3)[-1]
    check("two processes: the first and the second", exact, lambdas(*ranks), {STOCK, SUBCLASS})


def test_lambda_after_a_restart(run):
    settings = STILL | {"save_strategy": "steps", "save_steps": 1}
    first, second = run(**settings | {"max_steps": 1}), run(resume="checkpoint-1", **settings)
    calls = [*first[SUBCLASS]["calls"], *second[SUBCLASS]["calls"]]
    assert [step for _, step, _ in calls] == [0, 1, 2]
    check(
        "resumed after the first of three updates", lambdas_by_hand(calls, 3)[-1], lambdas(second), {STOCK, SUBCLASS}
    )


def test_lambda_with_tools(run, tokenizer):
    """Each completion has seven tokens of the model's, the end among them, and five of a tool's."""
    token, end = tokenizer.encode("7")[0], tokenizer.eos_token_id

    row = {"prompt_ids": [token], "completion_ids": [token] * 11 + [end], "logprobs": [-1.0] * 12}
    row["env_mask"] = [1] * 6 + [0] * 5 + [1]

    def rollout(prompts, trainer):
        return {name: [[*values] for _ in prompts] for name, values in row.items()}

    exact = lambdas_by_hand([("train", update, [7]) for update in range(3)], 3)[-1]
    check("tools: 7 tokens and 5 of a tool's", exact, lambdas(run(rollout=rollout, **STILL)), {SUBCLASS})


def test_lambda_where_another_process_scores(run, tokenizer, tiny_model_path, tmp_path):
    """Four groups of nine tokens an update: what prices the last one of the third, and what the trainer has then."""
    own, method = importlib.import_module("ten_lines"), Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR)
    reward = LengthControlledReward(own.math_reward, method, TARGET)
    callback, state = LengthControlCallback(reward), TrainerState()
    sizes = {"num_generations": 2, "per_device_train_batch_size": 8, "max_completion_length": 12}
    args = AsyncGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, **sizes)
    here, there = multiprocessing.Pipe()
    rewards = [own.leash_reward, reward]
    worker = multiprocessing.get_context("spawn").Process(target=serve, args=(there, rewards), daemon=True)
    worker.start()
    given = {"model": AutoModelForCausalLM.from_pretrained(tiny_model_path), "processing_class": tokenizer}
    callback.on_train_begin(args, state, None, **given)
    columns = {"prompts": [""] * 2, "completions": [""] * 2, "completion_ids": [[2] * 9] * 2}  # by half over
    for _ in range(3):
        before = method.lam
        for number in [0, 1] * 4:
            here.send((number, columns))
            assert here.poll(120)
            rewards[number] = here.recv()
        callback.on_step_end(args, state, None, optimizer=TAKEN)
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

    seen = run(calls=AllRight(), start={"lambda_init": 0.001, "lambda_lr": 0.0}, **STILL | {"max_steps": 1})
    lengths = torch.tensor(seen[OWN]["calls"][0][2], dtype=torch.float64).view(-1, 4)
    prices = 0.001 * (lengths / TARGET - 1).clamp(min=0)
    exact = ((prices - prices.mean(dim=1, keepdim=True)) / (prices.std(dim=1, keepdim=True) + 1e-8)).abs().sum().item()
    shares = {column: [sum(map(abs, seen[column]["advantages"])) / exact] for column in COLUMNS}
    check("lambda of 0.001: advantages, as a share of the exact ones", 1.0, shares, {SUBCLASS}, tolerance=1e-4)


def test_the_page_has_no_other_rows():
    assert len(PAGE) == 1 + len(IN_ONE_PROCESS) + 5  # with the head
