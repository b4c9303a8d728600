"""The command line as a newcomer meets it: help, one-line mistakes."""

import re
import subprocess
import sys

import pytest

from leash_trl.cli.main import COMMANDS, main


@pytest.fixture
def error_of(capsys):
    """The one line that a command line's mistake prints."""

    def run(argv):
        assert main(argv) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    return run


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert len(COMMANDS) == 11
    assert [name for name in COMMANDS if name not in text] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"leash {command}" in capsys.readouterr().out


def test_the_module_prints_the_version():
    run = subprocess.run([sys.executable, "-m", "leash_trl", "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"leash-trl \d+\.\d+\.\d+\n", run.stdout)


def test_the_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom leash_trl.cli.main import build_parser\nbuild_parser().format_help()\n"
        "print([name for name in ('torch', 'transformers', 'trl', 'datasets') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["merge", "x", "--outptu", "y"], "--outptu"),
        (["merge"], "run"),
        (["merge", "x"], "--output_dir"),
        (["merge", "x", "y", "--output_dir", "z"], " y"),
        (["merge", "x", "--output_dir", "z", "--dtype", "int8"], "int8"),
        (["push", "x"], "x"),
        (["train", "--target_lenght", "40"], "--target_lenght"),
        (["train", "--model_name_or_path", "gym"], "--dataset_name"),
    ],
)
def test_every_command_says_in_one_line_what_it_cannot_read(argv, named, error_of):
    assert named in error_of(argv)
