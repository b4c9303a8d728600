"""Grades completions with a user's own reward functions, called as TRL's trainers call them."""

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from trl.trainer.utils import get_callable_name, start_event_loop_in_daemon

from leash_trl.length_control.correctness import CorrectnessRule
from leash_trl.length_control.rollouts import weighted_task_rewards
from leash_trl.model_facts import with_opened_thinking


_event_loop = functools.cache(start_event_loop_in_daemon)  # one for all calls: a function can keep a client open


@dataclass(frozen=True)
class OwnRewards:
    """Reward functions that decide correctness by the same rule as in training, which is [`CorrectnessRule`].

    Args:
        functions (`Sequence[Callable]`): Reward functions as for [`~trl.GRPOTrainer`], including async functions.
        weights (`Sequence[float]`): One weight for each function; 1 each by default.
        correctness_func (`Callable` or `str`): The function, or the name of one of them, whose positive reward means
            that an answer is correct. A function that is not among them has no weight.
        opens_thinking (`bool`): Whether the chat template opens `<think>` in the prompt.

    Attributes:
        correctness ([`CorrectnessRule`]): The rule, with what it has seen of the rewards so far.
    """

    functions: Sequence[Callable[..., Any]]
    weights: Sequence[float] | None = None
    correctness_func: Callable[..., Any] | str | None = None
    opens_thinking: bool = False
    correctness: CorrectnessRule = field(init=False)

    def __post_init__(self) -> None:
        names = [get_callable_name(function) for function in self.functions]
        if self.weights is not None and len(self.weights) != len(names):
            raise ValueError(f"reward_weights are {self.weights}, but must be one for each of {', '.join(names)}")
        deciding_name = get_callable_name(self.correctness_func)
        rule = CorrectnessRule(self.functions, names, self.correctness_func, deciding_name)
        object.__setattr__(self, "correctness", rule)  # since the dataclass is frozen

    def resume(self, completions: Iterable[Mapping[str, Any]]) -> None:
        """Records the rewards of completions that were graded before, which are fields of their records."""
        if self.correctness.column is None:
            rewards = [completion["reward"] for completion in completions]
            rewards = [math.nan if reward is None else reward for reward in rewards]
            self.correctness.observe(torch.tensor(rewards))

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
        size, column = len(self.functions), self.correctness.column
        functions = [*self.functions, *self.correctness.extra]
        functions = with_opened_thinking(functions) if self.opens_thinking else functions
        rewards = [_called(function, given, len(texts)) for function in functions]
        table = torch.tensor(rewards, dtype=torch.float32).T  # the trainer's precision
        weights = torch.tensor(self.weights or [1.0] * size)
        sums = weighted_task_rewards(table[:, :size], weights).tolist()
        deciding = sums if column is None else table[:, column].tolist()
        self.correctness.observe(torch.tensor(deciding))
        return [
            {
                "answer": None,
                "is_correct": right > 0 if self.correctness.is_known and right == right else None,
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
