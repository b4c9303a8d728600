"""A path that does not exist: every command says so in one line, and looks for it nowhere else."""

import json
from pathlib import Path

import pytest
from written_runs import said, write_evaluation

from leash_trl.cli.main import main
from leash_trl.data.problems import load_problems


FIELDS = {
    "model_name_or_path": "gym",
    "dataset_name": "gym",
    "target_length": 40,
    "max_completion_length": 64,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "max_steps": 1,
    "report_to": "none",
    "output_dir": "out",
}
SAMPLED = {
    "model_name_or_path": "gym",
    "num_samples": 2,
    "max_new_tokens": 16,
    "limit": 2,
    "output_dir": "out",
}
OPTIONS = {
    "train": FIELDS,
    "eval": {**SAMPLED, "benchmarks": "gym_test"},
    "filter": {**SAMPLED, "dataset_name": "gym"},
    "plan": {
        "num_gpus": 1,
        "gpu_memory": 80,
        "model_name_or_path": "gym",
        "target_length": 40,
    },
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "work" / "runs").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def refusal(hub, capsys):
    """The line that a command ends with, without a request to the Hub."""

    def run(command, *words, **options):
        arguments = [f"--{name}={value}" for name, value in options.items() if value is not None]
        assert main([command, *words, *arguments]) == 2
        error = capsys.readouterr().err
        assert "Traceback" not in error
        line = error.rstrip("\n").split("\n")[-1]
        assert line.startswith(f"leash {command}: ")
        assert hub.requests == []
        return line

    return run


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("train", "./missing"),
        ("eval", "runs/missing"),
        ("filter", "~/missing"),
        ("plan", "/no/where/missing"),
    ],
)
def test_a_missing_model_is_not_looked_for_on_the_hub(command, path, refusal):
    line = refusal(command, **OPTIONS[command] | {"model_name_or_path": path})
    assert "model_name_or_path" in line
    assert path.rpartition("/")[2] in line


@pytest.mark.parametrize(
    ("command", "field", "value"),
    [
        ("train", "dataset_name", "./missing.jsonl"),
        ("train", "dataset_name", "runs/missing"),
        ("train", "reward_model_name_or_path", "runs/missing"),
        ("train", "resume_from_checkpoint", "runs/missing"),
        ("train", "reward_funcs", "./missing.py:judge"),
        ("train", "chat_template", "./missing.jinja"),
        ("train", "config", "./missing.yaml"),
        ("eval", "benchmarks", "runs/missing"),
        ("eval", "benchmarks", "amc23=./missing.jsonl"),
        ("eval", "baseline", "runs/missing"),
        ("filter", "dataset_name", "runs/missing"),
        ("plan", "model_config", "./missing.json"),
    ],
)
def test_anything_else_that_is_missing_is_named_with_its_option(command, field, value, refusal):
    line = refusal(command, **OPTIONS[command] | {field: value})
    assert field in line
    assert value.removeprefix("amc23=").partition(":")[0] in line


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["report", "runs/missing"], "paths", "runs/missing"),
        (["report", "evaluation", "--baseline", "runs/missing"], "baseline", "runs/missing"),
        (["plot", "runs/missing"], "runs", "runs/missing"),
        (["push", "runs/missing", "--repo", "me/x"], "run", "runs/missing"),
        (["merge", "runs/missing", "--output_dir", "merged"], "run", "runs/missing"),
    ],
)
def test_a_missing_run_is_not_called_empty(words, field, value, refusal):
    write_evaluation(Path("evaluation"), "base", {"gym": [[said(9)]]})
    assert f"{field} is {value!r}" in refusal(*words)


def test_the_home_folder_is_found_by_its_abbreviation_everywhere(tmp_path):
    home = tmp_path / "home"
    rows = [json.dumps({"prompt": f"{i} + 1 = ?", "solution": str(i + 1)}) for i in range(4)]
    (home / "rows.jsonl").write_text("\n".join(rows))
    (home / "judge.py").write_text("def judge(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    (home / "eval.yaml").write_text("benchmarks: [~/rows.jsonl]\noutput_dir: ~/out\n")
    options = ["--model_name_or_path=gym", "--num_samples=1", "--max_new_tokens=8", "--reward_funcs=~/judge.py:judge"]
    assert main(["eval", "--config=~/eval.yaml", *options]) == 0
    assert (home / "out" / "results.json").is_file()
    assert len(load_problems("~/rows.jsonl")) == 4
    assert not Path("~").exists()


def test_a_chat_template_is_text_and_no_path(refusal):
    Path("own.jinja").write_text("{{ messages }}")
    for command in ("train", "eval"):
        line = refusal(command, **OPTIONS[command], chat_template="own.jinja")
        assert "chat_template" in line
        assert "own.jinja" in line
