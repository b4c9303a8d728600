"""The parser of every command: TRL's names of options, and the short names of the same things."""

import argparse
import difflib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from leash_trl.cli.errors import UserError


STRATEGIES = ("eval_strategy", "logging_strategy", "save_strategy")
TRL_NAMES = {"model": "model_name_or_path", "dataset": "dataset_name", "output": "output_dir"}
"""What may be written for TRL's name of an option, on the command line and in recipes."""


class CommandParser(argparse.ArgumentParser):
    """`ArgumentParser` that reads the short names of `TRL_NAMES` where it has TRL's and not the short one itself, and
    says in one line what it cannot read."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `ArgumentParser`'s, but an option that it does not know comes before those that are missing."""
        words = sys.argv[1:] if args is None else list(args)
        known = self._known_options()
        for name in (word.partition("=")[0] for word in words if word.startswith("--") and " " not in word):
            if not (name in known or (self.allow_abbrev and any(option.startswith(name) for option in known))):
                self.error(unknown_option(name, known, f"{self.prog} --help"))
        return super().parse_args(words, namespace)

    def _known_options(self) -> list[str]:
        parts = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        parsers = [self, *(parser for part in parts for parser in part.choices.values())]
        options = [option for parser in parsers for option in parser._option_string_actions]
        return ["--", *options, *(f"--{short}" for short, name in TRL_NAMES.items() if f"--{name}" in options)]

    def error(self, message: str) -> NoReturn:
        """Refuses a command line in one line, without the usage in front."""
        raise UserError(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `ArgumentParser`'s, which all its other ways of parsing call."""
        return super().parse_known_args(self.with_trl_names(sys.argv[1:] if args is None else args), namespace)

    def with_trl_names(self, words: Sequence[str]) -> list[str]:
        """A command line with TRL's names for the short ones.

        Raises:
            `UserError`: If it has both with different values.
        """
        renamed = list(words)
        for short, name in TRL_NAMES.items():
            if f"--{short}" in self._option_string_actions or f"--{name}" not in self._option_string_actions:
                continue
            ours, theirs = _values(renamed, short), _values(renamed, name)
            if ours and theirs and ours[-1] != theirs[-1]:
                raise UserError(_said_twice(f"--{short}", ours[-1], f"--{name}", theirs[-1]))
            renamed = [
                f"--{name}{word.removeprefix(f'--{short}')}" if _option(word) == short else word for word in renamed
            ]
        return renamed


def unknown_option(name: str, known: Sequence[str], help_command: str) -> str:
    """What to say of an option that none is like, or of the one that was meant."""
    similar = difflib.get_close_matches(name, known, n=1)
    return f"unknown option {name}, " + (f"did you mean {similar[0]}?" if similar else f"{help_command} lists all")


def recipe_with_trl_names(recipe: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a recipe with TRL's names for the short ones, and the strategy "no" where it says `no`.

    Args:
        recipe (`Mapping[str, Any]`):
            Values by field name.
        where (`str`):
            What the error calls the recipe.

    Raises:
        `ValueError`: If it has both with different values.
    """
    for short, name in TRL_NAMES.items():
        if short in recipe and name in recipe and recipe[short] != recipe[name]:
            raise ValueError(f"{where}: {_said_twice(short, recipe[short], name, recipe[name])}")
    # YAML reads a bare `no` as False
    strategies = {name: "no" for name in STRATEGIES if recipe.get(name) is False}
    return {TRL_NAMES.get(name, name): value for name, value in {**recipe, **strategies}.items()}


def _option(word: str) -> str | None:
    return word.partition("=")[0][2:].replace("-", "_") if word.startswith("--") else None


def _values(words: Sequence[str], name: str) -> list[str]:
    following = [*words, ""][1:]
    return [
        word.partition("=")[2] if "=" in word else after
        for word, after in zip(words, following, strict=True)
        if _option(word) == name
    ]


def _said_twice(short: str, value: Any, name: str, other: Any) -> str:
    return f"{short} is {value!r} and {name} is {other!r}, but both name one thing; drop one"
