"""Partial credit and a function beside the rewards, in `leash eval`, `filter` and `train`."""

import json
import signal

import pytest
from killed_command import killed_in_a_fork

from leash_trl.cli.main import main
from leash_trl.evaluation.runs import load_evaluated_run


REWARDS = """
import re

def share(completions, total, **kwargs):
    last = [re.findall(r"[0-9]+", message["content"])[-1:] for [message] in completions]
    near = [abs(int(number[0]) - gold) if number else 99 for number, gold in zip(last, total)]
    return [1.0 if error == 0 else 0.5 if error < 20 else 0.0 for error in near]

def late(completions, row, **kwargs):  # the last problem alone has partial credit
    return [0.5 if number == 5 else float(number % 2) for number in row]

def exact(completions, total, **kwargs):
    return [1.0 if reward == 1.0 else -1.0 for reward in share(completions, total)]
"""
SAMPLING = ["--config", "tests/fixtures/small_eval.yaml", "--batch_size", "4", "--prompt_suffix", ""]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with six problems and reward functions of one's own; a process imports such a file only once."""
    folder = tmp_path_factory.mktemp("files")
    rows = [{"row": n, "prompt": f"{n} (a) +1 (b) +{n} = ?", "total": 2 * n + 1} for n in range(6)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "own_sums.py").write_text(REWARDS)
    return folder


@pytest.fixture
def sample_words(files, tmp_path):
    """Words of `leash eval` or `leash filter` with functions of the file."""

    def words_of(command, *functions, deciding=None, more=()):
        data = "--benchmarks" if command == "eval" else "--dataset_name"
        words = [command, *SAMPLING, data, f"{files}/sums.jsonl", "--output_dir", str(tmp_path / "run"), *more]
        words += ["--reward_funcs", *(f"{files}/own_sums.py:{name}" for name in functions)]
        if deciding:
            words += ["--correctness_func", f"{files}/own_sums.py:{deciding}"]
        return words

    return words_of


def graded(folder):
    completions = []
    for line in (folder / "samples" / "sums.jsonl").read_text().splitlines():
        completions.extend(json.loads(line)["completions"])
    return completions


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_with_partial_credit_anywhere_has_no_accuracy(is_killed, sample_words, tmp_path, capsys):
    words = sample_words("eval", "late")
    if is_killed:
        assert killed_in_a_fork(4, words) == -signal.SIGKILL
    assert main(words) == 0
    assert "correctness_func" in capsys.readouterr().out
    completions = graded(tmp_path / "run")
    assert {completion["is_correct"] for completion in completions} == {None}
    assert {completion["reward"] for completion in completions} == {0.0, 0.5, 1.0}
    assert not load_evaluated_run(tmp_path / "run").knows_correctness()


def test_a_filter_with_partial_credit_is_refused_in_one_line(sample_words, tmp_path, capsys):
    assert main(sample_words("filter", "share")) == 2
    line = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
    assert [part for part in ("leash filter: ", "share", "0.5", "correctness_func") if part not in line] == []
    assert not (tmp_path / "run" / "dataset").exists()


def test_a_function_beside_the_rewards_decides(sample_words, tmp_path):
    bounds = ["--min_passes", "0", "--max_passes", "2"]
    assert main(sample_words("filter", "share", deciding="exact", more=bounds)) == 0
    completions = graded(tmp_path / "run")
    assert {completion["reward"] for completion in completions} >= {0.5, 1.0}
    assert all(completion["is_correct"] == (completion["reward"] == 1.0) for completion in completions)


RECIPE = """
model_name_or_path: gym
dataset_name: sums.jsonl
prompt_suffix: ""
reward_funcs: [own_sums.py:share]
correctness_func: own_sums.py:exact
bf16: false
target_length: 8
max_completion_length: 16
max_steps: 1
min_accuracy: 0.5
report_to: none
per_device_train_batch_size: 4
num_generations: 4
gradient_accumulation_steps: 1
"""


def test_a_recipe_trains_with_a_function_beside_its_rewards(files, tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    (files / "recipe.yaml").write_text(RECIPE)
    assert main(["train", "--config", str(files / "recipe.yaml"), "--output_dir", str(tmp_path / "run")]) == 0
    log = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    assert log[0]["leash/accuracy"] == (log[0]["rewards/exact/mean"] + 1) / 2
    assert log[0]["reward"] == log[0]["rewards/share/mean"]
    assert f"correctness_func: {files}/own_sums.py:exact" in (tmp_path / "run" / "leash_recipe.yaml").read_text()
