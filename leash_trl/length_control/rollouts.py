"""What a length-control method sees: the completions of one generation batch, gathered over all processes."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rollouts:
    """N = P·G completions of one generation batch, the G completions of a prompt side by side.

    Args:
        task_rewards (`torch.Tensor` of shape `(N,)`):
            Weighted sum of the task rewards in reward units, float64; NaN where no reward function could score.
        lengths (`torch.Tensor` of shape `(N,)`):
            Tokens the model generated, EOS included, padding and tool output excluded.
        num_generations (`int`):
            G, the number of completions per prompt.

    Raises:
        `ValueError`: If the two tensors differ in shape or N is not a multiple of G.
    """

    task_rewards: torch.Tensor
    lengths: torch.Tensor
    num_generations: int

    def __post_init__(self) -> None:
        if self.task_rewards.shape != self.lengths.shape or self.lengths.ndim != 1:
            raise ValueError(
                f"task_rewards {tuple(self.task_rewards.shape)} and lengths {tuple(self.lengths.shape)} must be one "
                "value per completion each"
            )
        if len(self.lengths) % self.num_generations != 0:
            raise ValueError(
                f"{len(self.lengths)} completions are not whole groups of num_generations={self.num_generations}"
            )

    @property
    def is_scorable(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: False where every reward function returned None."""
        return ~torch.isnan(self.task_rewards)

    @property
    def is_correct(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: True where the task reward is positive (+1 on the paper's scale)."""
        return self.task_rewards > 0


def weighted_task_rewards(rewards_per_func: torch.Tensor, reward_weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum of the task rewards of every completion, in reward units.

    Args:
        rewards_per_func (`torch.Tensor` of shape `(N, K)`):
            Rewards of K functions; NaN where a function returned None.
        reward_weights (`torch.Tensor` of shape `(K,)`):
            Weights, dimensionless.

    Returns:
        `torch.Tensor` of shape `(N,)`: Sums in float64 over the functions that did score; NaN where none did.

    Example:
        >>> rewards = torch.tensor([[1.0, 0.5], [-1.0, float("nan")], [float("nan"), float("nan")]])
        >>> weighted_task_rewards(rewards, torch.tensor([1.0, 0.5]))
        tensor([ 1.2500, -1.0000,     nan], dtype=torch.float64)
    """
    rewards = rewards_per_func.double()
    sums = (rewards * reward_weights.double()).nansum(dim=1)
    return sums.masked_fill(torch.isnan(rewards).all(dim=1), torch.nan)


def looks_zero_one(task_rewards: torch.Tensor) -> bool:
    """Whether rewards look like {0, 1} instead of the paper's {-1, +1}: some are 0 and none is negative.

    Example:
        >>> looks_zero_one(torch.tensor([0.0, 1.0])), looks_zero_one(torch.tensor([-1.0, 1.0]))
        (True, False)
    """
    scores = task_rewards[~torch.isnan(task_rewards)]
    return bool((scores == 0).any() and (scores >= 0).all())
