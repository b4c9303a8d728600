"""Intervals over problems."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from leash_trl.evaluation.bootstrap import NUM_RESAMPLES, Estimate, estimate, resampled_means


def interval(values, seed=0):
    return estimate(values.mean(), resampled_means(values, seed))


def test_two_problems_by_hand():
    # means of two draws from 0 and 1: 0 and 1 a quarter of the time each, 0.5 half of it
    means = resampled_means(np.array([0.0, 1.0]))
    assert set(means) == {0.0, 0.5, 1.0}
    assert (means == 0.5).mean() == pytest.approx(0.5, abs=4 * (0.25 / NUM_RESAMPLES) ** 0.5)
    assert estimate(0.5, means) == Estimate(0.5, 0.0, 1.0)


def test_percentiles_by_hand():
    assert estimate(7.0, np.arange(201.0)) == Estimate(7.0, 5.0, 195.0)


def test_one_problem_has_a_point():
    assert interval(np.array([0.25])) == Estimate(0.25, 0.25, 0.25)


def test_columns_see_the_same_resamples():
    first = np.random.default_rng(1).random(50)
    means = resampled_means(np.stack([first, 3 * first + 1], axis=1))
    assert means[:, 1] == pytest.approx(3 * means[:, 0] + 1)
    assert means[:, 0] == pytest.approx(resampled_means(first))


def test_the_seed_decides_the_resamples():
    values = np.random.default_rng(1).random(50)
    assert np.array_equal(resampled_means(values), resampled_means(values, seed=0))
    assert np.array_equal(resampled_means(values, seed=3), resampled_means(values, seed=3))
    assert not np.array_equal(resampled_means(values, seed=3), resampled_means(values, seed=4))


def test_spread_is_the_standard_error_of_the_mean():
    values = np.random.default_rng(2).normal(size=400)
    # 2000 resamples know a standard deviation to 1 / sqrt(2 * 2000) = 1.6 %; three of those
    assert resampled_means(values).std() == pytest.approx(values.std() / 20, rel=0.05)


def test_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = []
    for _ in range(120):
        # 60 problems of unequal difficulty, mean 0.5; 4 completions each
        difficulty = rng.random(60)
        found = interval((rng.random((60, 4)) < difficulty[:, None]).mean(axis=1))
        covered.append(found.low <= 0.5 <= found.high)
    # 95 % of 120 is 114, standard deviation 2.4: 107 is three below
    assert 0.89 <= np.mean(covered) <= 0.99


@settings(max_examples=25)
@given(arrays(float, st.integers(1, 30), elements=st.floats(0, 1, width=16)))
def test_interval_stays_within_the_values(values):
    found = interval(values)
    assert values.min() - 1e-12 <= found.low <= found.high <= values.max() + 1e-12
