"""`leash COMMAND ...`. Each command lives in its own module, which is imported only when it runs."""

import argparse
import importlib
import sys

from leash_trl import __version__
from leash_trl.cli.errors import UserError
from leash_trl.trainer.checkpoints import CannotStartError


COMMANDS = {
    "train": "train a model with LEASH or another method: leash train --config RECIPE.yaml [--any_field value]",
    "eval": "accuracy and tokens of a model on benchmarks, with intervals",
    "filter": "keep the training problems that a model sometimes solves, with pass rates and correct lengths",
    "compare": "train and score several methods over the same seeds: table with intervals, figure",
    "report": "write one page with the tables and figures of runs",
    "plot": "draw figures of one or several runs",
    "plan": "memory per GPU and tokens per step of a recipe; refuses what cannot fit",
    "push": "put a run on the Hub, with model card, evaluation and checkpoints",
    "merge": "merge a LoRA or QLoRA adapter into its base model: one folder for vLLM, leash eval and the Hub",
    "methods": "the table of length-control methods; leash methods NAME: formula, defaults, source, when to use it",
}


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command's name; all later words belong to the command."""
    parser = argparse.ArgumentParser(
        prog="leash",
        description="Teach reasoning models to think shorter.",
        epilog="leash COMMAND --help explains a command and its options, which have TRL's names.",
    )
    parser.add_argument("--version", action="version", version=f"leash-trl {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        subparsers.add_parser(name, help=text, add_help=False)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code; a user's mistake prints one line, other errors a traceback."""
    arguments, rest = build_parser().parse_known_args(argv)
    command = importlib.import_module(f"leash_trl.cli.{arguments.command}")
    try:
        return command.main(rest) or 0
    except (UserError, CannotStartError) as error:
        print(f"leash {arguments.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"leash {arguments.command}: {str(stop) or 'stopped'}", file=sys.stderr)
        return 130
