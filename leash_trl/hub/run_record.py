"""`RunRecord`: the facts about a run for its model card, read from its folder or its trainer."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from leash_trl.checkpoints.completeness import ADAPTER_FILE, read_trainer_state, whole_checkpoints
from leash_trl.checkpoints.state_file import STATE_FILE, read_state
from leash_trl.hub.recipe import read_recipe
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import find_method


WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin")
MOST_AT_ENDS = 10  # logged training batches in the mean at the start and at the end


@dataclass(frozen=True)
class RunRecord:
    """A run as its model card shows it.

    Args:
        state (`Mapping[str, Any]`):
            The content of `leash_state.json`.
        log_history (`Sequence[Mapping[str, Any]]`):
            Rows that the trainer logged; empty if they are not known.
        recipe (`Mapping[str, Any]`):
            The run's recipe by field name; empty if it is not known.
        is_adapter (`bool`, *optional*, defaults to `False`):
            Whether the weights are an adapter of the base model.
    """

    state: Mapping[str, Any]
    log_history: Sequence[Mapping[str, Any]]
    recipe: Mapping[str, Any]
    is_adapter: bool = False

    @property
    def method(self) -> type[LengthControl] | None:
        """The method; `None` if it is the user's own and cannot be imported from here."""
        try:
            return find_method(str(self.recipe.get("length_control", self.state["method"])))
        except ValueError:
            return None

    @property
    def hyper_parameters(self) -> dict[str, Any]:
        """The method's hyper-parameters: its defaults, replaced by the recipe's values."""
        known = fields(self.method) if self.method is not None else ()
        defaults = {field.name: None if field.default is MISSING else field.default for field in known}
        kwargs = self.recipe.get("length_control_kwargs") or {}
        kwargs = yaml.safe_load(kwargs) if isinstance(kwargs, str) else kwargs
        given = {name: self.recipe[name] for name in defaults if self.recipe.get(name) is not None}
        return {**defaults, **kwargs, **given}

    def logged(self, key: str) -> list[float]:
        """The values that were logged under a key, in order."""
        return [row[key] for row in self.log_history if row.get(key) is not None]

    def ends(self, key: str) -> tuple[int, float, float] | None:
        """A count of logged values, at most ten, and the means of the first and of the last that many values.

        `None` if nothing was logged.
        """
        values = self.logged(key)
        if not values:
            return None
        count = min(MOST_AT_ENDS, max(1, len(values) // 2))
        return count, sum(values[:count]) / count, sum(values[-count:]) / count


def load_run_record(folder: str | Path) -> RunRecord:
    """The record of a run's folder, or of one of its checkpoints.

    Raises:
        `ValueError`: If its `leash_state.json` is missing or damaged.
    """
    folder = Path(folder)
    # an unfinished run has its log in its newest checkpoint
    log_folder = folder if read_trainer_state(folder) else next(whole_checkpoints(folder), folder)
    return RunRecord(
        state=read_state(folder),
        log_history=(read_trainer_state(log_folder) or {}).get("log_history", []),
        recipe=read_recipe(folder),
        is_adapter=(folder / ADAPTER_FILE).is_file(),
    )


def check_model(folder: Path) -> None:
    """Raises `ValueError` if a folder holds no model that `LeashGRPOTrainer` saved; it says what to push instead."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    if any(path for pattern in WEIGHTS for path in folder.glob(pattern)) and (folder / STATE_FILE).is_file():
        return
    last = next(whole_checkpoints(folder), None)
    remedy = "it must be the output folder of leash train, or one of its checkpoints"
    if last is not None:
        remedy = f"its run has not ended; push its last checkpoint, {last}"
    raise ValueError(f"{folder} holds no model with a {STATE_FILE}: {remedy}")


def local_base_model(folder: Path) -> str | None:
    """The base model of an adapter if it is a folder on this machine, which nobody else can load; else `None`."""
    config_file = folder / ADAPTER_FILE
    if not config_file.is_file():
        return None
    base: str = json.loads(config_file.read_text(encoding="utf-8"))["base_model_name_or_path"]
    return base if Path(base).is_dir() else None
