"""Metrics of an evaluation. [`metrics_of`] lists those that `leash eval` reports.

Arrays have the shape `(problems, samples)`. Correctness is 1, 0 or, for completions that could not be graded, NaN.
These are left out of shares, and have no vote in a majority.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import multimode
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from leash_trl.completions.costs import COST_COLUMN, cost_column
from leash_trl.evaluation import intervals
from leash_trl.evaluation.intervals import Estimate


OVERALL = "overall"
MAX_BUDGETS = 6


@dataclass(frozen=True)
class Metric:
    """A metric of one benchmark, or of all benchmarks.

    Args:
        name (`str`): Name of the metric, such as `accuracy` or `tokens`.
        estimate (`Estimate`): Value and 95 % interval.
        at (`float`): k of pass@k, the budget in tokens, or the target at which the metric is measured; else `None`.
    """

    name: str
    estimate: Estimate
    at: float | None = None


class NumProblems(NamedTuple):
    """How many problems a benchmark has, and how many of them its metrics are based on."""

    total: int
    graded: int


@dataclass(frozen=True)
class CompletionArrays:
    """Graded completions of a benchmark, as arrays of shape `(problems, samples)`.

    Args:
        correctness (`np.ndarray`): 1, 0 or, for a completion whose correctness is not known, NaN.
        rewards (`np.ndarray`): Rewards, or NaN; `None` if no reward functions graded the completions.
        answers (`np.ndarray`): Texts of the answers, or `None`.
        is_truncated (`np.ndarray`): Whether the generation limit ended the completion.
        lengths (`np.ndarray`), thinking_lengths (`np.ndarray`): In tokens.
        costs (`np.ndarray`): The cost that `length_of` names, in its unit.
    """

    correctness: np.ndarray
    rewards: np.ndarray | None
    answers: np.ndarray
    is_truncated: np.ndarray
    lengths: np.ndarray
    thinking_lengths: np.ndarray
    costs: np.ndarray

    @classmethod
    def of_frame(cls, completions: pd.DataFrame, run: Mapping[str, Any]) -> "CompletionArrays":
        """Returns the arrays of completions that are ordered by problem; `run` is the content of `run.json`."""

        def by_problem(column: str) -> np.ndarray:
            return completions[column].to_numpy().reshape(-1, run["num_samples"])

        return cls(
            correctness=by_problem("is_correct"),
            rewards=by_problem("reward") if "reward" in completions else None,
            answers=by_problem("answer"),
            is_truncated=by_problem("finish_reason") == "length",
            lengths=by_problem("num_tokens"),
            thinking_lengths=by_problem("num_thinking_tokens"),
            costs=by_problem(cost_column(run["length_of"])),
        )

    @property
    def knows_correctness(self) -> bool:
        """Whether the rewards, or the grader, say which answers are correct."""
        return not np.isnan(self.correctness).all()


def metrics_of(
    completions: pd.DataFrame,
    run: Mapping[str, Any],
    has_thinking: bool,
    reward_bounds: tuple[float, float],
) -> list[Metric]:
    """Returns all metrics of a benchmark, in the order of the tables.

    Args:
        completions (`DataFrame`): Completions of the benchmark's graded problems, ordered by problem.
        run (`Mapping[str, Any]`): Content of `run.json`.
        has_thinking (`bool`): Whether any completion of the run thinks, in any benchmark, or the target limits
            thinking. If not, the metrics of thinking are left out.
        reward_bounds (`tuple[float, float]`): Smallest and largest possible reward.
    """
    arrays = CompletionArrays.of_frame(completions, run)
    metrics = [*score_metrics(arrays, reward_bounds)]
    metrics.extend(truncation_metrics(arrays))
    metrics.extend(length_metrics(arrays.lengths))
    if has_thinking:
        metrics.append(mean_metric("thinking_tokens", arrays.thinking_lengths))
        metrics.append(mean_metric("answer_tokens", arrays.lengths - arrays.thinking_lengths))
    metrics.extend(cost_metrics(arrays.costs, run["length_of"], run["target_length"]))
    if arrays.rewards is None:
        metrics.append(rate_metric("no_answer_rate", pd.isna(arrays.answers)))
    if arrays.knows_correctness:
        max_new_tokens = run["sampling"]["max_new_tokens"]
        metrics.extend(accuracy_metrics_by_budget(arrays.correctness, arrays.lengths, max_new_tokens))
        metrics.extend(length_metrics_by_correctness(arrays.correctness, arrays.lengths))
    return metrics


def score_metrics(arrays: CompletionArrays, reward_bounds: tuple[float, float]) -> Iterator[Metric]:
    """Yields accuracy and pass@k if correctness is known, and the mean reward or, without rewards, maj@k."""
    if arrays.knows_correctness:
        accuracy_by_problem = np.nanmean(arrays.correctness, axis=1)
        yield Metric("accuracy", intervals.mean_share(accuracy_by_problem))
        yield from pass_metrics(arrays.correctness)
    # Reward functions do not extract answers, so there is no majority.
    if arrays.rewards is None:
        yield majority_metric(arrays.answers, arrays.correctness)
    else:
        yield from reward_metrics(arrays.rewards, reward_bounds)


def truncation_metrics(arrays: CompletionArrays) -> Iterator[Metric]:
    """Yields the share of truncated completions, and the accuracy of truncated and of completed ones; if correctness
    is not known, their mean rewards instead."""
    yield rate_metric("truncated_rate", arrays.is_truncated)
    if arrays.knows_correctness:
        yield from score_metrics_by_ending("accuracy", arrays.correctness, arrays.is_truncated)
    elif arrays.rewards is not None:
        yield from score_metrics_by_ending("reward", arrays.rewards, arrays.is_truncated)


def cost_metrics(costs: np.ndarray, length_of: str, target_length: float | None) -> Iterator[Metric]:
    """Yields the mean of what the target limits, and the share of completions within the target."""
    # The means of tokens and of thinking tokens are metrics anyway.
    if cost_column(length_of) == COST_COLUMN:
        yield mean_metric("cost", costs)
    if target_length is not None:
        yield rate_metric("within_target", costs <= target_length, at=target_length)


def rate_metric(name: str, holds: np.ndarray, at: float | None = None) -> Metric:
    """Returns the share of completions for which something holds."""
    return Metric(name, intervals.mean_share(holds.mean(axis=1)), at)


def mean_metric(name: str, lengths: np.ndarray) -> Metric:
    """Returns the mean of a length or of another cost of completions."""
    return Metric(name, intervals.mean_unbounded(lengths.mean(axis=1)))


def pass_metrics(correctness: np.ndarray) -> Iterator[Metric]:
    """Yields pass@k for powers of two and for all samples."""
    num_samples = correctness.shape[1]
    for k in powers_of_two_and_limit(num_samples):
        if k > 1:  # pass@1 is the accuracy
            probability_by_problem = pass_at_k(correctness, k)
            yield Metric("pass", intervals.mean_share(probability_by_problem), at=k)


def powers_of_two_and_limit(limit: int) -> list[int]:
    """Returns the powers of two below a limit, and the limit.

    Example:
        >>> powers_of_two_and_limit(12)
        [1, 2, 4, 8, 12]
    """
    powers_of_two = []
    power = 1
    while power < limit:
        powers_of_two.append(power)
        power *= 2
    return [*powers_of_two, limit]


def majority_metric(answers: np.ndarray, correctness: np.ndarray) -> Metric:
    """Returns maj@k: the probability that the majority vote is correct."""
    probabilities = [majority_probability(*problem) for problem in zip(answers, correctness, strict=True)]
    return Metric("majority", intervals.mean_share(np.array(probabilities)))


def reward_metrics(rewards: np.ndarray, bounds: tuple[float, float]) -> Iterator[Metric]:
    """Yields the mean reward over the problems with a reward, or nothing if there are none: a completion may have
    correctness, but no reward."""
    has_reward = ~np.isnan(rewards).all(axis=1)
    if has_reward.any():
        low, high = bounds
        reward_by_problem = np.nanmean(rewards[has_reward], axis=1)
        yield Metric("reward", intervals.mean_bounded(reward_by_problem, low, high))


def score_metrics_by_ending(name: str, scores: np.ndarray, is_truncated: np.ndarray) -> Iterator[Metric]:
    """Yields the mean scores of all completed and of all truncated completions, without intervals; NaN if there are
    no such completions.

    Args:
        name (`str`): `"accuracy"` or `"reward"`.
        scores (`np.ndarray`), is_truncated (`np.ndarray`): Of shape `(problems, samples)`; a score is NaN where a
            completion could not be graded.
    """
    is_graded = ~np.isnan(scores)
    yield Metric(f"completed_{name}", _mean_without_interval(scores[is_graded & ~is_truncated]))
    yield Metric(f"truncated_{name}", _mean_without_interval(scores[is_graded & is_truncated]))


def length_metrics(lengths: np.ndarray) -> Iterator[Metric]:
    """Yields the mean length with its interval, and standard deviation, median and 95th percentile over all
    completions, without intervals."""
    yield mean_metric("tokens", lengths)
    yield Metric("sd_tokens", _without_interval(np.std(lengths)))
    yield Metric("median_tokens", _without_interval(np.median(lengths)))
    yield Metric("p95_tokens", _without_interval(np.quantile(lengths, 0.95)))


def accuracy_metrics_by_budget(correctness: np.ndarray, lengths: np.ndarray, max_new_tokens: int) -> Iterator[Metric]:
    """Yields the share of completions that are correct and no longer than a budget, for at most six budgets: the
    generation limit, and the largest powers of two below it."""
    for budget in powers_of_two_and_limit(max_new_tokens)[-MAX_BUDGETS:]:
        credit = correctness * (lengths <= budget)  # NaN where a completion could not be graded
        share_by_problem = np.nanmean(credit, axis=1)
        yield Metric("accuracy_within", intervals.mean_share(share_by_problem), at=budget)


def length_metrics_by_correctness(correctness: np.ndarray, lengths: np.ndarray) -> Iterator[Metric]:
    """Yields mean lengths of all correct and of all wrong completions, without intervals; NaN if there are none."""
    yield Metric("right_tokens", _mean_without_interval(lengths[correctness == 1]))
    yield Metric("wrong_tokens", _mean_without_interval(lengths[correctness == 0]))


def _mean_without_interval(values: np.ndarray) -> Estimate:
    return _without_interval(values.mean() if len(values) else math.nan)


def _without_interval(value: float) -> Estimate:
    return Estimate(float(value), math.nan, math.nan)


def overall_metrics(metrics_by_benchmark: Mapping[str, Sequence[Metric]]) -> list[Metric]:
    """Returns the unweighted means, over benchmarks, of the metrics that all benchmarks have. A benchmark lacks some
    metrics if its correctness is not known."""
    # such as {("accuracy", None): [...], ("pass", 4): [...]}, with an estimate for each benchmark
    estimates_by_metric: dict[tuple[str, float | None], list[Estimate]] = defaultdict(list)
    for metrics in metrics_by_benchmark.values():
        for metric in metrics:
            estimates_by_metric[metric.name, metric.at].append(metric.estimate)
    means = []
    for (name, at), estimates in estimates_by_metric.items():
        if len(estimates) == len(metrics_by_benchmark):
            means.append(Metric(name, intervals.mean_over_benchmarks(estimates), at))
    return means


def results_frame(
    metrics: Mapping[str, Sequence[Metric]], num_problems: Mapping[str, NumProblems], samples_per_problem: int
) -> pd.DataFrame:
    """Returns a row for each metric, with the columns of [`~leash_trl.evaluation.runs.EvaluatedRun`].

    Args:
        metrics (`Mapping[str, Sequence[Metric]]`): Metrics by benchmark, and those of `"overall"`.
        num_problems (`Mapping[str, NumProblems]`): Numbers of problems by benchmark.
        samples_per_problem (`int`): k, completions per problem.
    """
    num_total = sum(sizes.total for sizes in num_problems.values())
    num_graded = sum(sizes.graded for sizes in num_problems.values())
    sizes_by_name = {**num_problems, OVERALL: NumProblems(num_total, num_graded)}
    rows = []
    for name, benchmark_metrics in metrics.items():
        for metric in benchmark_metrics:
            row = {
                "benchmark": name,
                "num_problems": sizes_by_name[name].total,
                "num_graded": sizes_by_name[name].graded,
                "num_samples": samples_per_problem,
                "metric": metric.name,
                "at": metric.at,
                "value": metric.estimate.value,
                "low": metric.estimate.low,
                "high": metric.estimate.high,
            }
            rows.append(row)
    # As floats, all `at` that are None become NaN, also if no metric has one.
    return pd.DataFrame(rows).astype({"at": float})


def pass_at_k(is_correct: np.ndarray, k: int) -> np.ndarray:
    r"""Returns the probability that k of a problem's n completions, drawn without replacement, include a correct one.

    $$ 1 - \binom{n-c}{k} \Big/ \binom{n}{k} $$

    There are c correct completions among the n graded ones of a problem. Unlike `1 - (1 - c/n)^k`, this estimate is
    unbiased. If n is below k, all n are drawn.

    Source: Eq. (1) of [Evaluating large language models trained on code](https://huggingface.co/papers/2107.03374).

    Example:
        >>> pass_at_k(np.array([[1, 0, 0, 0]]), k=2).tolist()  # 1 - 3/6
        [0.5]
    """
    num_graded = (~np.isnan(is_correct)).sum(axis=1).tolist()
    num_right = (is_correct == 1).sum(axis=1).tolist()
    probabilities = []
    for n, c in zip(num_graded, num_right, strict=True):
        num_drawn = min(k, n)
        # Both are integers, since a product of floats would lose precision.
        num_wrong_draws = comb(n - c, num_drawn)
        num_draws = comb(n, num_drawn)
        probabilities.append(1 - num_wrong_draws / num_draws)
    return np.array(probabilities)


def majority_probability(answers: Iterable[str | None], correctness: Iterable[float]) -> float:
    """Returns the probability that the majority vote on a problem is correct, with ties broken at random; its mean is
    maj@k. A completion without an answer or without a grade has no vote.

    Example:
        >>> majority_probability(["1/2", "0.5", "$ 3$", "3", "7", None], [1, 1, 0, 0, 0, 0])  # a tie
        0.5
    """
    votes: list[bool | str] = []
    for answer, is_correct in zip(answers, correctness, strict=True):
        if isinstance(answer, str) and not pd.isna(is_correct):
            # Correct answers may be written in several ways, such as 1/2 and 0.5, and vote together. Wrong answers are
            # compared by their text, without blanks and dollar signs.
            text = answer.replace("$", "")
            votes.append(True if is_correct else "".join(text.split()))
    winners = multimode(votes)  # several in a tie, and none without votes
    return (True in winners) / max(1, len(winners))
