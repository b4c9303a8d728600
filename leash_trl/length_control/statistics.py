"""Computes what is logged about one generation batch: the method's state, lengths, rewards and penalties."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from leash_trl.length_control.advantages import ROUNDING_ERROR, standardized
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts, Score


def length_statistics(method: LengthControl, rollouts: Rollouts, score: Score) -> dict[str, float]:
    """Returns statistics of completions that a method scored in its current state, by log key without `leash/`.

    `mean_penalty` is the curve in the paper's figure; `mean_effective_penalty` is the penalty that remains after
    clipping. Means ignore unknown values and are NaN if there are no others. If the method has several budgets, each
    has its own keys, such as `mean_length/low` and `lambda/low`; `lambda` is then the mean over completions.
    """
    # one row for each completion, and one column for each value, such as `violation` and `mean_length`
    constraint_table = _as_frame(_constraint_columns(method, rollouts, score))
    logged = method.statistics() | constraint_table.mean().to_dict() | _batch_statistics(rollouts, score)
    if rollouts.is_correctness_known:
        logged |= _correctness_statistics(rollouts, score)
    if method.target_use != "none":
        logged["common_target"] = rollouts.common_target
    # budget of each completion, such as ["low", "low", "high", "high"]; `None` if there is only one
    budget_names = method.budgets(rollouts)
    if budget_names is not None:
        logged |= _budget_statistics(method, budget_names, constraint_table)
    return logged


def log_entries(method: LengthControl, rollouts: Rollouts, score: Score, **others: float) -> dict[str, float]:
    """Returns [`length_statistics`], and others such as `version`, the number of dual steps that the method has done,
    under their keys in the log.

    A value that is NaN is left out, such as the mean length of wrong answers if there are none.
    """
    statistics = length_statistics(method, rollouts, score) | others
    return {f"leash/{name}": float(value) for name, value in statistics.items() if not math.isnan(value)}


def _as_frame(columns: dict[str, torch.Tensor]) -> pd.DataFrame:
    """Returns a table with one row for each completion, in float64."""
    return pd.DataFrame({name: values.double().numpy() for name, values in columns.items()})


def _constraint_columns(method: LengthControl, rollouts: Rollouts, score: Score) -> dict[str, torch.Tensor]:
    """Returns the values of shape `(N,)` whose means are logged for each budget, too; NaN where unknown."""
    # Columns are named by the log keys under which their means are logged.
    targets_N = rollouts.target_lengths  # NaN for a completion without a target
    columns = {
        "violation": rollouts.lengths / targets_N - 1.0,
        "mean_penalty": score.penalty,
        "mean_length": rollouts.lengths,
    }
    if method.target_use != "none":
        # A completion without a target neither satisfies nor violates the constraint, so it is left out of the mean.
        is_satisfied_N = rollouts.lengths <= targets_N
        columns["target_length"] = targets_N
        columns["satisfaction_rate"] = is_satisfied_N.double().masked_fill(torch.isnan(targets_N), torch.nan)
    if rollouts.is_correctness_known:
        columns["accuracy"] = rollouts.correctness
    return columns


def _batch_statistics(rollouts: Rollouts, score: Score) -> dict[str, float]:
    """Returns statistics that exist once per batch."""
    # Values of each completion, whose mean is logged under this name. NaN leaves a completion out of the mean.
    columns = {
        "mean_effective_penalty": score.base - score.shaped,
        "truncated_share": rollouts.is_truncated,
        "task_reward": rollouts.task_rewards,
        "shaped_reward": score.shaped,
        "clipped_share": _is_clipped(score),
    }
    if rollouts.num_tokens is not None:
        # `lengths` are something else, such as the tokens of the thinking
        columns["mean_completion_length"] = rollouts.num_tokens
    return {
        "p95_length": rollouts.lengths.double().quantile(0.95).item(),
        "max_length": rollouts.lengths.max().item(),
        **_as_frame(columns).mean().to_dict(),
    }


def _is_clipped(score: Score) -> torch.Tensor:
    """`torch.Tensor` of shape `(N,)`: 1 where the shaped reward was clipped, else 0; NaN without a reward."""
    is_clipped_N = (score.base - score.penalty - score.shaped).abs() > ROUNDING_ERROR
    return is_clipped_N.double().masked_fill(torch.isnan(score.shaped), torch.nan)


def _budget_statistics(
    method: LengthControl, budget_names: Sequence[str], constraint_table: pd.DataFrame
) -> dict[str, float]:
    """Returns the state of the method's budgets, and what exists for each budget, such as `mean_length/low`."""
    # state of the budget of each completion, such as its `lambda`, whose mean over completions is logged
    state_table = pd.DataFrame([method.budget_statistics(name) for name in budget_names])
    logged: dict[str, float] = state_table.mean().to_dict()
    # means over the completions of each budget, which are logged as `lambda/low` and `mean_length/low`
    means_by_budget = state_table.join(constraint_table).groupby(np.array(budget_names)).mean()
    for name, means in means_by_budget.iterrows():
        logged |= means.add_suffix(f"/{name}").to_dict()
    return logged


def _correctness_statistics(rollouts: Rollouts, score: Score) -> dict[str, float]:
    """Returns statistics of a batch of which it is known which answers are correct."""
    # `paying_share` is the share of correct answers that have a length penalty.
    is_paying_N = (score.penalty > 0).double()
    columns = {
        "paying_share": is_paying_N.masked_fill(~rollouts.is_correct, torch.nan),
        "mean_correct_length": rollouts.correct_lengths,
        "mean_wrong_length": rollouts.scorable_lengths.masked_fill(rollouts.is_correct, torch.nan),
    }
    return {
        "length_accuracy_correlation": length_accuracy_correlation(rollouts),
        **_as_frame(columns).mean().to_dict(),
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
    # A correlation is the mean product of z-scores, here over the completions of a prompt. The z-scores are NaN, which
    # is 0 / 0, for a prompt whose answers are all correct, all wrong or all equally long; the mean ignores it.
    correctness_PG = rollouts.by_group(rollouts.correctness)
    lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
    z_lengths_PG = standardized(lengths_PG, correction=0, epsilon=0.0)
    z_correctness_PG = standardized(correctness_PG, correction=0, epsilon=0.0)
    correlations_P = (z_correctness_PG * z_lengths_PG).nanmean(dim=1)
    return correlations_P.nanmean().item()


def table_columns(rollouts: Rollouts, score: Score) -> dict[str, torch.Tensor]:
    """Returns the columns of the completions table, each a `torch.Tensor` of shape `(N,)`."""
    return {
        "length": rollouts.lengths,
        "penalty": score.penalty,
        "shaped_reward": score.shaped,
        "task_reward": rollouts.task_rewards,
    }
