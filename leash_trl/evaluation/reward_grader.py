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
    """Reward functions that decide correctness by the same rule as in training, which is [`CorrectnessRule`].

    Args:
        functions (`Sequence[Callable]`): Reward functions as for [`~trl.GRPOTrainer`], including async functions.
        weights (`Sequence[float]`): One weight for each function; 1 each by default.
        correctness_func (`Callable` or `str`): The function, or the name of one of them, whose positive reward means
            that an answer is correct. A function that is not among them has no weight.

    Attributes:
        correctness_rule ([`CorrectnessRule`]): The rule, with what it has seen of the rewards so far.
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
        """The reward functions and, if it is none of them, the function that decides correctness."""
        return [*self.functions, *self.correctness_rule.unweighted_functions]

    def observe_graded(self, completions: Iterable[Mapping[str, Any]]) -> None:
        """Records the rewards of completions that were graded before, which are fields of their records."""
        if self.correctness_rule.deciding_column is None:
            rewards = [completion["reward"] for completion in completions]
            rewards = [math.nan if reward is None else reward for reward in rewards]
            self.correctness_rule.observe(torch.tensor(rewards))

    def verdicts(
        self,
        rows: Mapping[str, list[Any]],
        texts: Sequence[str],
        token_ids: Sequence[Sequence[int]],
        thinking_markers: Sequence[ThinkingMarkers],
    ) -> list[dict[str, Any]]:
        """Returns the fields of graded completions for their records; `rows` has one value per problem, `texts`,
        `token_ids` and `thinking_markers` have k."""
        arguments = reward_arguments(rows, texts, token_ids)
        # A function that decides correctness, but is not a reward function, is called too.
        functions = bind_thinking_markers(self.all_functions, thinking_markers)
        names = [get_callable_name(function) for function in functions]
        # A row per completion and a column per function, with NaN for no reward, in float32 as in TRL's trainers.
        table = reward_table(functions, names, arguments, len(texts)).float()
        num_weighted = len(self.functions)
        weights = torch.tensor(self.weights or [1.0] * num_weighted)
        sums = weighted_task_rewards(table[:, :num_weighted], weights).tolist()
        # Without a chosen column, the sum decides; with several functions, `is_known` is then false.
        column = self.correctness_rule.deciding_column
        deciding_rewards = sums if column is None else table[:, column].tolist()
        # These rewards are observed first, since they may be the first that show partial credit.
        self.correctness_rule.observe(torch.tensor(deciding_rewards))
        verdicts = []
        for reward, deciding_reward in zip(sums, deciding_rewards, strict=True):
            is_scored = not math.isnan(deciding_reward)
            verdict = {
                "answer": None,
                "is_correct": deciding_reward > 0 if is_scored and self.correctness_rule.is_known else None,
                "reward": None if math.isnan(reward) else reward,
                "grader_failure": None if is_scored else "had no reward",
            }
            verdicts.append(verdict)
        return verdicts


def reward_arguments(
    rows: Mapping[str, list[Any]], texts: Sequence[str], token_ids: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Returns what TRL passes to reward functions, by name; `rows` has one value per problem, `texts` and `token_ids`
    have k."""
    num_samples = len(texts) // len(rows["prompt"])
    # The row of each completion's problem, such as [0, 0, 1, 1] for two samples of two problems.
    problems = [index // num_samples for index in range(len(texts))]
    columns = {name: [values[problem] for problem in problems] for name, values in rows.items()}
    # As in TRL, a column `completion` of the data set is not passed, and completions are messages if prompts are.
    columns.pop("completion", None)
    prompts = columns.pop("prompt")
    is_chat = not isinstance(prompts[0], str)
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    return columns | {
        "prompts": prompts,
        "completions": messages if is_chat else texts,
        "completion_ids": token_ids,
        # An evaluation has no trainer, which would have a state and logs.
        "trainer_state": None,
        "log_extra": _unlogged,
        "log_metric": _unlogged,
    }


def _unlogged(*args: Any) -> None:
    """Replaces the logging functions that the trainer passes."""
