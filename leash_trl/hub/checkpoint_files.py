"""What of a checkpoint, and of a run, goes where in a repository."""

import os
import shutil
from fnmatch import fnmatch
from pathlib import Path

from leash_trl.checkpoints.completeness import ENTROPY_FILE, REFERENCE_FILE
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
    REFERENCE_FILE,
    ENTROPY_FILE,
)
NOT_PUSHED = ("checkpoint-*", "_*", ".*", "*.tmp")
EVAL_RESULTS_FILE = ".eval_results/leash_trl.yaml"
# of another model, where a push does not bring them: a reader would take them for parts of this one
MODEL_PATTERNS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "pytorch_model*.bin*",
    "adapter_config.json",
    EVAL_RESULTS_FILE,
)
EVENTS_FOLDER = "runs"  # where transformers puts TensorBoard's event files


def model_files(folder: Path) -> dict[str, Path]:
    """What of a run's or checkpoint's folder belongs at the root of a repository, by path there."""
    return {name: path for name, path in _files(folder) if not _matches(name, (*TRAINING_STATE, *NOT_PUSHED))}


def checkpoint_files(folder: Path, path_in_repo: str) -> dict[str, Path]:
    """All of a checkpoint, by path in the repository."""
    return {f"{path_in_repo}/{name}": path for name, path in _files(folder)}


def event_files(folder: Path) -> dict[str, Path]:
    """TensorBoard's event files in a run's folder, which the Hub shows, by path in the repository."""
    return {f"{EVENTS_FOLDER}/{name}": path for name, path in _files(folder / EVENTS_FOLDER) if "tfevents" in name}


def _files(folder: Path) -> list[tuple[str, Path]]:
    return [(path.relative_to(folder).as_posix(), path) for path in sorted(folder.rglob("*")) if path.is_file()]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(name.split("/")[0], pattern) for pattern in patterns)


def is_replaced(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a push that does not bring a file of the repository takes it away.

    Example:
        >>> is_replaced("model.safetensors", MODEL_PATTERNS), is_replaced("old/model.safetensors", MODEL_PATTERNS)
        (True, False)
        >>> is_replaced("last-checkpoint/optimizer.pt", ("last-checkpoint/*",))
        True
    """
    return any(fnmatch(name, pattern) and ("/" in pattern) == ("/" in name) for pattern in patterns)


def take_snapshot(checkpoint: Path, events: Path, snapshot: Path) -> None:
    """Copies a checkpoint, and a run's event files, to where nothing deletes or changes them while they are pushed.

    The checkpoint's files become hard links, which take no room; real copies where the file system has none. To be
    called from the thread that trains, which is the one that deletes checkpoints (`save_total_limit`).

    Args:
        checkpoint (`Path`):
            The checkpoint.
        events (`Path`):
            The run's folder. Its event files are copied, for they grow.
        snapshot (`Path`):
            Folder to make, on the same disk; the caller removes it.

    Raises:
        `FileNotFoundError`: If the checkpoint is gone.
    """
    shutil.rmtree(snapshot, ignore_errors=True)
    shutil.copytree(checkpoint, snapshot, copy_function=_link)
    for name, path in event_files(events).items():
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, snapshot / name)


def _link(source: str, destination: str) -> None:
    try:
        os.link(source, destination)
    except OSError:
        shutil.copy2(source, destination)


def card_files(folder: Path) -> list[Path]:
    """The model card and its picture, of those that are there."""
    return [path for name in (CARD_FILE, CURVES_FILE) if (path := folder / name).is_file()]
