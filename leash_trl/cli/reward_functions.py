"""Finds the reward functions that a recipe or a command line names: ours, TRL's, and the user's own."""

import hashlib
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trl.rewards import accuracy_reward, reasoning_accuracy_reward, think_format_reward

from leash_trl.importing import imported
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
