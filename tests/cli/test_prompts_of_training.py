"""An evaluation of a trained model asks as its training did, which its saved recipe records."""

import json
import shutil
import sys

import pytest
import yaml
from published_rows import write_rows

from leash_trl import gym
from leash_trl.cli.main import main
from leash_trl.data import BOXED_SUFFIX
from leash_trl.data.problems import fingerprint, load_problems


ROWS = [{"prompt": f"{number} (a) +1 = ?", "solution": str(number + 1)} for number in range(4)]
SHORT = ["--num_samples", "1", "--max_new_tokens", "8"]
TEMPLATE = "{% for message in messages %}{{ message.content }} = {% endfor %}"
REWARD = "def any_answer(completions, **kwargs):\n    return [1.0 for _ in completions]\n"


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Returns a folder like that of a training with these fields in its recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "rewards", raising=False)
    write_rows(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "rewards.py").write_text(REWARD)

    def save(**recipe):
        folder = shutil.copytree(gym.CHECKPOINT, tmp_path / "run", dirs_exist_ok=True)
        (folder / "leash_recipe.yaml").write_text(yaml.safe_dump({"length_control": "leash", **recipe}))
        return str(folder)

    return save


def evaluated(model, folder, *words, command="eval"):
    """What the record of an evaluation says."""
    data = {"eval": "--benchmarks", "filter": "--dataset_name"}[command]
    argv = [command, "--model_name_or_path", model, data, "rows.jsonl", "--output_dir", str(folder), *SHORT, *words]
    assert main(argv) == 0
    return json.loads((folder / "run.json").read_text())


def prompts_with(**rule):
    return fingerprint(load_problems("rows.jsonl", **rule))


@pytest.mark.parametrize("command", ["eval", "filter"])
def test_a_trained_model_is_asked_as_in_training_and_one_line_says_so(command, trained, tmp_path, caplog):
    fields = {"prompt_suffix": "", "system_prompt": "1 + 2", "thinking_end": "[/T]"}
    fields |= {"chat_template": TEMPLATE, "chat_template_kwargs": {"brief": True}}
    words = [] if command == "eval" else ["--min_passes", "0", "--max_passes", "1"]
    run = evaluated(trained(**fields), tmp_path / "out", *words, command=command)
    assert {name: run[name] for name in ("prompt_suffix", "system_prompt", "thinking_end")}.items() <= fields.items()
    assert run["chat_template_kwargs"] == {"chat_template": TEMPLATE, "brief": True}
    assert run["benchmarks"]["rows"]["fingerprint"] == prompts_with(system_prompt="1 + 2")
    (line,) = [record.getMessage() for record in caplog.records if "leash_recipe.yaml" in record.getMessage()]
    assert all(f"{name} {value!r}" in line for name, value in fields.items())
    assert "\n" not in line


def test_what_is_given_by_hand_applies_and_one_line_says_what_differs_from_training(trained, tmp_path, caplog):
    model = trained(prompt_suffix="", system_prompt="1 + 2", thinking_end="[/T]")
    given = ["--prompt_suffix", " (a) ", "--thinking_end", "[/T]", "--chat_template_kwargs", "{brief: true}"]
    run = evaluated(model, tmp_path / "out", *given)
    assert (run["prompt_suffix"], run["system_prompt"], run["thinking_end"]) == (" (a) ", "1 + 2", "[/T]")
    (line,) = [record.getMessage() for record in caplog.records if "prompt_suffix is" in record.getMessage()]
    assert all(part in line for part in ("' (a) '", "''", "{'brief': True}", "{}"))
    assert "thinking_end" not in line
    assert "\n" not in line


def test_a_model_without_a_recipe_and_a_recipe_without_a_suffix_get_that_of_the_grader(trained, tmp_path, caplog):
    plain, own = ["gym"], ["gym", "--reward_funcs", "rewards.py:any_answer"]
    of_messages = [trained()]
    for number, (words, suffix) in enumerate(((plain, BOXED_SUFFIX), (own, ""), (of_messages, BOXED_SUFFIX))):
        model, *others = words
        run = evaluated(model, tmp_path / str(number), *others)
        assert run["prompt_suffix"] == suffix
        assert run["benchmarks"]["rows"]["fingerprint"] == prompts_with(suffix=suffix)
        assert run["thinking_end"] == "</think>"
    assert not [record for record in caplog.records if "training" in record.getMessage()]


def test_a_task_of_ones_own_is_asked_as_it_was_trained(trained, tmp_path):
    trained()
    train = {"target_length": 10, "max_completion_length": 16, "max_steps": 1, "output_dir": "trained"}
    train |= {"model_name_or_path": "gym", "dataset_name": "rows.jsonl", "reward_funcs": "rewards.py:any_answer"}
    train |= {"use_cpu": "true", "bf16": "false", "gradient_checkpointing": "false", "report_to": "none"}
    assert main(["train", *(word for name, value in train.items() for word in (f"--{name}", str(value)))]) == 0
    for folder, words in (("out", ["--reward_funcs", "rewards.py:any_answer"]), ("graded", [])):
        run = evaluated("trained", tmp_path / folder, *words)
        assert run["benchmarks"]["rows"]["fingerprint"] == prompts_with(suffix="")


def test_a_baseline_with_other_prompts_is_told_from_one_with_other_problems(trained, tmp_path, capsys):
    model = trained(prompt_suffix="")
    evaluated("gym", tmp_path / "base")
    common = ["eval", "--benchmarks", "rows.jsonl", "--model_name_or_path", model, *SHORT]
    common += ["--baseline", str(tmp_path / "base"), "--output_dir", str(tmp_path / "out")]
    for words, is_prompt in (([], True), (["--limit", "2"], False)):
        assert main([*common, *words]) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert ("prompt_suffix" in line and repr(BOXED_SUFFIX) in line and "''" in line) == is_prompt
    assert main([*common, "--prompt_suffix", BOXED_SUFFIX]) == 0
