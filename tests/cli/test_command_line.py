"""The command line as a newcomer meets it: help, one-line mistakes."""

import re
import subprocess
import sys

import pytest

from leash_trl.cli.main import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"leash {command}" in capsys.readouterr().out


def test_the_module_prints_the_version():
    run = subprocess.run([sys.executable, "-m", "leash_trl", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"leash-trl \d+\.\d+\.\d+\n", run.stdout)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("merge x --output y", "--output"),  # no abbreviations
        ("merge", "run"),
        ("merge x", "--output_dir"),
        ("merge x y --output_dir z", "y"),
        ("merge x --output_dir z --dtype int8", "int8"),
        ("train --target_lenght 40", "--target_lenght"),
        ("train --model_name_or_path gym", "--dataset_name"),
    ],
)
def test_every_command_says_in_one_line_what_it_cannot_read(words, named, capsys):
    command, *options = words.split()
    assert main([command, *options]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"leash {command}: ")
    assert named in line
