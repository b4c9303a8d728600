"""Checks what reward functions return before TRL makes a tensor of it: one finite number or `None` a completion."""

import inspect
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import torch


class RewardError(ValueError):
    """A reward function returned something that is not a reward; the message names both."""


@contextmanager
def rewards_checked(trainer: Any) -> Iterator[None]:
    """Within this context a trainer's reward functions are checked; `reward_funcs` stays the user's own list.

    Args:
        trainer ([`~trl.GRPOTrainer`]):
            A trainer that is about to call its reward functions.
    """
    given = trainer.reward_funcs
    trainer.reward_funcs = [checked(func, name) for func, name in zip(given, trainer.reward_func_names, strict=True)]
    try:
        yield
    finally:
        trainer.reward_funcs = given


def check_finite(rewards: torch.Tensor, names: Iterable[str]) -> None:
    """Raises [`RewardError`] if a reward is infinite, a reward model's or one too large for float32: it trains on NaN.

    Args:
        rewards (`torch.Tensor` of shape `(N, K)`):
            Rewards of K functions for the completions of all processes; NaN for no reward.
        names (`Iterable[str]`):
            Names of the functions.
    """
    for column, name in zip(rewards.T, names, strict=True):
        if column.isinf().any():
            raise RewardError(
                f"the reward function {name!r} returned a reward that is infinite in float32, but must return finite "
                "numbers, with None for what it cannot score"
            )


def checked(reward_func: Any, name: str) -> Any:
    """Wraps a reward function so that it returns, for each completion, one finite float, or `None` or NaN for no
    reward.

    Args:
        reward_func (`RewardFunc`):
            As TRL calls it, async too; if it returns anything else, the wrapper raises [`RewardError`]. Reward models
            stay as they are.
        name (`str`):
            Its name in the logs.

    Example:
        >>> checked(lambda prompts: [1, None], "mine")(prompts=["a", "b"])
        [1.0, None]
        >>> checked(lambda prompts: {"a": 1}, "mine")(prompts=["a"])
        Traceback (most recent call last):
        leash_trl.trainer.checked_rewards.RewardError: the reward function 'mine' returned {'a': 1}, but must return a
        list of 1 finite numbers, one a completion, with None for what it cannot score
    """
    if isinstance(reward_func, torch.nn.Module):
        return reward_func
    # an object can be async through its `__call__`
    if inspect.iscoroutinefunction(reward_func) or inspect.iscoroutinefunction(type(reward_func).__call__):

        async def call_async(**kwargs: Any) -> list[float | None]:
            return _rewards(await reward_func(**kwargs), name, len(kwargs["prompts"]))

        return call_async

    def call(**kwargs: Any) -> list[float | None]:
        return _rewards(reward_func(**kwargs), name, len(kwargs["prompts"]))

    return call


def _rewards(returned: Any, name: str, count: int) -> list[float | None]:
    try:
        iterator = iter(() if isinstance(returned, str | bytes | Mapping | Set) else returned)
    except TypeError:  # a number, or the result of a coroutine
        iterator = iter(())
    values = list(iterator)  # outside the try: what a generator raises passes through
    try:
        rewards = [_reward(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        rewards = []
    if len(rewards) != count:
        shown = f"{len(rewards)} rewards" if rewards else repr(values or returned)
        raise RewardError(
            f"the reward function {name!r} returned {textwrap.shorten(shown, 200, placeholder=' ...')}, but must "
            f"return a list of {count} finite numbers, one a completion, with None for what it cannot score"
        )
    return rewards


def _reward(value: Any) -> float | None:
    # float() would accept the text of a number; an array of one number becomes a float
    if isinstance(value, str | bytes) or getattr(value, "ndim", 0) > 0:
        raise TypeError
    reward = None if value is None else float(value)
    if reward is not None and math.isinf(reward):  # it would train on NaN
        raise ValueError
    return reward
