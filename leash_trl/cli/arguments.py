"""Reads a command's options: the fields of a dataclass, with values of a recipe, which the command line overrides."""

import argparse
import inspect
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml
from trl import TrlParser

import leash_trl
from leash_trl.cli.errors import SET_UP_ERRORS, UserError, errors_to_user_errors, message_in_one_line
from leash_trl.process import set_environment


T = TypeVar("T")

PACKAGE_FOLDER = Path(leash_trl.__file__).parent
# pip puts recipes/ into the package; in a clone, and so in an editable install, the folder is beside it
RECIPES_FOLDER = next(
    folder for folder in (PACKAGE_FOLDER / "recipes", PACKAGE_FOLDER.parent / "recipes") if folder.is_dir()
)
DEFAULT_RECIPE = "gym/leash.yaml"
# name and first sentence of an entry in a docstring, such as "beta (`float`): Weight of the KL term."
DOCSTRING_ENTRY = re.compile(r"^ +(\w+) \(`.*?\):\s+(.+?\.)(?=\s)", re.MULTILINE | re.DOTALL)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a mapping that has a key twice. PyYAML would silently use the last value of the key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Returns the mapping; raises `ValueError` with both lines if a key occurs twice."""
        lines: dict[Any, int] = {}  # the line of each key, such as {"beta": 3}
        for key, _ in node.value:  # pairs of the YAML nodes of key and value
            line = key.start_mark.line + 1
            if key.value in lines:
                raise ValueError(f"{key.value!r} occurs twice, in lines {lines[key.value]} and {line}")
            lines[key.value] = line
        return super().construct_mapping(node, deep)


def recipe_file(name: str) -> Path:
    """Returns the path of a file or, if there is no such file, of the package's recipe of that name; raises
    `FileNotFoundError` if there is neither."""
    path = Path(name)
    if path.is_file():
        return path
    # such as {"gym/leash.yaml": Path("recipes/gym/leash.yaml")}
    recipes = {recipe.relative_to(RECIPES_FOLDER).as_posix(): recipe for recipe in RECIPES_FOLDER.rglob("*.yaml")}
    recipe = recipes.get(name.removeprefix("recipes/"))
    if recipe is None:
        raise FileNotFoundError(f"--config {name}: no such file or recipe of the package: {', '.join(recipes)}")
    return recipe


def load_recipe(name: str) -> dict[str, Any]:
    """Returns the mapping in a [`recipe_file`]; raises `ValueError` if it is no YAML mapping, or has a key twice."""
    path = recipe_file(name)
    try:
        fields = yaml.load(path.read_text(encoding="utf-8"), _UniqueKeyLoader)
        return dict(_with_paths_of_folder(path.parent, fields))
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ValueError(f"{name} is not a YAML mapping of names to values: {error}") from error


def _with_paths_of_folder(folder: Path, value: Any) -> Any:
    """Returns a recipe's value, in which files that exist only in the recipe's folder get the path of this folder."""
    if isinstance(value, dict):
        return {key: _with_paths_of_folder(folder, entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_paths_of_folder(folder, entry) for entry in value]
    if not isinstance(value, str):
        return value
    file = value.partition(":")[0]  # "my_file.py" of "my_file.py:my_reward"
    # The value may be any text, such as a long prompt, for which the methods of pathlib would raise an error.
    is_only_beside = "." in file and not os.path.exists(file) and os.path.isfile(folder / file)
    return str(folder / value) if is_only_beside else value


class CommandParser(TrlParser):
    """TRL's parser, which also takes recipes, null values and `positional` fields, takes the help from docstrings, and
    reports errors in one line."""

    def __init__(self, dataclass_types: Sequence[type], takes_recipe: bool = False, **texts: Any):
        # the help of each field, from the docstrings, such as {"beta": "Weight of the KL term."}
        self.helps: dict[str, str] = {}
        for dataclass_type in dataclass_types:
            # A field may be described in the docstrings of several classes; the subclass comes last and wins.
            for base in reversed(dataclass_type.__mro__):
                self.helps.update(DOCSTRING_ENTRY.findall(base.__doc__ or ""))
        # what the docstring of a command says before its arguments
        texts.setdefault("description", (inspect.getdoc(dataclass_types[0]) or "").partition("Args:")[0])
        super().__init__(list(dataclass_types), allow_abbrev=False, **texts)
        # The parser converts a word by the type of its field, and `dict` alone would not read '{"low": 1024}'.
        self.register("type", dict, lambda text: dict(yaml.safe_load(text)))
        if takes_recipe:
            self.add_argument(
                "--config", help=f"YAML file of options, such as {DEFAULT_RECIPE}; the command line overrides them"
            )
            self.add_argument("--env", type=dict, help="environment variables, as JSON or YAML")

    def add_argument(self, *names: str, positional: bool = False, **options: Any) -> argparse.Action:
        """Adds an option or, with `positional`, an argument without a name. TRL's parser calls this for each field of
        a dataclass, with the entries of the field's `metadata` among the options."""
        name = names[0].removeprefix("--")  # `names` are such as ("--top_p", "--top-p")
        text = " ".join(self.helps.get(name, "").split())  # in one line
        options.setdefault("help", text.replace("%", "%%"))  # argparse formats help texts with %
        # A recipe may set a required field, so argparse must not require it. `fill_dataclass` checks the field.
        if options.pop("required", False):
            options["help"] += " (required)"
        if positional:
            return super().add_argument(name, **options)
        return super().add_argument(*names, **options)

    def error(self, message: str) -> NoReturn:
        """Raises `UserError` with a message of one line, without the usage text."""
        raise UserError(f"{message}; see {self.prog} --help")

    def _get_values(self, action: argparse.Action, words: list[str]) -> Any:
        """Returns the value of an option from its words; argparse calls this for every option."""
        if words == ["null"]:
            return None
        # A shell replaces ~ by the home folder, but neither in --option=~/path nor in a recipe.
        expanded = [os.path.expanduser(word) for word in words]
        return super()._get_values(action, expanded)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """Returns the value of one word in the type of its option; argparse calls this for every word."""
        value = super()._get_value(action, arg_string)
        # Recipes and messages show a number as it was written: 4096 and not 4096.0.
        is_whole = isinstance(value, float) and arg_string.isdecimal()
        return int(value) if is_whole else value

    def parse_recipe(self, recipe: dict[str, Any], where: str) -> dict[str, Any]:
        """Returns a recipe's values by field, parsed as on the command line; raises `UserError` if a field is unknown
        or a value is wrong. `where` names the recipe in messages."""
        # `_option_string_actions` is argparse's table of all options, such as {"--beta": action}.
        unknown = [str(key) for key in recipe if f"--{key}" not in self._option_string_actions]
        if unknown:
            self.error(f"{where}: unknown {', '.join(unknown)}")
        values: dict[str, Any] = {}
        for key, value in recipe.items():
            action = self._option_string_actions[f"--{key}"]
            try:
                values[action.dest] = self._value_of_recipe(action, value)
            except argparse.ArgumentError as error:
                raise UserError(f"{where}: {key} is {value!r}: {error.message}") from error
        return values

    def _value_of_recipe(self, action: argparse.Action, value: Any) -> Any:
        """Returns the value that an option would get from the same words on the command line. Mappings, lists with a
        mapping or a list in them, and a list for an option of one word have no such words, and stay unchanged."""
        takes_several = action.nargs == "+"
        items = value if isinstance(value, list) and takes_several else [value]
        if any(isinstance(item, list | dict) for item in items):
            return value
        words = ["null" if item is None else str(item) for item in items]
        return self._get_values(action, words)

    def parse_all(self, argv: Sequence[str]) -> dict[str, Any]:
        """Returns the values of recipe and command line by field, and sets the environment variables of `env`; raises
        `UserError` if a word belongs to no option."""
        values, unknown = self.parse_some(argv)
        if unknown:
            self.error(f"unknown {', '.join(unknown)}")
        return values

    def parse_some(self, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """Returns the values as [`parse_all`] does, and the words that belong to no option."""
        # Only options on the command line may override the recipe, but argparse also returns defaults. Argparse sets
        # no default where the namespace already has a value, so this marker stays if no word sets the option.
        not_set = object()
        namespace = argparse.Namespace()
        for action in self._actions:
            setattr(namespace, action.dest, not_set)
        _, unknown = self.parse_known_args(list(argv), namespace)
        values = {name: value for name, value in vars(namespace).items() if value is not not_set}
        recipe = values.pop("config", None)
        if recipe is not None:
            with errors_to_user_errors():
                values = {**self.parse_recipe(load_recipe(recipe), recipe), **values}
        set_environment(values.pop("env", None) or {})
        return values, unknown


def check_chat_template(text: str | None) -> None:
    """Raises `ValueError` if a chat template has no brace and so is not Jinja text, but for example the path of a
    file: every prompt would be that text. `None` and empty text mean that there is no template."""
    if text and "{" not in text:
        raise ValueError(f"chat_template is {text!r}, but must be Jinja text; give the content of the file")


def fill_dataclass(dataclass_type: type[T], values: dict[str, Any]) -> T:
    """Creates the dataclass from those values that are its fields. For a field that cannot be null, null means its
    default. Raises `UserError` if a value is missing or wrong."""
    arguments: dict[str, Any] = {}
    # The values of a recipe belong to several dataclasses, so this loop takes only those of this dataclass.
    for name, parameter in inspect.signature(dataclass_type).parameters.items():
        annotation = str(parameter.annotation)  # such as "list[str] | None"
        value = values.get(name)
        # A list of two seeds, for example, would otherwise be recorded and hashed like a single seed.
        if isinstance(value, list) and "list[" not in annotation:
            raise UserError(f"{name} is {value!r}, but must be one value instead of a list")
        is_set = value is not None or (name in values and "None" in annotation)
        if is_set:
            arguments[name] = value
        elif parameter.default is parameter.empty:
            raise UserError(f"--{name} must be given")
    try:
        return dataclass_type(**arguments)
    except (TypeError, *SET_UP_ERRORS) as error:  # TypeError: a value of the wrong type, such as a list for a number
        raise UserError(message_in_one_line(error)) from error


def parse(dataclass_type: type[T], argv: Sequence[str], prog: str, takes_recipe: bool = False) -> T:
    """Returns a command's dataclass with the values of its command line and, if it `takes_recipe`, of `--config`.

    Every field is an option. Fields without a default are required. A field with `positional` in its metadata takes
    the words without an option name. A `dict` is read as JSON or YAML, and a `list` takes several words. The docstring
    of the class is the help text. A mistake raises `UserError`.
    """
    parser = CommandParser([dataclass_type], takes_recipe, prog=prog)
    return fill_dataclass(dataclass_type, parser.parse_all(argv))


def parse_known(dataclass_type: type[T], argv: Sequence[str], prog: str) -> tuple[T, list[str]]:
    """Parses as [`parse`] does, and also returns the words that belong to no option, which are for `leash train`."""
    values, unknown = CommandParser([dataclass_type], prog=prog).parse_some(argv)
    return fill_dataclass(dataclass_type, values), unknown
