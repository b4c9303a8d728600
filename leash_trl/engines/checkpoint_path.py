"""What a folder of a run or a model is: the files that make it one, what its run saved, which model a name means."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from leash_trl import gym


ADAPTER_FILE = "adapter_config.json"
MODEL_FILES = ("config.json", ADAPTER_FILE)  # one of them makes a folder a model
RECIPE_FILE = "leash_recipe.yaml"
TRAINER_STATE_FILE = "trainer_state.json"  # transformers writes it last, so a checkpoint that has it is whole


def read_trainer_state(folder: str | Path) -> dict[str, Any] | None:
    """The content of a folder's `trainer_state.json`; `None` if it is missing or cut off."""
    try:
        state: dict[str, Any] = json.loads((Path(folder) / TRAINER_STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return state


def length_control_state(folder: str | Path) -> dict[str, Any] | None:
    """What the run of a checkpoint or a trained model saved of its length control; `None` if it had none.

    `method` is its name, `state` what its `load_state_dict` takes, `version` the dual steps so far, `target_length` in
    tokens; further keys are the trainer's.
    """
    callbacks = (read_trainer_state(folder) or {}).get("stateful_callbacks", {})
    state: dict[str, Any] | None = callbacks.get("LengthControl")
    return state


def read_recipe(folder: str | Path) -> dict[str, Any]:
    """The fields of a folder's `leash_recipe.yaml`, which `leash train` wrote; empty if there is none."""
    file = Path(folder) / RECIPE_FILE
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")) or {}) if file.is_file() else {}


def whole_checkpoints(output_dir: str | Path) -> Iterator[Path]:
    """The complete checkpoints of a run, the newest first."""
    numbered = [path for path in Path(output_dir).glob("checkpoint-*") if path.name.split("-")[-1].isdigit()]
    newest_first = sorted(numbered, key=lambda path: int(path.name.split("-")[-1]), reverse=True)
    return (path for path in newest_first if read_trainer_state(path) is not None)


def checkpoint_path(name: str) -> str:
    """Folder or Hub id for the name of a model: `gym` is embedded, other names stay as they are.

    Raises:
        `ValueError`: If it is a folder that holds no model, such as that of a run that has not ended.

    Example:
        >>> checkpoint_path("owner/name")
        'owner/name'
    """
    if name == gym.NAME:
        return str(gym.CHECKPOINT)
    folder = Path(name)
    if folder.is_dir() and not any((folder / file).is_file() for file in MODEL_FILES):
        last = next(whole_checkpoints(folder), None)
        remedy = "name one that does" if last is None else f"its run has not ended: name a checkpoint, such as {last}"
        raise ValueError(f"the folder {name!r} holds no model ({' or '.join(MODEL_FILES)}); {remedy}")
    return name


def complete_model_path(name: str) -> str:
    """The same for a model to train or to plan, which must be more than an adapter: transformers would load the base
    beneath it and train all of its weights.

    Raises:
        `ValueError`: If it is a folder that holds no model, or an adapter alone.
    """
    path = checkpoint_path(name)
    config, adapter = (Path(path) / file for file in MODEL_FILES)
    if adapter.is_file() and not config.is_file():
        raise ValueError(
            f"the folder {name!r} holds an adapter ({adapter.name}) and no complete model; leash merge {name} "
            "--output_dir DIR makes one of it and its base"
        )
    return path
