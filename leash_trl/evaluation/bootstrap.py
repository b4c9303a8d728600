"""Intervals of means over problems: problems are drawn with replacement, all completions of one together."""

from dataclasses import dataclass

import numpy as np


NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % bootstrap interval, in one unit.

    With one problem the interval is a point: it says nothing about other problems.

    Args:
        value (`float`):
            The number itself, not the middle of the interval.
        low (`float`), high (`float`):
            2.5th and 97.5th percentile over resamples.
    """

    value: float
    low: float
    high: float


def estimate(value: float, resamples: np.ndarray) -> Estimate:
    """A number with the interval that its resamples span.

    Args:
        value (`float`):
            The number on the problems as they are.
        resamples (`np.ndarray` of shape `(R,)`):
            The number on each resample.

    Example:
        >>> estimate(0.5, np.arange(41.0))
        Estimate(value=0.5, low=1.0, high=39.0)
    """
    low, high = np.quantile(resamples, [0.025, 0.975])
    return Estimate(float(value), float(low), float(high))


def resampled_means(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Means over resampled problems, in the unit of the values; all columns see the same resamples.

    Columns that see the same resamples may be subtracted or divided: that is the paired bootstrap.

    Args:
        values (`np.ndarray` of shape `(P, M)` or `(P,)`):
            One row per problem. Must have one problem at least.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the draws; with the same seed and number of problems the draws are the same.

    Returns:
        `np.ndarray` of shape `(R, M)` or `(R,)`: `NUM_RESAMPLES` means.
    """
    rng = np.random.default_rng(seed)
    size = len(values)
    # how often each problem is drawn: one row of counts at a time, because R times P of them is too much for MMLU-Pro
    counts = (np.bincount(rng.integers(0, size, size), minlength=size) for _ in range(NUM_RESAMPLES))
    return np.stack([count @ values / size for count in counts])
