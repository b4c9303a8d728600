"""Grades completions with a user's own reward functions, called as TRL's trainers call them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from trl.trainer.utils import get_callable_name

from leash_trl.completions.thinking import ThinkingMarkers
from leash_trl.length_control.correctness import CorrectnessRule
from leash_trl.length_control.rollouts import weighted_task_rewards
from leash_trl.reward_calls import bind_thinking_markers, reward_table


@dataclass
class RewardGrader:
    """Grades with reward functions, and decides on correctness by the rule of training, [`CorrectnessRule`].

    Args:
        functions (`Sequence[Callable]`): Reward functions as for [`~trl.GRPOTrainer`], including async functions.
        weights (`Sequence[float]`): One weight for each function; 1 each by default.
        correctness_func (`Callable` or `str`): Function, or the name of a function in `functions`, whose positive
            reward means that an answer is correct. A function that is not among `functions` has no weight.

    Attributes:
        correctness_rule ([`CorrectnessRule`]): The rule, which depends on the rewards that were observed so far.

    Raises:
        `ValueError`: If the number of weights is wrong, or no function has the name.
    """

    functions: Sequence[Callable[..., Any]]
    weights: Sequence[float] | None = None
    correctness_func: Callable[..., Any] | str | None = None
    correctness_rule: CorrectnessRule = field(init=False)

    def __post_init__(self) -> None:
        names = [get_callable_name(function) for function in self.functions]
        if self.weights is not None and len(self.weights) != len(names):
            raise ValueError(f"reward_weights are {self.weights}, but must be one for each of {', '.join(names)}")
        deciding_name = get_callable_name(self.correctness_func)
        self.correctness_rule = CorrectnessRule(self.functions, names, self.correctness_func, deciding_name)

    @property
    def all_functions(self) -> list[Callable[..., Any]]:
        """The reward functions and, if it is another one, the function that decides on correctness."""
        return [*self.functions, *self.correctness_rule.unweighted_functions]

    def observe_graded(self, completions: Iterable[Mapping[str, Any]]) -> None:
        """Lets the rule observe the rewards of completions that were graded before, by their records. The rule does
        not need them if a deciding function is chosen."""
        if self.correctness_rule.deciding_column is None:
            rewards = [completion["reward"] for completion in completions]
            rewards = [math.nan if reward is None else reward for reward in rewards]
            self.correctness_rule.observe(torch.tensor(rewards))

    def verdicts(
        self, arguments: Mapping[str, Any], thinking_markers: Sequence[ThinkingMarkers]
    ) -> list[dict[str, Any]]:
        """Returns the fields of graded completions for their records.

        Args:
            arguments (`Mapping[str, Any]`): Arguments of the functions, as [`reward_arguments`] returns them.
            thinking_markers (`Sequence[ThinkingMarkers]`): Markers of each completion.
        """
        # The functions, and the one that decides correctness if it is not among them.
        functions = bind_thinking_markers(self.all_functions, thinking_markers)
        names = [get_callable_name(function) for function in functions]
        num_completions = len(arguments["completion_ids"])
        # The table has shape (completions, functions), with NaN for no reward, in float32 as in TRL's trainers.
        table = reward_table(functions, names, arguments, num_completions).float()
        num_weighted = len(self.functions)
        weights = torch.tensor(self.weights or [1.0] * num_weighted)
        totals = weighted_task_rewards(table[:, :num_weighted], weights)
        # Without a chosen column, the sum takes its place; with several functions, correctness is then not known.
        column = self.correctness_rule.deciding_column
        deciding_rewards = totals if column is None else table[:, column]
        # The rule observes these rewards before it is asked, since they may be the first that show partial credit.
        self.correctness_rule.observe(deciding_rewards)
        is_known = self.correctness_rule.is_known
        verdicts = []
        for total, deciding in zip(totals.tolist(), deciding_rewards.tolist(), strict=True):
            is_scored = not math.isnan(deciding)
            verdict = {
                "answer": None,
                "is_correct": deciding > 0 if is_scored and is_known else None,
                "reward": None if math.isnan(total) else total,
                "grader_failure": None if is_scored else "had no reward",
            }
            verdicts.append(verdict)
        return verdicts


def reward_arguments(
    rows: Mapping[str, list[Any]], texts: Sequence[str], token_ids: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Returns what TRL passes to reward functions, by name.

    Args:
        rows (`Mapping[str, list]`): Columns of the data set, with the value of its problem for each completion.
        texts (`Sequence[str]`), token_ids (`Sequence[Sequence[int]]`): Texts and tokens of the completions.
    """
    prompts = rows["prompt"]
    completions: Sequence[Any] = texts
    if not isinstance(prompts[0], str):
        # As in TRL, completions are messages if prompts are.
        completions = [[{"role": "assistant", "content": text}] for text in texts]
    # As in TRL, columns `prompt` and `completion` of the data set are not passed.
    columns = {name: values for name, values in rows.items() if name not in ("prompt", "completion")}
    return columns | {
        "prompts": prompts,
        "completions": completions,
        "completion_ids": token_ids,
        # An evaluation has no trainer, which would have a state and logs.
        "trainer_state": None,
        "log_extra": _unlogged,
        "log_metric": _unlogged,
    }


def _unlogged(*args: Any) -> None:
    """Replaces the logging functions that the trainer passes."""
