"""What a run says about itself, from its folder or from a trainer: the facts of a model card."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from leash_trl.checkpoints.completeness import TRAINER_STATE_FILE, last_whole_checkpoint
from leash_trl.checkpoints.state_file import STATE_FILE, read_state
from leash_trl.hub.recipe import RECIPE_FILE
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import find_method


ADAPTER_FILE = "adapter_config.json"
MOST_AT_ENDS = 10  # logged training batches that a mean at the start or the end is taken over


@dataclass(frozen=True)
class RunRecord:
    """A run as its model card tells it.

    Args:
        state (`Mapping[str, Any]`):
            What `leash_state.json` holds.
        log_history (`Sequence[Mapping[str, Any]]`):
            Rows that the trainer logged; empty if they are not known.
        recipe (`Mapping[str, Any]`):
            What the run was started with, by field name; empty if it is not known.
        is_adapter (`bool`):
            Whether the weights are an adapter of the base model's.
    """

    state: Mapping[str, Any]
    log_history: Sequence[Mapping[str, Any]]
    recipe: Mapping[str, Any]
    is_adapter: bool = False

    @property
    def method(self) -> type[LengthControl] | None:
        """The method, or `None` where it is the user's own and not importable from here."""
        try:
            return find_method(str(self.recipe.get("length_control", self.state["method"])))
        except ValueError:
            return None

    @property
    def target_length(self) -> int | None:
        """The target in tokens, if there is one."""
        return self.state.get("target_length")

    @property
    def hyper_parameters(self) -> dict[str, Any]:
        """Those of the method: its defaults, and what the recipe said instead."""
        defaults = {
            field.name: field.default if field.default is not MISSING else None
            for field in (fields(self.method) if self.method is not None else ())
        }
        kwargs = self.recipe.get("length_control_kwargs") or {}
        kwargs = yaml.safe_load(kwargs) if isinstance(kwargs, str) else kwargs
        given = {name: self.recipe[name] for name in defaults if self.recipe.get(name) is not None}
        return {**defaults, **kwargs, **given}

    @property
    def final_state(self) -> dict[str, float]:
        """Numbers that the method's state ended with, by name."""
        controller = self.state.get("controller", {})
        is_number = {name: type(value) in (int, float) for name, value in controller.items()}
        return {name: value for name, value in controller.items() if is_number[name]}

    def logged(self, key: str) -> list[float]:
        """The values that were logged under a key, in order."""
        return [row[key] for row in self.log_history if row.get(key) is not None]

    def ends(self, key: str) -> tuple[int, float, float] | None:
        """How many values were averaged, at most ten, and the means of the first and of the last so many; `None`
        without any.
        """
        values = self.logged(key)
        if not values:
            return None
        count = min(MOST_AT_ENDS, max(1, len(values) // 2))
        return count, sum(values[:count]) / count, sum(values[-count:]) / count


def load_run_record(folder: str | Path) -> RunRecord:
    """The record of a run's folder or of one of its checkpoints.

    Raises:
        `ValueError`: If it holds no `leash_state.json`, so was not saved by `LeashGRPOTrainer`, or a damaged one.
    """
    folder = Path(folder)
    recipe_file = folder / RECIPE_FILE
    return RunRecord(
        state=read_state(folder),
        log_history=_log_history(folder),
        recipe=yaml.safe_load(recipe_file.read_text(encoding="utf-8")) or {} if recipe_file.is_file() else {},
        is_adapter=(folder / ADAPTER_FILE).is_file(),
    )


def _log_history(folder: Path) -> list[dict[str, Any]]:
    """What the folder's trainer state logged; of a run that was not finished, that of its newest whole checkpoint."""
    if not (folder / TRAINER_STATE_FILE).is_file():
        if not any(folder.glob("checkpoint-*")):
            return []
        folder = last_whole_checkpoint(folder)
    history: list[dict[str, Any]] = json.loads((folder / TRAINER_STATE_FILE).read_text(encoding="utf-8"))[
        "log_history"
    ]
    return history


def holds_model(folder: Path) -> bool:
    """Whether a folder holds a model of ours: weights or an adapter, and the state that they were saved with."""
    weights = [
        *folder.glob("*.safetensors"),
        *folder.glob("*.safetensors.index.json"),
        *folder.glob("pytorch_model*.bin"),
    ]
    return bool(weights) and (folder / STATE_FILE).is_file()
