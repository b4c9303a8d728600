"""Calls reward functions as TRL's trainers do: all arguments by name, async functions together, and `None` for a
completion that a function cannot score."""

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from leash_trl.completions.thinking import ThinkingMarkers
from leash_trl.errors import TrainingError


def bind_thinking_markers(functions: Iterable[Any], markers: Sequence[ThinkingMarkers]) -> list[Any]:
    """Returns the reward functions with the markers of each completion bound to their parameter `thinking_markers`, if
    they have one, as [`~leash_trl.rewards.math_reward`] does. TRL logs a bound function under the name of the function
    itself."""
    # A partial can be pickled, which a nested function cannot.
    return [
        functools.partial(function, thinking_markers=markers) if _takes_thinking_markers(function) else function
        for function in functions
    ]


def _takes_thinking_markers(function: Any) -> bool:
    """Returns whether a reward function has a parameter for the markers, which the user has not bound already."""
    is_set = isinstance(function, functools.partial) and "thinking_markers" in function.keywords
    parameter = inspect.signature(function).parameters.get("thinking_markers")
    if is_set or parameter is None:
        return False
    # A parameter of that name whose default is of another type, such as a text, has another meaning.
    return parameter.default is parameter.empty or isinstance(parameter.default, ThinkingMarkers | None)


def reward_table(
    functions: Sequence[Callable[..., Any]],
    names: Sequence[str],
    arguments: Mapping[str, Any],
    num_completions: int,
) -> torch.Tensor:
    """Returns the rewards of all functions, of shape `(N, K)`; NaN where a function returned `None`. They are in
    float64, the precision of Python's numbers, so that none is rounded.

    Source: `GRPOTrainer._calculate_rewards` of TRL 1.16.

    Args:
        functions (`Sequence[Callable]`), names (`Sequence[str]`): The K functions, which may be async, and their
            names for messages.
        arguments (`Mapping[str, Any]`): What each function gets, by name.
        num_completions (`int`): N.

    Raises:
        `ValueError`: If a function does not return one reward per completion.
        `TrainingError`: If a function returns a reward that is infinite in float32.

    Example:
        >>> def is_short(completions):
        ...     return [float(len(text) < 3) if text else None for text in completions]
        >>> reward_table([is_short], ["is_short"], {"completions": ["ab", "abc", ""]}, num_completions=3)
        tensor([[1.],
                [0.],
                [nan]], dtype=torch.float64)
    """
    # A function returns one float or `None` per completion, and an async function a coroutine that will return them.
    returned = [function(**arguments) for function in functions]
    if any(inspect.isawaitable(rewards) for rewards in returned):
        # The loop runs in a thread of its own, because the caller's thread may run a loop already, as in a notebook.
        returned = asyncio.run_coroutine_threadsafe(_awaited(returned), event_loop()).result()
    columns = []  # a list for each function, such as [[1.0, nan, -1.0]] for one function and three completions
    for rewards, name in zip(returned, names, strict=True):
        column = [torch.nan if reward is None else float(reward) for reward in rewards]
        if len(column) != num_completions:
            raise ValueError(
                f"{name} returned {len(column)} rewards for {num_completions} completions, but must return one for "
                "each, with None for what it cannot score"
            )
        columns.append(column)
    rewards_NK = torch.tensor(columns, dtype=torch.float64).T
    check_finite_rewards(rewards_NK, names)
    return rewards_NK


def check_finite_rewards(rewards_NK: torch.Tensor, names: Sequence[str]) -> None:
    """Raises `TrainingError` if a function returned a reward that is infinite in float32, which would make the loss
    NaN."""
    for rewards_N, name in zip(rewards_NK.T, names, strict=True):
        # Trainers store rewards in float32, in which a finite float64 such as 1e39 becomes infinite.
        if rewards_N.float().isinf().any():
            raise TrainingError(
                f"the reward function {name!r} returned a reward that is infinite in float32, but must return finite "
                "numbers, with None for what it cannot score"
            )


async def _awaited(returned: Sequence[Any]) -> list[Any]:
    """Returns the rewards of all functions, after awaiting those of the async functions together, as TRL does."""
    awaited_rewards = iter(await asyncio.gather(*filter(inspect.isawaitable, returned)))
    # `gather` keeps the order, so that the next result belongs to the next async function.
    return [next(awaited_rewards) if inspect.isawaitable(rewards) else rewards for rewards in returned]


@functools.cache
def event_loop() -> asyncio.AbstractEventLoop:
    """Returns the event loop of all async reward functions: always the same, since a function can keep a client open
    that belongs to the loop."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="reward functions", daemon=True).start()
    return loop
