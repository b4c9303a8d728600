"""Do you need this? Each row of the table in recipes/any_trainer.md, from runs: what ten lines of one's own do, what the
reward function with its callback does, what the subclass does, and the paper by the same lengths. `-s` prints the rows."""

import importlib
import multiprocessing
import re
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, eos_bias, logged, quiet
from processes import in_two_processes
from reward_worker import serve
from stock_run import LAMBDA_INIT, LAMBDA_LR, TARGET, Calls, data_sets, lambdas_by_hand, stock_trainer
from transformers import AutoModelForCausalLM, TrainerState
from trl.experimental.async_grpo import AsyncGRPOConfig

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer, LengthControlCallback, LengthControlledReward
from leash_trl.length_control.leash import Leash


SECTION = (ROOT / "recipes" / "any_trainer.md").read_text(encoding="utf-8").partition("## Do you need this?")[2]
PAGE = {
    cells[0]: cells[1:] for cells in re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", SECTION, re.M)
}
COLUMNS = OWN, STOCK, SUBCLASS = "ten lines", "reward and callback", "LeashGRPOTrainer"
STILL = {"learning_rate": 0.0}  # all three sample the same completions
EVALUATION = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 8}
ROWS = {
    "one process, 15 updates": ({"max_steps": 15}, {*COLUMNS}),
    "evaluation after each update": ({**STILL, **EVALUATION}, {STOCK, SUBCLASS}),
    "`steps_per_generation=3`": ({**STILL, "steps_per_generation": 3}, {*COLUMNS}),
    "`num_iterations=2`": ({**STILL, "num_iterations": 2}, {*COLUMNS}),
    "`steps_per_generation=2`, `gradient_accumulation_steps=4`": (
        {**STILL, "steps_per_generation": 2, "gradient_accumulation_steps": 4},
        {STOCK, SUBCLASS},
    ),
}


@pytest.fixture(autouse=True)
def ten_lines(tmp_path, monkeypatch):
    """The page's lines as a module, with the constants of `stock_run` and a reward that goes by parity."""
    code = re.search(r"```python\n(.*?)```", SECTION, re.DOTALL)[1]
    constants = f"target, lr, lam = {TARGET}, {LAMBDA_LR}, {LAMBDA_INIT}"
    (tmp_path / "ten_lines.py").write_text(f"{code}\nfrom conftest import parity_reward as math_reward\n{constants}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(importlib.sys.modules, "ten_lines", raising=False)


def run(
    column,
    tokenizer,
    model_path,
    folder,
    calls=None,
    lam=LAMBDA_INIT,
    lr=LAMBDA_LR,
    resume=None,
    rollout=None,
    **settings,
):
    """What one of the three columns does with these settings, in a process of which it knows nothing before."""
    calls, method = calls or Calls(), Leash(lambda_init=lam, lambda_lr=lr)
    own = importlib.reload(importlib.import_module("ten_lines"))
    own.math_reward, own.lam, own.lr = calls, lam, lr
    if column == SUBCLASS:
        fields = {
            "target_length": TARGET,
            "max_completion_length": 2 * TARGET,
            "max_steps": 5,
            "lambda_lr": lr,
            **settings,
        }
        args = LeashGRPOConfig(**quiet(folder, **fields), lambda_init=lam, generation_kwargs=eos_bias(tokenizer))
        trainer = LeashGRPOTrainer(model_path, calls, args, **data_sets())
        method = trainer.length_control
    else:
        trainer = stock_trainer("GRPO", model_path, folder, method, reward_func=calls, **own.config, **settings)
    if column == OWN:
        trainer.pop_callback(LengthControlCallback)
        trainer.reward_funcs, method = [own.leash_reward], own
    trainer.rollout_func = rollout
    trainer.train(resume_from_checkpoint=resume)
    lengths, advantages = logged(trainer, "completions/mean_length"), [*trainer._logs["advantages"]]
    return {"lam": method.lam, "calls": calls.lengths, "mean lengths": lengths, "advantages": advantages}


def run_each(tokenizer, model_path, folder, **settings) -> dict[str, dict]:
    return {column: run(column, tokenizer, model_path, folder / column, **settings) for column in COLUMNS}


@pytest.fixture
def run_all(tokenizer, tiny_model_path, tmp_path):
    return partial(run_each, tokenizer, tiny_model_path, tmp_path)


def check(row: str, exact: float, seen: dict[str, list[float | None]], right: set[str], tolerance=1e-12) -> None:
    """That these columns, and no others, are exact, and that the page has just these numbers."""
    cells = [" and ".join(f"{value:.4f}" for value in seen[column]) or "none" for column in COLUMNS]
    print(f"| {row} | {exact:.4f} | {' | '.join(cells)} |")
    for column, values in seen.items():
        is_right = [value == pytest.approx(exact, abs=tolerance) for value in values]
        assert all(is_right) if column in right else not any(is_right)
    assert PAGE[row] == (f"{exact:.4f}", *cells)


@pytest.mark.parametrize("row", ROWS)
def test_lambda_in_one_process(row, run_all):
    settings, right = ROWS[row]
    seen = run_all(**settings)
    exact = lambdas_by_hand(seen[SUBCLASS]["calls"], settings.get("max_steps", 5))[-1]
    assert seen[OWN]["mean lengths"] == seen[STOCK]["mean lengths"] == seen[SUBCLASS]["mean lengths"]
    check(row, exact, {column: [seen[column]["lam"]] for column in COLUMNS}, right)


def test_lambda_of_two_processes(run_all, tmp_path):
    """Two processes of six completions share a group of four."""
    first, second = in_two_processes(partial(run_all, per_device_train_batch_size=6, **STILL), tmp_path)
    exact = lambdas_by_hand([*first[SUBCLASS]["calls"], *second[SUBCLASS]["calls"]], 5)[-1]
    check(
        "two processes",
        exact,
        {column: [first[column]["lam"], second[column]["lam"]] for column in COLUMNS},
        {STOCK, SUBCLASS},
    )


def test_lambda_after_a_restart(run_all, tokenizer, tiny_model_path, tmp_path):
    """After the second of five updates, from the checkpoint that lies there."""
    settings = {**STILL, "save_strategy": "steps", "save_steps": 2}
    whole = run_all(**settings)
    resumed = {
        c: run(c, tokenizer, tiny_model_path, tmp_path / c, resume=str(tmp_path / c / "checkpoint-2"), **settings)
        for c in COLUMNS
    }
    check(
        "a restart after update 2",
        lambdas_by_hand(whole[SUBCLASS]["calls"], 5)[-1],
        {column: [resumed[column]["lam"]] for column in COLUMNS},
        {STOCK, SUBCLASS},
    )


def test_lambda_with_tools(run_all, tokenizer):
    """Each completion has seven tokens of the model's, the end among them, and five of a tool's."""
    token, end = tokenizer.encode("7")[0], tokenizer.eos_token_id

    def rollout(prompts, trainer):
        return {
            "prompt_ids": [[token] for _ in prompts],
            "completion_ids": [[token] * 11 + [end] for _ in prompts],
            "logprobs": [[-1.0] * 12 for _ in prompts],
            "env_mask": [[1] * 6 + [0] * 5 + [1] for _ in prompts],
        }

    seen = run_all(rollout=rollout, **STILL)
    exact = lambdas_by_hand([("train", update, [7]) for update in range(5)], 5)[-1]
    check("tools", exact, {column: [seen[column]["lam"]] for column in COLUMNS}, {SUBCLASS})


def test_lambda_of_a_copy_in_another_process(tokenizer, tiny_model_path, tmp_path):
    """Four groups an update, each of nine tokens a completion; the lambda that prices the last group of the third, and
    what the trainer's own process has then."""
    from conftest import parity_reward

    own, method = importlib.import_module("ten_lines"), Leash(lambda_init=LAMBDA_INIT, lambda_lr=LAMBDA_LR)
    reward = LengthControlledReward(parity_reward, method, TARGET)
    callback, state = LengthControlCallback(reward), TrainerState()
    sizes = {"num_generations": 2, "per_device_train_batch_size": 8}
    args = AsyncGRPOConfig(str(tmp_path), use_cpu=True, bf16=False, max_completion_length=12, **sizes)
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    worker = context.Process(target=serve, args=(there, [own.leash_reward, reward]), daemon=True)
    worker.start()
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    given = {
        "model": model,
        "processing_class": tokenizer,
        "optimizer": SimpleNamespace(step_was_skipped=False, scaler=None),
    }
    callback.on_train_begin(args, state, None, **given)
    columns = {"prompts": [""] * 2, "completions": [""] * 2, "completion_ids": [[2] * 9] * 2}  # right, by half over
    for _ in range(3):
        priced = []
        for number in [0, 1] * 4:
            here.send((number, columns))
            assert here.poll(120)
            priced.append((1 - here.recv()[0]) / 0.5)
        before = method.lam
        callback.on_step_end(args, state, None, **given)
    here.close()
    worker.join()
    exact = lambdas_by_hand([("train", update, [9]) for update in range(2)], 2)[-1]
    seen = {OWN: [priced[-2], own.lam], STOCK: [priced[-1], before], SUBCLASS: []}
    check("asynchronous, update 3: worker and trainer", exact, seen, {STOCK, SUBCLASS})


def test_advantages_at_a_small_lambda(run_all):
    class AllRight(Calls):
        def __call__(self, **given):
            return [1.0 for _ in super().__call__(**given)]

    seen = run_all(calls=AllRight(), lam=0.001, lr=0.0, max_steps=1, **STILL)
    lengths = torch.tensor(seen[OWN]["calls"][0][2], dtype=torch.float64).view(-1, 4)
    costs = 0.001 * (lengths / TARGET - 1).clamp(min=0)
    exact = (costs - costs.mean(dim=1, keepdim=True)) / (costs.std(dim=1, keepdim=True) + 1e-8)
    shares = {
        column: [torch.tensor(seen[column]["advantages"]).abs().sum().item() / exact.abs().sum().item()]
        for column in COLUMNS
    }
    check("lambda 0.001: share of the exact advantages", 1.0, shares, {SUBCLASS}, tolerance=1e-4)
