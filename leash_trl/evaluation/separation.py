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
MARGIN = 0.05  # a point may be longer by this share and still beat another


@dataclass(frozen=True, eq=False)
class Point:
    """A method at one operating point.

    Args:
        method (`str`):
            Its name; the points of one method are its curve.
        settings (`str`):
            Values of its grid's fields other than the target, in words; empty without any.
        target_length (`float`, *optional*):
            Target in tokens.
        seeds (`tuple[int, ...]`):
            Its seeds, two or more.
        accuracies (`np.ndarray` of shape `(S,)`), tokens (`np.ndarray` of shape `(S,)`):
            Accuracy in [0, 1] and mean length in tokens of each seed.
    """

    method: str
    settings: str
    target_length: float | None
    seeds: tuple[int, ...]
    accuracies: np.ndarray
    tokens: np.ndarray

    @property
    def name(self) -> str:
        """Method, settings and target."""
        name = f"{self.method}, {self.settings}" if self.settings else self.method
        return name if self.target_length is None else f"{name} at {self.target_length:g}"


@dataclass(frozen=True)
class Difference:
    """A difference of two means.

    Args:
        estimate (`Estimate`):
            First minus second, with its 95 % interval.
        p_value (`float`):
            Two-sided, of no difference; below 0.05 where the interval excludes 0.
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


def shown_signs(differences: Sequence[Difference], is_corrected: bool = False) -> np.ndarray:
    """What is shown of D differences: by each one's own 95 % interval, or by Holm's procedure over all of them.

    Returns:
        `np.ndarray` of shape `(D,)`: 1 where a difference is shown to be positive, -1 where negative, else 0.
    """
    p_values = [difference.p_value for difference in differences]
    is_shown = holm(p_values) if is_corrected else [p_value < LEVEL for p_value in p_values]
    return np.sign([difference.estimate.value for difference in differences]) * np.array(is_shown, dtype=float)


def method_pairs(points: Sequence[Point]) -> list[tuple[int, int]]:
    """Indexes of every two points of different methods with the same target."""
    return [
        (first, second)
        for first, second in itertools.combinations(range(len(points)), 2)
        if points[first].method != points[second].method
        and points[first].target_length == points[second].target_length is not None
    ]


class Place(StrEnum):
    """Where a point lies relative to the front of accuracy over tokens."""

    ON = "on it"
    OFF = "off it"
    UNKNOWN = "cannot be told"


def front(points: Sequence[Point], is_corrected: bool = False) -> list[tuple[Place, list[int]]]:
    """The place of each point, and the indexes of the points that beat it.

    A point beats another if its accuracy is higher and its mean tokens are less than 1.05 times the other's. What
    another beats is off the front. On the front is a point if each other one has a lower accuracy or more tokens. Both
    must be shown; of the rest it cannot be told.

    Args:
        points (`Sequence[Point]`):
            Points on the same problems.
        is_corrected (`bool`, *optional*, defaults to `False`):
            Whether only what Holm's procedure over all differences of all points shows counts as shown.
    """
    pairs = list(itertools.combinations(range(len(points)), 2))
    turned = [(other, own) for own, other in pairs]
    gains = [welch_difference(points[other].accuracies, points[own].accuracies) for own, other in pairs]
    costs = [welch_difference(points[other].tokens, points[own].tokens) for own, other in pairs]
    excesses = [
        welch_difference(points[other].tokens, (1 + MARGIN) * points[own].tokens) for own, other in (*pairs, *turned)
    ]
    signs = np.split(shown_signs([*gains, *costs, *excesses], is_corrected), 4)  # one for each pair, in each part
    # of the second point over the first, by their indexes; 0 on the diagonal
    gain, cost, excess = np.zeros((3, len(points), len(points)))
    for (own, other), more, longer, beyond, beyond_turned in zip(pairs, *signs, strict=True):
        gain[own, other], gain[other, own] = more, -more
        cost[own, other], cost[other, own] = longer, -longer
        excess[own, other], excess[other, own] = beyond, beyond_turned
    is_beaten = (gain > 0) & (excess < 0)
    is_safe = (gain < 0) | (cost > 0) | np.eye(len(points), dtype=bool)
    return [
        (Place.OFF if others.any() else Place.ON if safe.all() else Place.UNKNOWN, np.flatnonzero(others).tolist())
        for others, safe in zip(is_beaten, is_safe, strict=True)
    ]


@dataclass(frozen=True)
class EqualLength:
    """Accuracy of one method minus another's at equal length.

    Args:
        difference (`Estimate`):
            Mean over seeds and over the logarithms of the range, with Student's t interval of the seeds' differences.
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
