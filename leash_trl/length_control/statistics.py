"""What is logged about one generation batch: lengths, rewards and what the penalty did to them."""

import torch

from leash_trl.length_control.scored_rollouts import ScoredRollouts


def _mean(values: torch.Tensor) -> float:
    """Mean as a Python float; NaN for no values, which TRL's log leaves out of its average."""
    return values.double().mean().item()


def length_statistics(scored: ScoredRollouts) -> dict[str, float]:
    """Statistics of what was generated for one policy batch under their log keys, without the `leash/` prefix.

    Returns:
        `dict[str, float]`: Always the same keys. `mean_penalty` is what the paper's figure shows;
        `mean_effective_penalty` is what the clip left of it. Means over no completions (none correct, say) are NaN,
        and so are `violation`, `satisfaction_rate` and `target_length` without a target.
    """
    rollouts, penalty, shaped_rewards = scored.rollouts, scored.penalty, scored.shaped_rewards
    lengths = rollouts.lengths.double()
    targets = rollouts.target_lengths
    scorable, correct = rollouts.is_scorable, rollouts.is_correct
    wrong = scorable & ~correct
    clipped = (scored.base_rewards - penalty - shaped_rewards).abs() > 1e-12
    return {
        "target_length": _mean(targets),
        "violation": _mean(lengths / targets - 1.0),
        "satisfaction_rate": _mean((lengths <= targets).double() + 0.0 * targets),
        "mean_penalty": _mean(penalty[~torch.isnan(penalty)]),
        "mean_effective_penalty": _mean((scored.base_rewards - shaped_rewards)[scorable]),
        "paying_share": _mean(penalty[correct] > 0),
        "mean_length": _mean(lengths),
        "p95_length": lengths.quantile(0.95).item(),
        "max_length": lengths.max().item(),
        "mean_correct_length": _mean(lengths[correct]),
        "mean_wrong_length": _mean(lengths[wrong]),
        "truncated_share": _mean(rollouts.is_truncated),
        "accuracy": _mean(correct[scorable]),
        "task_reward": _mean(rollouts.task_rewards[scorable]),
        "shaped_reward": _mean(shaped_rewards[scorable]),
        "clipped_share": _mean(clipped[scorable]),
    }
