"""Command lines whose values may also come from a YAML recipe, for commands that need no trainer."""

import argparse
import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def parse_with_recipe(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
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
    return parser.parse_args([*recipe, *argv])


def read_recipe(path: str) -> dict[str, Any]:
    """The mapping of a YAML file.

    Raises:
        `FileNotFoundError`: If there is no such file.
        `ValueError`: If it is not YAML, or no mapping.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"--config {path}: no such file")
    try:
        recipe = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must hold a YAML mapping of names to values")
    return recipe


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
