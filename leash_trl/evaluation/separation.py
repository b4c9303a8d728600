"""Tells the methods of a comparison apart: pairs, the front of accuracy over tokens, accuracy at equal length.

Everything compares means over seeds with Welch's or Student's t. It knows no files; `separation_report` writes it.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from leash_trl.evaluation.intervals import Estimate, t_p_value, t_quantile


LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class Point:
    """A method at one operating point.

    Args:
        method (`str`):
            Its name, with settings that are its own; the points of one method at several targets are its curve.
        target_length (`float`, *optional*):
            Target in tokens.
        seeds (`tuple[int, ...]`):
            Its seeds, two or more.
        accuracies (`np.ndarray` of shape `(S,)`), tokens (`np.ndarray` of shape `(S,)`):
            Accuracy in [0, 1] and mean length in tokens of each seed.
    """

    method: str
    target_length: float | None
    seeds: tuple[int, ...]
    accuracies: np.ndarray
    tokens: np.ndarray

    @property
    def name(self) -> str:
        """Method and target."""
        return self.method if self.target_length is None else f"{self.method} at {self.target_length:g}"


@dataclass(frozen=True)
class Difference:
    """A difference of two means.

    Args:
        estimate (`Estimate`):
            First minus second, with its 95 % interval.
        p_value (`float`):
            Two-sided, of no difference; below 0.05 exactly where the interval excludes 0.
    """

    estimate: Estimate
    p_value: float


def welch_difference(first: np.ndarray, second: np.ndarray) -> Difference:
    r"""Difference of two means over seeds, with Welch's t interval, which does not need equal spreads.

    $$ m_1 - m_2 \pm t_\nu \sqrt{v_1 + v_2}, \qquad v_i = s_i^2 / n_i, \qquad
    \nu = \frac{(v_1 + v_2)^2}{v_1^2 / (n_1 - 1) + v_2^2 / (n_2 - 1)} $$

    Where no sample has any spread, the interval is the difference itself.

    Source: [The generalization of Student's problem](https://doi.org/10.1093/biomet/34.1-2.28).

    Args:
        first (`np.ndarray` of shape `(S_1,)`), second (`np.ndarray` of shape `(S_2,)`):
            One value per seed, of two seeds or more.

    Example:
        >>> welch_difference(np.array([1.0, 3.0]), np.array([4.0, 6.0])).estimate.value
        -3.0
    """
    parts = [float(values.var(ddof=1)) / len(values) for values in (first, second)]
    squares = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True))
    return _difference(float(first.mean() - second.mean()), sum(parts), sum(parts) ** 2 / (squares or 1.0))


def _difference(mean: float, variance: float, degrees_of_freedom: float) -> Difference:
    if variance == 0:
        return Difference(Estimate(mean, mean, mean), float(mean == 0))
    error = math.sqrt(variance)
    reach = t_quantile(degrees_of_freedom) * error
    return Difference(Estimate(mean, mean - reach, mean + reach), t_p_value(mean / error, degrees_of_freedom))


def holm(p_values: Sequence[float]) -> list[bool]:
    r"""Which of m null hypotheses are rejected so that any false rejection has a probability of 5 % at most.

    In rising order, the p values are compared with $0.05 / m, 0.05 / (m - 1), \dots$ up to the first that is greater.

    Source: [A simple sequentially rejective multiple test procedure](https://www.jstor.org/stable/4615733).

    Example:
        >>> holm([0.04, 0.01, 0.03])  # 0.01 <= 0.05 / 3, but 0.03 > 0.05 / 2
        [False, True, False]
    """
    rejected = [False] * len(p_values)
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[index] > LEVEL / (len(p_values) - rank):
            break
        rejected[index] = True
    return rejected


@dataclass(frozen=True)
class Pair:
    """Two points, by index, with their differences in accuracy and in tokens, first minus second.

    `accuracy_told` and `tokens_told` say whether a difference is shown.
    """

    first: int
    second: int
    accuracy: Estimate
    tokens: Estimate
    accuracy_told: bool
    tokens_told: bool


def method_pairs(points: Sequence[Point]) -> list[tuple[int, int]]:
    """Indexes of every two points of different methods with the same target, or of which one has no target."""
    return [
        (first, second)
        for first, second in itertools.combinations(range(len(points)), 2)
        if points[first].method != points[second].method
        and (None in (targets := {points[first].target_length, points[second].target_length}) or len(targets) == 1)
    ]


def compared(points: Sequence[Point], pairs: Sequence[tuple[int, int]], corrected: bool = False) -> list[Pair]:
    """The differences of pairs of points, and whether they are shown: by each 95 % interval, or after a correction.

    Args:
        points (`Sequence[Point]`):
            Points on the same problems.
        pairs (`Sequence[tuple[int, int]]`):
            Indexes of the points of each pair.
        corrected (`bool`, *optional*, defaults to `False`):
            Whether only what Holm's procedure rejects counts as shown; its hypotheses are that no pair differs, in
            accuracy or in tokens, two for each pair.
    """
    accuracies = [welch_difference(points[a].accuracies, points[b].accuracies) for a, b in pairs]
    tokens = [welch_difference(points[a].tokens, points[b].tokens) for a, b in pairs]
    p_values = [difference.p_value for difference in (*accuracies, *tokens)]
    told = holm(p_values) if corrected else [p_value < LEVEL for p_value in p_values]
    return [
        Pair(a, b, accuracy.estimate, length.estimate, accuracy_told, tokens_told)
        for (a, b), accuracy, length, accuracy_told, tokens_told in zip(
            pairs, accuracies, tokens, told[: len(pairs)], told[len(pairs) :], strict=True
        )
    ]


class Place(StrEnum):
    """Where a point lies relative to the front of accuracy over tokens."""

    ON = "on it"
    OFF = "off it"
    UNKNOWN = "cannot be told"


def front(num_points: int, pairs: Sequence[Pair]) -> list[tuple[Place, list[int]]]:
    """The place of each point, and the points that beat it.

    A point beats another if its accuracy is higher, which must be shown, and its mean tokens are not more than the
    other's, where the means decide. What another beats is off the front. On the front is a point if every other one
    cannot beat it, because its accuracy is lower or its tokens are more, either of which must be shown. Of the rest it
    cannot be told.

    Args:
        num_points (`int`):
            How many points there are.
        pairs (`Sequence[Pair]`):
            Every two of them, from `compared`, with what is shown.
    """
    beaten_by: list[list[int]] = [[] for _ in range(num_points)]
    is_safe = [True] * num_points
    for pair in pairs:
        # the second seen from the first, then the first from the second
        for own, other, sign in ((pair.first, pair.second, -1), (pair.second, pair.first, 1)):
            gain, cost = sign * pair.accuracy.value, sign * pair.tokens.value  # of the other over the point
            if pair.accuracy_told and gain > 0 and cost <= 0:
                beaten_by[own].append(other)
            if not (pair.accuracy_told and gain < 0) and not (pair.tokens_told and cost > 0):
                is_safe[own] = False
    return [
        (Place.OFF if others else Place.ON if safe else Place.UNKNOWN, others)
        for others, safe in zip(beaten_by, is_safe, strict=True)
    ]


@dataclass(frozen=True)
class EqualLength:
    """Accuracy of one method minus another's at equal length.

    Args:
        difference (`Estimate`):
            Mean over seeds and over the range, with Student's t interval of the seeds' differences.
        shortest (`float`), longest (`float`):
            The range in tokens that all curves cover.
    """

    difference: Estimate
    shortest: float
    longest: float


def accuracy_at_equal_length(first: Sequence[Point], second: Sequence[Point]) -> EqualLength | None:
    r"""How much more accurate the first method is at the same length, from the curves of both.

    $$ d_s = \frac{1}{\log b - \log a} \int_{\log a}^{\log b} (A_s - B_s) \, d \log T, \qquad
    \bar d \pm t_{S-1} \, \mathrm{sd}(d) / \sqrt S $$

    $A_s$ and $B_s$ are lines through the points of seed s, accuracy over the logarithm of mean tokens T, and [a, b] is
    the range that the curves of both methods cover with every seed. The integral of such lines is exact.

    Args:
        first (`Sequence[Point]`), second (`Sequence[Point]`):
            Points of two methods, two or more each.

    Returns:
        `EqualLength`, or `None` if a method has one point, the seeds are not the same at all points, or there is no
        range that all cover.
    """
    seeds = {tuple(sorted(point.seeds)) for point in (*first, *second)}
    if len(first) < 2 or len(second) < 2 or len(seeds) != 1:
        return None
    (first_lengths, first_accuracies), (second_lengths, second_accuracies) = _curves(first), _curves(second)
    low = float(max(first_lengths[:, 0].max(), second_lengths[:, 0].max()))
    high = float(min(first_lengths[:, -1].min(), second_lengths[:, -1].min()))
    if low >= high:
        return None
    differences = []
    for own in zip(first_lengths, first_accuracies, second_lengths, second_accuracies, strict=True):
        inside = np.concatenate([[low, high], own[0], own[2]])
        knots = np.unique(inside[(inside >= low) & (inside <= high)])
        gap = np.interp(knots, own[0], own[1]) - np.interp(knots, own[2], own[3])
        differences.append(float(((gap[1:] + gap[:-1]) / 2 * np.diff(knots)).sum() / (high - low)))
    mean, variance = float(np.mean(differences)), float(np.var(differences, ddof=1)) / len(differences)
    estimate = _difference(mean, variance, len(differences) - 1).estimate
    return EqualLength(estimate, math.exp(low), math.exp(high))


def _curves(points: Sequence[Point]) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of tokens in rising order, and accuracies, of each seed in the order of seeds, `(S, points)`."""
    orders = [np.argsort(point.seeds) for point in points]
    lengths = np.log([point.tokens[order] for point, order in zip(points, orders, strict=True)]).T
    accuracies = np.array([point.accuracies[order] for point, order in zip(points, orders, strict=True)]).T
    rising = np.argsort(lengths, axis=1)
    return np.take_along_axis(lengths, rising, 1), np.take_along_axis(accuracies, rising, 1)
