"""Which reward function a name, an import path or a place in a file means."""

import sys

import pytest

from leash_trl.cli.arguments import load_recipe
from leash_trl.reward_functions import find_correctness_func, find_reward_functions
from leash_trl.rewards import math_reward


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, and below it another with the user's recipe and reward."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "task").mkdir()
    return tmp_path


def test_names_import_paths_and_files(folder):
    (folder / "task" / "named_rewards.py").write_text("def near(completions, **kwargs):\n    return [0.25]\n")
    (folder / "shown_rewards.py").write_text("def far(completions, **kwargs):\n    return [0.75]\n")
    ours, near, far = find_reward_functions(["math_reward", "task/named_rewards.py:near", "shown_rewards.far"])
    assert ours is math_reward
    assert (near([]), far([])) == ([0.25], [0.75])


def test_the_deciding_function_is_a_reward_function_or_another_one(folder):
    (folder / "first.py").write_text("def score(**kwargs):\n    return [1]\ndef form(**kwargs):\n    return [0]\n")
    (folder / "second.py").write_text("def score(**kwargs):\n    return [2]\n")
    functions = find_reward_functions(["first.py:score", "first.py:form"])
    score, form = functions
    assert find_correctness_func(None, functions) is None
    assert find_correctness_func("score", functions) is score
    assert find_correctness_func("first.score", functions) is score
    assert find_correctness_func("first.py:form", functions) is form
    assert find_correctness_func("second.py:score", functions)() == [2]  # not the one of its name
    assert find_correctness_func("math_reward", functions) is math_reward
    assert find_correctness_func("judge-7b-v0.2", ["someone/judge-7b-v0.2", *functions]) == "judge-7b-v0.2"
    with pytest.raises(ValueError, match=r"correctness_func.*'exact'.*score, form"):
        find_correctness_func("exact", functions)


@pytest.mark.parametrize("name", ["missing.py:f", "accuracy", "json.nothing", "task/empty.py:f"])
def test_what_there_is_not_is_an_error_with_its_name(name, folder):
    (folder / "task" / "empty.py").write_text("")
    with pytest.raises(ValueError, match=f"'{name}'"):
        find_reward_functions([name])


def test_a_file_does_not_give_way_to_a_module_of_its_name(folder):
    (folder / "task" / "json.py").write_text("def f():\n    pass\nloads = f\n")
    with pytest.raises(ValueError, match="json"):
        find_reward_functions(["task/json.py:loads"])


def test_files_beside_a_recipe_are_found_from_anywhere(folder):
    for name in ("task/rows.jsonl", "task/both.jsonl", "task/judge.py", "both.jsonl"):
        (folder / name).write_text("")
    text = "dataset_name: rows.jsonl\neval: {reward_funcs: [judge.py:f], benchmarks: [both.jsonl, gym]}\n"
    (folder / "task" / "own.yaml").write_text(text)
    assert load_recipe("task/own.yaml") == {
        "dataset_name": "task/rows.jsonl",
        "eval": {"reward_funcs": ["task/judge.py:f"], "benchmarks": ["both.jsonl", "gym"]},
    }
