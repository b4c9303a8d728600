"""Turns a user's mistakes into one line; bugs keep their traceback."""

import difflib
import errno
import os
import shutil
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from leash_trl.trainer.checkpoints import only_run_in


LONGEST_LINE = 600  # characters of an error that had several lines
FULL_DISK = os.strerror(errno.ENOSPC)
LEAST_ROOM = 2**20  # bytes
SET_UP_ERRORS = (ValueError, OSError, ImportError, KeyError, SafetensorError)


class UserError(Exception):
    """A mistake in the user's request; its message is all they need."""


@contextmanager
def user_errors(*, only_loads: bool = False, **read: Any) -> Iterator[None]:
    """Turns what checking and loading raise into `UserError`, one line each; not for what follows the first step.

    Args:
        only_loads (`bool`): Whether the code inside does nothing but load what `read` names, so that every error is
            about it.
        read:
            What the code inside loads, by the option that names it. An error about it that does not name the option
            gets the option and its value in front.
    """
    try:
        yield
    except SET_UP_ERRORS as error:
        text, given = said(error), {name: str(value) for name, value in read.items() if value is not None}
        is_about_files = given and not isinstance(error, ValueError | ImportError)
        blamed = [name for name, value in given.items() if value in text]
        if is_about_files or only_loads:
            blamed = blamed or list(given)
        if is_about_files:
            text = f"{text.rstrip('.')}; see that it is there, complete and readable"
        if unsaid := [f"{name} is {given[name]!r}" for name in blamed if name not in text]:
            text = f"{' and '.join(unsaid)}: {text}"
        raise UserError(text) from error


def said(error: BaseException) -> str:
    """An error's message in one line: the first line for errors about files, else as much as fits."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, OSError):
        return lines[0]
    text = f"KeyError: {lines[0]}" if isinstance(error, KeyError) else " ".join(lines)
    return text if len(lines) == 1 else textwrap.shorten(text, LONGEST_LINE, placeholder=" ...")


@contextmanager
def going_on(folder: str | Path, remedy: str) -> Iterator[None]:
    """Says in one line how to go on, as `remedy` has it, after Ctrl-C or when the disk of a folder is full.

    Raises:
        `KeyboardInterrupt`: With that line as its message.
        `UserError`: If there is no room for what the work writes.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; {remedy}") from None
    except (OSError, RuntimeError, SafetensorError) as error:
        # torch and safetensors say it in errors of their own
        if FULL_DISK not in str(error) and shutil.disk_usage(folder).free >= LEAST_ROOM:
            raise
        raise UserError(f"the disk of {folder} is full ({said(error)}); free some of it, then {remedy}") from error


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", prefix: str = "", likeness: float = 0.6) -> str:
    """The end of a message on a word that is not known: the known one that is most like it, or what else to say.

    `prefix` stands before the word, and in the message before the known one, and makes no two words alike. `likeness`,
    from 0 to 1, is the least that counts; see `difflib.get_close_matches`.
    """
    similar = difflib.get_close_matches(word.removeprefix(prefix), list(known), n=1, cutoff=likeness)
    text = f"did you mean {prefix}{similar[0]}?" if similar else otherwise
    return f", {text}" if text else ""


def check_writable(folder: str | Path) -> None:
    """Sees to it that a command can write into its folder, which need not be there yet.

    Raises:
        `ValueError`: If it cannot.
    """
    if not str(folder):
        raise ValueError("output_dir is '', but must name a folder")
    path = Path(folder).absolute()
    there = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise ValueError(f"output_dir is {str(folder)!r}, but {said(error)}; choose a folder to write to") from error


@contextmanager
def only_command_in(folder: str | Path) -> Iterator[None]:
    """Keeps other commands, and runs of `leash train`, out of a folder until it is left.

    Raises:
        `UserError`: If one is in it.
    """
    with ExitStack() as stack:
        with user_errors():
            stack.enter_context(only_run_in(folder))
        yield
