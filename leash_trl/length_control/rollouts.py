"""`Rollouts`, the completions of all processes that a method sees, and `Score`, what it makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch


@dataclass(frozen=True)
class Rollouts:
    """N = P·G completions of one generation batch, the G completions of a prompt side by side; tensors are `(N,)`.

    Args:
        task_rewards: Weighted sum of the task rewards in reward units, float64; NaN where no function gave a reward.
        lengths: Tokens under control: those the model generated, EOS included, padding and tool output excluded; or
            of these only the thinking.
        target_lengths: Target of each completion's prompt in tokens, float64; NaN for no target.
        is_truncated: True where the completion ended without EOS.
        questions: A number that identifies the prompt and its images, int64, the same in every run.
        num_generations: G, the number of completions per prompt.
        max_completion_length: Generation limit of this batch in tokens; infinite for no limit.
        correctness_rewards: The reward that decides what is correct; by default the task reward. Where it is NaN,
            correctness is not known, whatever the other rewards say.
        is_correctness_known: False if `task_rewards` sums several reward functions and none is said to decide what is
            correct. The statistics then leave out accuracy.
        answer_lengths: Tokens after the thinking, where `lengths` count the thinking alone; `None` where they count
            the whole completion.
        columns: Values, one per completion, of the data set columns that the method reads; `None` where a row has
            none.
    """

    task_rewards: torch.Tensor
    lengths: torch.Tensor
    target_lengths: torch.Tensor
    is_truncated: torch.Tensor
    questions: torch.Tensor
    num_generations: int
    max_completion_length: float
    correctness_rewards: torch.Tensor | None = None
    is_correctness_known: bool = True
    answer_lengths: torch.Tensor | None = None
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def completion_lengths(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: All tokens that the model generated, whatever is under control."""
        return self.lengths if self.answer_lengths is None else self.lengths + self.answer_lengths

    @property
    def _deciding_rewards(self) -> torch.Tensor:
        return self.task_rewards if self.correctness_rewards is None else self.correctness_rewards

    @property
    def is_scorable(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: False where it is not known whether the completion is correct."""
        return ~torch.isnan(self._deciding_rewards)

    @property
    def is_correct(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: True where the deciding reward is positive, on either scale."""
        return self._deciding_rewards > 0

    @property
    def correctness(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: 1 where correct, 0 where not, NaN where unscorable; float64."""
        return self.is_correct.double().masked_fill(~self.is_scorable, torch.nan)

    @property
    def scorable_lengths(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Lengths in tokens, NaN where unscorable; float64."""
        return self.lengths.double().masked_fill(~self.is_scorable, torch.nan)

    @property
    def correct_lengths(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Lengths in tokens of correct completions, NaN for all others; float64."""
        return self.lengths.double().masked_fill(~self.is_correct, torch.nan)

    @property
    def solve_rates(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Share of correct completions among the scorable ones of the same prompt."""
        rates_P1 = self.by_group(self.correctness).nanmean(dim=1, keepdim=True)
        return rates_P1.expand(-1, self.num_generations).flatten()

    def by_group(self, values: torch.Tensor) -> torch.Tensor:
        """`torch.Tensor` of shape `(P, G)`: The values of `(N,)` with one row per prompt."""
        return values.view(-1, self.num_generations)


@dataclass(frozen=True)
class Score:
    """What a method makes of N completions, all `torch.Tensor` of shape `(N,)`.

    Args:
        base: Rewards before length, on the method's own scale; NaN where unscorable.
        penalty: Price of the length in reward units, before any clip; a bonus is negative.
        shaped: Shaped rewards in float64; NaN where unscorable.
        advantages: Advantages in float64; 0 where unscorable.
    """

    base: torch.Tensor
    penalty: torch.Tensor
    shaped: torch.Tensor
    advantages: torch.Tensor

    def where(self, is_own: torch.Tensor, other: "Score") -> "Score":
        """This score where `is_own` of shape `(N,)` is true, else the other one, which has the same fields."""
        return Score(**{name: own.where(is_own, vars(other)[name]) for name, own in vars(self).items()})


def joined(parts: Sequence[Any], rows: torch.Tensor | None = None) -> Any:
    """Several `Rollouts`, or several `Score`, as one, or only `rows` of it, which must be complete groups.

    What is no value per completion, such as the generation limit, is the first part's.
    """
    first = parts[0]
    if isinstance(first, torch.Tensor):
        values = torch.cat(list(parts))
        return values if rows is None else values[rows]
    if isinstance(first, tuple | list):
        column = [value for part in parts for value in part]
        return column if rows is None else [column[row] for row in rows.tolist()]
    if isinstance(first, Mapping):
        return {name: joined([part[name] for part in parts], rows) for name in first}
    if isinstance(first, Rollouts | Score):
        return replace(first, **joined([vars(part) for part in parts], rows))
    return first


def weighted_task_rewards(rewards_per_func: torch.Tensor, reward_weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum of shape `(N,)`, in reward units, of task rewards of shape `(N, K)` that are not NaN; NaN if all
    are.

    Example:
        >>> rewards = torch.tensor([[1.0, 0.5], [-1.0, float("nan")], [float("nan"), float("nan")]])
        >>> weighted_task_rewards(rewards, torch.tensor([1.0, 0.5]))
        tensor([ 1.2500, -1.0000,     nan], dtype=torch.float64)
    """
    rewards = rewards_per_func.double()
    sums = (rewards * reward_weights.double()).nansum(dim=1)
    return sums.masked_fill(torch.isnan(rewards).all(dim=1), torch.nan)
