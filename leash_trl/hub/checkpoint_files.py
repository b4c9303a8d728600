"""Chooses which files of a run go to the Hub, and their paths in the repository."""

import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatch
from pathlib import Path

from leash_trl.checkpoints.completeness import (
    ADAPTER_FILE,
    ENTROPY_FILE,
    REFERENCE_FILE,
    last_whole_checkpoint,
    whole_checkpoints,
)


# only resuming needs these; the rest of a checkpoint is the model
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
# a push of a model deletes these, and the evaluation's results, unless it brings new ones
MODEL_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin*", ADAPTER_FILE)
EVENTS_FOLDER = "runs"  # transformers puts TensorBoard's event files here, and the Hub shows them from here
LAST_CHECKPOINT = "last-checkpoint"
CHECKPOINT_FOLDER = re.compile(r"(last-checkpoint|checkpoint-\d+)/")


def model_files(folder: Path) -> dict[str, Path]:
    """The files of a run's or a checkpoint's folder that go to the root of a repository, by path there."""
    return {name: path for name, path in _files(folder).items() if not _matches(name, TRAINING_STATE + NOT_PUSHED)}


def checkpoint_files(folder: Path, path_in_repo: str) -> dict[str, Path]:
    """All files of a checkpoint, by path in the repository."""
    files = _files(folder).items()
    return {f"{path_in_repo}/{name}": path for name, path in files if not _matches(name, (EVENTS_FOLDER,))}


def run_files(folder: Path, checkpoints: str = "none") -> dict[str, Path]:
    """The files of a run that `leash push` sends: its model and, on request, its complete checkpoints.

    Args:
        folder (`Path`):
            Output folder of a run, or one of its checkpoints.
        checkpoints (`str`, *optional*, defaults to `"none"`):
            `"all"` adds every complete checkpoint under its own name, `"last"` the newest as `last-checkpoint`.

    Returns:
        `dict[str, Path]`: Local files by path in the repository.

    Raises:
        `ValueError`: If checkpoints are requested and there are none.
    """
    files = model_files(folder)
    if checkpoints == "none":
        return files
    last = last_whole_checkpoint(folder)
    if checkpoints == "last":
        return files | checkpoint_files(last, LAST_CHECKPOINT)
    for checkpoint in whole_checkpoints(folder):
        files |= checkpoint_files(checkpoint, checkpoint.name)
    return files


def stale_files(in_repo: Iterable[str], files: Collection[str]) -> list[str]:
    """Files that a push deletes in a repository: those of the model or the checkpoint that it replaces.

    Args:
        in_repo (`Iterable[str]`):
            Paths of the files that the repository has.
        files (`Collection[str]`):
            Paths of the files that the push brings.

    Example:
        >>> stale_files(["adapter_config.json", "notes.txt", "old/model.safetensors"], ["model.safetensors"])
        ['adapter_config.json']
        >>> stale_files(["last-checkpoint/optimizer.pt"], ["last-checkpoint/model.safetensors"])
        ['last-checkpoint/optimizer.pt']
    """
    folders = tuple({match[0] for name in files if (match := CHECKPOINT_FOLDER.match(name))})
    has_model = any(map(_is_of_model, files))
    return [
        name
        for name in in_repo
        if name not in files and (name.startswith(folders) or (has_model and _is_of_model(name)))
    ]


def _is_of_model(name: str) -> bool:
    return name == EVAL_RESULTS_FILE or ("/" not in name and _matches(name, MODEL_PATTERNS))


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether the first part of a path matches."""
    return any(fnmatch(name.split("/")[0], pattern) for pattern in patterns)
