"""Partial credit and a function beside the rewards, in `leash eval`, `filter`, `train` and `compare`."""

import json
import signal

import pytest
from killed_command import killed_in_a_fork

from leash_trl.cli.main import main
from leash_trl.comparison.run import ComparedRun
from leash_trl.evaluation.frame import load_evaluated_run


REWARDS = """
import re

def share(completions, total, **kwargs):
    last = [re.findall(r"[0-9]+", each[0]["content"])[-1:] for each in completions]
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


def sampled(command, files, folder, *words):
    data = "--benchmarks" if command == "eval" else "--dataset_name"
    return [command, *SAMPLING, data, str(files / "sums.jsonl"), *words, "--output_dir", str(folder)]


def graded(folder) -> list:
    lines = (folder / "samples" / "sums.jsonl").read_text().splitlines()
    return [completion for line in lines for completion in json.loads(line)["completions"]]


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_run_with_partial_credit_anywhere_has_no_accuracy(is_killed, files, tmp_path, capsys):
    words = sampled("eval", files, tmp_path / "run", "--reward_funcs", f"{files}/own_sums.py:late")
    if is_killed:
        assert killed_in_a_fork("4", words) == -signal.SIGKILL
    assert main(words) == 0
    assert "correctness_func" in capsys.readouterr().out
    assert {each["is_correct"] for each in graded(tmp_path / "run")} == {None}
    assert {each["reward"] for each in graded(tmp_path / "run")} == {0.0, 0.5, 1.0}
    assert not load_evaluated_run(tmp_path / "run").knows_correctness


def test_a_filter_with_partial_credit_is_refused_in_one_line(files, tmp_path, capsys):
    reward = ["--reward_funcs", f"{files}/own_sums.py:share"]
    assert main(sampled("filter", files, tmp_path / "run", *reward)) == 2
    line = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
    assert [part for part in ("leash filter: ", "share", "0.5", "correctness_func") if part not in line] == []
    assert not (tmp_path / "run" / "dataset").exists()


@pytest.mark.parametrize("command", ["eval", "filter"])
def test_a_function_beside_the_rewards_decides(command, files, tmp_path):
    reward = ["--reward_funcs", f"{files}/own_sums.py:share", "--correctness_func", f"{files}/own_sums.py:exact"]
    bounds = ["--min_passes", "0", "--max_passes", "2"] if command == "filter" else []
    assert main(sampled(command, files, tmp_path / "run", *reward, *bounds)) == 0
    completions = graded(tmp_path / "run")
    assert {each["reward"] for each in completions} >= {0.5, 1.0}
    assert all(each["is_correct"] == (each["reward"] == 1.0) for each in completions)


def test_a_filter_with_several_rewards_is_refused_before_it_samples(files, tmp_path, capsys):
    reward = ["--reward_funcs", f"{files}/own_sums.py:share", f"{files}/own_sums.py:exact"]
    assert main(sampled("filter", files, tmp_path / "run", *reward)) == 2
    line = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
    assert [part for part in ("correctness_func is None", "share, exact") if part not in line] == []
    assert not (tmp_path / "run" / "samples").exists()


def test_a_recipe_trains_with_a_function_beside_its_rewards(files, tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    recipe = {"model_name_or_path": "gym", "dataset_name": str(files / "sums.jsonl"), "prompt_suffix": ""}
    recipe |= {"reward_funcs": ["own_sums.py:share"], "correctness_func": "own_sums.py:exact", "bf16": False}
    recipe |= {
        "target_length": 8,
        "max_completion_length": 16,
        "max_steps": 1,
        "min_accuracy": 0.5,
        "report_to": "none",
    }
    recipe |= {"per_device_train_batch_size": 4, "num_generations": 4, "gradient_accumulation_steps": 1}
    (files / "recipe.yaml").write_text(json.dumps(recipe))
    assert main(["train", "--config", str(files / "recipe.yaml"), "--output_dir", str(tmp_path / "run")]) == 0
    log = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    assert log[0]["leash/accuracy"] == (log[0]["rewards/exact/mean"] + 1) / 2
    assert log[0]["reward"] == log[0]["rewards/share/mean"]
    assert f"correctness_func: {files}/own_sums.py:exact" in (tmp_path / "run" / "leash_recipe.yaml").read_text()


def test_a_comparison_notices_a_change_of_the_function_beside_the_rewards(files):
    (files / "beside.py").write_text("def exact(**kwargs):\n    return [1.0]\n")
    names = {"reward_funcs": [f"{files}/own_sums.py:share"], "correctness_func": f"{files}/beside.py:exact"}
    recipe = {"model_name_or_path": "gym", "target_length": 8, **names}
    run = ComparedRun("a", "a", recipe, {}, {"benchmarks": [str(files / "sums.jsonl")], **names}, True, 0, files)
    before = run.claim()
    (files / "beside.py").write_text("def exact(**kwargs):\n    return [0.0]\n")
    assert run.claim() != before
