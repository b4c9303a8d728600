"""Writes the recipe beside every model: the configuration that trained it, in the form of `leash train --config`."""

import json
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from leash_trl import __version__
from leash_trl.files import write_whole
from leash_trl.hub.hub_token import without_token
from leash_trl.run_folder import RECIPE_FILE


# this machine's environment and folders, the checkpoint of a resume and, as all `hub_` fields, the pushes
NOT_THE_RUN = ("config", "env", "output_dir", "push_to_hub", "resume_from_checkpoint", "run_name")
# what transformers, accelerate and TRL work out from other fields when a configuration is made
DERIVED = (
    *("accelerator_config", "debug", "dataloader_pin_memory", "pad_to_multiple_of", "disable_tqdm"),
    *("include_for_metrics", "generation_batch_size"),
)
PACKAGES = ("trl", "transformers", "torch", "datasets", "peft", "tokenizers")


def changed_fields(arguments: Any) -> dict[str, Any]:
    """Fields of training arguments whose values are not their defaults, without what is derived from other fields."""
    values = arguments.to_dict()
    own = [field for field in fields(arguments) if field.init and field.name not in DERIVED]
    return {field.name: values[field.name] for field in own if values[field.name] != field.default}


def portable(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a recipe that repeat the run elsewhere, in types that YAML restores; others become text.

    Of tables, keys that are no text or number are left out.

    Example:
        >>> portable({"seed": 1, "hub_token": "x", "env": {"KEY": "y"}, "chat_template_path": Path("a.jinja")})
        {'seed': 1, 'chat_template_path': 'a.jinja'}
    """
    kept = {name: recipe[name] for name in recipe if name not in NOT_THE_RUN and not name.startswith("hub_")}
    return dict(json.loads(without_token(json.dumps(kept, default=str, skipkeys=True))))


def recipe_yaml(recipe: Mapping[str, Any]) -> str:
    """The [`portable`] part of a recipe as YAML."""
    return yaml.safe_dump(portable(recipe), sort_keys=False, allow_unicode=True, width=119)


def write_recipe(folder: str | Path, recipe: Mapping[str, Any]) -> None:
    """Writes the [`portable`] part of a recipe into a model's folder, headed by the versions of its packages."""
    versions = ", ".join([f"leash-trl {__version__}", *(f"{name} {version(name)}" for name in PACKAGES)])
    head = f"# Written by leash_trl: what this model was trained with.\n# {versions}\n\n"
    write_whole(Path(folder) / RECIPE_FILE, head + recipe_yaml(recipe))
