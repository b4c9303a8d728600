"""Finds a model by the name that a user gives, and reports names of folders that do not exist."""

from pathlib import Path

from leash_trl import gym
from leash_trl.checkpoints.completeness import MODEL_FILES, whole_checkpoints


def checkpoint_path(name: str) -> str:
    """Folder or Hub id for the name of a model: `gym` is embedded, other names stay as they are.

    Raises:
        `ValueError`: If it is a folder that holds no model, such as that of a run that has not ended.

    Example:
        >>> checkpoint_path("owner/name")
        'owner/name'
    """
    if name == gym.NAME:
        return str(gym.CHECKPOINT)
    folder = Path(name)
    if folder.is_dir() and not any((folder / file).is_file() for file in MODEL_FILES):
        last = next(whole_checkpoints(folder), None)
        remedy = "name one that does" if last is None else f"its run has not ended: name a checkpoint, such as {last}"
        raise ValueError(f"the folder {name!r} holds no model ({' or '.join(MODEL_FILES)}); {remedy}")
    return name


def complete_model_path(name: str) -> str:
    """The same for a model to train or to plan, which must be more than an adapter.

    Raises:
        `ValueError`: If it is a folder that holds no model, or an adapter alone.
    """
    path = checkpoint_path(name)
    config, adapter = (Path(path) / file for file in MODEL_FILES)
    if adapter.is_file() and not config.is_file():
        raise ValueError(
            f"the folder {name!r} holds an adapter ({adapter.name}) and no complete model; leash merge {name} "
            "--output_dir DIR makes one of it and its base"
        )
    return path


def missing_folder(path: str) -> str | None:
    """An error text for a checkpoint's name that looks like a folder but does not exist; else `None`.

    Args:
        path (`str`):
            Folder, or name on the Hub. It looks like a folder if it starts with `.`, `/` or `~`, has more than one
            slash, or begins with a folder that exists.

    Example:
        >>> missing_folder("./runs/nothere")
        "no such folder: './runs/nothere'"
        >>> missing_folder("owner/name")
    """
    if Path(path).exists():
        return None
    if path.startswith("~"):
        return f"no such folder: {path!r}; only a shell knows ~, so write the path in full"
    first = path.partition("/")[0]
    is_local = path.startswith((".", "/")) or path.count("/") > 1 or Path(first).is_dir()
    return f"no such folder: {path!r}" if is_local else None


def has_chat_template(name: str, revision: str | None = None) -> bool:
    """Whether a model's tokenizer has a chat template; `True` if it cannot be read, since loading the model says so.

    Args:
        name (`str`):
            As for `checkpoint_path`.
        revision (`str`, *optional*):
            Branch, tag or commit on the Hub.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(checkpoint_path(name), revision=revision)
    except (OSError, ValueError, KeyError, ImportError):
        return True
    return tokenizer.chat_template is not None
