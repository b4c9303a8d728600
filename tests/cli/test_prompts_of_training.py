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


@pytest.fixture
def logged(caplog):
    """The messages so far that have a text."""
    return lambda text: [record.getMessage() for record in caplog.records if text in record.getMessage()]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("eval", ""),
        ("filter", "--min_passes 0 --max_passes 1"),
    ],
)
def test_a_trained_model_is_asked_as_in_training_and_one_line_says_so(command, words, trained, tmp_path, logged):
    fields = {
        "prompt_suffix": "",
        "system_prompt": "1 + 2",
        "thinking_end": "[/T]",
        "chat_template": TEMPLATE,
        "chat_template_kwargs": {"brief": True},
    }
    run = evaluated(trained(**fields), tmp_path / "out", *words.split(), command=command)
    assert (run["prompt_suffix"], run["system_prompt"], run["thinking_end"]) == ("", "1 + 2", "[/T]")
    assert run["chat_template_kwargs"] == {"chat_template": TEMPLATE, "brief": True}
    assert run["benchmarks"]["rows"]["fingerprint"] == prompts_with(system_prompt="1 + 2")
    (line,) = logged("leash_recipe.yaml")
    assert all(f"{name} {value!r}" in line for name, value in fields.items())
    assert "\n" not in line


def test_options_replace_the_prompts_of_training_and_one_line_says_what_differs(trained, tmp_path, logged):
    model = trained(prompt_suffix="", system_prompt="1 + 2", thinking_end="[/T]")
    words = ["--prompt_suffix", " (a) ", "--thinking_end", "[/T]", "--chat_template_kwargs", "{brief: true}"]
    run = evaluated(model, tmp_path / "out", *words)
    assert (run["prompt_suffix"], run["system_prompt"], run["thinking_end"]) == (" (a) ", "1 + 2", "[/T]")
    (line,) = logged("prompt_suffix is")
    assert all(part in line for part in ("' (a) '", "''", "{'brief': True}", "{}"))
    assert "thinking_end" not in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("has_recipe", "words", "suffix"),
    [
        (False, [], BOXED_SUFFIX),
        (False, ["--reward_funcs", "rewards.py:any_answer"], ""),
        (True, [], BOXED_SUFFIX),  # whose prompts were messages
    ],
)
def test_a_model_without_a_recipe_and_a_recipe_without_a_suffix_get_that_of_the_grader(
    has_recipe, words, suffix, trained, tmp_path, logged
):
    folder = trained()
    run = evaluated(folder if has_recipe else "gym", tmp_path / "out", *words)
    assert run["prompt_suffix"] == suffix
    assert run["benchmarks"]["rows"]["fingerprint"] == prompts_with(suffix=suffix)
    assert run["thinking_end"] == "</think>"
    assert not logged("training")


def test_a_baseline_with_other_prompts_is_told_from_one_with_other_problems(trained, tmp_path, capsys):
    evaluated("gym", tmp_path / "base")
    words = ["eval", "--benchmarks", "rows.jsonl", "--model_name_or_path", trained(prompt_suffix="")]
    words += ["--baseline", "base", "--output_dir", "out", *SHORT]
    assert main(words) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert [part for part in ("prompt_suffix", repr(BOXED_SUFFIX), "''") if part not in line] == []
    words += ["--prompt_suffix", BOXED_SUFFIX]
    assert main([*words, "--limit", "2"]) == 2
    assert "prompt_suffix" not in capsys.readouterr().err.strip().splitlines()[-1]
    assert not (tmp_path / "out" / "samples").exists()
    assert main(words) == 0


def test_another_reward_than_in_training_is_said_in_one_line(trained, tmp_path, logged):
    model = trained(reward_funcs=["rewards.py:any_answer"])
    evaluated(model, tmp_path / "graded")
    (line,) = logged("reward_funcs")
    assert "math_reward" in line
    assert "rewards.py:any_answer" in line
    assert "\n" not in line
    evaluated(model, tmp_path / "rewarded", "--reward_funcs", "rewards.py:any_answer")
    assert logged("reward_funcs") == [line]


def test_an_evaluation_says_that_texts_do_not_show_the_end_of_thinking(trained, tmp_path):
    with pytest.warns(UserWarning, match=r"thinking_end.*<\|end\|>"):
        evaluated(trained(), tmp_path / "graded", "--thinking_end", "<|end|>")


EFFORTS = {
    "efforts": {"low": 8, "high": 16},
    "effort_template_kwargs": {"low": {"brief": True}, "high": {"brief": False}},
    "chat_template": TEMPLATE,
    "chat_template_kwargs": {"title": "1 + 2"},
}


def test_an_effort_of_training_is_chosen_by_its_arguments_of_the_template(trained, tmp_path, logged):
    words = ["--chat_template_kwargs", '{"title": "1 + 2", "brief": true}']
    run = evaluated(trained(**EFFORTS), tmp_path / "out", *words)
    assert run["chat_template_kwargs"] == {"chat_template": TEMPLATE, "title": "1 + 2", "brief": True}
    assert run["target_length"] == 8
    assert not logged("chat_template_kwargs is")


@pytest.mark.parametrize("words", [[], ["--chat_template_kwargs", "{brief: true}"]])
def test_an_evaluation_at_no_effort_of_training_names_the_efforts_in_one_line(words, trained, tmp_path, logged):
    evaluated(trained(**EFFORTS), tmp_path / "out", *words)
    (line,) = logged("chat_template_kwargs is")
    assert '{"title": "1 + 2", "brief": true} (low)' in line
    assert '{"title": "1 + 2", "brief": false} (high)' in line
    assert "\n" not in line
