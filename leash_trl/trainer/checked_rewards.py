"""What reward functions return, held to what is due before TRL makes a tensor of it, or of a dictionary's keys."""

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import torch


class RewardError(ValueError):
    """A reward function gave what is no reward; the message names it."""


def checked(reward_func: Any, name: str) -> Any:
    """A reward function that returns one float or `None` a completion, or raises.

    Args:
        reward_func (`RewardFunc`):
            As TRL calls it, async too. Reward models stay as they are.
        name (`str`):
            Its name in the logs.

    Returns:
        `RewardFunc`: It raises [`RewardError`] where the function returns anything else.

    Example:
        >>> checked(lambda prompts: [1, None], "mine")(prompts=["a", "b"])
        [1.0, None]
        >>> checked(lambda prompts: {"a": 1}, "mine")(prompts=["a"])
        Traceback (most recent call last):
        leash_trl.trainer.checked_rewards.RewardError: the reward function 'mine' returned {'a': 1}, but must return a
        list of 1 numbers, one a completion, with None for what it cannot score
    """
    if isinstance(reward_func, torch.nn.Module):
        return reward_func
    func: Callable[..., Any] = reward_func
    # an object may be async by its `__call__`
    if inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(type(func).__call__):

        async def call_async(**kwargs: Any) -> list[float | None]:
            return _rewards(await func(**kwargs), name, len(kwargs["prompts"]))

        return call_async

    def call(**kwargs: Any) -> list[float | None]:
        return _rewards(func(**kwargs), name, len(kwargs["prompts"]))

    return call


def _rewards(returned: Any, name: str, count: int) -> list[float | None]:
    refusal = RewardError(_problem(name, repr(returned), count))
    if isinstance(returned, str | bytes | Mapping | Set):
        raise refusal
    try:
        iterator = iter(returned)
    except TypeError:  # a number, or what a coroutine would give
        raise refusal from None
    values = list(iterator)  # what a generator raises is its own
    try:
        rewards = [_reward(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        raise refusal from None
    if len(rewards) != count:
        raise RewardError(_problem(name, f"{len(rewards)} rewards", count))
    return rewards


def _reward(value: Any) -> float | None:
    # text may be the text of a number, and an array of one number becomes a float
    if isinstance(value, str | bytes) or getattr(value, "ndim", 0) > 0:
        raise TypeError
    return None if value is None else float(value)


def check_finite(rewards: torch.Tensor, names: Iterable[str]) -> None:
    """Raises [`RewardError`] if a reward is infinite, which would train on NaN; NaN itself means `None`.

    Args:
        rewards (`torch.Tensor` of shape (N, functions)):
            Rewards of all processes.
        names (`Iterable[str]`):
            Names of the functions.
    """
    for column, name in zip(rewards.T, names, strict=True):
        if (infinite := column[column.isinf()]).numel():
            raise RewardError(_problem(name, f"{infinite[0].item()} for one of them", len(column)))


def _problem(name: str, returned: str, count: int) -> str:
    shown = textwrap.shorten(returned, 200, placeholder=" ...")
    return (
        f"the reward function {name!r} returned {shown}, but must return a list of {count} numbers, one a completion, "
        "with None for what it cannot score"
    )
