"""Finds the model that a name means: the model of the gym, a folder, or a model on the Hub."""

from pathlib import Path

from leash_trl import gym
from leash_trl.paths import path_or_hub_id
from leash_trl.run_folder import ADAPTER_FILE, CONFIG_FILE, MODEL_FILES


def model_path(name: str, field: str = "model_name_or_path") -> str:
    """Returns the folder or Hub id of a model: for `gym` the folder inside this package, else the name, in which `~`
    becomes the home folder.

    Args:
        name (`str`): Name of the model.
        field (`str`): Argument that has this value, for messages.

    Raises:
        `ValueError`: If the name looks like a path that does not exist, or is a folder without a model.

    Example:
        >>> model_path("owner/name")
        'owner/name'
    """
    if name == gym.MODEL_NAME:
        return str(gym.CHECKPOINT)
    path = path_or_hub_id(name, field)
    folder = Path(path)
    # A run that was stopped has checkpoints and no model beside them.
    if folder.is_dir() and not any((folder / file).is_file() for file in MODEL_FILES):
        raise ValueError(
            f"{field} is {name!r}, a folder without {' or '.join(MODEL_FILES)}; name a folder with a model, such as a "
            "checkpoint in it"
        )
    return path


def complete_model_path(name: str, field: str = "model_name_or_path") -> str:
    """Returns the [`model_path`] of a model to train or to plan. It must not be an adapter alone, for which
    transformers would load the base model and train all its weights.

    Raises:
        `ValueError`: If the name looks like a path that does not exist, or is a folder without a model or with only an
            adapter.
    """
    folder = Path(name).expanduser()
    if (folder / ADAPTER_FILE).is_file() and not (folder / CONFIG_FILE).is_file():
        raise ValueError(
            f"the folder {name!r} holds an adapter ({ADAPTER_FILE}) and no complete model; to merge it with its base, "
            f"run leash merge {name} with an output_dir"
        )
    return model_path(name, field)
