"""Computes what is logged about one generation batch: the method's state, lengths, rewards and penalties."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from leash_trl.length_control.advantages import ROUNDING_ERROR, standardized
from leash_trl.length_control.dual import violation
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts, Score


def _mean(values: torch.Tensor) -> float:
    """Returns the mean of the values that are not NaN as a Python float; NaN if there are none, which is not
    logged."""
    return values.double().nanmean().item()


def length_statistics(method: LengthControl, rollouts: Rollouts, score: Score) -> dict[str, float]:
    """Returns statistics of completions that a method scored in its current state, by log key without `leash/`.

    `mean_penalty` is the curve in the paper's figure; `mean_effective_penalty` is the penalty that remains after
    clipping. Means ignore unknown values and are NaN if there are no others. If the method has several budgets, each
    has its own keys, such as `mean_length/low` and `lambda/low`; `lambda` is then the mean over completions.
    """
    budget_names = method.budgets(rollouts) or []  # of each completion
    states = {name: method.budget_statistics(name) for name in budget_names}
    all_rows_N = torch.ones_like(rollouts.is_truncated)  # True for every completion
    logged = (
        method.statistics()
        | _mean_state([states[name] for name in budget_names])
        | _constraint_statistics(method, rollouts, score, all_rows_N)
        | _correctness_statistics(rollouts, score)
        | _batch_statistics(rollouts, score)
    )
    for name, state in states.items():
        rows_N = torch.tensor([budget == name for budget in budget_names])
        statistics = state | _constraint_statistics(method, rollouts, score, rows_N)
        logged |= {f"{key}/{name}": value for key, value in statistics.items()}
    return logged


def log_entries(method: LengthControl, rollouts: Rollouts, score: Score, **others: float) -> dict[str, float]:
    """Returns [`length_statistics`], and others such as `version`, the number of dual steps that the method has done,
    under their keys in the log.

    What is NaN is left out: it is undefined here, such as the length of wrong answers where there are none.
    """
    statistics = length_statistics(method, rollouts, score) | others
    return {f"leash/{name}": float(value) for name, value in statistics.items() if not math.isnan(value)}


def _constraint_statistics(
    method: LengthControl, rollouts: Rollouts, score: Score, rows_N: torch.Tensor
) -> dict[str, float]:
    """Returns statistics of the completions for which `rows_N` is True, which exist once per budget."""
    lengths = rollouts.lengths[rows_N].double()
    targets = rollouts.target_lengths[rows_N]
    logged = {}
    if method.target_use != "none":
        is_satisfied = (lengths <= targets).double().masked_fill(torch.isnan(targets), torch.nan)
        logged["target_length"] = _mean(targets)
        logged["satisfaction_rate"] = _mean(is_satisfied)
    logged["violation"] = violation(lengths.tolist(), targets.tolist())
    logged["mean_penalty"] = _mean(score.penalty[rows_N])
    logged["mean_length"] = _mean(lengths)
    if rollouts.is_correctness_known:
        logged["accuracy"] = _mean(rollouts.correctness[rows_N])
    return logged


def _mean_state(states: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the means over completions, whose budgets have these states; nothing if there are no budgets."""
    keys = states[0] if states else {}
    return {key: fmean(state[key] for state in states) for key in keys}


def _correctness_statistics(rollouts: Rollouts, score: Score) -> dict[str, float]:
    """Returns statistics of the correct and the wrong completions; nothing if it is not known which they are."""
    if not rollouts.is_correctness_known:
        return {}
    is_wrong_N = rollouts.is_scorable & ~rollouts.is_correct
    return {
        "paying_share": _mean(score.penalty[rollouts.is_correct] > 0),
        "mean_correct_length": _mean(rollouts.lengths[rollouts.is_correct]),
        "mean_wrong_length": _mean(rollouts.lengths[is_wrong_N]),
        "length_accuracy_correlation": length_accuracy_correlation(rollouts),
    }


def _batch_statistics(rollouts: Rollouts, score: Score) -> dict[str, float]:
    """Returns statistics that exist once per batch."""
    lengths_N = rollouts.lengths.double()
    # a reward is clipped where it is not the base reward minus the penalty
    is_clipped_N = (score.base - score.penalty - score.shaped).abs() > ROUNDING_ERROR
    logged = {"mean_effective_penalty": _mean(score.base - score.shaped)}
    if rollouts.num_tokens is not None:
        logged["mean_completion_length"] = _mean(rollouts.num_tokens)
    return logged | {
        "p95_length": lengths_N.quantile(0.95).item(),
        "max_length": lengths_N.max().item(),
        "truncated_share": _mean(rollouts.is_truncated),
        "task_reward": _mean(rollouts.task_rewards),
        "shaped_reward": _mean(score.shaped),
        "clipped_share": _mean(is_clipped_N[~torch.isnan(score.shaped)]),
    }


def length_accuracy_correlation(rollouts: Rollouts) -> float:
    r"""Returns the correlation of length and correctness, averaged over prompts; NaN if no prompt has both correct and
    wrong answers.

    $$ \frac{1}{P} \sum_b \frac{\mathrm{cov}_b(L, c)}{\sigma_b(L) \, \sigma_b(c)} $$

    It is negative while answers are too long, since the longer answers to a prompt are then more often wrong, and
    positive once they are too short.

    Source: [ICR](https://huggingface.co/papers/2605.07316), by its abstract.

    Differs: unscorable completions and prompts whose answers are equally long are ignored.
    """
    correctness_PG = rollouts.by_group(rollouts.correctness)
    lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
    weights_PG = torch.ones_like(lengths_PG)
    # z-scores; 0 / 0, that is NaN, in a group without variance
    z_lengths_PG = standardized(lengths_PG, weights_PG, correction=0, epsilon=0.0)
    z_correctness_PG = standardized(correctness_PG, weights_PG, correction=0, epsilon=0.0)
    correlations_P = (z_correctness_PG * z_lengths_PG).nanmean(dim=1)
    return _mean(correlations_P)


def table_columns(rollouts: Rollouts, score: Score) -> dict[str, torch.Tensor]:
    """Returns the columns of the completions table, each a `torch.Tensor` of shape `(N,)`."""
    return {
        "length": rollouts.lengths,
        "penalty": score.penalty,
        "shaped_reward": score.shaped,
        "task_reward": rollouts.task_rewards,
    }
