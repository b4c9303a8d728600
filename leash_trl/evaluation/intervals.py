"""Computes 95 % intervals over problems, and over the seeds of a comparison.

Completions of one problem are similar, so for intervals over problems, every value is the mean over the completions of
a problem. Their formulas were chosen by a simulation (`tests/support/interval_simulation.py`, results in
`tests/fixtures/interval_coverage.md`).
"""

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from mpmath import betainc, findroot


SIGNIFICANCE = 0.05
POWER = 0.8
# added to the observed sum of squares, so that the interval of a share never has width 0
PRIOR_SPREAD = 0.05
USUAL_BOUNDS = ((0.0, 1.0), (-1.0, 1.0))  # of rewards


class Estimate(NamedTuple):
    """A number and the ends of its 95 % interval, which need not be symmetric; the ends are NaN if there is no
    interval."""

    value: float
    low: float
    high: float

    def within(self, lowest: float, highest: float) -> "Estimate":
        """Returns the estimate with an interval that is within the bounds and contains the value, in spite of rounding
        errors."""
        low = max(lowest, min(self.low, self.value))
        high = min(highest, max(self.high, self.value))
        return Estimate(self.value, low, high)


@cache
def t_quantile(degrees_of_freedom: float, outside: float = SIGNIFICANCE) -> float:
    """Returns the value that Student's t exceeds in either direction with probability `outside`, by default its 97.5 %
    quantile, for one or more degrees of freedom, not necessarily integer."""

    def excess(t: float) -> float:
        return t_p_value(t, degrees_of_freedom) - outside

    # the 80 % quantile for infinitely many degrees is 0.84, the 97.5 % quantile for one degree 12.7
    return float(findroot(excess, (0.8, 13), solver="anderson"))


def t_p_value(statistic: float, degrees_of_freedom: float) -> float:
    r"""Returns the two-sided p value of Student's t test, $I_{\nu / (\nu + t^2)}(\nu / 2, 1 / 2)$ with the regularized
    incomplete beta function."""
    end = degrees_of_freedom / (degrees_of_freedom + statistic**2)
    if math.isnan(end):  # mpmath raises an error
        return math.nan
    return float(betainc(degrees_of_freedom / 2, 0.5, 0, end, regularized=True))


def mean_share(values: np.ndarray) -> Estimate:
    r"""Returns the mean of shares over problems, in [0, 1], with Wilson's interval for the effective number of trials.

    $$ |m - \mu| \le t_{P-1} \sqrt{\varphi \mu (1 - \mu) / P}, \qquad
    \varphi = \frac{\frac{P}{P-1} \sum_i (v_i - m)^2 + w}{P m (1 - m) + w} $$

    $v_i$ is the share of problem i of P, m the mean of the shares, and $\mu$ the true mean. $\varphi$ is close to 1 if
    the completions of each problem are all correct or all wrong, and small if all problems have the same share. If all
    values are 0 or all are 1, w = 0.05 keeps $\varphi$ at 1, so that the interval is that for P completions.

    With one problem the interval is [0, 1].
    """
    num_problems = len(values)
    mean = float(values.mean())
    # A single problem does not show how much problems differ.
    if num_problems == 1:
        return Estimate(mean, 0.0, 1.0)
    # The sum of squares. The factor P / (P - 1) removes the bias of deviations from the observed mean.
    squares = float(np.square(values - mean).sum())
    spread = squares * num_problems / (num_problems - 1)
    # The variance of the problems' shares, relative to the variance of single completions, which are correct or wrong.
    # The ratio is below 1 if several completions of a problem make its share more precise.
    spread_of_completions = num_problems * mean * (1 - mean)
    inflation = (spread + PRIOR_SPREAD) / (spread_of_completions + PRIOR_SPREAD)
    # Wilson's ends are the solutions mu of the quadratic equation (m - mu)^2 = step * mu * (1 - mu).
    step = t_quantile(num_problems - 1) ** 2 * inflation / num_problems
    reach = math.sqrt(step * mean * (1 - mean) + step**2 / 4)
    low = (mean + step / 2 - reach) / (1 + step)
    high = (mean + step / 2 + reach) / (1 + step)
    return Estimate(mean, low, high).within(0.0, 1.0)


def mean_unbounded(values: np.ndarray, lowest: float = 0.0) -> Estimate:
    r"""Returns the mean over problems of an unbounded quantity, such as tokens, with Student's t interval widened for
    skewness.

    $$ T = U + \frac{g U^2}{3} + \frac{g^2 U^3}{27} + \frac{g}{6P}, \qquad U = (m - \mu) / s $$

    The P values have the mean m, the standard deviation s and the skewness g, and $\mu$ is the true mean. The
    distribution of T is closer to $t_{P-1} / \sqrt P$ than that of U. Each end of the interval is computed from U and
    from T, and the one that is farther out is taken.

    Source: [On the removal of skewness by transformation](https://doi.org/10.1111/j.2517-6161.1992.tb01876.x).

    With one problem there is no interval. `lowest` is the smallest possible mean: minus infinity for differences.
    """
    num_problems = len(values)
    mean = float(values.mean())
    if num_problems == 1:
        return Estimate(mean, math.nan, math.nan)
    deviation = float(values.std(ddof=1))
    if deviation == 0:
        return Estimate(mean, max(lowest, mean), mean)
    # By Student's t, U = (m - mu) / s is between -reach and reach.
    reach = t_quantile(num_problems - 1) / math.sqrt(num_problems)
    third_moment = float(((values - mean) ** 3).mean())
    skewness = third_moment / deviation**3
    largest_u = max(reach, _inverse_hall_transform(reach, skewness, num_problems))
    smallest_u = min(-reach, _inverse_hall_transform(-reach, skewness, num_problems))
    # The true mean mu is m - s U, so the largest U gives the lower end.
    low = mean - deviation * largest_u
    high = mean - deviation * smallest_u
    return Estimate(mean, max(lowest, low), high)


def _inverse_hall_transform(t: float, skewness: float, num_problems: int) -> float:
    """Returns U of [`mean_unbounded`] where T is `t`, by $(1 + g U / 3)^3 = 1 + g (T - g / (6P))$."""
    # Without skewness T is U, and the formula would divide by 0.
    if abs(skewness) <= 1e-6:
        return t
    cube = 1 + skewness * (t - skewness / (6 * num_problems))
    return float(3 / skewness * (np.cbrt(cube) - 1))


def narrowest_usual_bounds(values: np.ndarray) -> tuple[float, float]:
    """Returns the narrower of [0, 1] and [-1, 1] that holds all values; infinite bounds if neither does.

    Rewards have no declared bounds. These bounds assume that a reward which is in [0, 1] for all of the completions is
    always in it.

    Example:
        >>> [narrowest_usual_bounds(np.array(rewards)) for rewards in ([0.0, 0.25], [-0.5, 1.0], [0.5, 2.0])]
        [(0.0, 1.0), (-1.0, 1.0), (-inf, inf)]
    """
    smallest = values.min()
    largest = values.max()
    for low, high in USUAL_BOUNDS:
        if low <= smallest and largest <= high:
            return low, high
    return -math.inf, math.inf


def mean_bounded(values: np.ndarray, low: float, high: float) -> Estimate:
    """Returns the mean over problems of values in [low, high], with the interval of [`mean_share`] for their positions
    between the bounds; if the bounds are infinite, with the interval of [`mean_unbounded`].

    The interval stays within the bounds and never has width 0. Student's t interval does neither, and clipping it at
    the bounds would not raise its coverage, which is low where most problems have the highest or the lowest reward.
    """
    width = high - low
    if math.isinf(width):
        return mean_unbounded(values, lowest=-math.inf)
    mean = float(values.mean())
    # The positions of the values between the bounds are in [0, 1], as shares are.
    share = mean_share((values - low) / width)
    lower_end = low + width * share.low
    upper_end = low + width * share.high
    return Estimate(mean, lower_end, upper_end).within(low, high)


def mean_bounded_difference(differences: np.ndarray, low: float, high: float, samples_per_problem: int) -> Estimate:
    r"""Returns the mean over problems of differences between values in [low, high], with Student's t interval; if the
    bounds are infinite, with the interval of [`mean_unbounded`].

    $$ m \pm t_{P-1} \sqrt{\frac{\sum_i (d_i - m)^2 + 1 / (4k)}{P (P - 1)}} $$

    The formula is for shares, whose bounds are 0 and 1; for other bounds, differences are divided by high - low. There
    are k completions per problem. The term with k gives a positive width even if no difference is observed. With one
    problem the interval contains all possible differences.
    """
    width = high - low
    if math.isinf(width):
        return mean_unbounded(differences, lowest=-math.inf)
    num_problems = len(differences)
    mean = float(differences.mean())
    if num_problems == 1:
        return Estimate(mean, -width, width)
    squares = float(np.square((differences - mean) / width).sum())
    # 1 / (4k) is the largest variance of a share of k completions. With it, equal differences also have an interval.
    spread = squares + 0.25 / samples_per_problem
    variance_of_mean = spread / (num_problems * (num_problems - 1))
    reach = width * t_quantile(num_problems - 1) * math.sqrt(variance_of_mean)
    return Estimate(mean, mean - reach, mean + reach).within(-width, width)


def mean_over_seeds(values: Sequence[float] | np.ndarray, highest: float = math.inf, lowest: float = 0.0) -> Estimate:
    """Returns the mean over seeds, given the mean over problems of each seed, with Student's t interval; a single seed
    has no interval.

    The interval covers the randomness of training and sampling for these problems, not the choice of problems or of
    the base model.
    """
    num_seeds = len(values)
    mean = float(np.mean(values))
    if num_seeds == 1:
        return Estimate(mean, math.nan, math.nan)
    deviation = float(np.std(values, ddof=1))
    reach = t_quantile(num_seeds - 1) * deviation / math.sqrt(num_seeds)
    return Estimate(mean, mean - reach, mean + reach).within(lowest, highest)


def mean_over_benchmarks(estimates: Sequence[Estimate]) -> Estimate:
    r"""Returns the unweighted mean of independent estimates; on each side, their distances to the ends are added in
    squares.

    $$ m - \frac{1}{B} \sqrt{\sum_b (m_b - l_b)^2}, \qquad m + \frac{1}{B} \sqrt{\sum_b (h_b - m_b)^2} $$

    Source: [Construction of confidence limits about effect measures](https://doi.org/10.1002/sim.3095).
    """
    if len(estimates) == 1:
        return estimates[0]
    num_benchmarks = len(estimates)
    value = sum(estimate.value for estimate in estimates) / num_benchmarks
    distances_below = [estimate.value - estimate.low for estimate in estimates]
    distances_above = [estimate.high - estimate.value for estimate in estimates]
    # Variances of independent estimates add up, and the distance to an end is proportional to a standard deviation.
    below = math.hypot(*distances_below) / num_benchmarks
    above = math.hypot(*distances_above) / num_benchmarks
    return Estimate(value, value - below, value + above)


def ratio_minus_one(values: Sequence[np.ndarray], baseline: Sequence[np.ndarray]) -> Estimate:
    r"""Returns the ratio of two means over benchmarks minus 1, with a jackknife interval over problems.

    $$ v_i = (P_b - 1) (r - r_{-i}) $$

    $r$ is the ratio, $r_{-i}$ the ratio without problem i of benchmark b. So problems that are long in the baseline
    have their full weight. The interval is that of [`mean_unbounded`] for $v_i$; if a benchmark has a single problem,
    there is none.

    Both arguments have an array of shape `(P_b,)` for each benchmark, with one positive value per problem, and the
    same problems in the same order.
    """
    num_benchmarks = len(values)
    # The ratio of these sums of means is also the ratio of the means over benchmarks.
    total = sum(float(problems.mean()) for problems in values)
    base_total = sum(float(problems.mean()) for problems in baseline)
    ratio = total / base_total
    parts = []  # an estimate for each benchmark
    for problems, base_problems in zip(values, baseline, strict=True):
        # A single problem contributes 0, and must not divide by 0.
        num_others = max(1, len(problems) - 1)
        # Entry i is the sum without problem i, which changes the mean of its benchmark by (m - v_i) / (P_b - 1).
        total_without = total + (problems.mean() - problems) / num_others
        base_total_without = base_total + (base_problems.mean() - base_problems) / num_others
        ratio_without = total_without / base_total_without
        # What each problem contributes to the ratio. It is multiplied by B, because the contributions of the B
        # benchmarks are added, but the mean below divides by B.
        contributions = num_benchmarks * num_others * (ratio - ratio_without)
        parts.append(mean_unbounded(contributions, lowest=-math.inf))
    middle, low, high = mean_over_benchmarks(parts)
    # The jackknife interval is moved to the change. Its ends are NaN if a benchmark has a single problem; `max`
    # returns NaN only as its first argument.
    change = ratio - 1
    lower_end = max(change + low - middle, -1.0)
    upper_end = change + high - middle
    return Estimate(change, lower_end, upper_end)


def welch_test(first: np.ndarray, second: np.ndarray) -> tuple[Estimate, float]:
    r"""Returns the difference of two means over seeds with Welch's t interval, which allows unequal variances, and its
    two-sided p value.

    $$ t = \frac{m_1 - m_2}{\sqrt{v_1 + v_2}}, \qquad v_i = s_i^2 / n_i, \qquad
    \nu = \frac{(v_1 + v_2)^2}{v_1^2 / (n_1 - 1) + v_2^2 / (n_2 - 1)} $$

    Both arguments need at least two values. If both variances are 0, p is 1 for equal means, else 0.

    Source: [The generalization of Student's problem](https://doi.org/10.1093/biomet/34.1-2.28).
    """
    difference = float(first.mean() - second.mean())
    # Variances of the two means.
    first_variance = float(first.var(ddof=1)) / len(first)
    second_variance = float(second.var(ddof=1)) / len(second)
    variance = first_variance + second_variance
    if variance == 0:
        p_value = 1.0 if difference == 0 else 0.0
        return Estimate(difference, difference, difference), p_value
    # Degrees of freedom after Welch and Satterthwaite.
    first_square = first_variance**2 / (len(first) - 1)
    second_square = second_variance**2 / (len(second) - 1)
    degrees_of_freedom = variance**2 / (first_square + second_square)
    deviation = math.sqrt(variance)
    reach = t_quantile(degrees_of_freedom) * deviation
    p_value = t_p_value(difference / deviation, degrees_of_freedom)
    return Estimate(difference, difference - reach, difference + reach), p_value


def num_seeds_needed(difference: float, first_variance: float, second_variance: float) -> float:
    r"""Returns with how many seeds of each of two methods [`welch_test`] finds a difference in 80 % of comparisons:
    the smallest n of at least 2 with

    $$ n \ge (t_{0.975, \nu} + t_{0.8, \nu})^2 \frac{s_1^2 + s_2^2}{d^2}, \qquad
    \nu = (n - 1) \frac{(s_1^2 + s_2^2)^2}{s_1^4 + s_2^4} $$

    The result is infinite if there is no difference, and NaN if an argument is NaN.

    Source: the sample size of a two-sample t test in Zar, Biostatistical Analysis, 5th edition, chapter 8, with
    Welch's variance and degrees of freedom.

    Args:
        difference (`float`): Difference d to be found.
        first_variance (`float`), second_variance (`float`): Variances s^2 over the seeds of each method.
    """
    if difference == 0:
        return math.inf
    variance = first_variance + second_variance
    if variance == 0:
        return 2
    if math.isnan(variance / difference):
        return math.nan
    # The degrees of freedom depend on the number of seeds, so the number is searched upwards. The search begins at the
    # number by normal quantiles, which is not enough or just enough, since quantiles of Student's t are greater.
    normal_quantile = NormalDist().inv_cdf
    normal_quantiles = normal_quantile(1 - SIGNIFICANCE / 2) + normal_quantile(POWER)
    seeds_per_square = variance / difference**2
    num_seeds = max(2, math.ceil(normal_quantiles**2 * seeds_per_square))
    while True:
        degrees_of_freedom = (num_seeds - 1) * variance**2 / (first_variance**2 + second_variance**2)
        # The 97.5 % and the 80 % quantile, of which the second leaves 20 % outside in each direction.
        quantiles = t_quantile(degrees_of_freedom) + t_quantile(degrees_of_freedom, outside=2 * (1 - POWER))
        if num_seeds >= quantiles**2 * seeds_per_square:
            return num_seeds
        num_seeds += 1


def holm_rejections(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    r"""Returns which of m null hypotheses are rejected, of shape `(m,)`; the probability of any false rejection is at
    most 5 %.

    In ascending order, the p values are compared with $0.05 / m, 0.05 / (m - 1), \dots$ up to the first that is
    greater.

    Source: [A simple sequentially rejective multiple test procedure](https://www.jstor.org/stable/4615733).
    """
    values = np.asarray(p_values)
    num_tests = len(values)
    order = np.argsort(values, kind="stable")
    # 0.05 / m, 0.05 / (m - 1), ..., 0.05 for the p values in ascending order.
    bounds = SIGNIFICANCE / np.arange(num_tests, 0, -1)
    is_below_bound = values[order] <= bounds
    is_rejected = np.zeros(num_tests, dtype=bool)
    # The first p value above its bound ends the rejections. Assigning by `order` restores the order of the argument.
    is_rejected[order] = np.logical_and.accumulate(is_below_bound)
    return is_rejected
