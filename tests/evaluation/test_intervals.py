"""Intervals over problems and seeds."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from interval_simulation import REWARD_WORLDS, WORLDS, coverage, reward_coverage

from leash_trl.evaluation.intervals import (
    Estimate,
    holm_rejections,
    mean_bounded,
    mean_bounded_difference,
    mean_over_benchmarks,
    mean_over_seeds,
    mean_share,
    mean_unbounded,
    narrowest_usual_bounds,
    num_seeds_needed,
    ratio_minus_one,
    t_p_value,
    t_quantile,
    welch_test,
)


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.7062), (4, 2.7764), (29, 2.0452), (12_000, 1.9602)])
def test_quantiles_and_p_values_are_those_of_the_tables(degrees, quantile):
    assert t_quantile(degrees) == pytest.approx(quantile, abs=5e-5)
    assert t_p_value(-quantile, degrees) == pytest.approx(0.05, abs=1e-5)
    assert t_p_value(1.0, 1) == pytest.approx(0.5)  # 1 - 2 atan(t) / pi


# populations, completions, draws of 30 problems each, bounds of the mean and of the least coverage, and of the width
@pytest.mark.parametrize(
    ("worlds", "num_samples", "num_draws", "bounds", "least", "widest"),
    [
        (["even, no limit, long tail", "AIME, short limit", "nearly solved"], 4, 400, (0.94, 0.975), 0.91, 1.5),
        pytest.param([*WORLDS], 1, 1000, (0.94, 0.98), 0.9, 1.6, marks=pytest.mark.slow),
        pytest.param([*WORLDS], 16, 1000, (0.94, 0.98), 0.9, 1.6, marks=pytest.mark.slow),
    ],
)
def test_intervals_cover_as_often_as_they_say(worlds, num_samples, num_draws, bounds, least, widest):
    coverages = [coverage(world, 30, num_samples, num_draws) for world in worlds]
    low, high = bounds
    for statistic in coverages[0]:
        shares = [by_statistic[statistic].share for by_statistic in coverages]
        widths = [by_statistic[statistic].relative_width for by_statistic in coverages]
        assert low <= np.mean(shares) <= high, (statistic, shares)
        assert min(shares) >= least, (statistic, shares)
        assert max(widths) < widest, statistic


@given(arrays(float, st.integers(1, 30), elements=st.floats(-1, 1, width=16)))
def test_an_interval_of_bounded_rewards_holds_their_mean_and_lies_within_their_bounds(rewards):
    low, high = narrowest_usual_bounds(rewards)
    mean = mean_bounded(rewards, low, high)
    assert low <= mean.low <= mean.value <= mean.high <= high
    assert mean.value == pytest.approx(rewards.mean())
    assert mean.high > mean.low
    change = mean_bounded_difference(rewards - rewards[::-1], low, high, samples_per_problem=4)
    assert low - high <= change.low <= change.value <= change.high <= high - low


@pytest.mark.parametrize("size", [10, 30])
def test_intervals_of_rewards_with_partial_credit_cover_as_often_as_they_say(size):
    shares = [reward_coverage(name, size, num_samples=4, num_draws=400) for name in REWARD_WORLDS]
    assert 0.94 <= np.mean(shares) <= 0.99
    assert min(shares) >= 0.91


# quantiles by degrees of freedom
T1 = t_quantile(1)
T2 = t_quantile(2)
T3 = t_quantile(3)
T29 = t_quantile(29)
TENS = np.array([0.0, 10.0, 20.0])  # standard deviation 10
TENS_REACH = T2 * 10 / 3**0.5
GAPS = np.array([1.0, 1.0, 0.0, 0.0])
GAPS_REACH = 2 * T3 * (0.3125 / 12) ** 0.5  # of four samples each: squares 0.25 and 1 / (4 * 4), of gaps half as large

approx = partial(pytest.approx, rel=1e-9, abs=1e-12, nan_ok=True)


def test_shares_by_hand():
    assert mean_share(np.zeros(30)) == approx((0, 0, T29**2 / (30 + T29**2)))
    # Wilson's with t = 2.04523, for problems worth phi completions each: (20/3 * 30/29 + 0.05) / (20/3 + 0.05)
    a_third = np.repeat([1.0, 0.0], [10, 20])
    assert mean_share(a_third) == approx((1 / 3, 0.1856732235686, 0.5230035251014))
    stretched = (-1 / 3, 2 * 0.1856732236634 - 1, 2 * 0.5230035249450 - 1)
    assert mean_bounded(2 * a_third - 1, low=-1, high=1) == approx(stretched)


def test_differences_of_shares_by_hand():
    half = mean_bounded_difference(GAPS / 2, low=0, high=1, samples_per_problem=4)
    assert half == approx((0.25, 0.25 - GAPS_REACH / 2, 0.25 + GAPS_REACH / 2))
    stretched = mean_bounded_difference(GAPS, low=-1, high=1, samples_per_problem=4)
    assert stretched == approx((0.5, 0.5 - GAPS_REACH, 0.5 + GAPS_REACH))
    assert mean_bounded_difference(np.array([1.0, 0.0]), low=0, high=1, samples_per_problem=1) == approx((0.5, -1, 1))


def test_amounts_by_hand():
    assert mean_unbounded(TENS + 90) == approx((100, 100 - TENS_REACH, 100 + TENS_REACH))
    assert mean_unbounded(TENS) == approx((10, 0, 10 + TENS_REACH))
    without_bounds = mean_bounded(TENS, low=-math.inf, high=math.inf)
    assert without_bounds == approx((10, 10 - TENS_REACH, 10 + TENS_REACH))


def test_means_over_seeds_by_hand():
    reach = T2 * 0.1 / 3**0.5
    assert mean_over_seeds([0.7, 0.8, 0.9]) == approx((0.8, 0.8 - reach, 0.8 + reach))
    assert mean_over_seeds([0.7, 0.8, 0.9], highest=1.0) == approx((0.8, 0.8 - reach, 1))


def test_a_mean_over_benchmarks_by_hand():
    # sqrt(6^2 + 8^2) / 2 = 5, sqrt(3^2 + 4^2) / 2 = 2.5
    estimates = [Estimate(0.5, 0.44, 0.53), Estimate(0.7, 0.62, 0.74)]
    assert mean_over_benchmarks(estimates) == approx((0.6, 0.55, 0.625))


def test_ratios_by_hand():
    lengths = np.array([2.0, 2.0])
    base_lengths = np.array([1.0, 3.0])
    # the ratio is 1, without one problem 2/3 or 2, so the parts are 1/3 and -1
    assert ratio_minus_one([lengths], [base_lengths]) == approx((0, -1, T1 * 2 / 3))
    # without one of four 4/5 or 4/3, so the parts are 2/5 and -2/3 in each of two benchmarks
    of_two_benchmarks = ratio_minus_one([lengths] * 2, [base_lengths] * 2)
    assert of_two_benchmarks == approx((0, -1, T1 * 8 / 15 / 2**0.5))


def test_one_problem_says_nothing_of_others():
    value = np.array([0.25])
    assert mean_share(value) == (0.25, 0, 1)
    assert mean_bounded_difference(value, low=0, high=1, samples_per_problem=4) == (0.25, -1, 1)
    assert mean_unbounded(value) == approx((0.25, math.nan, math.nan))
    assert mean_over_seeds(value) == approx((0.25, math.nan, math.nan))


def test_a_long_tail_moves_its_end_out_and_not_the_other_in():
    values = np.exp(np.random.default_rng(0).normal(size=30))
    mean = values.mean()
    deviation = values.std(ddof=1)
    reach = T29 / 30**0.5
    amount = mean_unbounded(values, -math.inf)
    assert amount.low == pytest.approx(mean - reach * deviation)
    g = ((values - mean) ** 3).mean() / deviation**3
    u = (mean - amount.high) / deviation
    assert u + g * u**2 / 3 + g**2 * u**3 / 27 + g / 180 == pytest.approx(-reach)
    mirrored = mean_unbounded(-values, -math.inf)
    assert (mirrored.low, mirrored.high) == pytest.approx((-amount.high, -amount.low))


def test_welch_counts_each_spread_by_its_own_size():
    # v = 2 / 2 and 4 / 3: t = -4 / sqrt(7/3), nu = (7/3)^2 / (1 / 1 + (16/9) / 2) = 49 / 17
    difference, p_value = welch_test(np.array([1.0, 3.0]), np.array([4.0, 8.0, 6.0]))
    reach = t_quantile(49 / 17) * math.sqrt(7 / 3)
    assert difference == approx((-4, -4 - reach, -4 + reach))
    assert p_value == pytest.approx(t_p_value(-4 / math.sqrt(7 / 3), 49 / 17))


def test_samples_without_spread_are_told_apart_by_their_values():
    assert welch_test(np.ones(2), np.ones(2)) == ((0, 0, 0), 1)
    assert welch_test(np.ones(2), np.full(2, 2.0)) == ((-1, -1, -1), 0)


@pytest.mark.parametrize(
    ("difference", "variances", "expected"),
    [
        # (2.2281 + 0.8791)^2 * 2 / 4 = 4.83 with 10 degrees of freedom; with 8, of 5 seeds, 5.10
        (2, (1, 1), 6),
        # (2.2622 + 0.8834)^2 = 9.89 with 9 degrees of freedom; with 8, of 9 seeds, 10.2
        (-1, (1, 0), 10),
        (1, (0, 0), 2),
        (0, (1, 1), math.inf),
        (math.nan, (1, 1), math.nan),
        (1, (math.nan, 1), math.nan),
    ],
)
def test_seeds_needed_by_hand(difference, variances, expected):
    assert num_seeds_needed(difference, *variances) == approx(expected)


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        ([], []),
        ([0.05], [True]),
        ([0.051], [False]),
        ([0.05, 0.012, 0.024, 0.016], [True, True, True, True]),  # 0.0125, 0.0167, 0.025, 0.05
        ([0.001, 0.02, 0.024, 0.04], [True, False, False, False]),  # 0.02 > 0.05 / 3 ends it
    ],
)
def test_holm_by_hand(p_values, rejected):
    assert holm_rejections(p_values).tolist() == rejected
