"""What a newcomer gets wrong: exit code 2, and the last line of stderr says which field and which value."""

import json
import logging
import shutil

import pytest
import yaml
from conftest import ROOT

from leash_trl import gym
from leash_trl.cli.errors import UserError, errors_to_user_errors
from leash_trl.cli.main import main


MISTAKES = yaml.safe_load((ROOT / "tests" / "fixtures" / "one_line.yaml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of data sets, models and recipes, most of them broken."""
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "no_files").mkdir()
    (folder / "splits").mkdir()
    for name, text in MISTAKES["files"].items():
        (folder / name).write_text(text)
    good_rows = [json.dumps({"prompt": f"{i} + 1 = ?", "solution": str(i + 1)}) for i in range(40)]
    for name, row in MISTAKES["last_rows"].items():
        (folder / name).write_text("\n".join([*good_rows, row]))
    for name, row in MISTAKES["only_rows"].items():
        (folder / name).write_text(row * 40)

    for name in ("no_weights", "torn_weights", "no_template"):
        shutil.copytree(gym.CHECKPOINT, folder / name)
    (folder / "no_weights" / "model.safetensors").unlink()
    (folder / "torn_weights" / "model.safetensors").write_bytes(b"torn")
    (folder / "no_template" / "chat_template.jinja").unlink()
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "gym"}')
    return folder


@pytest.mark.parametrize("mistake", MISTAKES["commands"], ids=lambda mistake: str(mistake["options"]))
def test_on_the_command_line_it_is_the_last_line(mistake, folder, hub, tmp_path, capsys, monkeypatch):
    """And nothing is looked for on the Hub, unless it has the name of something there."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.setattr(logging, "raiseExceptions", False)  # libraries log to the stderr of the test before
    monkeypatch.chdir(tmp_path)
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    command = mistake["command"]
    options = MISTAKES["options"][command] | mistake["options"]
    words = [command, *mistake.get("words", [])]
    for name, value in options.items():
        if name not in mistake.get("without", []):
            values = [value] if isinstance(value, str) else value
            words += [f"--{name}", *values]
    assert main(words) == 2
    assert not (tmp_path / "run" / "samples").exists()
    assert hub.requests == [] or "owner/nothing" in options.values()
    error = capsys.readouterr().err
    assert "Traceback" not in error
    line = error.rstrip("\n").split("\n")[-1]
    assert line.startswith(f"leash {command}: ")
    for part in mistake["named"]:
        assert part in line


@pytest.mark.parametrize(
    "error", [KeyError("x"), OSError("gone\nmuch more"), ImportError("no such package")], ids=repr
)
def test_an_error_of_loading_is_the_users(error):
    with pytest.raises(UserError) as failure, errors_to_user_errors(always_names_option=True, model="here"):
        raise error
    assert str(failure.value).startswith("model is 'here': ")
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("bug", [TypeError("a bug"), AttributeError("a bug"), IndexError("a bug")], ids=repr)
def test_a_bug_keeps_its_traceback(bug):
    with pytest.raises(type(bug)), errors_to_user_errors(model="here"):
        raise bug
