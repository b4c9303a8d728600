"""What of a checkpoint, and of a run, goes where in a repository."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from leash_trl.hub.model_card import CARD_FILE, CURVES_FILE


# what only resuming needs; the rest of a checkpoint is the model
TRAINING_STATE = (
    "optimizer*",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*",
    "global_step*",
    "latest",
    "zero_to_fp32.py",
    "pytorch_model_fsdp*",
    "leash_rollouts_*",
)
NOT_PUSHED = ("checkpoint-*", "_*", ".*", "*.tmp")


def model_files(folder: Path) -> dict[str, Path]:
    """What of a run's or checkpoint's folder belongs at the root of a repository, by path there."""
    return {
        name: path
        for name, path in _files(folder)
        if not _matches(name, TRAINING_STATE) and not _matches(name, NOT_PUSHED)
    }


def checkpoint_files(folder: Path, path_in_repo: str) -> dict[str, Path]:
    """All of a checkpoint, by path in the repository."""
    return {f"{path_in_repo}/{name}": path for name, path in _files(folder)}


def event_file_contents(output_dir: Path) -> dict[str, bytes]:
    """TensorBoard's event files of a run, which the Hub shows; as bytes, for they grow while they are sent."""
    paths = sorted(output_dir.glob("runs/**/*tfevents*"))
    return {path.relative_to(output_dir).as_posix(): path.read_bytes() for path in paths}


def _files(folder: Path) -> list[tuple[str, Path]]:
    return [(path.relative_to(folder).as_posix(), path) for path in sorted(folder.rglob("*")) if path.is_file()]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name.split("/")[0], pattern) for pattern in patterns)


@contextmanager
def snapshot(folder: Path, beside: Path) -> Iterator[Path]:
    """A copy of a checkpoint that outlives it: `save_total_limit` may delete the original while it is pushed.

    Hard links, which take no room; real copies where the file system has none.

    Args:
        folder (`Path`):
            The checkpoint.
        beside (`Path`):
            Where the copy is made, on the same disk; it is removed in the end.

    Raises:
        `FileNotFoundError`: If the checkpoint is already gone.
    """
    shutil.rmtree(beside, ignore_errors=True)
    try:
        shutil.copytree(folder, beside, copy_function=_link)
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _link(source: str, destination: str) -> None:
    try:
        os.link(source, destination)
    except OSError:
        if not os.path.exists(source):
            raise
        shutil.copy2(source, destination)


def card_files(folder: Path) -> list[Path]:
    """The model card and its picture, of those that are there."""
    return [path for name in (CARD_FILE, CURVES_FILE) if (path := folder / name).is_file()]
