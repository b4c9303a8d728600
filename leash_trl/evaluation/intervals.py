"""Computes 95 % intervals: completions of one problem are alike, so each value is the mean of a problem's completions.

A simulation chose the rules: `tests/support/interval_simulation.py`, table `tests/data/interval_coverage.md`.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np


SIGNIFICANCE = 0.05
# sum of squares added to the observed one, so that no share is ever quite certain
PRIOR_SPREAD = 0.05


class Estimate(NamedTuple):
    """A number, not the middle of its 95 % interval, and the ends of that; NaN if there is none."""

    value: float
    low: float
    high: float


@cache
def t_quantile(degrees_of_freedom: float) -> float:
    """The 97.5 % quantile of Student's t, for one degree of freedom or more, whole or not.

    In $t = \\sqrt\\nu \\tan\\alpha$ the density is proportional to $\\cos^{\\nu-1}\\alpha$, which is summed.
    """
    angles = np.linspace(0, np.pi / 2, 100_001)
    density = np.cos(angles) ** (degrees_of_freedom - 1)
    share = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return float(math.sqrt(degrees_of_freedom) * np.tan(np.interp(0.95 * share[-1], share, angles)))


def t_p_value(statistic: float, degrees_of_freedom: float) -> float:
    """The two-sided p value of Student's t: the tail of the density of [`t_quantile`]."""
    areas = []
    for low in (math.atan(abs(statistic) / math.sqrt(degrees_of_freedom)), 0.0):
        density = np.cos(np.linspace(low, np.pi / 2, 10_001)).clip(min=0) ** (degrees_of_freedom - 1)
        areas.append(float((density[1:] + density[:-1]).sum() * (np.pi / 2 - low)))
    return areas[0] / areas[1]


def mean_share(values: np.ndarray) -> Estimate:
    r"""Mean of shares over problems, in [0, 1], with Wilson's interval for as many trials as the problems are worth.

    $$ |m - \mu| \le t_{P-1} \sqrt{\varphi \mu (1 - \mu) / P}, \qquad
    \varphi = \frac{\frac{P}{P-1} \sum_i (v_i - m)^2 + w}{P m (1 - m) + w} $$

    $\varphi$ is 1 if all completions of each problem are alike, and small if all problems are alike; w = 0.05 keeps it
    at 1 if all values are 0 or all are 1, so that the interval then is Wilson's for P completions.

    With one problem the interval is [0, 1].
    """
    size, mean = len(values), float(values.mean())
    if size == 1:
        return Estimate(mean, 0.0, 1.0)
    spread = float(np.square(values - mean).sum()) * size / (size - 1)
    inflation = (spread + PRIOR_SPREAD) / (size * mean * (1 - mean) + PRIOR_SPREAD)
    step = t_quantile(size - 1) ** 2 * inflation / size
    reach = math.sqrt(step * mean * (1 - mean) + step**2 / 4)
    low, high = ((mean + step / 2 + side * reach) / (1 + step) for side in (-1, 1))
    return Estimate(mean, max(0.0, min(low, mean)), min(1.0, max(high, mean)))


def mean_share_difference(differences: np.ndarray, num_samples: int) -> Estimate:
    r"""Mean over problems of differences of shares, in [-1, 1], with Student's t interval.

    $$ m \pm t_{P-1} \sqrt{\frac{\sum_i (d_i - m)^2 + 1 / (4k)}{P (P - 1)}} $$

    with k completions per problem, so that two runs without any observed difference do not count as equal. With one
    problem the interval is [-1, 1].
    """
    size, mean = len(differences), float(differences.mean())
    if size == 1:
        return Estimate(mean, -1.0, 1.0)
    spread = float(np.square(differences - mean).sum()) + 0.25 / num_samples
    reach = t_quantile(size - 1) * math.sqrt(spread / (size * (size - 1)))
    return Estimate(mean, max(-1.0, mean - reach), min(1.0, mean + reach))


def mean_amount(values: np.ndarray, lowest: float = 0.0) -> Estimate:
    r"""Mean over problems of an unbounded quantity, such as tokens, with Student's t interval, widened for skewness.

    $$ T = U + \frac{g U^2}{3} + \frac{g^2 U^3}{27} + \frac{g}{6P}, \qquad U = (m - \mu) / s $$

    with the skewness g: T is nearer than U to $t_{P-1} / \sqrt P$. Each end is that of U or of T, whichever is farther
    out.

    Source: [On the removal of skewness by transformation](https://doi.org/10.1111/j.2517-6161.1992.tb01876.x).

    With one problem there is no interval. `lowest` bounds any mean: minus infinity for differences.
    """
    size, mean = len(values), float(values.mean())
    if size == 1:
        return Estimate(mean, math.nan, math.nan)
    deviation = float(values.std(ddof=1))
    reach = t_quantile(size - 1) / math.sqrt(size)
    skewness = float(((values - mean) ** 3).mean()) / deviation**3 if deviation else 0.0
    below, above = reach, reach
    if abs(skewness) > 1e-6:
        ends = 1 + skewness * (np.array([reach, -reach]) - skewness / (6 * size))
        below, above = np.maximum(reach, 3 / skewness * (np.cbrt(ends) - 1) * [1, -1]).tolist()  # each U of T
    return Estimate(mean, max(lowest, mean - deviation * below), mean + deviation * above)


def mean_over_seeds(values: Sequence[float] | np.ndarray, highest: float = math.inf, lowest: float = 0.0) -> Estimate:
    """Mean over seeds, one mean over the problems each, with Student's t interval; of one seed alone there is none.

    It covers the effect of training and sampling on the mean for these problems, not other problems or another base.
    """
    mean = float(np.mean(values))
    if len(values) == 1:
        return Estimate(mean, math.nan, math.nan)
    reach = t_quantile(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Estimate(mean, max(lowest, mean - reach), min(highest, mean + reach))


def mean_over_benchmarks(estimates: Sequence[Estimate]) -> Estimate:
    r"""Unweighted mean of independent estimates; on each side their distances from the ends add up in squares.

    $$ m - \frac{1}{B} \sqrt{\sum_b (m_b - l_b)^2}, \qquad m + \frac{1}{B} \sqrt{\sum_b (h_b - m_b)^2} $$

    Source: [Construction of confidence limits about effect measures](https://doi.org/10.1002/sim.3095).

    """
    if len(estimates) == 1:
        return estimates[0]
    value = sum(estimate.value for estimate in estimates) / len(estimates)
    below = math.hypot(*(estimate.value - estimate.low for estimate in estimates)) / len(estimates)
    above = math.hypot(*(estimate.high - estimate.value for estimate in estimates)) / len(estimates)
    return Estimate(value, value - below, value + above)


def ratio_minus_one(values: Sequence[np.ndarray], baseline: Sequence[np.ndarray]) -> Estimate:
    r"""Ratio of two means over benchmarks minus 1, with the interval of what each problem changes in it.

    $$ v_i = (P_b - 1) (r - r_{-i}) $$

    with the ratio $r_{-i}$ without problem i, the jackknife: the baseline's long problems get their full weight.

    Both have an array `(P_b,)` for each benchmark, with one positive value per problem, the same problems.
    """
    total, base = sum(float(column.mean()) for column in values), sum(float(column.mean()) for column in baseline)
    ratio, parts = total / base, []
    for own, other in zip(values, baseline, strict=True):
        others = max(1, len(own) - 1)
        without = (total + (own.mean() - own) / others) / (base + (other.mean() - other) / others)
        # times B, because what the benchmarks change adds up, and the mean below divides by B
        parts.append(mean_amount(len(values) * others * (ratio - without), lowest=-math.inf))
    middle, low, high = mean_over_benchmarks(parts)
    return Estimate(ratio - 1, max(ratio - 1 + low - middle, -1.0), ratio - 1 + high - middle)  # NaN stays NaN


def welch(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    r"""Difference of two means over seeds, and its two-sided p value by Welch's t test: spreads need not be equal.

    $$ t = \frac{m_1 - m_2}{\sqrt{v_1 + v_2}}, \qquad v_i = s_i^2 / n_i, \qquad
    \nu = \frac{(v_1 + v_2)^2}{v_1^2 / (n_1 - 1) + v_2^2 / (n_2 - 1)} $$

    Where no sample has any spread, p is 1 for equal means, else 0.

    Source: [The generalization of Student's problem](https://doi.org/10.1093/biomet/34.1-2.28).

    """
    parts = [float(values.var(ddof=1)) / len(values) for values in (first, second)]
    squares = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True))
    mean, variance = float(first.mean() - second.mean()), sum(parts)
    if variance == 0:
        return mean, float(mean == 0)
    return mean, t_p_value(mean / math.sqrt(variance), variance**2 / squares)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    r"""Which of m null hypotheses are rejected so that any false rejection has a probability of 5 % at most, `(m,)`.

    In rising order, the p values are compared with $0.05 / m, 0.05 / (m - 1), \dots$ up to the first that is greater.

    Source: [A simple sequentially rejective multiple test procedure](https://www.jstor.org/stable/4615733).
    """
    values = np.asarray(p_values)
    order = np.argsort(values, kind="stable")
    is_rejected = np.zeros(len(values), dtype=bool)
    is_rejected[order] = np.logical_and.accumulate(values[order] <= SIGNIFICANCE / np.arange(len(values), 0, -1))
    return is_rejected
