"""Turns a user's mistakes into one line; bugs keep their traceback."""

import errno
import os
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError


LONGEST_LINE = 600  # characters
FULL_DISK = os.strerror(errno.ENOSPC)
LEAST_ROOM = 2**20  # bytes
SET_UP_ERRORS = (ValueError, OSError, ImportError, KeyError, SafetensorError)


class UserError(Exception):
    """A mistake in the user's request; its message is all they need."""


@contextmanager
def user_errors(*, only_loads: bool = False, **read: Any) -> Iterator[None]:
    """Turns what checking and loading raise into `UserError`, one line each; not for what follows the first step.

    Args:
        only_loads (`bool`): Whether the code inside only loads what `read` names, so that every error is about it.
        read: What the code inside loads, by the option that names it; an error about files names option and value.
    """
    try:
        yield
    except (RuntimeError, *SET_UP_ERRORS) as error:  # RuntimeError: trackers that are not installed
        text = said(error)
        if only_loads or not isinstance(error, ValueError | ImportError | RuntimeError):  # all others are about files
            given = (f"{name} is {value!r}" for name, value in read.items() if value is not None and name not in text)
            text = ": ".join([*given, text])
        raise UserError(text) from error


def said(error: BaseException) -> str:
    """An error's message in one line: the first line for errors about files, else as much as fits."""
    text = str(error).strip()
    if not text or isinstance(error, KeyError):
        text = f"{type(error).__name__} {text}"
    return textwrap.shorten(text.splitlines()[0] if isinstance(error, OSError) else text, LONGEST_LINE)


@contextmanager
def going_on(folder: str | Path, remedy: str) -> Iterator[None]:
    """Says in one line how to go on, as `remedy` has it, after Ctrl-C or when the disk of a folder is full."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; {remedy}") from None
    except (OSError, RuntimeError, SafetensorError) as error:
        # torch and safetensors say it in errors of their own
        if FULL_DISK not in str(error) and shutil.disk_usage(folder).free >= LEAST_ROOM:
            raise
        raise UserError(f"the disk of {folder} is full ({said(error)}); free some of it, then {remedy}") from error


def check_writable(folder: str | Path | None) -> None:
    """Makes a command's folder; `UserError` if it cannot be made or written to."""
    if not folder:
        raise UserError(f"output_dir is {folder!r}, but must name a folder")
    with user_errors(only_loads=True, output_dir=folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
