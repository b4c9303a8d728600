"""What a newcomer gets wrong: exit code 2, and the last line of stderr says which field and which value."""

import json
import logging
import shutil

import pytest
import yaml
from conftest import ROOT

from leash_trl import gym
from leash_trl.cli.errors import UserError, user_errors
from leash_trl.cli.main import main


GOOD = "".join(json.dumps({"prompt": f"{i} + 1 = ?", "solution": str(i + 1)}) + "\n" for i in range(40))
CASES = yaml.safe_load((ROOT / "tests" / "fixtures" / "one_line.yaml").read_text(encoding="utf-8"))
DATA = {"train": "dataset_name", "eval": "benchmarks", "filter": "dataset_name"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of data sets, models and recipes, most of them broken."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "no_files").mkdir()
    (folder / "splits").mkdir()
    texts = CASES["files"] | {name: GOOD + text for name, text in CASES["after_good"].items()}
    texts |= {name: text * 40 for name, text in CASES["forty_times"].items()}
    for name, text in texts.items():
        (folder / name).write_text(text)
    for name in ("no_weights", "torn_weights", "no_template"):
        shutil.copytree(gym.CHECKPOINT, folder / name)
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "gym"}')
    (folder / "no_weights" / "model.safetensors").unlink()
    (folder / "torn_weights" / "model.safetensors").write_bytes(b"torn")
    (folder / "no_template" / "chat_template.jinja").unlink()
    return folder


@pytest.mark.parametrize(
    ("command", "changes", "field", "value"), [(name, *case) for names, *case in CASES["commands"] for name in names]
)
def test_on_the_command_line_it_is_the_last_line(command, changes, field, value, files, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(logging, "raiseExceptions", False)  # libraries log to the stderr of the test before
    monkeypatch.chdir(tmp_path)
    for path in files.iterdir():
        (tmp_path / path.name).symlink_to(path)
    names = {"MODEL": "model_name_or_path", "DATA": DATA[command]}
    options = {**CASES["options"][command], **{names.get(name, name): given for name, given in changes.items()}}
    words = [word for name, given in options.items() if given is not None for word in (f"--{name}", given)]
    assert main([command, *words]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    line = error.rstrip("\n").split("\n")[-1]
    assert line.startswith(f"leash {command}: ")
    assert [part for part in (names.get(field, field), value) if part not in line] == []


def test_an_error_of_loading_is_the_users_and_a_bug_keeps_its_traceback():
    for error in (KeyError("x"), OSError("gone\nmuch more"), ImportError("no such package")):
        with pytest.raises(UserError) as failure, user_errors(only_loads=True, model="here"):
            raise error
        assert str(failure.value).startswith("model is 'here': ")
        assert "\n" not in str(failure.value)
    for bug in (TypeError("a bug"), AttributeError("a bug"), IndexError("a bug")):
        with pytest.raises(type(bug)), user_errors(model="here"):
            raise bug
