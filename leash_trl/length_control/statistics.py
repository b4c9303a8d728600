"""What is logged about one generation batch: lengths, rewards and what the penalty did to them."""

import torch

from leash_trl.length_control.dual import violation
from leash_trl.length_control.leash import clip_reward
from leash_trl.length_control.rollouts import Rollouts


def _mean(values: torch.Tensor) -> float:
    """Mean as a Python float; NaN for no values, which TRL's log leaves out of its average."""
    return values.double().mean().item()


def length_statistics(
    rollouts: Rollouts, penalty: torch.Tensor, shaped_rewards: torch.Tensor, target_length: int
) -> dict[str, float]:
    """Statistics of one generation batch under their log keys, without the `leash/` prefix.

    Args:
        rollouts (`Rollouts`):
            The batch, gathered over all processes.
        penalty (`torch.Tensor` of shape `(N,)`):
            Penalty in reward units before the clip.
        shaped_rewards (`torch.Tensor` of shape `(N,)`):
            Shaped rewards; NaN where a completion could not be scored.
        target_length (`int`):
            Target in tokens.

    Returns:
        `dict[str, float]`: Always the same keys. `mean_penalty` is what the paper's figure shows;
        `mean_effective_penalty` is what the clip left of it. Means over no completions (none correct, say) are NaN.
    """
    lengths = rollouts.lengths.double()
    scorable, correct = rollouts.is_scorable, rollouts.is_correct
    wrong = scorable & ~correct
    unpenalised = clip_reward(rollouts.task_rewards)
    shaped_PG = shaped_rewards.view(-1, rollouts.num_generations)
    spread_P = shaped_PG.nan_to_num(-torch.inf).amax(dim=1) - shaped_PG.nan_to_num(torch.inf).amin(dim=1)
    return {
        "violation": violation(int(rollouts.lengths.sum()), len(lengths), target_length),
        "satisfaction_rate": _mean(lengths <= target_length),
        "mean_penalty": _mean(penalty),
        "mean_effective_penalty": _mean((unpenalised - shaped_rewards)[scorable]),
        "paying_share": _mean(penalty[correct] > 0),
        "mean_length": _mean(lengths),
        "p95_length": lengths.quantile(0.95).item(),
        "max_length": lengths.max().item(),
        "mean_correct_length": _mean(lengths[correct]),
        "mean_wrong_length": _mean(lengths[wrong]),
        "accuracy": _mean(correct[scorable]),
        "task_reward": _mean(rollouts.task_rewards[scorable]),
        "shaped_reward": _mean(shaped_rewards[scorable]),
        "clipped_share": _mean((rollouts.task_rewards - penalty)[scorable].abs() > 1.0),
        "zero_signal_share": _mean(spread_P <= 1e-12),
    }
