"""Every `leash` command that a page or a recipe's header prints has options that there are, with values they take."""

import importlib
import re
import shlex
from itertools import takewhile

import pytest
from conftest import ROOT

from leash_trl.cli.arguments import CommandParser
from leash_trl.cli.main import COMMANDS
from leash_trl.cli.training_arguments import fields_of_command_line


PAGES = [ROOT / "README.md", *(ROOT / "recipes").rglob("*.md"), *(ROOT / "leash_trl").rglob("README.md")]
HEADERS = [*(ROOT / "recipes").rglob("*.yaml")]
# to the end of its line, of a line that a backslash continues, or of its code
PRINTED = re.compile(rf"\bleash(?:_trl)? ({'|'.join(COMMANDS)})\b((?:\\\n|[^`\n])*)")
FENCED = re.compile(r"```(\w*)\n.*?```", re.DOTALL)
PROSE = re.compile(r"[()#]|, | for | then ")  # follows a command in a header
TRAINS = ("train", "plan", "compare")  # take every field of a recipe


def printed_commands():
    """The file, the command and the words after it, of all with options."""
    for path in sorted(PAGES + HEADERS):
        text = path.read_text(encoding="utf-8")
        if path in HEADERS:
            text = re.sub(r"^# *", "", re.match(r"(?:#.*\n|\n)*", text)[0], flags=re.MULTILINE)
        text = FENCED.sub(lambda block: block[0] if block[1] == "bash" else "", text)
        for command, rest in PRINTED.findall(text):
            rest = PROSE.split(rest)[0] if path in HEADERS else rest
            words = shlex.split(rest.replace("\\\n", " ").replace("GIB", "80"), comments=True)
            words = [*takewhile(lambda word: word not in ("&&", "|", ";", "&"), words)]
            if any(word.startswith("--") for word in words) and "..." not in words:
                yield pytest.param(command, words, id=f"{path.stem}-{command}")


@pytest.mark.parametrize(("command", "words"), [*printed_commands()])
def test_a_printed_command_is_one_that_its_parser_reads(command, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # recipes are found by their names
    if command != "train":
        module = importlib.import_module(f"leash_trl.cli.commands.{command}")
        options = getattr(module, f"{command.title()}Arguments")
        if words[0].startswith("--") and command in ("plot", "report", "push", "merge"):
            words = ["RUN", *words]
        parser = CommandParser([options], takes_recipe=command in ("eval", "filter"), prog=f"leash {command}")
        if command not in TRAINS:
            parser.parse_all(words)
            return
        _, words = parser.parse_some(words)
    fields_of_command_line(words)
