"""Reads a command's options: the fields of a dataclass, with values of a recipe, which the command line overrides."""

import argparse
import inspect
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml
from trl import TrlParser

import leash_trl
from leash_trl.cli.errors import SET_UP_ERRORS, UserError, one_line, user_errors
from leash_trl.paths import existing_path


T = TypeVar("T")

PACKAGE = Path(leash_trl.__file__).parent
# pip puts recipes/ into the package; in a clone, and so in an editable install, the folder is beside it
RECIPES = next(folder for folder in (PACKAGE / "recipes", PACKAGE.parent / "recipes") if folder.is_dir())
DEFAULT_RECIPE = "gym/leash.yaml"
# name and first sentence of an entry in a docstring, such as "beta (`float`): Weight of the KL term."
ENTRY = re.compile(r"^ +(\w+) \(`.*?\):\s+(.+?\.)(?=\s)", re.MULTILINE | re.DOTALL)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice, of which PyYAML would silently use the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key_node in (key for key, _ in node.value if key.value != "<<"):
            line = key_node.start_mark.line + 1
            if lines.setdefault(key_node.value, line) != line:
                raise ValueError(f"{key_node.value!r} occurs twice, in lines {lines[key_node.value]} and {line}")
        return super().construct_mapping(node, deep)


def load_recipe(name: str) -> dict[str, Any]:
    """Returns the mapping in a YAML file or, if there is no such file, in the package's recipe of that name."""
    recipes = {path.relative_to(RECIPES).as_posix(): path for path in RECIPES.rglob("*.yaml")}
    file = Path(name).expanduser()
    path = file if file.is_file() else recipes.get(name.removeprefix("recipes/"))
    if path is None:
        raise FileNotFoundError(f"--config {name}: no such file or recipe of the package: {', '.join(recipes)}")
    try:
        return dict(_beside(path.parent, yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)))
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ValueError(f"{name} is not a YAML mapping of names to values: {error}") from error


def _beside(folder: Path, value: Any) -> Any:
    """Returns a recipe's value, in which files that exist only in the recipe's folder get the path of this folder."""
    if isinstance(value, dict):
        return {key: _beside(folder, entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_beside(folder, entry) for entry in value]
    file = value.partition(":")[0] if isinstance(value, str) else ""
    # functions of pathlib raise for long texts
    is_beside = "." in file and not os.path.exists(file) and os.path.isfile(folder / file)
    return str(folder / value) if is_beside else value


class CommandParser(TrlParser):
    """TRL's parser with recipes, null values, `positional` fields, help from docstrings, and errors of one line."""

    def __init__(self, kinds: Sequence[type], takes_recipe: bool = False, **texts: Any):
        docstrings = [base.__doc__ or "" for kind in kinds for base in reversed(kind.__mro__)]
        self.helps = {name: text for docstring in docstrings for name, text in ENTRY.findall(docstring)}
        super().__init__(list(kinds), allow_abbrev=False, **texts)
        self.register("type", dict, lambda text: dict(yaml.safe_load(text)))
        if takes_recipe:
            self.add_argument("--config", help=f"YAML file of options, which others override: {DEFAULT_RECIPE}, say")
            self.add_argument("--env", type=dict, help="environment variables, as JSON or YAML")

    def add_argument(self, *names: str, positional: bool = False, **options: Any) -> argparse.Action:
        """Adds an option or, with `positional`, an argument without a name."""
        name = names[0].removeprefix("--")
        options.setdefault("help", " ".join(self.helps.get(name, "").split()).replace("%", "%%"))
        if options.pop("required", False):  # not required by argparse, since a recipe may set it
            options["help"] += " (required)"
        if positional:
            return super().add_argument(name, **options)
        if options.get("default") in (None, [], {}):
            options["default"] = argparse.SUPPRESS  # suppresses "(default: None)"
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        """Raises `UserError` with a message of one line, without the usage text."""
        raise UserError(f"{message}; see {self.prog} --help")

    def _get_values(self, action: argparse.Action, words: list[str]) -> Any:
        # as a shell does, which expands neither --option=~/path nor the values of a recipe
        expanded = [os.path.expanduser(word) for word in words]
        return None if words == ["null"] else super()._get_values(action, expanded)

    def checked(self, recipe: dict[str, Any], where: str) -> dict[str, Any]:
        """Returns a recipe's values by field, parsed as on the command line; mappings and lists of mappings stay
        unchanged."""
        values: dict[str, Any] = {}
        if unknown := [str(key) for key in recipe if f"--{key}" not in self._option_string_actions]:
            raise UserError(f"{where}: unknown {self._unknown(unknown)}")
        for key, value in recipe.items():
            action = self._option_string_actions[f"--{key}"]
            items = value if isinstance(value, list) and action.nargs == "+" else [value]
            if any(isinstance(item, list | dict) for item in items):
                values[action.dest] = value
                continue
            try:
                words = ["null" if item is None else str(item) for item in items]
                values[action.dest] = self._get_values(action, words)
            except argparse.ArgumentError as error:
                raise UserError(f"{where}: {key} is {value!r}: {error.message}") from error
        return values

    def parse_all(self, argv: Sequence[str]) -> dict[str, Any]:
        """Returns the values of recipe and command line by field, and sets the environment variables of `env`."""
        values, rest = self.parse_some(argv)
        if rest:
            raise UserError(f"unknown {self._unknown(rest)}")
        return values

    def _unknown(self, unknown: Sequence[str]) -> str:
        """Names unknown keys or words, and the help that lists all options."""
        *_, longest_help = (option for option in self._option_string_actions if option.startswith("--help"))
        return f"{', '.join(unknown)}; see {self.prog} {longest_help}"

    def parse_some(self, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """Returns the values as in [`parse_all`], and the words that belong to no option."""
        unsaid = object()
        namespace = argparse.Namespace(**{action.dest: unsaid for action in self._actions})
        _, rest = self.parse_known_args(list(argv), namespace)
        values = {name: value for name, value in vars(namespace).items() if value is not unsaid}
        if (path := values.pop("config", None)) is not None:
            with user_errors():
                values = {**self.checked(load_recipe(path), path), **values}
        environment = values.pop("env", None) or {}
        os.environ.update({name: str(value) for name, value in environment.items()})
        return values, rest


def check_chat_template(text: str | None) -> None:
    """Raises `ValueError` if a chat template is not Jinja text, which holds braces, such as the path of a file: every
    prompt would be that text."""
    if text and "{" not in text:
        path = existing_path(text, "chat_template")
        raise ValueError(f"chat_template is {text!r}, but must be Jinja text: give the content of {path}")


def make_dataclass(kind: type[T], values: dict[str, Any]) -> T:
    """Creates the dataclass from those values that are its fields; raises `UserError` if one is missing or wrong."""
    parameters = inspect.signature(kind).parameters
    own = {name: values[name] for name in parameters if name in values}
    for name, parameter in parameters.items():
        if name not in own and parameter.default is parameter.empty:
            raise UserError(f"--{name} must be given")
    for name, value in own.items():
        hint = str(parameters[name].annotation)
        if (value is None and "None" not in hint) or (isinstance(value, list) and "list[" not in hint):
            raise UserError(f"{name} is {json.dumps(value)}, but must be one value; remove it to use the default")
    try:
        return kind(**own)
    except (TypeError, *SET_UP_ERRORS) as error:  # TypeError: a value of the wrong type, such as a list for a number
        raise UserError(one_line(error)) from error


def parse(kind: type[T], argv: Sequence[str], prog: str, takes_recipe: bool = False) -> T:
    """Returns a command's dataclass with the values of its command line and, if it `takes_recipe`, of `--config`.

    Every field is an option. Fields without a default are required, and fields with `positional=True` take the words
    without an option name. A `dict` is read as JSON or YAML, and a `list` takes several words. The docstring is the
    help text. A mistake raises `UserError`.
    """
    return make_dataclass(
        kind, CommandParser([kind], takes_recipe, prog=prog, description=_description(kind)).parse_all(argv)
    )


def parse_known(kind: type[T], argv: Sequence[str], prog: str) -> tuple[T, list[str]]:
    """Parses as [`parse`] does, and also returns the words that belong to no option, which are for `leash train`."""
    values, rest = CommandParser([kind], prog=prog, description=_description(kind)).parse_some(argv)
    return make_dataclass(kind, values), rest


def _description(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("Args:")[0]
