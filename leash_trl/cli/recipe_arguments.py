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


MERGE_TAG = "tag:yaml.org,2002:merge"


PACKAGE = Path(leash_trl.__file__).parent
# pip puts recipes/ into the package; in a clone, and so in an editable install, they lie beside it
RECIPES = next(folder for folder in (PACKAGE / "recipes", PACKAGE.parent / "recipes") if folder.is_dir())
DEFAULT_RECIPE = "gym/leash.yaml"


def parse_with_recipe(parser: CommandParser, argv: Sequence[str]) -> argparse.Namespace:
    """Arguments of a parser, of which `--config RECIPE.yaml` may give any; the command line comes before the recipe.

    Raises:
        `ValueError`: If the recipe is not a mapping of the parser's options to values, or an argument is wrong.
        `FileNotFoundError`: If there is no such file.
    """
    parser.add_argument("--config", help="YAML recipe with any of these options; the command line overrides it")
    finder = argparse.ArgumentParser(add_help=False)
    finder.add_argument("--config")
    config = finder.parse_known_args(argv)[0].config
    recipe = _recipe_argv(parser, config) if config is not None else []
    return parser.parse_args([*recipe, *parser.with_trl_names(argv)])


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML whose mappings name each key once; PyYAML would take the last and say nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if (key := self.construct_object(key_node, deep=True)) in seen and key_node.tag != MERGE_TAG:
                raise ValueError(f"{key!r} stands twice, in lines {seen[key]} and {line}; take one out")
            seen[key] = line
        return super().construct_mapping(node, deep)


def read_recipe(path: str) -> dict[str, Any]:
    """The mapping of a YAML file, or of a recipe of the package, with TRL's names of its fields.

    Raises:
        `FileNotFoundError`: If there is no such file.
        `ValueError`: If it is not YAML, no mapping, or a key stands twice.
    """
    try:
        recipe = yaml.load(recipe_path(path).read_text(encoding="utf-8"), _UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
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
    beside = {path.stem: str(path) for ending in ("*.yaml", "*.yml") for path in Path(name).parent.glob(ending)}
    similar = [beside[stem] for stem in difflib.get_close_matches(Path(name).stem, beside, n=1)]
    similar += difflib.get_close_matches(name, recipes, n=1, cutoff=0.75)  # the ending alone is alike
    hint = f", did you mean {similar[0]}?" if similar else f", nor a recipe of the package, such as {DEFAULT_RECIPE}"
    raise FileNotFoundError(f"--config {name}: no such file{hint}")


def check_values(parser: argparse.ArgumentParser, recipe: dict[str, Any], path: str) -> None:
    """Holds the values of a recipe to the types and choices of a parser's options, which argparse does for text only.

    Raises:
        `ValueError`: If one is of another type, such as 1.5 for a whole number.
    """
    for action in parser._actions:
        value = recipe.get(action.dest)
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str | int | float | dict):
                continue
            try:
                parser._check_value(action, parser._get_value(action, str(item)))
            except argparse.ArgumentError as error:
                raise ValueError(f"{path}: {action.dest} is {item!r}: {error.message}") from error


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
