"""LEASH in the three ways that recipes/any_trainer.md compares, on the tiny model: ten lines of one's own, as the page
has them, the reward function with its callback, and the subclass."""

import importlib
import re

from conftest import ROOT, eos_bias, gym_tokenizer, logged, parity_reward, quiet
from stock_run import LAMBDA_INIT, LAMBDA_LR, TARGET, data_sets, lambda_after, stock_trainer

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


def recording_reward(calls):
    """A task reward by the parity of the tokens that notes split, policy updates done, and lengths of each call."""

    def reward(completion_ids, split, trainer_state, **kwargs):
        calls.append((split[0], trainer_state.global_step, [len(ids) for ids in completion_ids]))
        return parity_reward(completion_ids)

    return reward


def lambda_by_hand(calls, num_updates):
    """Lambda after the last of these updates."""
    lam = LAMBDA_INIT
    for update in range(num_updates):
        lengths = []
        for split, step, lengths_of_call in calls:
            if split == "train" and step == update:
                lengths += lengths_of_call
        if lengths:
            lam = lambda_after(lam, lengths)
    return lam


def write_module(folder):
    """Writes the page's lines to `ten_lines.py`, with the constants of `stock_run` and a reward for all."""
    code = re.search(r"```python\n(.*?)```", SECTION, re.DOTALL)[1]
    (folder / "ten_lines.py").write_text(code + CHANGES, encoding="utf-8")


def run(column, model_path, folder, resume=None, **settings):
    """What one way does, in a process that has not done anything before.

    `resume` is the name of a checkpoint in the folder.
    """
    calls = []
    reward = recording_reward(calls)
    start = {"lambda_init": LAMBDA_INIT, "lambda_lr": LAMBDA_LR}
    ten_lines = importlib.reload(importlib.import_module("ten_lines"))
    ten_lines.math_reward = reward
    if column == SUBCLASS:
        fields = {"target_length": TARGET, "max_completion_length": 2 * TARGET, "max_steps": 5, **start, **settings}
        args = LeashGRPOConfig(**quiet(folder, **fields), generation_kwargs=eos_bias(gym_tokenizer()))
        trainer = LeashGRPOTrainer(model_path, reward, args, **data_sets())
        method = trainer.length_control
    else:
        method = Leash(**start)
        settings |= ten_lines.config
        trainer = stock_trainer("GRPO", model_path, folder, method, reward_func=reward, **settings)
    if column == TEN_LINES:
        trainer.pop_callback(LengthControlCallback)
        trainer.reward_funcs = [ten_lines.leash_reward]
        method = ten_lines
    trainer.train(resume_from_checkpoint=resume and str(folder / resume))
    return {
        "lambda": method.lam,
        "calls": calls,
        "mean lengths": logged(trainer, "completions/mean_length"),
    }


def run_all(model_path, folder, **settings):
    return {column: run(column, model_path, folder / column, **settings) for column in COLUMNS}
