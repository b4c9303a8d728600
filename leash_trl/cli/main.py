"""Runs `leash COMMAND ...`. Each command has its own module, which is imported only when it runs."""

import argparse
import os
import sys

from leash_trl import __version__
from leash_trl.cli.errors import UserError
from leash_trl.errors import TrainingError
from leash_trl.process import import_quickly


COMMANDS = {
    "train": "train a model with LEASH or another method: leash train --config RECIPE.yaml [--any_field value]",
    "eval": "measure accuracy and tokens of a model on benchmarks, with intervals",
    "filter": "keep the training problems that a model solves sometimes, with pass rates and correct lengths",
    "compare": "train and evaluate several methods over the same seeds: a table with intervals and a figure",
    "report": "write one page with the tables and figures of runs",
    "plot": "draw figures of one or several runs",
    "plan": "estimate memory per GPU, tokens and hours of a recipe; refuse recipes that do not fit",
    "push": "push a run to the Hub, with model card, evaluation and checkpoints",
    "merge": "merge a LoRA or QLoRA adapter into its base model, as one folder for vLLM, leash eval and the Hub",
    "methods": "list the methods of length control; leash methods NAME shows formula and use, --cite NAME its BibTeX",
}


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser for the name of the command. The command itself parses the remaining words."""
    parser = argparse.ArgumentParser(
        prog="leash",
        description="Teach reasoning models to think shorter.",
        epilog="leash COMMAND --help explains a command and its options, which have the names of TRL.",
    )
    parser.add_argument("--version", action="version", version=f"leash-trl {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        # A command prints its own help, so --help after its name is one of the words that are passed to it.
        subparsers.add_parser(name, help=text, add_help=False)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code.

    A user's mistake, weights that are not finite, and Ctrl-C print one line; any other error prints a traceback.
    """
    arguments, rest = build_parser().parse_known_args(argv)
    command = import_quickly(f"leash_trl.cli.commands.{arguments.command}")
    try:
        exit_code = command.main(rest) or 0  # most commands return `None`
        sys.stdout.flush()
        return exit_code
    except (UserError, TrainingError, FloatingPointError) as error:
        print(f"leash {arguments.command}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The program that reads the output, such as head, has ended. Python would try to write the rest of the output
        # at exit and print another error, so the output goes to the null device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as stop:
        # `add_resume_hint` puts into the message how to resume. The message of Ctrl-C itself is empty.
        print(f"leash {arguments.command}: {str(stop) or 'stopped'}", file=sys.stderr)
        return 130  # as a shell returns after Ctrl-C
