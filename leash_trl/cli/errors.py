"""Mistakes that a user can mend, told apart from bugs; and failures whose remedy is known."""

from collections.abc import Iterator
from contextlib import contextmanager

from leash_trl.advice import advice_in


class UserError(Exception):
    """A mistake in what the user asked for; its message is all they need to see."""


@contextmanager
def user_errors() -> Iterator[None]:
    """Turns the errors of checking and loading what the user asked for into `UserError`. Not for the work itself.

    Packages that are not installed, such as vLLM, PEFT's quantizers or liger-kernel, are such an error.
    """
    try:
        yield
    except (ValueError, FileNotFoundError, ImportError) as error:
        raise UserError(failure_line(error) or str(error)) from error


def failure_line(error: BaseException) -> str | None:
    """A failure and what to do about it in one line; `None` if nothing is known to do."""
    text = advice_in(error)
    if text is None:
        return None
    first = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{type(error).__name__}: {first}. {text}" if first else f"{type(error).__name__}. {text}"
