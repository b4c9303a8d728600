"""`leash_state.json`: the state of length control on disk, beside the weights that it belongs to.

It holds `method`, `controller` (what the method's `state_dict` gives, for LEASH lambda and what it observed since the
last dual step), `target_length`, `global_step`, `counters` (tokens generated, prompts drawn, which questions had
signal), `micro_step` and `batching` (where in which generation window), `settings` of the run, and `files` that a
complete checkpoint has beside it. `leash_trl.trainer.checkpointing` writes it and reads it back.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash_trl.files import write_whole


if TYPE_CHECKING:
    from leash_trl.length_control.method import LengthControl


STATE_FILE = "leash_state.json"
# what must hold of an entry where there is one: older releases did not write them all
ENTRIES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "counters": (lambda value: isinstance(value, dict), "a mapping"),
    "settings": (lambda value: isinstance(value, dict), "a mapping"),
    "batching": (lambda value: isinstance(value, dict), "a mapping"),
    "files": (lambda value: isinstance(value, list), "a list"),
    "global_step": (lambda value: type(value) is int and value >= 0, "a whole number, 0 or more"),
    "micro_step": (lambda value: type(value) is int and value >= 0, "a whole number, 0 or more"),
    "target_length": (lambda value: value is None or type(value) in (int, float), "a number of tokens"),
}


def write_state(folder: str | Path, state: dict[str, Any]) -> None:
    """Writes `leash_state.json` into `folder` atomically: after a crash the old or the new file is complete."""
    write_whole(Path(folder) / STATE_FILE, json.dumps(state, indent=2))


def read_state(folder: str | Path) -> dict[str, Any]:
    """Reads `leash_state.json` from a checkpoint folder.

    Raises:
        `ValueError`: If the file is missing or damaged; the message says how to go on.
    """
    path = Path(folder) / STATE_FILE
    remedy = (
        "Copy it from the run that made the checkpoint, or write it by hand with the state to go on with, for LEASH "
        '{"controller": {"lambda": 0.1}}; to start afresh from these weights, pass the folder as the model instead of '
        "resuming."
    )
    if not path.is_file():
        raise ValueError(
            f"cannot resume from {folder}: it has no {STATE_FILE}, so the state of length control (lambda) is not "
            f"known. {remedy}"
        )
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot resume from {folder}: {STATE_FILE} is damaged ({error}). {remedy}") from error
    if not isinstance(state, dict) or not isinstance(state.get("controller"), dict):
        raise ValueError(f"cannot resume from {folder}: {STATE_FILE} holds no controller state. {remedy}")
    for name, (is_valid, needed) in ENTRIES.items():
        if name in state and not is_valid(state[name]):
            raise ValueError(
                f"cannot resume from {folder}: {STATE_FILE} holds {name}={state[name]!r}, which is not {needed}. "
                + remedy
            )
    return state


def restore_method(method: "LengthControl", record: dict[str, Any], folder: str | Path) -> None:
    """Restores the saved state of a method.

    Args:
        method (`LengthControl`):
            Method of this run.
        record (`dict`):
            From [`read_state`].
        folder (`str` or `Path`):
            The folder it was read from.

    Raises:
        `ValueError`: If another method saved the state, or it is damaged.
    """
    if (saved_by := record.get("method", method.name)) != method.name:
        raise ValueError(
            f"{folder} was saved by length control {saved_by!r}, this is {method.name!r}; go on with the same, or "
            "start a run of its own from these weights: pass the folder as the model, with another output_dir"
        )
    try:
        method.load_state_dict(record["controller"])
    except ValueError as error:
        raise ValueError(
            f"cannot resume from {folder}: {error}; mend {STATE_FILE}, or start a run of its own from these weights: "
            "pass the folder as the model, with another output_dir"
        ) from error
