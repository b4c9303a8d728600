"""Command lines whose values may also come from a YAML recipe, for commands that need no trainer."""

import argparse
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

import leash_trl
from leash_trl.cli.command_parser import CommandParser, recipe_with_trl_names


PACKAGE = Path(leash_trl.__file__).parent
# pip puts recipes/ into the package; in a clone, and so in an editable install, they lie beside it
RECIPES = next(folder for folder in (PACKAGE / "recipes", PACKAGE.parent / "recipes") if folder.is_dir())
DEFAULT_RECIPE = "gym/leash.yaml"


def parse_with_recipe(parser: CommandParser, argv: Sequence[str]) -> argparse.Namespace:
    """Arguments of a parser, of which `--config RECIPE.yaml` may give any; the command line comes before the recipe.

    Raises:
        `ValueError`: If the recipe is not a mapping of the parser's options to values.
        `FileNotFoundError`: If there is no such file.
    """
    parser.add_argument("--config", help="YAML recipe with any of these options; the command line overrides it")
    finder = argparse.ArgumentParser(add_help=False)
    finder.add_argument("--config")
    config = finder.parse_known_args(argv)[0].config
    recipe = _recipe_argv(parser, config) if config is not None else []
    return parser.parse_args([*recipe, *parser.with_trl_names(argv)])


def read_recipe(path: str) -> dict[str, Any]:
    """The mapping of a YAML file, or of a recipe of the package, with TRL's names of its fields.

    Raises:
        `FileNotFoundError`: If there is no such file.
        `ValueError`: If it is not YAML, or no mapping.
    """
    try:
        recipe = yaml.safe_load(recipe_path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must hold a YAML mapping of names to values")
    return recipe_with_trl_names(recipe, path)


def recipe_path(name: str) -> Path:
    """The recipe's file: the user's own, else the one of that name that comes with the package, as `gym/leash.yaml`.

    Raises:
        `FileNotFoundError`: If there is neither.
    """
    if Path(name).is_file():
        return Path(name)
    recipes = {str(path.relative_to(RECIPES).as_posix()): path for path in RECIPES.rglob("*.yaml")}
    if (own := recipes.get(name.removeprefix("recipes/"))) is not None:
        return own
    similar = difflib.get_close_matches(name, recipes, n=1)
    hint = f", did you mean {similar[0]}?" if similar else f", nor a recipe of the package, such as {DEFAULT_RECIPE}"
    raise FileNotFoundError(f"--config {name}: no such file{hint}")


def _recipe_argv(parser: argparse.ArgumentParser, config: str) -> list[str]:
    recipe = read_recipe(config)
    flags = {action.dest: action for action in parser._actions if action.option_strings}
    argv: list[str] = []
    for key, value in recipe.items():
        if key not in flags:
            similar = difflib.get_close_matches(str(key), flags, n=1)
            raise ValueError(f"{config}: unknown key {key!r}" + (f", did you mean {similar[0]!r}?" if similar else ""))
        argv += _option(flags[key], value)
    return argv


def _option(action: argparse.Action, value: Any) -> list[str]:
    flag = action.option_strings[0]
    if value is None:
        return []
    if action.nargs == 0:
        return [flag] if value else []
    values = value if isinstance(value, list) else [value]
    return [flag, *(json.dumps(item) if isinstance(item, dict) else str(item) for item in values)]
