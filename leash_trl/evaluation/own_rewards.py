"""Grades completions with a user's own reward functions, called as TRL's trainers call them."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl.trainer.utils import get_callable_name, start_event_loop_in_daemon

from leash_trl.length_control.rollouts import weighted_task_rewards


_event_loop = functools.cache(start_event_loop_in_daemon)  # one for all calls: a function can keep a client open


@dataclass(frozen=True)
class OwnRewards:
    """Reward functions that decide correctness by the same rule as in training: a positive reward is correct.

    Args:
        functions (`Sequence[Callable]`): Reward functions as for [`~trl.GRPOTrainer`], including async functions.
        weights (`Sequence[float]`): One weight for each function; 1 each by default.
        correctness_func (`str`): Name of the function that decides correctness, instead of the weighted sum.
    """

    functions: Sequence[Callable[..., Any]]
    weights: Sequence[float] | None = None
    correctness_func: str | None = None

    def __post_init__(self) -> None:
        names = [*map(get_callable_name, self.functions)]
        if self.weights is not None and len(self.weights) != len(names):
            raise ValueError(f"reward_weights are {self.weights}, but must be one for each of {', '.join(names)}")
        if self.correctness_func not in (None, *names):
            raise ValueError(f"correctness_func is {self.correctness_func!r}, but must be one of {', '.join(names)}")

    @property
    def knows_correctness(self) -> bool:
        """Whether a function decides correctness: the only one, or the chosen one of several."""
        return self.correctness_func is not None or len(self.functions) == 1

    def verdicts(
        self, rows: Mapping[str, list[Any]], texts: Sequence[str], token_ids: Sequence[Sequence[int]]
    ) -> list[dict[str, Any]]:
        """Returns the fields of graded completions for their records; `rows` has one value per problem, the others
        have k."""
        k = len(texts) // len(rows["prompt"])
        columns = {name: [value for value in values for _ in range(k)] for name, values in rows.items()}
        is_chat = not isinstance(rows["prompt"][0], str)
        given = {
            **{name: values for name, values in columns.items() if name not in ("prompt", "completion")},
            "prompts": columns["prompt"],
            "completions": [[{"role": "assistant", "content": text}] if is_chat else text for text in texts],
            "completion_ids": token_ids,
            "trainer_state": None,
            "log_extra": _unlogged,
            "log_metric": _unlogged,
        }
        rewards = [_called(function, given, len(texts)) for function in self.functions]
        table = torch.tensor(rewards, dtype=torch.float32).T  # the trainer's precision
        sums = weighted_task_rewards(table, torch.tensor(self.weights or [1.0] * len(rewards))).tolist()
        names = [*map(get_callable_name, self.functions)]
        deciding = table[:, names.index(self.correctness_func)].tolist() if self.correctness_func else sums
        return [
            {
                "answer": None,
                "is_correct": right > 0 if self.knows_correctness and right == right else None,
                "reward": None if reward != reward else reward,
                "grader_failure": "had no reward" if right != right else None,
            }
            for reward, right in zip(sums, deciding, strict=True)
        ]


def _called(function: Callable[..., Any], given: Mapping[str, Any], size: int) -> list[float]:
    found = function(**given)
    if inspect.iscoroutine(found):
        found = asyncio.run_coroutine_threadsafe(found, _event_loop()[1]).result()
    found = [*found]
    if len(found) != size:
        raise ValueError(f"{get_callable_name(function)} returned {len(found)} rewards for {size} completions")
    return [torch.nan if reward is None else float(reward) for reward in found]


def _unlogged(*args: Any) -> None:
    """Replaces the logging functions that the trainer passes."""
