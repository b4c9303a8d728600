"""Reads fields of recipes, and saves the recipe of a run with every model, for `leash train --config`."""

import json
from collections.abc import Mapping
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from transformers.utils import cached_file

from leash_trl import __version__
from leash_trl.files import write_atomically
from leash_trl.hub_token import without_token
from leash_trl.run_folder import RECIPE_FILE, read_saved_recipe


# fields that depend on the machine, on resuming or on pushes to the Hub; all fields `hub_*` depend on the latter, too
NOT_PORTABLE_FIELDS = ("config", "env", "output_dir", "push_to_hub", "resume_from_checkpoint", "run_name")
# fields that transformers, accelerate and TRL derive from other fields when a configuration is created
DERIVED_FIELDS = (
    "accelerator_config",
    "dataloader_pin_memory",
    "debug",
    "disable_tqdm",
    "generation_batch_size",
    "include_for_metrics",
    "pad_to_multiple_of",
)
PACKAGES = ("trl", "transformers", "torch", "datasets", "peft", "tokenizers")


def non_default_fields(arguments: Any) -> dict[str, Any]:
    """Returns the training arguments that differ from their defaults, without fields derived from other fields."""
    values = arguments.to_dict()  # by field name, in types that JSON has
    non_default = {}
    for field in fields(arguments):
        # A field that is no argument of the constructor (`init=False`) is computed from other fields, too.
        is_derived = not field.init or field.name in DERIVED_FIELDS
        if not is_derived and values[field.name] != field.default:
            non_default[field.name] = values[field.name]
    return non_default


def differing_names(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Returns the names of the entries in which two mappings differ, in alphabetical order. A missing entry equals one
    that is `None`.

    Example:
        >>> differing_names({"seed": 1, "beta": 0.0}, {"seed": 1, "alpha": 0.5})
        ['alpha', 'beta']
    """
    return [name for name in sorted(saved.keys() | current.keys()) if saved.get(name) != current.get(name)]


def field_as_mapping(name: str, value: Any) -> dict[Any, Any] | None:
    """Returns the value of a field as a mapping. A recipe has it as a mapping, a command line as YAML or JSON text.

    `None` and empty text give `None`; a value that is no mapping raises `ValueError`.
    """
    mapping = yaml.safe_load(value) if isinstance(value, str) else value
    if mapping is not None and not isinstance(mapping, dict):
        raise ValueError(f"{name} is {value!r}, but must be a mapping or the text of one, such as '{{a: 0.5}}'")
    return mapping


def recipe_of_model(name: str, revision: str | None = None) -> dict[str, Any]:
    """Returns the recipe that `leash train` saved with a model. For a checkpoint folder without a recipe, this is the
    recipe of its run. The result is empty if there is none.

    Args:
        name (`str`): Folder or Hub id of the model.
        revision (`str`): Branch, tag or commit of a model on the Hub.

    Raises:
        `OSError`: If the name is no folder, and the Hub has no such model.
    """
    if Path(name).is_dir():
        return _recipe_of_folder(Path(name))
    # With these arguments, the file is `None`, and no error is raised, if the model has no recipe or the Hub cannot be
    # reached.
    file = cached_file(
        name,
        RECIPE_FILE,
        revision=revision,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return {} if file is None else read_saved_recipe(Path(file).parent)


def _recipe_of_folder(folder: Path) -> dict[str, Any]:
    """Returns the recipe in the folder of a model or, for a checkpoint without a recipe, that of its run."""
    recipe = read_saved_recipe(folder)
    # resolved, since the path of a folder may also be "." or end in ".."
    path = folder.resolve()
    if recipe or not path.name.startswith("checkpoint-"):
        return recipe
    return read_saved_recipe(path.parent)


def portable_recipe(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a recipe that are needed to repeat the run on another machine, in types that YAML has.

    Values of other types are converted to text, and Hub tokens inside values are replaced by a placeholder. Entries of
    a mapping are dropped if their key is no text, number, truth value or `None`.

    Example:
        >>> portable_recipe({"seed": 1, "hub_token": "x", "env": {"KEY": "y"}, "chat_template_path": Path("a.jinja")})
        {'seed': 1, 'chat_template_path': 'a.jinja'}
    """
    kept = {name: recipe[name] for name in recipe if name not in NOT_PORTABLE_FIELDS and not name.startswith("hub_")}
    # JSON has only types that YAML has, too, and its text can be searched for Hub tokens.
    text = json.dumps(kept, default=str, skipkeys=True)
    return dict(json.loads(without_token(text)))


def recipe_yaml(recipe: Mapping[str, Any]) -> str:
    """Returns the [`portable_recipe`] of a recipe as YAML."""
    return yaml.safe_dump(portable_recipe(recipe), sort_keys=False, allow_unicode=True, width=119)


def write_recipe(folder: str | Path, recipe: Mapping[str, Any]) -> None:
    """Writes the [`portable_recipe`] of a recipe into a model's folder, with the versions of packages in a comment."""
    # such as "trl 1.16.0"
    versions = [f"leash-trl {__version__}"]
    versions.extend(f"{name} {version(name)}" for name in PACKAGES)
    head = "# Written by leash_trl: the configuration that this model was trained with.\n"
    head += f"# {', '.join(versions)}\n\n"
    write_atomically(Path(folder) / RECIPE_FILE, head + recipe_yaml(recipe))
