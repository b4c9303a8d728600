"""`length_of` on the command line: an evaluation measures what a training controls, in its unit."""

import hashlib
import json
import shutil
import sys
from statistics import fmean

import pytest
import yaml
from published_rows import write_rows

from leash_trl import gym
from leash_trl.cli.commands.eval import EvalArguments
from leash_trl.cli.main import main


COST = "def characters(completions, **kwargs):\n    return [len(messages[0]['content']) for messages in completions]\n"
ROWS = [{"prompt": f"{number} (a) +1 = ?", "solution": str(number + 1)} for number in range(3)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with problems and a cost of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_costs", raising=False)
    write_rows(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "my_costs.py").write_text(COST)
    return tmp_path


def trained(folder, **recipe):
    """A folder like that of a training with these fields in its recipe."""
    shutil.copytree(gym.CHECKPOINT, folder / "run")
    (folder / "run" / "leash_recipe.yaml").write_text(yaml.safe_dump(recipe))
    return "run"


def evaluate(model, *words):
    argv = ["eval", "--model_name_or_path", model, "--benchmarks", "rows.jsonl", "--output_dir", "out"]
    return main([*argv, "--num_samples", "2", "--max_new_tokens", "24", *words])


def completions(folder):
    lines = (folder / "out" / "samples" / "rows.jsonl").read_text().splitlines()
    return [completion for line in lines for completion in json.loads(line)["completions"]]


def metric(folder, name):
    results = json.loads((folder / "out" / "results.json").read_text())["results"]
    return next(row for row in results if row["metric"] == name)


def test_an_evaluation_measures_the_cost_and_the_target_of_training(folder, capsys):
    assert evaluate(trained(folder, length_of="my_costs.py:characters", target_length=40.5)) == 0
    costs = [len(completion["text"]) for completion in completions(folder)]
    assert [completion["cost"] for completion in completions(folder)] == costs
    assert metric(folder, "cost")["value"] == pytest.approx(fmean(costs))
    assert metric(folder, "within_target")["value"] == pytest.approx(fmean(cost <= 40.5 for cost in costs))
    assert metric(folder, "within_target")["at"] == 40.5
    assert "within 40.5 characters" in capsys.readouterr().out


@pytest.mark.parametrize(("added", "num_lines"), [("", 0), ("\n", 1)])
def test_a_cost_whose_code_changed_since_training_is_said_in_one_line(added, num_lines, folder, caplog):
    digest = hashlib.sha256((COST + added).encode()).hexdigest()
    model = trained(folder, length_of="my_costs.py:characters", target_length=40.5)
    entry = {"method": "leash", "code": {"my_costs": digest}}
    (folder / model / "trainer_state.json").write_text(json.dumps({"stateful_callbacks": {"LengthControl": entry}}))
    EvalArguments(model_name_or_path=model, output_dir="out", benchmarks=["rows.jsonl"]).with_defaults_of_training(
        {"length_of": "my_costs.py:characters"}
    )
    assert sum("code" in record.getMessage() for record in caplog.records) == num_lines


def test_another_target_needs_no_new_samples_and_another_code_does(folder, capsys):
    words = ["--length_of", "my_costs.py:characters", "--target_length"]
    assert evaluate("gym", *words, "1000") == 0
    samples = completions(folder)
    assert evaluate("gym", *words, "1") == 0
    assert completions(folder) == samples
    assert metric(folder, "within_target")["value"] == 0
    (folder / "my_costs.py").write_text(COST + "\n")
    assert evaluate("gym", *words, "1") == 2
    assert "cost_code" in capsys.readouterr().err.strip().splitlines()[-1]


def test_checks_are_measured_as_in_training(folder):
    assert evaluate("gym", "--length_of", "checking") == 0
    for completion in completions(folder):
        assert 0 <= completion["cost"] < completion["num_tokens"]
    assert metric(folder, "cost")["value"] > 0


def test_a_gold_that_cannot_be_looked_for_is_refused_in_one_line_before_anything_is_sampled(folder, capsys):
    write_rows(folder / "rows.jsonl", [*ROWS, {"prompt": "1/2 = ?", "solution": "x^2"}])
    assert evaluate("gym", "--length_of", "checking") == 2
    assert "'x^2'" in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (folder / "out" / "samples").exists()


@pytest.mark.parametrize(
    ("model", "length_of"),
    [
        (".", "tool_calls"),
        (".", "__main__.characters"),  # of a notebook or a script
        ("me/model", "my_costs.py:characters"),  # code that a recipe on the Hub names is not run
    ],
)
def test_a_cost_of_training_that_cannot_be_measured_leaves_its_target_out_in_one_line(model, length_of, caplog):
    arguments = EvalArguments(output_dir="out", model_name_or_path=model, benchmarks=["gym_test"])
    plan = arguments.with_defaults_of_training({"length_of": length_of, "target_length": 3}).sampling_plan()
    assert (plan.length_of, plan.target_length) == ("completion", None)
    (line,) = [message for message in caplog.messages if "length_of" in message]
    assert [part for part in (length_of, "my_file.py:my_function") if part not in line] == []
    assert "\n" not in line
