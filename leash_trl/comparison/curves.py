"""Reads the result of a training from its logged curves: their two ends, and when the target was reached."""

from typing import TypeVar

import pandas as pd


NUM_END_BATCHES = 10  # at each end of a log
RUNNING_MEAN_BATCHES = 10  # number of training batches in a running mean, since single batches are too noisy

Curves = TypeVar("Curves", "pd.Series[float]", pd.DataFrame)


def first_and_last_batches(curves: Curves) -> tuple[Curves, Curves]:
    """Returns the first and the last ten logged batches; if there are fewer than twenty, the first and the last half,
    and a single batch twice.

    Example:
        >>> first, last = first_and_last_batches(pd.Series([60.0, 50.0, 40.0, 30.0, 20.0]))
        >>> first.tolist(), last.tolist()
        ([60.0, 50.0], [30.0, 20.0])
    """
    size = min(NUM_END_BATCHES, max(1, len(curves) // 2))
    return curves.iloc[:size], curves.iloc[-size:]


def first_step_at_target(mean_lengths: "pd.Series[float]", target: float) -> int | None:
    """Returns the step of the first batch whose mean length is at or below the target; `None` if there is none.

    Example:
        >>> first_step_at_target(pd.Series([60.0, 46.0, 50.0], index=[1, 2, 3]), target=46)
        2
    """
    steps = mean_lengths.index[mean_lengths <= target]
    return int(steps[0]) if len(steps) else None
