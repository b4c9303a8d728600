"""Guards a folder, in which one run at a time may write."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


logger = logging.getLogger(__name__)

LOCK_FILE = ".leash.lock"


class CannotStartError(ValueError):
    """Training cannot start, or go on, as requested; the message says why and what to do."""


@contextmanager
def only_run_in(output_dir: str | Path) -> Iterator[None]:
    """Locks a folder, made if need be, against other runs until this context ends or the process is killed.

    If the file system cannot lock, the run continues with a warning.

    Raises:
        `CannotStartError`: If another run uses it.
    """
    lock = FileLock(Path(output_dir) / LOCK_FILE)
    try:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise CannotStartError(
            f"output_dir {output_dir} is in use by another run; wait for its end, or choose another output_dir"
        ) from None
    except (OSError, NotImplementedError) as error:
        logger.warning("output_dir %s cannot be locked (%s): let no other run use it meanwhile", output_dir, error)
    try:
        yield
    finally:
        lock.release()
