"""Reads from the logged curves of a training when it reached its target."""

import pandas as pd


RUNNING_MEAN_BATCHES = 10  # number of training batches in a running mean, since single batches are too noisy


def first_step_at_target(mean_lengths: "pd.Series[float]", target: float) -> int | None:
    """Returns the step of the first batch whose mean length is at or below the target; `None` if there is none.

    Example:
        >>> first_step_at_target(pd.Series([60.0, 46.0, 50.0], index=[1, 2, 3]), target=46)
        2
    """
    steps = mean_lengths.index[mean_lengths <= target]
    return int(steps[0]) if len(steps) else None
