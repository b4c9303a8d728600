"""The map in leash_trl/README.md: its rooms are the folders of the package, and its log keys those that runs log."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import log_rows
from stock_run import stock_trainer
from toy_rollouts import toy_rollouts

import leash_trl
from leash_trl.length_control import AdvantageRule
from leash_trl.length_control.laser import LaserD
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.statistics import length_statistics
from leash_trl.rewards import math_reward


PACKAGE = Path(leash_trl.__file__).parent
MAP = (PACKAGE / "README.md").read_text(encoding="utf-8")
LOG_KEY = re.compile(r"(?:leash|grader|microbatch)/\w+")
LOG_KEYS_SECTION = MAP.partition("## Log keys")[2].partition("\n## ")[0]
FIRST_CELLS = " ".join(row.split("|")[1] for row in LOG_KEYS_SECTION.splitlines() if row.startswith("| `"))
DOCUMENTED = {*LOG_KEY.findall(FIRST_CELLS)}


def test_its_rooms_are_the_folders_of_the_package():
    named = re.findall(r"^\| `([\w/]+)/` \|", MAP, re.MULTILINE)
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("*/**/__init__.py")}
    assert sorted(named) == sorted(folders - {"cli/commands"})


def keys_of_methods():
    """What single methods log of their state, with every option that adds a value."""
    laser_d = LaserD()
    laser_d.targets = [1.0, 2.0, 3.0]
    with_floor = Leash(min_accuracy=0.5)
    keys = set()
    for method in [*(method() for method in METHODS.values()), laser_d, with_floor]:
        keys |= method.statistics().keys() | method.budget_statistics("").keys()
    return {f"leash/{key}" for key in keys}


def keys_with_thinking():
    rollouts = replace(toy_rollouts([1.0, -1.0], [4, 8], target=6), num_tokens=torch.tensor([5, 9]))
    method = Leash()
    statistics = length_statistics(method, rollouts, method.score(rollouts, AdvantageRule()))
    return {f"leash/{key}" for key in statistics}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_its_log_keys_are_those_that_runs_log(make_trainer, tiny_model_path, tmp_path):
    ours = make_trainer(math_reward, max_steps=1, dynamic_sampling_rounds=1)
    ours.train()
    stock = stock_trainer("GRPO", tiny_model_path, tmp_path, max_steps=1)
    stock.train()
    logged = {key for row in log_rows(ours) + log_rows(stock) for key in row if LOG_KEY.fullmatch(key)}
    assert logged | keys_of_methods() | keys_with_thinking() == DOCUMENTED


def test_what_advice_and_figures_read_is_logged():
    code = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    read = {*re.findall(r'"(leash/\w+)"', code)}
    assert "leash/truncated_share" in read
    assert read <= DOCUMENTED
