"""Finds the model that a name means: the gym's, a folder, or one on the Hub."""

from pathlib import Path

from leash_trl import gym
from leash_trl.paths import path_or_hub_id
from leash_trl.run_folder import ADAPTER_FILE, CONFIG_FILE


def model_path(name: str, field: str = "model_name_or_path") -> str:
    """Returns the folder or Hub id of a model: the folder inside this package for `gym`, else the name itself.

    Args:
        name (`str`): Name of the model.
        field (`str`): Argument that has this value, for messages.

    Raises:
        `ValueError`: If the name looks like a path that does not exist.

    Example:
        >>> model_path("owner/name")
        'owner/name'
    """
    if name == gym.MODEL_NAME:
        return str(gym.CHECKPOINT)
    return path_or_hub_id(name, field)


def complete_model_path(name: str, field: str = "model_name_or_path") -> str:
    """Returns the same for a model to train or to plan, which must not be an adapter alone: transformers would load
    its base model and train all weights.

    Raises:
        `ValueError`: If the name looks like a path that does not exist, or is a folder with only an adapter.
    """
    folder = Path(name).expanduser()
    if (folder / ADAPTER_FILE).is_file() and not (folder / CONFIG_FILE).is_file():
        raise ValueError(
            f"the folder {name!r} holds an adapter ({ADAPTER_FILE}) and no complete model; to merge it with its base, "
            f"run leash merge {name} with an output_dir"
        )
    return model_path(name, field)
