"""A path that does not exist: every command says so in one line, and looks for it nowhere else."""

from functools import partial

import pytest
import yaml
from published_rows import write_rows
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


def refusal(capsys, *words, **options) -> str:
    """The line that a command ends with."""
    assert main([*words, *(f"--{name}={value}" for name, value in options.items())]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    line = error.rstrip("\n").split("\n")[-1]
    assert line.startswith(f"leash {words[0]}: ")
    return line


@pytest.mark.parametrize("path", MISSING)
@pytest.mark.parametrize("command", OPTIONS)
def test_a_missing_model_is_not_looked_for_on_the_hub(command, path, hub, capsys):
    line = refusal(capsys, command, **OPTIONS[command] | {"model_name_or_path": path})
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
    line = refusal(capsys, command, **OPTIONS[command] | {field: value})
    assert field in line
    assert value.removeprefix("amc23=").partition(":")[0] in line
    assert hub.requests == []


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("report runs/missing", "paths", "runs/missing"),
        ("report evaluation --baseline runs/missing", "baseline", "runs/missing"),
        ("plot runs/missing", "runs", "runs/missing"),
        ("plot missing --figure pareto", "runs", "missing"),
        ("push missing", "run", "missing"),
        ("push runs/missing --repo me/x", "run", "runs/missing"),
        ("merge missing --output_dir merged", "folder", "missing"),
        ("merge runs/missing --output_dir merged", "run", "runs/missing"),
    ],
)
def test_a_missing_run_is_not_called_empty(words, field, value, hub, capsys, tmp_path):
    write_evaluation(tmp_path / "work" / "evaluation", "base", {"gym": [[said(9)]]})
    line = refusal(capsys, *words.split())
    assert f"{field} is {value!r}" in line
    assert hub.requests == []


@pytest.mark.parametrize(
    "changes",
    [{"model_name_or_path": "./missing"}, {"dataset_name": "./missing.jsonl"}, {"reward_funcs": ["missing.py:f"]}],
)
def test_a_comparison_of_what_is_missing_starts_nothing(changes, hub, capsys, tmp_path):
    recipe = {"base": {**FIELDS, **changes}, "arms": {"leash": {}}, "eval": {"benchmarks": ["gym_test"]}}
    (tmp_path / "work" / "compare.yaml").write_text(yaml.safe_dump(recipe))
    line = refusal(capsys, "compare", config="compare.yaml")
    assert "missing" in line
    assert next(iter(changes)) in line
    assert hub.requests == []


def test_a_mixture_of_what_is_missing_is_refused(hub, capsys, tmp_path):
    (tmp_path / "work" / "mixture.yaml").write_text("datasets:\n- {path: ./missing}\n")
    line = refusal(capsys, "train", **FIELDS | {"dataset_name": "null"}, config="mixture.yaml")
    assert "datasets" in line
    assert "./missing" in line
    assert hub.requests == []


@pytest.mark.parametrize("path", MISSING)
def test_in_python_a_missing_path_is_a_value_error(path, hub):
    args = LeashGRPOConfig("out", target_length=40, use_cpu=True, bf16=False)
    for load in (
        partial(LeashGRPOTrainer, args=args),
        TransformersEngine.from_pretrained,
        load_problems,
        load_training_rows,
    ):
        with pytest.raises(ValueError, match="missing") as failure:
            load(path)
        assert "\n" not in str(failure.value)
    assert hub.requests == []


def test_the_home_folder_is_found_by_its_abbreviation_everywhere(tmp_path):
    home = tmp_path / "home"
    write_rows(home / "rows.jsonl", [{"prompt": f"{i} + 1 = ?", "solution": str(i + 1)} for i in range(4)])
    (home / "judge.py").write_text("def judge(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    (home / "eval.yaml").write_text("benchmarks: [~/rows.jsonl]\noutput_dir: ~/out\n")
    words = "eval --config=~/eval.yaml --model_name_or_path=gym --num_samples=1 --max_new_tokens=8"
    assert main([*words.split(), "--reward_funcs=~/judge.py:judge"]) == 0
    assert (home / "out" / "results.json").is_file()
    assert not (tmp_path / "work" / "~").exists()
    assert main(["report", "~/out", "--output_dir=~/report"]) == 0
    assert (home / "report" / "report.html").is_file()


@pytest.mark.parametrize("command", ["train", "eval"])
def test_a_chat_template_is_text_and_no_path(command, capsys, tmp_path):
    (tmp_path / "work" / "own.jinja").write_text("{{ messages }}")
    line = refusal(capsys, command, **OPTIONS[command] | {"chat_template": "own.jinja"})
    assert "chat_template" in line
    assert "own.jinja" in line
