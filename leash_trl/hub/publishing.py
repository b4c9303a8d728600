"""A run that lies on disk, put on the Hub: its model, its card with an evaluation, its checkpoints."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from leash_trl.checkpoints.completeness import last_whole_checkpoint, whole_checkpoints
from leash_trl.hub.checkpoint_files import EVAL_RESULTS_FILE, MODEL_PATTERNS, checkpoint_files, model_files
from leash_trl.hub.model_card import write_curves, write_model_card
from leash_trl.hub.repository import PATIENT, HubRepository, with_attempts
from leash_trl.hub.run_record import ADAPTER_FILE, holds_model, load_run_record


if TYPE_CHECKING:
    from leash_trl.evaluation.results import RunResults


@dataclass(frozen=True)
class Commit:
    """What goes to the Hub at once.

    Args:
        message (`str`):
            Of the commit.
        files (`dict[str, Path | bytes]`):
            Content, or where it lies, by path in the repository.
        replaced (`tuple[str, ...]`, *optional*):
            Patterns of files that the same commit deletes where it does not bring them.
    """

    message: str
    files: dict[str, Path | bytes]
    replaced: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(len(part) if isinstance(part, bytes) else part.stat().st_size for part in self.files.values())


def run_commits(folder: Path, checkpoints: str = "none", results: "RunResults | None" = None) -> list[Commit]:
    """What of a run goes to the Hub: its checkpoints, each in a commit of its own, and then the model.

    Args:
        folder (`Path`):
            Output folder of a run, or one of its checkpoints.
        checkpoints (`str`, *optional*, defaults to `"none"`):
            `"all"` pushes every whole checkpoint under its own name, `"last"` the newest as `last-checkpoint`.
        results (`RunResults`, *optional*):
            Evaluation of the model; whole benchmarks of the Hub go into `.eval_results`.

    Raises:
        `ValueError`: If the folder holds no model of ours, or no checkpoint where one is asked for.
    """
    check_model(folder)
    commits = [
        Commit(f"Upload {name}", {**checkpoint_files(path, name)}, (f"{name}/*",))
        for path, name in _checkpoints(folder, checkpoints)
    ]
    return [*commits, Commit("Upload model", {**model_files(folder), **_eval_results(results)}, MODEL_PATTERNS)]


def check_model(folder: Path) -> None:
    """Sees to it that a folder holds a model that `LeashGRPOTrainer` saved.

    Raises:
        `ValueError`: If it does not; the message names a checkpoint of it that does.
    """
    if holds_model(folder):
        return
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    remedy = "it must be the output folder of leash train, or one of its checkpoints"
    if (last := next(whole_checkpoints(folder), None)) is not None:
        remedy = f"its run has not ended; push its last checkpoint, {last}"
    raise ValueError(f"{folder} holds no model with a leash_state.json: {remedy}")


def local_base_model(folder: Path) -> str | None:
    """The base model of an adapter where that is a folder of this machine, which nobody else can load; else `None`."""
    config_file = folder / ADAPTER_FILE
    if not config_file.is_file():
        return None
    base: str = json.loads(config_file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    return base if Path(base).is_dir() else None


def _checkpoints(folder: Path, which: str) -> Iterator[tuple[Path, str]]:
    if which == "last":
        yield last_whole_checkpoint(folder), "last-checkpoint"
    elif which == "all":
        last_whole_checkpoint(folder)  # there is one, or an error
        yield from ((path, path.name) for path in reversed([*whole_checkpoints(folder)]))


def _eval_results(results: "RunResults | None") -> dict[str, bytes]:
    from leash_trl.evaluation.hub_results import hub_benchmarks, hub_eval_results

    if results is None or not hub_benchmarks(results):
        return {}
    return {EVAL_RESULTS_FILE: hub_eval_results(results).encode("utf-8")}


def write_card(
    folder: Path,
    repo_id: str | None = None,
    results: "RunResults | None" = None,
    baseline: "RunResults | None" = None,
) -> None:
    """Writes model card and training curves of a run into its folder.

    Args:
        folder (`Path`):
            Output folder of a run, or one of its checkpoints.
        repo_id (`str`, *optional*):
            Repository that it is pushed to.
        results (`RunResults`, *optional*), baseline (`RunResults`, *optional*):
            Evaluation of this model, and of the one it is compared with.

    Raises:
        `ValueError`: If the folder holds no `leash_state.json`, or the evaluations are not of the same problems.
    """
    record = load_run_record(folder)
    name = folder.resolve().name if repo_id is None else repo_id.split("/")[-1]
    write_curves(folder, record, name)
    write_model_card(folder, record, name, repo_id, results, baseline)


def push_commits(repository: HubRepository, commits: list[Commit]) -> Iterator[str]:
    """Pushes commits one by one; what the Hub has already is not sent again, so a stopped push can be repeated.

    Returns:
        `Iterator[str]`: URL of each, once it is on the Hub.
    """
    for commit in commits:
        push = partial(repository.commit, commit.files, commit.message, commit.replaced)
        yield with_attempts(push, PATIENT, commit.message).commit_url
