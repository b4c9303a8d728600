"""Computes the numbers of `leash compare`: one row per method from all its seeds, with intervals over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from leash_trl.evaluation.intervals import mean_amount, mean_over_seeds, mean_share


# weights of the accuracy-efficiency score
LENGTH_WEIGHT = 1.0
GAIN_WEIGHT = 3.0
LOSS_WEIGHT = 5.0
WINDOW = 10  # training batches in a running mean; single ones are noise


@dataclass(frozen=True)
class SeedResult:
    """One trained model: its graded completions of P problems, k each, and numbers of its training log.

    Args:
        seed (`int`):
            Seed of training and sampling.
        is_correct (`np.ndarray` of shape `(P, k)`):
            Whether each completion was correct.
        lengths (`np.ndarray` of shape `(P, k)`):
            Lengths in tokens.
        target_length (`float`, *optional*):
            Target in tokens.
        steps (`np.ndarray` of shape `(S,)`), mean_lengths (`np.ndarray` of shape `(S,)`):
            Optimizer steps since the target last changed, and the mean length of their training batches in tokens.
        generated_tokens (`int`, *optional*):
            Tokens generated in training.
    """

    seed: int
    is_correct: np.ndarray
    lengths: np.ndarray
    target_length: float | None
    steps: np.ndarray
    mean_lengths: np.ndarray
    generated_tokens: int | None


@dataclass(frozen=True)
class ComparisonRow:
    """One method, or the base model, in a comparison. `None` where a number does not exist or is not known.

    Args:
        name (`str`):
            Name of the method.
        seeds (`tuple[int, ...]`):
            Seeds of the row; none for the base model.
        accuracy (`float`), accuracy_interval (`tuple[float, float]`):
            avg@k over problems and seeds, in [0, 1], and its 95 % interval: over seeds, for these problems; over
            problems where there is one seed, or none.
        mean_tokens (`float`), mean_tokens_interval (`tuple[float, float]`, *optional*), p95_tokens (`float`):
            Completion length in tokens, with an interval of the same kind; the percentile is of the completions of all
            seeds together.
        token_change (`float`):
            Mean tokens relative to the base, dimensionless; negative is shorter.
        target_length (`float`, *optional*):
            Target in tokens.
        satisfaction_rate (`float`, *optional*):
            Share of completions at or under the target.
        settling_error (`float`, *optional*), worst_settling_error (`float`, *optional*):
            How far from the target training batches settled: distance of the mean length of the last quarter of them,
            as a share of the target; mean over seeds, and the greatest.
        near_target_share (`float`, *optional*):
            Once a training batch has met the target, the share of running means over ten batches that lie within 10 %
            of it; mean over the seeds that met it.
        overshoot (`float`, *optional*):
            How far below the target the running mean over ten training batches went at most, as a share of the
            target; mean over the seeds that met it.
        steps_to_target (`float`, *optional*), num_reached (`int`):
            First training step whose batch has a mean length at or under the target: the mean over the seeds that
            reached it, and how many did.
        generated_tokens (`float`, *optional*):
            Tokens generated in training, mean over seeds.
        efficiency_score (`float`):
            Accuracy-efficiency score of the row's mean accuracy and mean tokens.
        settings (`Mapping[str, Any]`):
            Values of the fields of its grid other than the target, by field.
    """

    name: str
    seeds: tuple[int, ...]
    accuracy: float
    accuracy_interval: tuple[float, float]
    mean_tokens: float
    p95_tokens: float
    token_change: float = 0.0
    efficiency_score: float = 0.0
    mean_tokens_interval: tuple[float, float] | None = None
    target_length: float | None = None
    satisfaction_rate: float | None = None
    settling_error: float | None = None
    worst_settling_error: float | None = None
    near_target_share: float | None = None
    overshoot: float | None = None
    steps_to_target: float | None = None
    num_reached: int = 0
    generated_tokens: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


def accuracy_efficiency_score(accuracy: float, tokens: float, base_accuracy: float, base_tokens: float) -> float:
    r"""Accuracy-efficiency score (AES), dimensionless; 0 is the base.

    $$ \mathrm{AES} = \alpha \Delta L + \begin{cases} \beta |\Delta A| & \Delta A \ge 0 \\
    -\gamma |\Delta A| & \Delta A < 0 \end{cases}, \qquad
    \Delta L = \frac{L_0 - L}{L_0}, \quad \Delta A = \frac{A - A_0}{A_0}, \quad \alpha, \beta, \gamma = 1, 3, 5 $$

    Tokens saved count once, accuracy gained three times, accuracy lost five times, each relative to the base.

    Source: [O1-Pruner](https://huggingface.co/papers/2501.12570), with the weights that the literature uses since.

    Args:
        accuracy (`float`), tokens (`float`):
            Accuracy and mean tokens of the model.
        base_accuracy (`float`), base_tokens (`float`):
            Those of the base model. Must be positive.

    Example:
        >>> round(accuracy_efficiency_score(0.9, 60.0, base_accuracy=0.8, base_tokens=100.0), 9)  # 0.4 + 3 * 0.125
        0.775
        >>> round(accuracy_efficiency_score(0.72, 60.0, base_accuracy=0.8, base_tokens=100.0), 9)  # 0.4 - 5 * 0.1
        -0.1
    """
    length_gain = (base_tokens - tokens) / base_tokens
    accuracy_change = (accuracy - base_accuracy) / base_accuracy
    weight = GAIN_WEIGHT if accuracy_change >= 0 else LOSS_WEIGHT
    return LENGTH_WEIGHT * length_gain + weight * accuracy_change


def first_step_at_target(steps: np.ndarray, mean_lengths: np.ndarray, target_length: float) -> int | None:
    """The first training step whose batch has a mean length at or under the target; `None` if there is none.

    Args:
        steps (`np.ndarray` of shape `(S,)`):
            Optimizer steps in order.
        mean_lengths (`np.ndarray` of shape `(S,)`):
            Mean lengths of their batches in tokens.
        target_length (`float`):
            Target in tokens.

    Example:
        >>> first_step_at_target(np.array([1, 2, 3]), np.array([60.0, 46.0, 50.0]), 46)
        2
    """
    is_reached = mean_lengths <= target_length
    return int(steps[is_reached.argmax()]) if is_reached.any() else None


# Of the functions below, each takes mean lengths of the training batches in order, `(S,)`, and the target, in tokens.


def settling_error(mean_lengths: np.ndarray, target_length: float) -> float:
    """Distance of the mean length of the last quarter of the training batches from the target, as a share of it.

    Example:
        >>> settling_error(np.array([128.0, 96.0, 80.0, 48.0]), 64)
        0.25
    """
    last_quarter = mean_lengths[-max(1, len(mean_lengths) // 4) :]
    return abs(float(last_quarter.mean() / target_length) - 1.0)


def _running_means(mean_lengths: np.ndarray) -> np.ndarray:
    window = min(WINDOW, len(mean_lengths))
    return np.convolve(mean_lengths, np.full(window, 1 / window), mode="valid")


def near_target_share(mean_lengths: np.ndarray, target_length: float) -> float | None:
    """Share of running means within 10 % of the target, from the first batch at or under it on; `None` without one.

    Example:
        >>> near_target_share(np.array([100.0] * 5 + [50.0] * 10 + [20.0]), 50)  # means of 50 and 47
        1.0
    """
    first = first_step_at_target(np.arange(len(mean_lengths)), mean_lengths, target_length)
    if first is None:
        return None
    distances = np.abs(_running_means(mean_lengths[first:]) / target_length - 1.0)
    return float((distances <= 0.1).mean())


def overshoot(mean_lengths: np.ndarray, target_length: float) -> float | None:
    """The greatest distance of the running mean of training batches below the target, as a share of the target.

    0 if only single batches were at or under it, `None` if none was.

    Example:
        >>> overshoot(np.array([128.0] + [48.0] * 10), 64)
        0.25
    """
    if not (mean_lengths <= target_length).any():
        return None
    return max(0.0, 1.0 - float(_running_means(mean_lengths).min() / target_length))


def base_row(record: dict[str, Any]) -> ComparisonRow:
    """The base model's row, from the record stored beside it."""
    low, high = record["accuracy_interval"]
    return ComparisonRow(
        name="base",
        seeds=(),
        accuracy=record["accuracy"],
        accuracy_interval=(low, high),
        mean_tokens=record["mean_tokens"],
        p95_tokens=record["p95_tokens"],
    )


def comparison_row(
    name: str, results: Sequence[SeedResult], base: ComparisonRow, settings: Mapping[str, Any] | None = None
) -> ComparisonRow:
    """One method's row, from the results of one or more seeds on the same problems.

    Args:
        name (`str`):
            Name of the method.
        results (`Sequence[SeedResult]`):
            One or more seeds with the same target.
        base (`ComparisonRow`):
            The base model's row.
        settings (`Mapping[str, Any]`, *optional*):
            Values of the fields of its grid other than the target.
    """
    accuracy_SP = np.stack([result.is_correct.mean(axis=1) for result in results])
    tokens_SP = np.stack([result.lengths.mean(axis=1) for result in results])
    lengths = np.stack([result.lengths for result in results])
    if len(results) > 1:
        accuracy = mean_over_seeds(accuracy_SP.mean(axis=1), highest=1.0)
        mean_tokens = mean_over_seeds(tokens_SP.mean(axis=1))
    else:
        accuracy, mean_tokens = mean_share(accuracy_SP[0]), mean_amount(tokens_SP[0])
    target = results[0].target_length
    steps_to_target = _steps_to_target(results)
    generated = [result.generated_tokens for result in results if result.generated_tokens is not None]
    return ComparisonRow(
        name=name,
        seeds=tuple(result.seed for result in results),
        accuracy=accuracy.value,
        accuracy_interval=(accuracy.low, accuracy.high),
        mean_tokens=mean_tokens.value,
        mean_tokens_interval=(mean_tokens.low, mean_tokens.high) if mean_tokens.has_interval else None,
        p95_tokens=float(np.quantile(lengths, 0.95)),
        token_change=mean_tokens.value / base.mean_tokens - 1,
        target_length=target,
        satisfaction_rate=float((lengths <= target).mean()) if target is not None else None,
        settling_error=_over_seeds(np.mean, settling_error, results),
        worst_settling_error=_over_seeds(np.max, settling_error, results),
        near_target_share=_over_seeds(np.mean, near_target_share, results),
        overshoot=_over_seeds(np.mean, overshoot, results),
        steps_to_target=float(np.mean(steps_to_target)) if steps_to_target else None,
        num_reached=len(steps_to_target),
        generated_tokens=float(np.mean(generated)) if generated else None,
        efficiency_score=accuracy_efficiency_score(accuracy.value, mean_tokens.value, base.accuracy, base.mean_tokens),
        settings=settings or {},
    )


def _over_seeds(
    summary: Callable[[list[float]], Any],
    measure: Callable[[np.ndarray, float], float | None],
    results: Sequence[SeedResult],
) -> float | None:
    values = [
        measure(result.mean_lengths, result.target_length)
        for result in results
        if result.target_length is not None and len(result.mean_lengths)
    ]
    known = [value for value in values if value is not None]
    return float(summary(known)) if known else None


def _steps_to_target(results: Sequence[SeedResult]) -> list[int]:
    """One number for each seed that reached the target."""
    steps = [
        first_step_at_target(result.steps, result.mean_lengths, result.target_length)
        for result in results
        if result.target_length is not None
    ]
    return [step for step in steps if step is not None]
