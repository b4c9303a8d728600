"""A path that does not exist: every command says so in one line, and looks for it nowhere else."""

import json

import pytest
import yaml
from written_runs import said, write_evaluation

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.cli.main import main
from leash_trl.data.problems import load_problems, load_training_rows
from leash_trl.engines.transformers_engine import TransformersEngine


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
SAMPLED = {"model_name_or_path": "gym", "num_samples": 2, "max_new_tokens": 16, "limit": 2, "output_dir": "out"}
OPTIONS = {
    "train": FIELDS,
    "eval": {**SAMPLED, "benchmarks": "gym_test"},
    "filter": {**SAMPLED, "dataset_name": "gym"},
    "plan": {"num_gpus": 1, "gpu_memory": 80, "model_name_or_path": "gym", "target_length": 40},
}
MISSING = ["./missing", "runs/missing", "~/missing", "/no/where/missing", "../missing"]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "work" / "runs").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.chdir(tmp_path / "work")


def refusal(words, capsys) -> str:
    """The line that a command ends with."""
    assert main([*map(str, words)]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    line = error.rstrip("\n").split("\n")[-1]
    assert line.startswith(f"leash {words[0]}: ")
    return line


@pytest.mark.parametrize("path", MISSING)
@pytest.mark.parametrize("command", OPTIONS)
def test_a_missing_model_is_not_looked_for_on_the_hub(command, path, hub, capsys):
    options = OPTIONS[command] | {"model_name_or_path": path}
    line = refusal([command, *(f"--{name}={value}" for name, value in options.items())], capsys)
    assert "model_name_or_path" in line
    assert path.rpartition("/")[2] in line
    assert hub.requests == []


@pytest.mark.parametrize(
    ("command", "field", "value"),
    [
        ("train", "dataset_name", "./missing.jsonl"),
        ("train", "dataset_name", "runs/missing"),
        ("train", "dataset_name", "missing.jsonl"),
        ("train", "reward_model_name_or_path", "runs/missing"),
        ("train", "resume_from_checkpoint", "runs/missing"),
        ("train", "resume_from_checkpoint", "missing"),
        ("train", "reward_funcs", "./missing.py:judge"),
        ("train", "chat_template", "./missing.jinja"),
        ("train", "config", "./missing.yaml"),
        ("eval", "benchmarks", "runs/missing"),
        ("eval", "benchmarks", "amc23=./missing.jsonl"),
        ("eval", "baseline", "runs/missing"),
        ("eval", "baseline", "missing"),
        ("eval", "reward_funcs", "./missing.py:judge"),
        ("eval", "chat_template", "./missing.jinja"),
        ("eval", "config", "./missing.yaml"),
        ("filter", "dataset_name", "runs/missing"),
        ("plan", "model_config", "./missing.json"),
    ],
)
def test_anything_else_that_is_missing_is_named_with_its_option(command, field, value, hub, capsys):
    options = OPTIONS[command] | {field: value}
    line = refusal([command, *(f"--{name}={given}" for name, given in options.items())], capsys)
    assert field in line
    assert value.removeprefix("amc23=").partition(":")[0] in line
    assert hub.requests == []


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["report", "runs/missing"], "paths", "runs/missing"),
        (["report", "evaluation", "--baseline", "runs/missing"], "baseline", "runs/missing"),
        (["plot", "runs/missing"], "runs", "runs/missing"),
        (["plot", "missing", "--figure", "pareto"], "runs", "missing"),
        (["push", "missing"], "run", "missing"),
        (["push", "runs/missing", "--repo", "me/x"], "run", "runs/missing"),
        (["merge", "missing", "--output_dir", "merged"], "folder", "missing"),
        (["merge", "runs/missing", "--output_dir", "merged"], "run", "runs/missing"),
    ],
)
def test_a_missing_run_is_not_called_empty(words, field, value, hub, capsys, tmp_path):
    write_evaluation(tmp_path / "work" / "evaluation", "base", {"gym": [[said(9)]]})
    line = refusal(words, capsys)
    assert f"{field} is {value!r}" in line
    assert hub.requests == []


@pytest.mark.parametrize(
    "changes",
    [{"model_name_or_path": "./missing"}, {"dataset_name": "./missing.jsonl"}, {"reward_funcs": ["missing.py:f"]}],
)
def test_a_comparison_of_what_is_missing_starts_nothing(changes, hub, capsys, tmp_path):
    recipe = {"base": {**FIELDS, **changes}, "arms": {"leash": {}}, "eval": {"benchmarks": ["gym_test"]}}
    (tmp_path / "work" / "compare.yaml").write_text(yaml.safe_dump(recipe))
    line = refusal(["compare", "--config", "compare.yaml"], capsys)
    assert "missing" in line
    assert next(iter(changes)) in line
    assert hub.requests == []


def test_a_mixture_of_what_is_missing_is_refused(hub, capsys, tmp_path):
    (tmp_path / "work" / "mixture.yaml").write_text("datasets:\n- {path: ./missing}\n")
    options = {name: value for name, value in FIELDS.items() if name != "dataset_name"}
    words = ["train", "--config", "mixture.yaml", *(f"--{name}={value}" for name, value in options.items())]
    line = refusal(words, capsys)
    assert "datasets" in line
    assert "./missing" in line
    assert hub.requests == []


@pytest.mark.parametrize("path", MISSING)
def test_in_python_a_missing_path_is_a_value_error(path, hub):
    fields = {**FIELDS, "max_steps": 1}
    for name in ("model_name_or_path", "dataset_name"):
        del fields[name]
    for make in (
        lambda: LeashGRPOTrainer(path, args=LeashGRPOConfig(**fields)),
        lambda: TransformersEngine.from_pretrained(path),
        lambda: load_problems(path),
        lambda: load_training_rows(path),
    ):
        with pytest.raises(ValueError, match="missing") as failure:
            make()
        assert "\n" not in str(failure.value)
    assert hub.requests == []


def test_the_home_folder_is_found_by_its_abbreviation_everywhere(tmp_path, capsys):
    rows = "".join(json.dumps({"prompt": f"{i} + 1 = ?", "solution": str(i + 1)}) + "\n" for i in range(4))
    (tmp_path / "home" / "rows.jsonl").write_text(rows)
    (tmp_path / "home" / "judge.py").write_text(
        "def judge(completions, **kwargs):\n    return [1.0] * len(completions)\n"
    )
    (tmp_path / "home" / "eval.yaml").write_text("benchmarks: [~/rows.jsonl]\noutput_dir: ~/out\n")
    options = ["--model_name_or_path=gym", "--num_samples=1", "--max_new_tokens=8", "--reward_funcs=~/judge.py:judge"]
    assert main(["eval", "--config=~/eval.yaml", *options]) == 0
    assert (tmp_path / "home" / "out" / "results.json").is_file()
    assert not (tmp_path / "work" / "~").exists()
    assert main(["report", "~/out", "--output_dir=~/report"]) == 0
    assert (tmp_path / "home" / "report" / "report.html").is_file()


def test_a_chat_template_is_text_and_no_path(capsys, tmp_path):
    (tmp_path / "work" / "own.jinja").write_text("{{ messages }}")
    for command in ("train", "eval"):
        options = OPTIONS[command] | {"chat_template": "own.jinja"}
        line = refusal([command, *(f"--{name}={value}" for name, value in options.items())], capsys)
        assert "chat_template" in line
        assert "own.jinja" in line
