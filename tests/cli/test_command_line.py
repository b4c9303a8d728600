"""The command line as a newcomer meets it: help, version, and paths of the home folder."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from leash_trl.cli.main import COMMANDS, main
from leash_trl.data.problems import load_problems


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"leash {command}" in capsys.readouterr().out


def test_the_module_prints_the_version():
    run = subprocess.run([sys.executable, "-m", "leash_trl", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"leash-trl \d+\.\d+\.\d+\n", run.stdout)


def test_the_home_folder_is_found_by_its_abbreviation_everywhere(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path)
    rows = [json.dumps({"prompt": f"{i} + 1 = ?", "solution": str(i + 1)}) for i in range(4)]
    (home / "rows.jsonl").write_text("\n".join(rows))
    (home / "judge.py").write_text("def judge(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    (home / "eval.yaml").write_text("benchmarks: [~/rows.jsonl]\noutput_dir: ~/out\n")
    options = ["--model_name_or_path=gym", "--num_samples=1", "--max_new_tokens=8", "--reward_funcs=~/judge.py:judge"]
    assert main(["eval", "--config=~/eval.yaml", *options]) == 0
    assert (home / "out" / "results.json").is_file()
    assert len(load_problems("~/rows.jsonl")) == 4
    assert not Path("~").exists()
