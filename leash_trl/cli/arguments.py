"""A command's options: the fields of a dataclass, with the values of a recipe and, over them, of the command line."""

import argparse
import dataclasses
import inspect
import json
import os
from collections.abc import Iterable, Sequence
from inspect import Parameter
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml
from trl import TrlParser

import leash_trl
from leash_trl.cli.errors import SET_UP_ERRORS, UserError, did_you_mean, said, user_errors


T = TypeVar("T")

SHORT_NAMES = {
    "model_name_or_path": "model",
    "dataset_name": "dataset",
    "benchmarks": "dataset",
    "output_dir": "output",
}
"""Short names of options, on the command line and in recipes, where a command has no option of that name."""

STRATEGIES = ("eval_strategy", "logging_strategy", "save_strategy")
PACKAGE = Path(leash_trl.__file__).parent
# pip puts recipes/ into the package; in a clone, and so in an editable install, the folder is beside it
RECIPES = next(folder for folder in (PACKAGE / "recipes", PACKAGE.parent / "recipes") if folder.is_dir())
DEFAULT_RECIPE = "gym/leash.yaml"


def option(text: str, default: Any = None) -> Any:
    """A field of a command's dataclass with its default and its help."""
    return dataclasses.field(default=default, metadata={"help": text})


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that a mapping names twice, of which PyYAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key_node in (key for key, _ in node.value if key.value != "<<"):
            line = key_node.start_mark.line + 1
            if lines.setdefault(key_node.value, line) != line:
                raise ValueError(f"{key_node.value!r} stands twice, in lines {lines[key_node.value]} and {line}")
        return super().construct_mapping(node, deep)


def read_recipe(name: str) -> dict[str, Any]:
    """The mapping of the user's own YAML file or, where there is none, of the package's recipe of that name.

    Raises:
        `FileNotFoundError`: If there is no such file.
        `ValueError`: If it is not YAML, no mapping, or a key stands twice.
    """
    recipes = {path.relative_to(RECIPES).as_posix(): path for path in RECIPES.rglob("*.yaml")}
    path = Path(name) if Path(name).is_file() else recipes.get(name.removeprefix("recipes/"))
    if path is None:
        known = [*map(str, Path(name).parent.glob("*.y*ml")), *recipes]
        # similar endings alone do not make two names similar
        hint = did_you_mean(name, known, f"nor a recipe of the package, such as {DEFAULT_RECIPE}", likeness=0.75)
        raise FileNotFoundError(f"--config {name}: no such file{hint}")
    try:
        return dict(yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader))
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ValueError(f"{name} is no YAML mapping of names to values: {' '.join(str(error).split())}") from error


def mapping(text: str) -> dict[str, Any]:
    """Names and values that a command line gives as JSON or YAML."""
    return dict(yaml.safe_load(text))


class CommandParser(TrlParser):
    """TRL's parser, which reads short names, recipes, null and `positional` fields, and says a mistake in one line."""

    help_option = "--help"  # that shows every option

    def __init__(self, kinds: Iterable[type], takes_recipe: bool = False, **texts: Any):
        super().__init__(list(kinds), allow_abbrev=False, **texts)
        if takes_recipe:
            self.add_argument(
                "--config",
                help=f"YAML recipe, a file or one of the package's, such as {DEFAULT_RECIPE}, with any of these "
                "options; the command line overrides it",
            )

    def add_argument(self, *names: str, positional: bool = False, **options: Any) -> argparse.Action:
        """Adds one option or, with `positional`, the command's words without a name."""
        is_required = options.pop("required", False)
        if options.get("type") is dict:
            options["type"] = mapping
        if positional:
            nargs = options.pop("nargs", None if is_required else "?")
            return super().add_argument(names[0].removeprefix("--"), nargs=nargs, **options)
        if options.get("default") in (None, [], {}):
            options["default"] = argparse.SUPPRESS  # no "(default: None)"
        if is_required:  # a recipe may give it
            options["help"] += " (required)"
        short = {f"--{SHORT_NAMES[name]}" for name in SHORT_NAMES if names[0] == f"--{name}"}
        action = super().add_argument(*names, *(short - self._option_string_actions.keys()), **options)
        # the same names with hyphens stay readable, without a place in the help
        action.option_strings = [name for name in action.option_strings if "-" not in name[2:] or name == names[0]]
        return action

    def error(self, message: str) -> NoReturn:
        """Refuses a command line in one line, without the usage in front."""
        raise UserError(f"{message}; {self.prog} {self.help_option} lists all options")

    def _get_values(self, action: argparse.Action, words: list[str]) -> Any:
        return None if words == ["null"] else super()._get_values(action, words)

    def checked(self, recipe: dict[str, Any], where: str) -> dict[str, Any]:
        """A recipe's values by field, read as on the command line; `env`, the environment's variables, as it is.

        Raises:
            `UserError`: If a key is no option, two keys name one, or a value cannot be read.
        """
        values: dict[str, Any] = {}
        for key, value in recipe.items():
            action = self._option_string_actions.get(f"--{key}")
            if key != "env" and (action is None or action.nargs == 0 or key == "config"):
                raise UserError(f"{where}: unknown key {key!r}{self._meant(str(key))}")
            name = action.dest if action else key
            if name in values:
                raise UserError(f"{where}: {key} is {value!r}, but {name} is {values[name]!r}, the same; drop one")
            if name in STRATEGIES and value is False:
                value = "no"  # YAML reads a bare `no` as False
            try:
                values[name] = value if action is None else self._read(action, value)
            except argparse.ArgumentError as error:
                raise UserError(f"{where}: {key} is {value!r}: {error.message}") from error
        return values

    def _read(self, action: argparse.Action, value: Any) -> Any:
        """A recipe's value as the command line reads it; mappings, and lists for one value, as they are."""
        items = value if isinstance(value, list) and action.nargs == "+" else [value]
        if (isinstance(value, bool) and action.type is str) or any(isinstance(item, list | dict) for item in items):
            return value
        return self._get_values(action, ["null" if item is None else str(item) for item in items])

    def _meant(self, word: str, otherwise: str = "", prefix: str = "") -> str:
        known = (name.removeprefix("--") for name in self._option_string_actions)
        return did_you_mean(word, known, otherwise, prefix)

    def given(self, argv: Sequence[str]) -> dict[str, Any]:
        """What recipe and command line say, by field; the recipe's `env` goes into the environment.

        Raises:
            `UserError`: If there is a word that no option reads, or a mistake in the recipe.
        """
        values, rest = self.known(argv)
        if rest:
            word = next((word for word in rest if word.startswith("-")), rest[0]).partition("=")[0]
            if not word.startswith("-"):
                self.error(f"{word!r} belongs to no option; options are written --name value")
            otherwise = f"{self.prog} {self.help_option} lists all"
            raise UserError(f"unknown option {word}{self._meant(word, otherwise, prefix='--')}")
        return values

    def known(self, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """As [`given`], with the words that no option reads."""
        unsaid = object()
        namespace = argparse.Namespace(**{action.dest: unsaid for action in self._actions})
        _, rest = self.parse_known_args(list(argv), namespace)
        said = {name: value for name, value in vars(namespace).items() if value is not unsaid}
        if (path := said.pop("config", None)) is None:
            return said, rest
        with user_errors():
            recipe = self.checked(read_recipe(path), path)
        environment = recipe.pop("env", {})
        if not isinstance(environment, dict):
            raise UserError(f"{path}: env is {environment!r}, but must be a mapping of names to values")
        os.environ.update({name: str(value) for name, value in environment.items()})
        return {**recipe, **said}, rest


def make(kind: type[T], values: dict[str, Any]) -> T:
    """The dataclass with those of the values that are its fields'.

    Raises:
        `UserError`: If a required field is missing, a value is null where one must be, or the dataclass refuses one.
    """
    parameters = inspect.signature(kind).parameters
    own = {name: values[name] for name in parameters if name in values}
    if missing := [
        f"--{name}" for name in parameters if name not in own and parameters[name].default is Parameter.empty
    ]:
        raise UserError(f"{' and '.join(missing)} must be given")
    for name, value in own.items():
        hint = str(parameters[name].annotation)
        if (value is None and "None" not in hint) or (isinstance(value, list) and "list[" not in hint):
            raise UserError(f"{name} is {json.dumps(value)}, but must be one value; leave it out for the default")
    try:
        return kind(**own)
    except (TypeError, *SET_UP_ERRORS) as error:  # TypeError: a value of another type, such as a list for a number
        raise UserError(said(error)) from error


def parse(kind: type[T], argv: Sequence[str], takes_recipe: bool = False, **texts: str) -> T:
    """A command's dataclass with the values of its command line and, where it `takes_recipe`, of `--config`.

    Fields are options, with `metadata={"help": ...}`; one without a default is required, and `"positional": True`
    makes one the words without a name. A `dict` is read as JSON or YAML, a `list` takes several words. `texts` are
    `prog`, `description` and `epilog`, as argparse has them.

    Raises:
        `UserError`: If command line or recipe have a mistake.
    """
    return make(kind, CommandParser([kind], takes_recipe, **texts).given(argv))


def parse_known(kind: type[T], argv: Sequence[str], **texts: Any) -> tuple[T, list[str]]:
    """As [`parse`], with the words that belong to no option, which are for `leash train`."""
    values, rest = CommandParser([kind], **texts).known(argv)
    return make(kind, values), rest
