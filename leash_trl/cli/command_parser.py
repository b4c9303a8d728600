"""The parser of every command: TRL's names of options and short names for three of them; mistakes are one line."""

import argparse
import sys
from typing import Any, NoReturn

from leash_trl.cli.errors import UserError, did_you_mean


TRL_NAMES = {"model": "model_name_or_path", "dataset": "dataset_name", "output": "output_dir"}
"""Short names for TRL's names of options, on the command line and in recipes."""


class CommandParser(argparse.ArgumentParser):
    """`ArgumentParser` that reads the short names of `TRL_NAMES` where it has TRL's and not the short one itself, and
    says in one line what it cannot read."""

    help_option = "--help"  # that shows every option

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `ArgumentParser`'s, but it reports an unknown option before missing ones and names the part in use."""
        words = sys.argv[1:] if args is None else list(args)
        part = self._parts().get(words[0], self) if words else self
        known = part.options()
        for name in (word.partition("=")[0] for word in words if word.startswith("--") and " " not in word):
            if name not in known and not (self.allow_abbrev and any(option.startswith(name) for option in known)):
                self.error(
                    f"unknown option {name}{did_you_mean(name, known, f'{part.prog} {self.help_option} lists all')}"
                )
        try:
            arguments, unread = self.parse_known_args(words, namespace)
        except UserError as error:
            if part is self:
                raise
            raise UserError(f"{error}; {part.prog} {self.help_option} lists all") from error
        if unread:
            self.error(f"{unread[0]!r} belongs to no option; options are written --name value")
        return arguments

    def options(self) -> list[str]:
        """Every option of this parser, and those of its parts."""
        self._add_short_names()
        parts = self._parts().values()
        return [*self._option_string_actions, *(option for part in parts for option in part.options())]

    def _parts(self) -> dict[str, "CommandParser"]:
        actions = [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]
        return {name: part for action in actions for name, part in action.choices.items()}

    def _add_short_names(self) -> None:
        actions = self._option_string_actions
        for short, name in TRL_NAMES.items():
            if f"--{name}" in actions:
                actions.setdefault(f"--{short}", actions[f"--{name}"])

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `ArgumentParser`'s, which all its other ways of parsing call."""
        self._add_short_names()
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Refuses a command line in one line, without the usage in front."""
        raise UserError(message)
