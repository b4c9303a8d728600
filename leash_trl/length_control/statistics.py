"""Computes what is logged about one generation batch: the method's state, lengths, rewards and penalties."""

import math

import torch

from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import ScoredRollouts


def _mean(values: torch.Tensor) -> float:
    """Mean without NaN, as a Python float; NaN for no values, which TRL's log leaves out of its average."""
    return values.double().nanmean().item()


def length_statistics(method: LengthControl, scored: ScoredRollouts) -> dict[str, float]:
    """Statistics of the completions generated for one policy batch, by log key without the `leash/` prefix.

    Returns:
        `dict[str, float]`: The method's own statistics, and others whose keys are always the same. `mean_penalty` is
        the curve of the paper's figure; `mean_effective_penalty` is the part that the clip left. Means leave out
        unknown values, such as the correctness of an unscorable completion. A mean over no completions (none correct,
        say) is NaN, and so are `violation`, `satisfaction_rate` and `target_length` without a target. If the method
        has several budgets, each in the batch has some of them again, by keys such as `mean_length/low`, and its
        state, such as `lambda/low`; `lambda` is then the mean over completions.
    """
    rollouts, penalty, shaped_rewards = scored.rollouts, scored.penalty, scored.shaped_rewards
    lengths = rollouts.lengths.double()
    correct, wrong = rollouts.is_correct, rollouts.is_scorable & ~rollouts.is_correct
    kept_lengths = scored.kept_lengths
    clipped = (scored.base_rewards - penalty - shaped_rewards).abs() > 1e-12
    names = method.budgets(rollouts) or []
    states = {name: method.budget_statistics(name) for name in dict.fromkeys(names)}
    return {
        **method.statistics(),
        **{
            key: math.fsum(states[name][key] for name in names) / len(names) for key in next(iter(states.values()), {})
        },
        **_constraint_statistics(method, scored, torch.ones_like(correct)),
        "mean_effective_penalty": _mean(scored.base_rewards - shaped_rewards),
        "paying_share": _mean(penalty[correct] > 0),
        "p95_length": lengths.quantile(0.95).item(),
        "max_length": lengths.max().item(),
        "mean_correct_length": _mean(lengths[correct]),
        "mean_wrong_length": _mean(lengths[wrong]),
        "truncated_share": _mean(rollouts.is_truncated),
        **({} if kept_lengths is None else {"cut_share": _mean(kept_lengths < rollouts.lengths)}),
        "task_reward": _mean(rollouts.task_rewards),
        "shaped_reward": _mean(shaped_rewards),
        "clipped_share": _mean(clipped[~torch.isnan(shaped_rewards)]),
        **{
            f"{key}/{name}": value
            for name, state in states.items()
            for key, value in {
                **state,
                **_constraint_statistics(method, scored, torch.tensor([each == name for each in names])),
            }.items()
        },
    }


def _constraint_statistics(method: LengthControl, scored: ScoredRollouts, rows: torch.Tensor) -> dict[str, float]:
    """Statistics of the completions that count to one budget."""
    rollouts = scored.rollouts
    lengths, targets = rollouts.lengths[rows].double(), rollouts.target_lengths[rows]
    return {
        "target_length": _mean(targets),
        "violation": method.violation(lengths.tolist(), targets.tolist()),
        "satisfaction_rate": _mean((lengths <= targets).double() + 0.0 * targets),
        "mean_penalty": _mean(scored.penalty[rows]),
        "mean_length": _mean(lengths),
        "accuracy": _mean(rollouts.correctness[rows]),
    }
