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


def reward_scale_problem(task_rewards: torch.Tensor) -> str | None:
    """What is wrong with the scale of task rewards, if it is not the paper's -1 to +1; `None` if nothing is.

    Example:
        >>> reward_scale_problem(torch.tensor([-1.0, 1.0])) is None
        True
        >>> print(reward_scale_problem(torch.tensor([0.0, 1.0])))
        wrong answers have task reward 0, so they pay for their length too and learn to fail fast; LEASH is meant
        for -1 and +1, as leash_trl.rewards.math_reward gives
    """
    scores = task_rewards[~torch.isnan(task_rewards)]
    if (scores.abs() > 1).any():
        return (
            f"the weighted sum of the task rewards reaches {scores.abs().max().item():.3g}, but the shaped reward is "
            "clipped to [-1, 1]: what lies beyond teaches nothing; scale the rewards down with reward_weights"
        )
    if (scores == 0).any() and (scores >= 0).all():
        return (
            "wrong answers have task reward 0, so they pay for their length too and learn to fail fast; LEASH is "
            "meant for -1 and +1, as leash_trl.rewards.math_reward gives"
        )
    return None
