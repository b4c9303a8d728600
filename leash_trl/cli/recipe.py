"""Finds and reads YAML recipes, and parses command lines that take values from one."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

import leash_trl
from leash_trl.cli.command_parser import TRL_NAMES, CommandParser
from leash_trl.cli.errors import did_you_mean


MERGE_TAG = "tag:yaml.org,2002:merge"
STRATEGIES = ("eval_strategy", "logging_strategy", "save_strategy")
PACKAGE = Path(leash_trl.__file__).parent
# pip puts recipes/ into the package; in a clone, and so in an editable install, the folder is beside it
RECIPES = next(folder for folder in (PACKAGE / "recipes", PACKAGE.parent / "recipes") if folder.is_dir())
DEFAULT_RECIPE = "gym/leash.yaml"


class _UniqueKeyLoader(yaml.SafeLoader):
    """Reads YAML and refuses a key that a mapping names twice; PyYAML would silently take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if (key := self.construct_object(key_node, deep=True)) in seen and key_node.tag != MERGE_TAG:
                raise ValueError(f"{key!r} stands twice, in lines {seen[key]} and {line}; take one out")
            seen[key] = line
        return super().construct_mapping(node, deep)


def recipe_path(name: str) -> Path:
    """The recipe's file: the user's own, else the one of that name that comes with the package, as `gym/leash.yaml`.

    Raises:
        `FileNotFoundError`: If there is neither.
    """
    if Path(name).is_file():
        return Path(name)
    recipes = {path.relative_to(RECIPES).as_posix(): path for path in RECIPES.rglob("*.yaml")}
    if (own := recipes.get(name.removeprefix("recipes/"))) is not None:
        return own
    known = [*map(str, Path(name).parent.glob("*.y*ml")), *recipes]
    # similar endings alone do not make two names similar
    hint = did_you_mean(name, known, f"nor a recipe of the package, such as {DEFAULT_RECIPE}", likeness=0.75)
    raise FileNotFoundError(f"--config {name}: no such file{hint}")


def read_recipe(path: str) -> dict[str, Any]:
    """The mapping of a YAML file, or of a recipe of the package, with TRL's names of its fields.

    Raises:
        `FileNotFoundError`: If there is no such file.
        `ValueError`: If it is not YAML, no mapping, a key stands twice, or two keys name one thing.
    """
    try:
        recipe = yaml.load(recipe_path(path).read_text(encoding="utf-8"), _UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must hold a YAML mapping of names to values")
    return with_trl_names(recipe, path)


def with_trl_names(recipe: dict[str, Any], where: str) -> dict[str, Any]:
    """The fields of a recipe with TRL's names for the short ones, and the strategy "no" where it says `no`.

    Args:
        recipe (`dict[str, Any]`):
            Values by field name.
        where (`str`):
            What the error calls the recipe.

    Raises:
        `ValueError`: If it has both names with different values.
    """
    for short, name in TRL_NAMES.items():
        if short in recipe and recipe.get(name, recipe[short]) != recipe[short]:
            raise ValueError(
                f"{where}: {short} is {recipe[short]!r} and {name} is {recipe[name]!r}, but both name one thing; drop "
                "one"
            )
    # YAML reads a bare `no` as False
    strategies = {name: "no" for name in STRATEGIES if recipe.get(name) is False}
    return {TRL_NAMES.get(name, name): value for name, value in {**recipe, **strategies}.items()}


def split_config(argv: Sequence[str]) -> tuple[str | None, list[str]]:
    """The recipe that a command line names with `--config`, and the words without it."""
    finder = CommandParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config")
    found, rest = finder.parse_known_args(argv)
    return found.config, rest


def checked_recipe(
    parser: argparse.ArgumentParser, recipe: dict[str, Any], where: str, has_env: bool = False
) -> dict[str, Any]:
    """A recipe's values for a parser's options: text as the command line reads it, one value of a list as a list.

    Errors call the recipe `where`. If it `has_env`, the environment's variables may stand in it too, as `env`.

    Raises:
        `ValueError`: If a key is no option, or a value is none of the option's, such as 1.5 for a whole number.
    """
    # `--no_name` is only another way to say `--name`
    actions = {a.dest: a for name, a in parser._option_string_actions.items() if name == f"--{a.dest}"}
    values = {}
    for key, value in recipe.items():
        if has_env and key == "env":
            values[key] = value
        elif key not in actions:
            raise ValueError(f"{where}: unknown key {key!r}{did_you_mean(key, [*actions, *TRL_NAMES])}")
        else:
            try:
                values[key] = _checked(parser, actions[key], value)
            except argparse.ArgumentError as error:
                raise ValueError(f"{where}: {key} is {value!r}: {error.message}") from error
    return values


def _checked(parser: argparse.ArgumentParser, action: argparse.Action, value: Any) -> Any:
    """The value that the option has after the recipe's."""
    if isinstance(value, list):
        return [_checked_item(parser, action, item) for item in value]
    item = _checked_item(parser, action, value)
    return [item] if action.nargs == "+" and item is not None else item


def _checked_item(parser: argparse.ArgumentParser, action: argparse.Action, item: Any) -> Any:
    if action.nargs == 0 or not isinstance(item, str | int | float | dict):
        return item
    read = parser._get_value(action, json.dumps(item) if isinstance(item, dict) else str(item))
    parser._check_value(action, read)
    is_number_for_text = action.type is str and not isinstance(item, bool | dict)
    return read if isinstance(item, str) or is_number_for_text or action.type is None else item


def parse_with_recipe(parser: CommandParser, argv: Sequence[str]) -> argparse.Namespace:
    """Arguments of a parser, of which `--config RECIPE.yaml` may give any; the command line comes before the recipe.

    Raises:
        `ValueError`: If the recipe is not a mapping of the parser's options to values, or an argument is wrong.
        `FileNotFoundError`: If there is no such file.
    """
    path, words = split_config(argv)
    recipe = {} if path is None else checked_recipe(parser, read_recipe(path), path)
    given = {name: value for name, value in recipe.items() if value is not None}
    for action in parser._actions:
        action.required = action.required and action.dest not in given
    parser.set_defaults(**given)
    parser.add_argument("--config", help="YAML recipe with any of these options; the command line overrides it")
    return parser.parse_args(words)
