"""A command's options: the fields of a dataclass, with the values of a recipe and, over them, of the command line."""

import argparse
import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

import yaml
from trl import TrlParser

import leash_trl
from leash_trl.cli.errors import UserError, did_you_mean, user_errors


T = TypeVar("T")

SHORT_NAMES = {
    "model_name_or_path": "model",
    "dataset_name": "dataset",
    "benchmarks": "dataset",
    "output_dir": "output",
}
"""Short names of options, on the command line and in recipes, where a command has no option of that name."""

MERGE_TAG = "tag:yaml.org,2002:merge"
STRATEGIES = ("eval_strategy", "logging_strategy", "save_strategy")
PACKAGE = Path(leash_trl.__file__).parent
# pip puts recipes/ into the package; in a clone, and so in an editable install, the folder is beside it
RECIPES = next(folder for folder in (PACKAGE / "recipes", PACKAGE.parent / "recipes") if folder.is_dir())
DEFAULT_RECIPE = "gym/leash.yaml"


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key that a mapping names twice, of which PyYAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key_node in (key for key, _ in node.value if key.tag != MERGE_TAG):
            key, line = self.construct_object(key_node, deep=True), key_node.start_mark.line + 1
            if lines.setdefault(key, line) != line:
                raise ValueError(f"{key!r} stands twice, in lines {lines[key]} and {line}; take one out")
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
    """The mapping of a YAML file, or of a recipe of the package.

    Raises:
        `FileNotFoundError`: If there is no such file.
        `ValueError`: If it is not YAML, no mapping, or a key stands twice.
    """
    try:
        recipe = yaml.load(recipe_path(path).read_text(encoding="utf-8"), _UniqueKeyLoader)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must hold a YAML mapping of names to values")
    return recipe


def mapping(text: str) -> dict[str, Any]:
    """Names and values that a command line gives as JSON or YAML."""
    value = yaml.safe_load(text)
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no mapping, such as '{{name: value}}'")
    return value


class CommandParser(TrlParser):
    """TRL's parser, which reads short names, recipes and `positional` fields, and says a mistake in one line."""

    help_option = "--help"  # that shows every option

    def __init__(self, kinds: Iterable[type], takes_recipe: bool = False, **options: Any):
        super().__init__(list(kinds), allow_abbrev=False, **options)
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
        action.option_strings = [name for name in action.option_strings if "-" not in name.strip("-")]
        return action

    def error(self, message: str) -> NoReturn:
        """Refuses a command line in one line, without the usage in front."""
        raise UserError(f"{message}; {self.prog} {self.help_option} lists all options")

    def options(self) -> dict[str, argparse.Action]:
        """The options that are fields, by name; the short names too."""
        fields = {part.name for kind in self.dataclass_types for part in dataclasses.fields(kind)}
        actions = self._option_string_actions.items()
        return {name.removeprefix("--"): action for name, action in actions if action.dest in fields}

    def checked(self, recipe: dict[str, Any], where: str) -> dict[str, Any]:
        """A recipe's values by field, read as on the command line; `env`, the environment's variables, as it is.

        Raises:
            `UserError`: If a key is no option, two keys name one, or a value cannot be read.
        """
        options, values = self.options(), {}
        for key, value in recipe.items():
            name = "env" if key == "env" else options[key].dest if key in options else None
            if name is None:
                raise UserError(f"{where}: unknown key {key!r}{did_you_mean(str(key), options)}")
            if name in values:
                raise UserError(f"{where}: {key} is {value!r}, but {name} is {values[name]!r}, the same; drop one")
            if name in STRATEGIES and value is False:
                value = "no"  # YAML reads a bare `no` as False
            try:
                values[name] = value if key == "env" else self._read(options[key], value)
            except argparse.ArgumentError as error:
                raise UserError(f"{where}: {key} is {value!r}: {error.message}") from error
        return values

    def _read(self, action: argparse.Action, value: Any) -> Any:
        """A recipe's value as the command line reads it; mappings and null as they are."""
        items = value if isinstance(value, list) and action.nargs == "+" else [value]
        if any(item is None or isinstance(item, list | dict) for item in items):
            return value
        if isinstance(value, bool) and action.type is str:
            return value
        read = self._get_values(action, [str(item) for item in items])
        return value if read == value else read  # 1, not 1.0, as the recipe has it

    def given(self, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """What recipe and command line say, by field, and the words that no option reads.

        The recipe's `env` goes into the environment.
        """
        unsaid = object()
        namespace = argparse.Namespace(**{action.dest: unsaid for action in self._actions})
        _, rest = self.parse_known_args(list(argv), namespace)
        said = {name: value for name, value in vars(namespace).items() if value is not unsaid}
        path = said.pop("config", None)
        with user_errors():
            recipe = {} if path is None else self.checked(read_recipe(path), path)
        environment = recipe.pop("env", {})
        if not isinstance(environment, dict):
            raise UserError(f"{path}: env is {environment!r}, but must be a mapping of names to values")
        os.environ.update({name: str(value) for name, value in environment.items()})
        # TRL's parser reads null for numbers only
        return {
            **recipe,
            **{name: None if value in ("null", ["null"]) else value for name, value in said.items()},
        }, rest

    def refuse(self, rest: Sequence[str]) -> None:
        """Refuses the first of the words that no option reads, if there are any."""
        if not rest:
            return
        word = next((word for word in rest if word.startswith("-")), rest[0]).partition("=")[0]
        if not word.startswith("-"):
            self.error(f"{word!r} belongs to no option; options are written --name value")
        otherwise = f"{self.prog} {self.help_option} lists all"
        raise UserError(f"unknown option {word}{did_you_mean(word, self.options(), otherwise, prefix='--')}")


def make(kind: type[T], values: dict[str, Any]) -> T:
    """The dataclass with those of the values that are its fields'.

    Raises:
        `UserError`: If a required field is missing, a value is null where one must be, or the dataclass refuses one.
    """
    hints, parts = get_type_hints(kind), [part for part in dataclasses.fields(kind) if part.init]  # type: ignore[arg-type]
    nothing = dataclasses.MISSING
    required = [part.name for part in parts if part.default is nothing and part.default_factory is nothing]
    if missing := [f"--{name}" for name in required if name not in values]:
        raise UserError(f"{' and '.join(missing)} must be given")
    own = {part.name: values[part.name] for part in parts if part.name in values}
    for name, value in own.items():
        if value is None and type(None) not in get_args(hints[name]):
            raise UserError(f"{name} is null, but must have a value; leave it out for the default")
        if isinstance(value, list) and "list[" not in str(hints[name]) and name != "fsdp":  # there, lists are read
            raise UserError(f"{name} is {value!r}, but must be one value, not a list")
    with user_errors():
        try:
            return kind(**own)
        except TypeError as error:  # a value of another type than the field's, such as a list for a number
            raise ValueError(str(error)) from error


def parse(
    kind: type[T], argv: Sequence[str], *, prog: str, description: str, takes_recipe: bool = False, epilog: str = ""
) -> T:
    """A command's dataclass with the values of its command line and, where it `takes_recipe`, of `--config`.

    Fields are options, with `metadata={"help": ...}`; one without a default is required, and `"positional": True`
    makes one the words without a name. A `dict` is read as JSON or YAML, a `list` takes several words.

    Raises:
        `UserError`: If command line or recipe have a mistake.
    """
    parser = CommandParser([kind], takes_recipe, prog=prog, description=description, epilog=epilog)
    values, rest = parser.given(argv)
    parser.refuse(rest)
    return make(kind, values)


def parse_known(kind: type[T], argv: Sequence[str], *, prog: str, description: str) -> tuple[T, list[str]]:
    """As [`parse`], with the words that belong to no option, which are for `leash train`."""
    values, rest = CommandParser([kind], prog=prog, description=description).given(argv)
    return make(kind, values), rest
