"""Guards a run's folder: one run at a time, and no weights that are not finite over weights that are."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from leash_trl.engines.checkpoint_path import whole_checkpoints


if TYPE_CHECKING:
    from torch import nn


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


def check_finite(model: "nn.Module", step: int, output_dir: str | Path) -> None:
    """Raises `FloatingPointError`, before anything is saved, if a weight that training moves is not finite.

    One gradient that is not leaves none finite, and `save_total_limit` would then delete the last good checkpoint.
    """
    if all(weights.isfinite().all() for weights in model.parameters() if weights.requires_grad):
        return
    last = next(whole_checkpoints(output_dir), None)
    left = "no checkpoint is left" if last is None else f"{last} is left: pass it as the model of a new run"
    raise FloatingPointError(
        f"weights are not finite after update {step}, so nothing was saved; {left}, with a lower learning_rate"
    )
