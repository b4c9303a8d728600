"""LEASH in the three ways that recipes/any_trainer.md compares, on the tiny model: ten lines of one's own, as the page
has them, the reward function with its callback, and the subclass."""

import importlib
import re
from dataclasses import dataclass, field

from conftest import ROOT, eos_bias, gym_tokenizer, logged, quiet
from stock_run import LAMBDA_INIT, LAMBDA_LR, TARGET, data_sets, stock_trainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer, LengthControlCallback
from leash_trl.length_control.leash import Leash


SECTION = (ROOT / "recipes" / "any_trainer.md").read_text(encoding="utf-8").partition("## Do you need this?")[2]
PAGE = {first: rest for first, *rest in re.findall(r"^\| (.+) \| (.+) \| (.+) \| (.+) \| (.+) \|$", SECTION, re.M)}
TEN_LINES = "ten lines"
STOCK = "reward and callback"
SUBCLASS = "LeashGRPOTrainer"
COLUMNS = [TEN_LINES, STOCK, SUBCLASS]
CHANGES = f"""
target, lr, lam = {TARGET}, {LAMBDA_LR}, {LAMBDA_INIT}


def math_reward(completion_ids, **columns):
    return [1.0 for _ in completion_ids]
"""


@dataclass
class Calls:
    """A task reward by the parity of the tokens that keeps what it was asked."""

    lengths: list[tuple[str, int, list[int]]] = field(default_factory=list)  # split, policy updates done, lengths

    def __call__(self, completion_ids, split, trainer_state, **kwargs):
        self.lengths.append((split[0], trainer_state.global_step, [len(ids) for ids in completion_ids]))
        return [1.0 if sum(ids) % 2 == 0 else -1.0 for ids in completion_ids]


def lambdas_by_hand(calls, num_updates):
    """Lambda after each update: Algorithm 1 of the paper, in plain numbers."""
    lam = LAMBDA_INIT
    after_updates = []
    for update in range(num_updates):
        lengths = []
        for split, step, lengths_of_call in calls:
            if split == "train" and step == update:
                lengths += lengths_of_call
        if lengths:
            violation = sum(length / TARGET - 1 for length in lengths) / len(lengths)
            lam = min(1.0, max(0.0, lam + LAMBDA_LR * violation))
        after_updates.append(lam)
    return after_updates


def write_module(folder):
    """Writes the page's lines to `ten_lines.py`, with the constants of `stock_run` and a reward for all."""
    code = re.search(r"```python\n(.*?)```", SECTION, re.DOTALL)[1]
    (folder / "ten_lines.py").write_text(code + CHANGES, encoding="utf-8")


def run(column, model_path, folder, resume=None, **settings):
    """What one way does, in a process that has not done anything before.

    `resume` is the name of a checkpoint in the folder.
    """
    calls = Calls()
    start = {"lambda_init": LAMBDA_INIT, "lambda_lr": LAMBDA_LR}
    ten_lines = importlib.reload(importlib.import_module("ten_lines"))
    ten_lines.math_reward = calls
    if column == SUBCLASS:
        fields = {"target_length": TARGET, "max_completion_length": 2 * TARGET, "max_steps": 5, **start, **settings}
        args = LeashGRPOConfig(**quiet(folder, **fields), generation_kwargs=eos_bias(gym_tokenizer()))
        trainer = LeashGRPOTrainer(model_path, calls, args, **data_sets())
        method = trainer.length_control
    else:
        method = Leash(**start)
        settings |= ten_lines.config
        trainer = stock_trainer("GRPO", model_path, folder, method, reward_func=calls, **settings)
    if column == TEN_LINES:
        trainer.pop_callback(LengthControlCallback)
        trainer.reward_funcs = [ten_lines.leash_reward]
        method = ten_lines
    trainer.train(resume_from_checkpoint=resume and str(folder / resume))
    return {
        "lambda": method.lam,
        "calls": calls.lengths,
        "mean lengths": logged(trainer, "completions/mean_length"),
    }


def run_all(model_path, folder, **settings):
    return {column: run(column, model_path, folder / column, **settings) for column in COLUMNS}
