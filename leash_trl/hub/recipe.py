"""The recipe that made a model, as `leash train --config` reads it, in every checkpoint."""

import importlib.metadata
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from leash_trl.hub.hub_token import without_token
from leash_trl.whole_file import write_whole


RECIPE_FILE = "leash_recipe.yaml"
# a secret, this machine's environment and folders, and where one start of a run took its weights from
NOT_THE_RUN = frozenset({"hub_token", "env", "config", "output_dir", "resume_from_checkpoint"})
# what transformers and TRL work out from other fields when a configuration is made
DERIVED = frozenset({"accelerator_config", "debug", "dataloader_pin_memory", "pad_to_multiple_of", "disable_tqdm"})
PACKAGES = ("leash-trl", "trl", "transformers", "torch", "datasets", "peft", "tokenizers")


def changed_fields(arguments: Any) -> dict[str, Any]:
    """Fields of training arguments whose values are not their defaults, as YAML can keep them.

    Args:
        arguments ([`~transformers.TrainingArguments`]):
            The configuration of a trainer.

    Returns:
        `dict[str, Any]`: Values by field name, without what is derived from other fields and without secrets.
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
    return {name: value for name, value in changed.items() if name not in NOT_THE_RUN | DERIVED}


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def recipe_text(recipe: Mapping[str, Any]) -> str:
    """YAML of a recipe, under the versions of the packages that ran it; without secrets.

    Args:
        recipe (`Mapping[str, Any]`):
            Values by field name.
    """
    kept = {name: value for name, value in recipe.items() if name not in NOT_THE_RUN}
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    body = yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=119)
    return without_token(f"# Written by leash_trl: what this model was trained with.\n# {versions}\n\n{body}")


def package_versions() -> dict[str, str]:
    """Versions of the packages that training rests on, of those that are installed."""
    installed = {}
    for name in PACKAGES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def write_recipe(folder: str | Path, recipe: Mapping[str, Any]) -> None:
    """Writes `leash_recipe.yaml` into a folder, whole."""
    write_whole(Path(folder) / RECIPE_FILE, recipe_text(recipe))
