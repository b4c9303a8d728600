"""Locks an output folder, so that only one run at a time writes into it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


logger = logging.getLogger(__name__)

LOCK_FILE = ".leash.lock"


class CannotStartError(ValueError):
    """Raised if training cannot start or continue as requested; the message says why and what to do."""


@contextmanager
def only_run_in(output_dir: str | Path) -> Iterator[None]:
    """Locks a folder against other runs until this context or the process ends, and creates the folder if necessary.

    If the file system cannot lock, the run continues with a warning.

    Raises:
        `CannotStartError`: If another run uses the folder.
    """
    lock = FileLock(Path(output_dir) / LOCK_FILE)
    try:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise CannotStartError(
            f"output_dir {output_dir} is in use by another run; wait until it ends, or choose another output_dir"
        ) from None
    except (OSError, NotImplementedError) as error:
        logger.warning("output_dir %s cannot be locked (%s): make sure that no other run uses it", output_dir, error)
    try:
        yield
    finally:
        lock.release()
