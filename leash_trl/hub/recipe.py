"""Writes the recipe beside every model: the configuration that trained it, in the form of `leash train --config`."""

import functools
import importlib.metadata
import numbers
import os
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from leash_trl import __version__
from leash_trl.files import write_whole
from leash_trl.hub.hub_token import without_token


RECIPE_FILE = "leash_recipe.yaml"
# secrets, this machine's environment and folders, the checkpoint of a resume, and the repository of the pushes
NOT_THE_RUN = frozenset(
    {
        "config",
        "env",
        "hub_always_push",
        "hub_model_id",
        "hub_private_repo",
        "hub_revision",
        "hub_strategy",
        "hub_token",
        "logging_dir",
        "output_dir",
        "push_to_hub",
        "resume_from_checkpoint",
        "run_name",
    }
)
# what transformers and TRL work out from other fields when a configuration is made
DERIVED = frozenset({"debug", "dataloader_pin_memory", "pad_to_multiple_of", "disable_tqdm"})
PACKAGES = ("trl", "transformers", "torch", "datasets", "peft", "tokenizers")


def changed_fields(arguments: Any) -> dict[str, Any]:
    """Fields of training arguments whose values are not their defaults.

    Args:
        arguments ([`~transformers.TrainingArguments`]):
            The configuration of a trainer.

    Returns:
        `dict[str, Any]`: Values by field name, without what is derived from other fields.
    """
    values = arguments.to_dict()
    changed = {
        field.name: values[field.name]
        for field in fields(arguments)
        if field.name in values and values[field.name] != _default(field)
    }
    if "steps_per_generation" in changed:  # TRL takes one of the two, and then sets both
        changed.pop("generation_batch_size", None)
    if changed.get("report_to") == []:
        changed["report_to"] = "none"
    if changed.get("accelerator_config") == type(arguments.accelerator_config)().to_dict():
        changed.pop("accelerator_config")
    return {name: value for name, value in changed.items() if name not in DERIVED}


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def portable(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe that repeat the run elsewhere, in types that YAML restores; the rest is left out.

    Example:
        >>> portable({"seed": 1, "hub_token": "x", "env": {"KEY": "y"}, "generation_kwargs": {(1, 2): 3}})
        {'seed': 1}
    """
    kept = {name: _plain(value) for name, value in recipe.items() if name not in NOT_THE_RUN}
    return {name: value for name, value in kept.items() if _is_yaml(value)}


def _plain(value: Any) -> Any:
    """The value in YAML's own types, if it is such a type in another class, as NumPy's numbers are."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, str | os.PathLike):
        return without_token(str(value))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _is_yaml(value: Any) -> bool:
    if value is None or isinstance(value, int):  # most fields, of which each save would parse every one
        return True
    try:
        given_back: bool = yaml.safe_load(yaml.safe_dump(value)) == value
    except yaml.YAMLError:
        return False
    return given_back


def recipe_yaml(recipe: Mapping[str, Any]) -> str:
    """The [`portable`] part of a recipe as YAML; empty if there is none."""
    return _yaml(portable(recipe))


def _yaml(kept: Mapping[str, Any]) -> str:
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=119) if kept else ""


@functools.cache
def _packages() -> str:
    """Packages and their versions; reading them takes longer than writing the recipe, and each save writes one."""
    versions = (f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return ", ".join([f"leash-trl {__version__}", *versions])


def write_recipe(folder: str | Path, recipe: Mapping[str, Any]) -> None:
    """Writes `leash_recipe.yaml` into a folder atomically, with the versions of the packages that ran it at its head.

    Args:
        folder (`str` or `Path`):
            A model's folder.
        recipe (`Mapping[str, Any]`):
            Values by field name; only [`portable`] ones are written, and those that YAML cannot hold are named.
    """
    kept = portable(recipe)
    unwritten = recipe.keys() - kept.keys() - NOT_THE_RUN
    missing = f"# Not here, for YAML cannot hold it: {', '.join(sorted(unwritten))}\n" if unwritten else ""
    head = f"# Written by leash_trl: what this model was trained with.\n# {_packages()}\n{missing}\n"
    write_whole(Path(folder) / RECIPE_FILE, head + _yaml(kept))


def read_recipe(folder: str | Path) -> dict[str, Any]:
    """The fields of a folder's `leash_recipe.yaml`; empty if there is none."""
    file = Path(folder) / RECIPE_FILE
    recipe: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8")) or {} if file.is_file() else {}
    return recipe
