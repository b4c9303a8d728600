"""Finds and reads YAML recipes, and parses command lines that take values from one."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

import leash_trl
from leash_trl.cli.command_parser import TRL_NAMES, CommandParser, did_you_mean


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


def recipe_of(parser: argparse.ArgumentParser, path: str, has_env: bool = False) -> dict[str, Any]:
    """A recipe for a parser's options; if it `has_env`, the environment's variables may stand in it too.

    Raises:
        `ValueError`: If a key is no option, or a value is none of the option's, such as 1.5 for a whole number.
    """
    recipe = read_recipe(path)
    actions = _actions(parser)
    for key, value in recipe.items():
        if has_env and key == "env":
            continue
        if key not in actions:
            raise ValueError(f"{path}: unknown key {key!r}{did_you_mean(key, [*actions, *TRL_NAMES])}")
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, str | int | float | dict) and actions[key].nargs != 0:
                try:
                    parser._check_value(actions[key], parser._get_value(actions[key], _as_word(item)))
                except argparse.ArgumentError as error:
                    raise ValueError(f"{path}: {key} is {item!r}: {error.message}") from error
    return recipe


def parse_with_recipe(parser: CommandParser, argv: Sequence[str]) -> argparse.Namespace:
    """Arguments of a parser, of which `--config RECIPE.yaml` may give any; the command line comes before the recipe.

    Raises:
        `ValueError`: If the recipe is not a mapping of the parser's options to values, or an argument is wrong.
        `FileNotFoundError`: If there is no such file.
    """
    path, words = split_config(argv)
    actions = _actions(parser)
    from_recipe: list[str] = []
    for key, value in (recipe_of(parser, path) if path is not None else {}).items():
        is_flag = actions[key].nargs == 0
        if value is None or (is_flag and not value):
            continue
        values = value if isinstance(value, list) else [value]
        from_recipe += [f"--{key}", *([] if is_flag else map(_as_word, values))]
    parser.add_argument("--config", help="YAML recipe with any of these options; the command line overrides it")
    return parser.parse_args([*from_recipe, *words])


def _actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """The options of a parser by the name of their value; `--no_name` is only another way to say `--name`."""
    return {
        action.dest: action for name, action in parser._option_string_actions.items() if name == f"--{action.dest}"
    }


def _as_word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict) else str(value)
