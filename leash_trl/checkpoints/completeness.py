"""Checks that a checkpoint is complete and holds files of one save, and locks a run's folder for one run at a time."""

import json
import logging
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

from leash_trl.checkpoints.state_file import STATE_FILE, read_state
from leash_trl.engines.checkpoint_path import ADAPTER_FILE as ADAPTER_FILE
from leash_trl.engines.checkpoint_path import MODEL_FILES, TRAINER_STATE_FILE, read_trainer_state
from leash_trl.trainer.checkpoints import LOCK_FILE as LOCK_FILE
from leash_trl.trainer.checkpoints import CannotStartError
from leash_trl.trainer.checkpoints import only_run_in as only_run_in


logger = logging.getLogger(__name__)

REFERENCE_FILE = "leash_reference.pt"
ENTROPY_FILE = "entropy_ctrl_state.json"  # TRL's

WEIGHTS = ("*.safetensors", "pytorch_model*", "adapter_model.bin", "*/adapter_model.*", "global_step*")
# DeepSpeed keeps optimizer and schedule in global_step*/, FSDP its optimizer in optimizer_*/
NEEDED_TO_RESUME = {
    "optimizer": ("optimizer*", "global_step*"),
    "scheduler.pt": ("scheduler.pt", "global_step*"),
    "rng_state": ("rng_state*",),
}
FILES = (
    *WEIGHTS,
    *(pattern for patterns in NEEDED_TO_RESUME.values() for pattern in patterns),
    *("*.index.json", "scaler.pt", ENTROPY_FILE, REFERENCE_FILE, "leash_rollouts_*.pt"),
)


def fault_of_checkpoint(folder: Path) -> str | None:
    """Why a run cannot resume from a folder, in a few words; `None` if it can.

    It opens files and compares their tables of contents with their sizes; it reads no tensor. The state of length
    control may be absent: resuming without it is an error with its own remedy.

    Args:
        folder (`Path`):
            A checkpoint. If optimizer, schedule and random generators are all absent, it was saved with
            `save_only_model`.
    """
    if read_trainer_state(folder) is None:
        return f"{TRAINER_STATE_FILE} is missing or damaged: the run was stopped while saving it"
    if not _found(folder, WEIGHTS):
        return "weights are missing"
    state = {name: _found(folder, patterns) for name, patterns in NEEDED_TO_RESUME.items()}
    if any(state.values()) and (missing := [name for name, files in state.items() if not files]):
        return f"{' and '.join(missing)} is missing"
    for path in _found(folder, (*FILES, *MODEL_FILES)):
        if fault := _fault_of_file(path):
            return fault
    missing = [name for name in _promised_files(folder) if not (folder / name).is_file()]
    return f"{missing[0]} is missing" if missing else None


def _promised_files(folder: Path) -> list[str]:
    """Files that this run saved beyond those of every checkpoint."""
    try:
        names: list[str] = read_state(folder).get("files", [])
    except ValueError:  # missing or damaged: whoever reads the state reports it
        return []
    return names


def _fault_of_last(checkpoint: Path) -> str | None:
    """Why not to resume from a checkpoint while an earlier one may serve."""
    state = checkpoint / STATE_FILE
    return fault_of_checkpoint(checkpoint) or (_fault_of_file(state) if state.is_file() else None)


def is_whole(folder: Path) -> bool:
    """Whether a run can resume from a folder, as far as [`fault_of_checkpoint`] sees."""
    return fault_of_checkpoint(folder) is None


def is_bare(folder: Path) -> bool:
    """Whether a folder holds nothing of a trainer's state, not even damaged files."""
    patterns = (pattern for patterns in NEEDED_TO_RESUME.values() for pattern in patterns)
    return not _found(folder, (TRAINER_STATE_FILE, *patterns))


def _checkpoints(output_dir: str | Path) -> list[Path]:
    """The newest first."""
    checkpoints = [path for path in Path(output_dir).glob("checkpoint-*") if path.name.split("-")[-1].isdigit()]
    return sorted(checkpoints, key=lambda path: int(path.name.split("-")[-1]), reverse=True)


def whole_checkpoints(output_dir: str | Path) -> Iterator[Path]:
    """The complete checkpoints of a run, the newest first."""
    return (path for path in _checkpoints(output_dir) if _fault_of_last(path) is None)


def problem_of_used_folder(output_dir: str | Path) -> str | None:
    """Why not to start a new run in a folder; `None` if the folder holds nothing to resume."""
    used = next(whole_checkpoints(output_dir), None)
    if used is None:
        return None
    return (
        f"output_dir {output_dir} holds {used.name} of an earlier run, which a later resume may take for one of a run "
        "that starts now: choose another output_dir, remove the old checkpoints, or set resume_from_checkpoint to "
        "true to go on from them"
    )


def last_whole_checkpoint(output_dir: str | Path) -> Path:
    """The newest complete checkpoint of a run; the faults of newer ones are logged.

    Raises:
        `CannotStartError`: If there is none.
    """
    checkpoints = _checkpoints(output_dir)
    for path in checkpoints:
        if (fault := _fault_of_last(path)) is None:
            return path
        logger.warning("%s is not complete (%s); trying an earlier one", path, fault)
    raise CannotStartError(
        f"cannot resume: {output_dir} holds no checkpoint" + (" that is complete" if checkpoints else "")
    )


def check_is_there(folder: Path, output_dir: str | Path) -> None:
    """Raises `CannotStartError` if `resume_from_checkpoint` names no folder; the message lists possible ones."""
    if not folder.is_dir():
        known = ", ".join(path.name for path in whole_checkpoints(output_dir)) or "no checkpoint"
        raise CannotStartError(
            f"resume_from_checkpoint is {str(folder)!r}, but there is no such folder; give true for the last "
            f"checkpoint, or a folder: {output_dir} holds {known}"
        )


def _found(folder: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted({path for pattern in patterns for path in folder.glob(pattern)})


def _fault_of_file(path: Path) -> str | None:
    try:
        if path.name.endswith(".index.json"):
            shards = set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
            missing = sorted(shard for shard in shards if not (path.parent / shard).is_file())
            return f"{missing[0]} is missing" if missing else None
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".safetensors":
            _check_safetensors(path)
        elif path.suffix in (".pt", ".pth", ".bin"):
            _check_torch_file(path)
    except Exception:  # readers of damaged files raise all kinds
        return f"{path.name} is cut off or damaged"
    return None


def _check_safetensors(path: Path) -> None:
    """Source: [Format](https://huggingface.co/docs/safetensors/index#format): 8 bytes with the length of a JSON
    header, which says where each tensor after it begins and ends."""
    with open(path, "rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        if header_size > path.stat().st_size - 8:
            raise ValueError("the header is longer than the file")
        header = json.loads(file.read(header_size))
    end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    if path.stat().st_size != 8 + header_size + end:
        raise ValueError("the header and the size disagree")


def _check_torch_file(path: Path) -> None:
    with open(path, "rb") as file:
        if file.read(1) == b"\x80":  # a pickle, as torch wrote before it used zip archives
            return
        zipfile.ZipFile(file).close()


def clear_checkpoint(folder: Path) -> None:
    """Deletes an older checkpoint from the folder of a new one, the mark of completeness first.

    So what a run leaves if it is killed while saving never counts as complete, and no old file counts as new.
    """
    (folder / TRAINER_STATE_FILE).unlink(missing_ok=True)
    for path in _found(folder, FILES):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
