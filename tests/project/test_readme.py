"""What a newcomer copies from the README: the line that installs, and the training in Python."""

import re
import shlex
import tomllib

from conftest import ROOT


TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_install_line_needs_no_address_and_names_extras_that_there_are():
    (line,) = re.findall(r"^pip install (.*)$", TEXT, re.MULTILINE)
    words, _, comment = line.partition("#")
    assert shlex.split(words) == ["."]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {*re.findall(r"\.\[(\w+)\]", comment)} == {"vllm", "qlora"} <= {*extras}


def test_the_training_in_python_ends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    training, _ = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    short = {"max_steps=100": "max_steps=1", "batch_size=32": "batch_size=8", "steps=4": "steps=1", "192": "32"}
    for there, here in short.items():
        assert there in training
        training = training.replace(there, here)
    exec(training.replace("target_length=24", "target_length=12"), {})
    assert (tmp_path / "runs" / "python" / "model.safetensors").is_file()
