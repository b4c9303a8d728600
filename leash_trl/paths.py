"""Decides whether a name means something on this machine or on the Hub, and finds what is on this machine.

Everything that a user can name by a path is looked up here before any library may look for it on the network.
"""

import os


def looks_like_path(name: str) -> bool:
    """Returns whether a name means a file or folder: whether it starts with `.`, `/` or `~`, has more than one slash,
    or has a slash behind the name of a folder that exists. Other names may be those of models and data sets on the
    Hub, and so may addresses with `://`.

    Example:
        >>> looks_like_path("./model"), looks_like_path("runs/leash/checkpoint-8")
        (True, True)
        >>> looks_like_path("owner/name"), looks_like_path("gpt2"), looks_like_path("hf://owner/name/last-checkpoint")
        (False, False, False)
    """
    if "://" in name:  # an address, such as "hf://owner/name"
        return False
    parent, slash, _ = name.rpartition("/")
    return name.startswith((".", "/", "~")) or name.count("/") > 1 or (slash == "/" and os.path.isdir(parent))


def existing_path(name: str | os.PathLike[str], field: str) -> str:
    """Returns the path of an existing file or folder, in which a leading `~` is replaced by the home folder.

    Args:
        name (`str` or `os.PathLike`): Path, as the user wrote it.
        field (`str`): Argument that has this value, for the message.

    Raises:
        `ValueError`: If there is no such file or folder.
    """
    name = os.fspath(name)
    path = os.path.expanduser(name)
    if not os.path.exists(path):
        raise ValueError(f"{field} is {name!r}, but there is no such file or folder here; correct the path")
    return path


def path_or_hub_id(name: str, field: str) -> str:
    """Returns the path of an existing file or folder, as [`existing_path`] does, or a name on the Hub unchanged.

    Raises:
        `ValueError`: If the name looks like a path, and there is no such file or folder.
    """
    if not looks_like_path(name):
        return name
    # A name such as "models/qwen" has the form of a Hub id, and is read as a path only because of a folder "models" in
    # the working folder. If nothing is there, the user may have meant the Hub, and the message must say so.
    owner, _, _ = name.rpartition("/")
    if name.count("/") == 1 and os.path.isdir(owner) and not os.path.exists(name):
        raise ValueError(
            f"{field} is {name!r}, which is read as a path, since {owner!r} is a folder here, but there is no such "
            "file or folder; correct the path, or rename that folder to use the Hub"
        )
    return existing_path(name, field)
