"""Finds the model that a name means: the gym's, a folder, or one on the Hub."""

from pathlib import Path

from leash_trl import gym
from leash_trl.paths import path_or_hub_id
from leash_trl.run_folder import ADAPTER_FILE, CONFIG_FILE, MODEL_FILES, complete_checkpoints


def model_path(name: str, field: str = "model_name_or_path") -> str:
    """Returns the folder or Hub id of a model: the folder inside this package for `gym`, else the name itself.

    Args:
        name (`str`): Name of the model.
        field (`str`): Argument that has this value, for messages.

    Raises:
        `ValueError`: If the name looks like a path that does not exist; if it is a folder without a model, such as the
            output folder of a run that has not ended.

    Example:
        >>> model_path("owner/name")
        'owner/name'
    """
    if name == gym.MODEL_NAME:
        return str(gym.CHECKPOINT)
    path = path_or_hub_id(name, field)
    folder = Path(path)
    if folder.is_dir() and not any((folder / file).is_file() for file in MODEL_FILES):
        # A run that has not ended, or was stopped, has checkpoints and no final model.
        checkpoint = next(complete_checkpoints(folder), None)
        remedy = "name another"
        if checkpoint is not None:
            remedy = f"no final model was saved there, so name a checkpoint, such as {checkpoint}"
        raise ValueError(f"the folder {name!r} holds no model ({' or '.join(MODEL_FILES)}); {remedy}")
    return path


def is_adapter_alone(folder: Path) -> bool:
    """Returns whether a folder holds an adapter without its base model."""
    return (folder / ADAPTER_FILE).is_file() and not (folder / CONFIG_FILE).is_file()


def complete_model_path(name: str, field: str = "model_name_or_path") -> str:
    """Returns the same for a model to train or to plan, which must not be an adapter alone: transformers would load
    its base model and train all weights.

    Raises:
        `ValueError`: If the name looks like a path that does not exist, or is a folder without a model, or with only
            an adapter.
    """
    if is_adapter_alone(Path(name).expanduser()):
        raise ValueError(
            f"the folder {name!r} holds an adapter ({ADAPTER_FILE}) and no complete model; to merge it with its base, "
            f"run leash merge {name} with an output_dir"
        )
    return model_path(name, field)
