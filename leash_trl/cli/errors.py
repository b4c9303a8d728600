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

from leash_trl.engines.checkpoint_path import missing_folder
from leash_trl.trainer.checkpoints import only_run_in


LONGEST_LINE = 600  # characters of an error that had several lines
FULL_DISK = os.strerror(errno.ENOSPC)
LEAST_ROOM = 2**20  # bytes
SET_UP_ERRORS = (ValueError, OSError, ImportError, KeyError, SafetensorError)


class UserError(Exception):
    """A mistake in the user's request; its message is all they need."""


@contextmanager
def user_errors(*, only_loads: bool = False, **read: Any) -> Iterator[None]:
    """Turns what checking and loading raise into `UserError`, one line each. For set-up, not for the work itself.

    Set-up is all that comes before the first training step or the first sample. What goes wrong there is the user's to
    mend: values, files and folders, packages that are not installed.

    Args:
        only_loads (`bool`, *optional*, defaults to `False`):
            Whether the code inside does nothing but load what `read` names, so that every error is about it.
        read:
            What the code inside loads, by the option that names it. An error about it that does not name the option
            gets the option and its value in front.
    """
    try:
        yield
    except SET_UP_ERRORS as error:
        raise UserError(_set_up_line(error, only_loads, read)) from error


def _set_up_line(error: BaseException, only_loads: bool, read: dict[str, Any]) -> str:
    given = {name: str(value) for name, value in read.items() if value is not None}
    text = _said(error)
    blamed = [name for name, value in given.items() if value in text]
    is_about_files = given and not isinstance(error, ValueError | ImportError)
    if is_about_files or only_loads:
        blamed = blamed or list(given)
    if is_about_files:
        if (problem := missing_folder(given[blamed[0]])) is not None:
            return f"{blamed[0]}: {problem}; mend the path"
        text = f"{text.rstrip('.')}; {_remedy(error)}"
    unsaid = [f"{name} is {given[name]!r}" for name in blamed if name not in text]
    return f"{' and '.join(unsaid)}: {text}" if unsaid else text


def _remedy(error: BaseException) -> str:
    if not isinstance(error, OSError):
        return "see that its files are complete and go together"
    if error.strerror:
        return "see that it is there and may be read and written"
    return "check the name and the connection, or name a folder that holds all its files"


def _said(error: BaseException) -> str:
    """An error's message in one line: the first line for errors about files, else as much as fits."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if isinstance(error, OSError):
        place = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{place}" if error.strerror else lines[0]
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
        is_full = FULL_DISK in str(error) or shutil.disk_usage(folder).free < LEAST_ROOM
        if not is_full:
            raise
        raise UserError(f"the disk of {folder} is full ({_said(error)}); free some of it, then {remedy}") from error


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
        raise ValueError(
            f"output_dir is {str(folder)!r}, where nothing can be written ({error.strerror}: {there}); choose a "
            "folder that can be made and written to"
        ) from error


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
