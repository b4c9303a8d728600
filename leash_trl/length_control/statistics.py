"""Computes what is logged about one generation batch: the method's state, lengths, rewards and penalties."""

import math

import torch

from leash_trl.length_control.advantages import standardized
from leash_trl.length_control.method import LengthControl, Rollouts, Score


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
    lengths, shaped = rollouts.lengths.double(), score.shaped
    clipped = (score.base - score.penalty - shaped).abs() > 1e-12
    names = method.budgets(rollouts) or []
    states = {name: method.budget_statistics(name) for name in dict.fromkeys(names)}
    keys = next(iter(states.values()), {})
    mean_state = {key: math.fsum(states[name][key] for name in names) / len(names) for key in keys}
    by_budget: dict[str, float] = {}
    for name, state in states.items():
        is_own = torch.tensor([each == name for each in names])
        own = {**state, **_of_budget(method, rollouts, score, is_own)}
        by_budget |= {f"{key}/{name}": value for key, value in own.items()}
    of_correct: dict[str, float] = {}
    if rollouts.is_correctness_known:
        correct, wrong = rollouts.is_correct, rollouts.is_scorable & ~rollouts.is_correct
        of_correct = {
            "paying_share": _mean(score.penalty[correct] > 0),
            "mean_correct_length": _mean(lengths[correct]),
            "mean_wrong_length": _mean(lengths[wrong]),
            "length_accuracy_correlation": length_accuracy_correlation(rollouts),
        }
    return {
        **method.statistics(),
        **mean_state,
        **_of_budget(method, rollouts, score, torch.ones_like(rollouts.is_truncated)),
        **of_correct,
        "mean_effective_penalty": _mean(score.base - shaped),
        **({} if rollouts.answer_lengths is None else {"mean_answer_length": _mean(rollouts.answer_lengths)}),
        "p95_length": lengths.quantile(0.95).item(),
        "max_length": lengths.max().item(),
        "truncated_share": _mean(rollouts.is_truncated),
        "task_reward": _mean(rollouts.task_rewards),
        "shaped_reward": _mean(shaped),
        "clipped_share": _mean(clipped[~torch.isnan(shaped)]),
        **by_budget,
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
    correct_PG, lengths_PG = rollouts.by_group(rollouts.correctness), rollouts.by_group(rollouts.scorable_lengths)
    ones_PG = torch.ones_like(lengths_PG)
    scores_PG = standardized(correct_PG, ones_PG, 0, 0.0) * standardized(lengths_PG, ones_PG, 0, 0.0)
    return _mean(scores_PG.nanmean(dim=1))


def _of_budget(method: LengthControl, rollouts: Rollouts, score: Score, rows: torch.Tensor) -> dict[str, float]:
    """Returns statistics of the completions of one budget."""
    lengths, targets = rollouts.lengths[rows].double(), rollouts.target_lengths[rows]
    aims = {"target_length": _mean(targets), "satisfaction_rate": _mean((lengths <= targets).double() + 0.0 * targets)}
    return {
        **({} if method.target_use == "none" else aims),
        "violation": method.violation(lengths.tolist(), targets.tolist()),
        "mean_penalty": _mean(score.penalty[rows]),
        "mean_length": _mean(lengths),
        **({"accuracy": _mean(rollouts.correctness[rows])} if rollouts.is_correctness_known else {}),
    }


def table_columns(rollouts: Rollouts, score: Score) -> dict[str, torch.Tensor]:
    """Returns the columns of the completions table, each a `torch.Tensor` of shape `(N,)`."""
    return {
        "length": rollouts.lengths,
        "penalty": score.penalty,
        "shaped_reward": score.shaped,
        "task_reward": rollouts.task_rewards,
    }
