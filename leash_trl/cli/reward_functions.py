"""Finds the reward functions that a recipe or a command line names: ours, TRL's, and the user's own."""

import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trl.rewards import accuracy_reward, reasoning_accuracy_reward, think_format_reward
from trl.trainer.utils import get_callable_name

from leash_trl.importing import imported
from leash_trl.rewards import lenient_math_reward, math_reward, reasoning_gym_reward


OWN_REWARDS = (math_reward, lenient_math_reward)
REWARDS = (*OWN_REWARDS, reasoning_gym_reward, accuracy_reward, reasoning_accuracy_reward, think_format_reward)
REWARD_FUNCS = {reward.__name__: reward for reward in REWARDS}


def reward_functions(names: Sequence[str]) -> list[Any]:
    """Returns the reward functions with these names, import paths or `file.py:name`."""
    return [REWARD_FUNCS.get(name) or imported("reward_funcs", name, *REWARD_FUNCS) for name in names]


def deciding_function(text: str | None, functions: Sequence[Any]) -> Any:
    """Returns the function that the text of `correctness_func` means, which is one of these reward functions or
    another one; the text itself if it is the name of a reward model; or `None`.

    Args:
        text (`str`): Name of one of the functions, or a function as in `reward_funcs`.
        functions (`Sequence`): Reward functions, and names of reward models.

    Raises:
        `ValueError`: If there is no such function.
    """
    models = [model.split("/")[-1] for model in functions if isinstance(model, str)]
    if text is None or text in models:
        return text
    by_name = {get_callable_name(function): function for function in functions if callable(function)}
    named = by_name.get(text) or REWARD_FUNCS.get(text)
    return named or imported("correctness_func", text, *by_name, *models, *REWARD_FUNCS)


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
