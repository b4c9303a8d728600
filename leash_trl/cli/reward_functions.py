"""Finds the reward functions that a recipe or a command line names: ours, TRL's, and the user's own."""

import hashlib
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trl.rewards import accuracy_reward, reasoning_accuracy_reward, think_format_reward

from leash_trl.paths import existing_path
from leash_trl.rewards import lenient_math_reward, math_reward, reasoning_gym_reward


OWN_REWARDS = (math_reward, lenient_math_reward)
REWARDS = (*OWN_REWARDS, reasoning_gym_reward, accuracy_reward, reasoning_accuracy_reward, think_format_reward)
REWARD_FUNCS = {reward.__name__: reward for reward in REWARDS}


def reward_functions(names: Sequence[str]) -> list[Any]:
    """Returns the reward functions with these names, import paths or `file.py:name`."""
    return [REWARD_FUNCS.get(name) or imported("reward_funcs", name, *REWARD_FUNCS) for name in names]


def function_name(text: str | None) -> str | None:
    """Returns the name of a reward function that is given by its name or as in `reward_funcs`.

    Example:
        >>> function_name("my_file.py:my_reward"), function_name("my_module.my_reward"), function_name("my_reward")
        ('my_reward', 'my_reward', 'my_reward')
    """
    return None if text is None else re.split(r"[:.]", text)[-1]


def imported(field: str, path: str, *names: str) -> Any:
    """Imports `module.name`, also from the working folder, or `file.py:name`. The `ValueError` for a failure lists the
    `names` that the field also accepts."""
    place, _, name = path.rpartition(":" if ".py:" in path else ".")
    file = Path(existing_path(place, f"the file in {field} {path!r}")).resolve() if place.endswith(".py") else None
    sys.path.insert(0, str(file.parent) if file else os.getcwd())
    try:
        # with the colon, errors inside the imported module are raised unchanged
        found = pkgutil.resolve_name(f"{file.stem if file else place}:{name}")
    except (ImportError, AttributeError, ValueError) as error:
        remedy = f"give {', '.join([*names, 'my_module.my_function'])} or my_file.py:my_function"
        raise ValueError(f"{field}: cannot load {path!r} ({error}); {remedy}") from error
    if file and (other := sys.modules[file.stem].__file__) != str(file):
        raise ValueError(f"{field} is {path!r}, but {other} has the same name; rename the file")
    return found


def code_digest(objects: Iterable[Any]) -> str:
    """Returns the [`digest`] of the modules that define the given classes and functions."""
    modules = {getattr(each, "func", each).__module__ for each in objects}  # of partial functions, the function's
    return digest(Path(str(sys.modules[name].__file__)) for name in sorted(modules))


def digest(files: Iterable[Path]) -> str:
    """Returns the SHA-256 of the contents of files."""
    sha = hashlib.sha256()
    for file in files:
        sha.update(file.read_bytes() if file.is_file() else b"")
    return sha.hexdigest()
