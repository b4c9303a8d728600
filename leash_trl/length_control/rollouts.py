"""`Rollouts`, the completions that a method receives, and `Score`, the rewards and advantages that it gives them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import torch


FLOAT32_ERROR = 1e-6  # rewards and their weights come in float32; those that differ by a smaller share are equal
LEAST_LENGTH = 1e-9  # stands in for a length of 0 in a denominator; costs may be fractions


@dataclass(frozen=True)
class Rollouts:
    """The N = P·G completions of one generation batch, ordered by prompt; all tensors have shape `(N,)`.

    Args:
        task_rewards: Weighted sum of the task rewards in reward units, float64; NaN where no function returned one.
        lengths: What the target limits, by default the number of tokens that the model generated, including EOS,
            without padding and tool output; or another cost of at least 0, in the unit of `length_of`.
        target_lengths: Target of each completion in the same unit, float64; NaN if it has none.
        is_truncated: True where the completion ended without EOS.
        questions: Number that identifies the prompt and its images and is the same in every run, int64.
        num_generations: G, the number of completions per prompt.
        max_completion_length: Largest possible length: the generation limit of this batch; infinite for no limit, or
            if lengths are no tokens.
        common_target: Target that all prompts of the run have at this step, in the same unit; NaN if the data set or
            the method gives them targets of their own.
        correctness_rewards: Reward that is positive for a correct answer; `None` for the task reward. Where it is NaN,
            correctness is not known and the completion is called unscorable, even if other rewards are known.
        is_correctness_known: False if it is not known which answers are correct, since there are several reward
            functions or partial credit, and no function is chosen to decide it ([`CorrectnessRule`]). Accuracy is then
            left out of the statistics.
        num_tokens: Number of all tokens that the model generated, if `lengths` are something else; else `None`.
        columns: Values of the data set columns that the method reads, one per completion; `None` where a row has no
            value.
    """

    task_rewards: torch.Tensor
    lengths: torch.Tensor
    target_lengths: torch.Tensor
    is_truncated: torch.Tensor
    questions: torch.Tensor
    num_generations: int
    max_completion_length: float
    common_target: float = math.nan
    correctness_rewards: torch.Tensor | None = None
    is_correctness_known: bool = True
    num_tokens: torch.Tensor | None = None
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def completion_lengths(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Number of all tokens that the model generated, whatever `lengths` are."""
        return self.lengths if self.num_tokens is None else self.num_tokens

    @property
    def deciding_rewards(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Reward that decides whether the completion is correct; NaN where unknown."""
        return self.task_rewards if self.correctness_rewards is None else self.correctness_rewards

    @property
    def is_scorable(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: False where it is not known whether the completion is correct."""
        return ~torch.isnan(self.deciding_rewards)

    @property
    def is_correct(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: True where the reward that decides correctness is positive."""
        return self.deciding_rewards > 0

    @property
    def correctness(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: 1 where correct, 0 where wrong, NaN where unscorable; float64."""
        return self.is_correct.double().masked_fill(~self.is_scorable, torch.nan)

    @property
    def scorable_lengths(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Lengths, in what `length_of` counts, NaN where unscorable; float64."""
        return self.lengths.double().masked_fill(~self.is_scorable, torch.nan)

    @property
    def correct_lengths(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Lengths of correct completions, NaN for all others; float64."""
        return self.lengths.double().masked_fill(~self.is_correct, torch.nan)

    @property
    def solve_rates(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Share of correct completions among the scorable ones of the same prompt; NaN
        if there are none."""
        rates_P1 = self.by_group(self.correctness).nanmean(dim=1, keepdim=True)
        return rates_P1.expand(-1, self.num_generations).flatten()

    def by_group(self, values: torch.Tensor) -> torch.Tensor:
        """`torch.Tensor` of shape `(P, G)`: The values of `(N,)` with one row per prompt."""
        return values.view(-1, self.num_generations)


@dataclass(frozen=True)
class Score:
    """Rewards, penalties and advantages of N completions by a method, all `torch.Tensor` of shape `(N,)`.

    Args:
        base: Rewards without the length term, on the method's own scale; NaN where unscorable.
        penalty: Length penalty in reward units, before any clipping; a bonus is negative.
        shaped: Shaped rewards in float64; NaN where unscorable.
        advantages: Advantages in float64; 0 where unscorable.
    """

    base: torch.Tensor
    penalty: torch.Tensor
    shaped: torch.Tensor
    advantages: torch.Tensor


def concatenated(parts: Sequence[Any]) -> Any:
    """Returns several `Rollouts`, or several `Score`, as one.

    Values that exist once per batch, such as the generation limit, are taken from the first part; correctness is known
    if it is in all parts.
    """
    changes = {name: _joined([getattr(part, name) for part in parts]) for name in vars(parts[0])}
    return replace(parts[0], **changes)


def _joined(values: list[Any]) -> Any:
    """Returns the value of a field for several parts."""
    first = values[0]
    if isinstance(first, torch.Tensor):  # of shape (N,)
        return torch.cat(values)
    if isinstance(first, Mapping):  # columns of the data set, such as {"effort": ["low", "high"]}
        return {column: [*chain.from_iterable(value[column] for value in values)] for column in first}
    if isinstance(first, bool):  # `is_correctness_known`
        return all(values)
    return first


def selected(part: Any, rows: torch.Tensor) -> Any:
    """Returns only some rows of `Rollouts` or of a `Score`; those of `Rollouts` must form complete groups."""
    changes: dict[str, Any] = {}
    # Fields that have a value for each completion are selected from; the others, such as the group size, stay.
    for name, value in vars(part).items():
        if isinstance(value, torch.Tensor):  # of shape (N,)
            changes[name] = value[rows]
        elif isinstance(value, Mapping):  # columns of the data set, such as {"effort": ["low", "high"]}
            changes[name] = {column: [values[row] for row in rows.tolist()] for column, values in value.items()}
    return replace(part, **changes)


def weighted_task_rewards(rewards_per_func: torch.Tensor, reward_weights: torch.Tensor) -> torch.Tensor:
    """Returns the weighted sum of task rewards of shape `(N, K)`, in reward units and shape `(N,)`. A reward of NaN is
    left out; the sum is NaN if all rewards are.

    Example:
        >>> rewards = torch.tensor([[1.0, 0.5], [-1.0, float("nan")], [float("nan"), float("nan")]])
        >>> weighted_task_rewards(rewards, torch.tensor([1.0, 0.5]))
        tensor([ 1.2500, -1.0000,     nan], dtype=torch.float64)
    """
    rewards_NK = rewards_per_func.double()
    sums_N = (rewards_NK * reward_weights.double()).nansum(dim=1)
    has_no_reward_N = torch.isnan(rewards_NK).all(dim=1)
    return sums_N.masked_fill(has_no_reward_N, torch.nan)
