"""The folder of a run: used by one run at a time, with checkpoints that are neither torn nor mixed of two saves."""

import json
import logging
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from leash_trl.checkpoints.state_file import STATE_FILE, read_state


logger = logging.getLogger(__name__)

LOCK_FILE = ".leash.lock"
TRAINER_STATE_FILE = "trainer_state.json"  # transformers writes it last
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
# written before the mark of wholeness, over what an older save has left
SMALL_FILES = ("config.json", "adapter_config.json")


class CannotStartError(ValueError):
    """Training cannot start as it was asked for; the message says why and what to do."""


def fault_of_checkpoint(folder: Path) -> str | None:
    """What keeps a run from being resumed from a folder, in a few words; `None` if nothing does.

    Files are opened and their tables of contents compared with their sizes; no tensor is read. The state of length
    control may be absent: without it, resuming is an error with a remedy of its own.

    Args:
        folder (`Path`):
            A checkpoint. One without optimizer, schedule and random generators was saved with `save_only_model`.
    """
    if read_trainer_state(folder) is None:
        return f"{TRAINER_STATE_FILE} is missing or damaged: the run was stopped while saving it"
    if not _found(folder, WEIGHTS):
        return "weights are missing"
    state = {name: _found(folder, patterns) for name, patterns in NEEDED_TO_RESUME.items()}
    if any(state.values()) and (missing := [name for name, files in state.items() if not files]):
        return f"{' and '.join(missing)} is missing"
    for path in _found(folder, (*FILES, *SMALL_FILES)):
        if fault := _fault_of_file(path):
            return fault
    missing = [name for name in _promised_files(folder) if not (folder / name).is_file()]
    return f"{missing[0]} is missing" if missing else None


def _promised_files(folder: Path) -> list[str]:
    """Files that the run has saved beside those that every checkpoint has."""
    try:
        names: list[str] = read_state(folder).get("files", [])
    except ValueError:  # missing or damaged, for whoever reads the rest of it to say
        return []
    return names


def _fault_of_last(checkpoint: Path) -> str | None:
    """What speaks against going on from a checkpoint where an earlier one may do."""
    state = checkpoint / STATE_FILE
    return fault_of_checkpoint(checkpoint) or (_fault_of_file(state) if state.is_file() else None)


def is_whole(folder: Path) -> bool:
    """Whether a run can be resumed from a folder, so far as [`fault_of_checkpoint`] sees."""
    return fault_of_checkpoint(folder) is None


def is_bare(folder: Path) -> bool:
    """Whether a folder holds nothing of a trainer's state, torn or whole."""
    patterns = (pattern for patterns in NEEDED_TO_RESUME.values() for pattern in patterns)
    return not _found(folder, (TRAINER_STATE_FILE, *patterns))


def _checkpoints(output_dir: str | Path) -> list[Path]:
    """The newest first."""
    checkpoints = [path for path in Path(output_dir).glob("checkpoint-*") if path.name.split("-")[-1].isdigit()]
    return sorted(checkpoints, key=lambda path: int(path.name.split("-")[-1]), reverse=True)


def whole_checkpoints(output_dir: str | Path) -> Iterator[Path]:
    """The whole ones of a run, the newest first."""
    return (path for path in _checkpoints(output_dir) if _fault_of_last(path) is None)


def problem_of_used_folder(output_dir: str | Path) -> str | None:
    """What is wrong with starting a run afresh in a folder; `None` if it holds nothing to be resumed."""
    used = next(whole_checkpoints(output_dir), None)
    if used is None:
        return None
    return (
        f"output_dir {output_dir} holds {used.name} of an earlier run, which a later resume may take for one of a run "
        "that starts now: choose another output_dir, remove the old checkpoints, or set resume_from_checkpoint to "
        "true to go on from them"
    )


def last_whole_checkpoint(output_dir: str | Path) -> Path:
    """The newest checkpoint of a run that is whole; what is wrong with newer ones is logged.

    Raises:
        `CannotStartError`: If there is none.
    """
    checkpoints = _checkpoints(output_dir)
    for path in checkpoints:
        if (fault := _fault_of_last(path)) is None:
            return path
        logger.warning("%s is not whole (%s); trying an earlier one", path, fault)
    raise CannotStartError(
        f"cannot resume: {output_dir} holds no checkpoint" + (" that is whole" if checkpoints else "")
    )


def check_is_there(folder: Path, output_dir: str | Path) -> None:
    """Raises `CannotStartError` if `resume_from_checkpoint` names no folder, with those that could be meant."""
    if not folder.is_dir():
        known = ", ".join(path.name for path in whole_checkpoints(output_dir)) or "no checkpoint"
        raise CannotStartError(
            f"resume_from_checkpoint is {str(folder)!r}, but there is no such folder; give true for the last "
            f"checkpoint, or a folder: {output_dir} holds {known}"
        )


def read_trainer_state(folder: Path) -> dict | None:
    """What `trainer_state.json` of a folder holds; `None` if it is missing or damaged."""
    try:
        state = json.loads((folder / TRAINER_STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) else None


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
    """Source: [Format](https://huggingface.co/docs/safetensors/index#format): 8 bytes with the length of a header in
    JSON, which holds where each tensor begins and ends behind it."""
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
        if file.read(1) == b"\x80":  # a pickle, as torch wrote before it took to zip archives
            return
        zipfile.ZipFile(file).close()


def clear_checkpoint(folder: Path) -> None:
    """Takes an older checkpoint out of the folder that a new one is saved to, the mark of its wholeness first.

    What a run killed while saving leaves is then never taken for whole, and no part of the old one for the new one's.
    """
    (folder / TRAINER_STATE_FILE).unlink(missing_ok=True)
    for path in _found(folder, FILES):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def only_run_in(output_dir: str | Path) -> Iterator[None]:
    """Keeps other runs out of a folder until it is left, or the process is killed.

    Where the file system cannot lock, the run goes on and a warning says so.

    Args:
        output_dir (`str` or `Path`):
            Folder of the run; it is made if it is not there.

    Raises:
        `CannotStartError`: If another run is in it.
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
        yield
        return
    try:
        yield
    finally:
        lock.release()
