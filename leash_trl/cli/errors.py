"""Turns users' mistakes into messages of one line; bugs keep their traceback."""

import errno
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


LONGEST_LINE = 600  # characters
SET_UP_ERRORS = (ValueError, OSError, ImportError, KeyError, SafetensorError)


class UserError(Exception):
    """A mistake in the user's request. The command shows only its message, without a traceback."""


@contextmanager
def errors_to_user_errors(*, always_names_option: bool = False, **loaded: Any) -> Iterator[None]:
    """Turns errors into `UserError` with a message of one line. Use it only around code that checks and loads: errors
    of later code may be bugs, which must keep their traceback.

    Args:
        always_names_option (`bool`): Whether all messages name the options of `loaded`, and not only messages about
            files. Set it if the code inside does nothing but load these options.
        loaded: Values that the code inside loads, by the names of their options.
    """
    try:
        yield
    # transformers raises `RuntimeError` if an experiment tracker of `report_to` is not installed.
    except (RuntimeError, *SET_UP_ERRORS) as error:
        message = message_in_one_line(error)
        # The other types, such as `OSError` and `SafetensorError`, are about files, and seldom name the wrong option.
        concerns_files = not isinstance(error, ValueError | ImportError | RuntimeError)
        if always_names_option or concerns_files:
            message = ": ".join([*options_not_in(message, loaded), message])
        raise UserError(message) from error


def options_not_in(message: str, loaded: Mapping[str, Any]) -> list[str]:
    """Returns options with their values, such as `["dataset_name is 'problems.jsonl'"]`, without those that are not
    set or that the message names already."""
    return [f"{name} is {value!r}" for name, value in loaded.items() if value is not None and name not in message]


def message_in_one_line(error: BaseException) -> str:
    """Returns an error's message in one line of at most `LONGEST_LINE` characters: the first line of an `OSError`,
    else all lines."""
    text = str(error).strip()
    # The text of a `KeyError` is only the key.
    if not text or isinstance(error, KeyError):
        text = f"{type(error).__name__} {text}"
    # transformers raises an `OSError` whose further lines are advice.
    if isinstance(error, OSError):
        text = text.splitlines()[0]
    return textwrap.shorten(text, LONGEST_LINE)


@contextmanager
def add_resume_hint(folder: str | Path, remedy: str) -> Iterator[None]:
    """Adds `remedy`, which says how to resume, to the message after Ctrl-C or when the disk of a folder is full."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; {remedy}") from None
    except OSError as error:
        if error.errno != errno.ENOSPC:  # not because the disk is full
            raise
        raise UserError(
            f"the disk of {folder} is full ({message_in_one_line(error)}); free some space, then {remedy}"
        ) from error


def create_writable_folder(folder: str | Path) -> None:
    """Creates a command's output folder; raises `UserError` if the folder cannot be created or written to. Without
    this check, a run would notice it only when it saves."""
    with errors_to_user_errors(always_names_option=True, output_dir=folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        # raises `OSError` if no file can be written
        with tempfile.TemporaryFile(dir=folder):
            pass
