"""Mistakes that a user can mend, told apart from bugs."""

from collections.abc import Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A mistake in what the user asked for; its message is all they need to see."""


@contextmanager
def user_errors() -> Iterator[None]:
    """Turns the errors of checking and loading what the user asked for into `UserError`. Not for the work itself."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error
