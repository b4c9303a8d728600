"""Writes the recipe beside every model: the configuration that trained it, in the form of `leash train --config`."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib.metadata import version
from operator import methodcaller
from pathlib import Path
from typing import Any

import yaml
from transformers.trainer_pt_utils import AcceleratorConfig

from leash_trl import __version__
from leash_trl.files import write_whole
from leash_trl.hub.hub_token import without_token


RECIPE_FILE = "leash_recipe.yaml"
# this machine's environment and folders, the checkpoint of a resume and, as all `hub_` fields, the pushes
NOT_THE_RUN = ("config", "env", "output_dir", "push_to_hub", "resume_from_checkpoint", "run_name")
# what transformers and TRL work out from other fields when a configuration is made
DERIVED = ("debug", "dataloader_pin_memory", "pad_to_multiple_of", "disable_tqdm")
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
    usual = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(arguments)
    }
    changed = {name: values[name] for name in usual if name in values and values[name] != usual[name]}
    if "steps_per_generation" in changed:  # TRL takes one of the two, and then sets both
        changed.pop("generation_batch_size", None)
    if not values["report_to"]:
        changed.pop("report_to", None)
    if values["accelerator_config"].items() <= AcceleratorConfig().to_dict().items():
        changed.pop("accelerator_config", None)
    return {name: value for name, value in changed.items() if name not in DERIVED}


def portable(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe that repeat the run elsewhere, in types that YAML restores; the rest is left out.

    Example:
        >>> portable({"seed": 1, "hub_token": "x", "env": {"KEY": "y"}, "generation_kwargs": {(1, 2): 3}})
        {'seed': 1}
    """
    plain = {}
    for name in filter(_is_of_the_run, recipe):
        with contextlib.suppress(TypeError, ValueError, AttributeError):  # NumPy's and torch's numbers have an `item`
            plain[name] = json.loads(without_token(json.dumps(recipe[name], default=methodcaller("item"))))
    return plain


def _is_of_the_run(name: str) -> bool:
    return name not in NOT_THE_RUN and not name.startswith("hub_")


def recipe_yaml(recipe: Mapping[str, Any]) -> str:
    """The [`portable`] part of a recipe as YAML; empty if there is none."""
    kept = portable(recipe)
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=119) if kept else ""


def write_recipe(folder: str | Path, recipe: Mapping[str, Any]) -> None:
    """Writes `leash_recipe.yaml` into a folder atomically, with the versions of the packages that ran it at its head.

    Args:
        folder (`str` or `Path`):
            A model's folder.
        recipe (`Mapping[str, Any]`):
            Values by field name; only [`portable`] ones are written, and those that YAML cannot hold are named.
    """
    unwritten = ", ".join(sorted(set(filter(_is_of_the_run, recipe)) - portable(recipe).keys()))
    missing = f"# Not here, for YAML cannot hold it: {unwritten}\n" if unwritten else ""
    versions = ", ".join([f"leash-trl {__version__}", *(f"{name} {version(name)}" for name in PACKAGES)])
    head = f"# Written by leash_trl: what this model was trained with.\n# {versions}\n{missing}\n"
    write_whole(Path(folder) / RECIPE_FILE, head + recipe_yaml(recipe))


def read_recipe(folder: str | Path) -> dict[str, Any]:
    """The fields of a folder's `leash_recipe.yaml`; empty if there is none."""
    file = Path(folder) / RECIPE_FILE
    recipe: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8")) or {} if file.is_file() else {}
    return recipe
