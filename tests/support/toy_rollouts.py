"""Rollouts from plain lists, updates on them, and the comparison of tests of length-control methods."""

import math

import torch

from leash_trl.length_control.rollouts import Rollouts


def toy_rollouts(
    rewards,
    lengths,
    target=None,
    num_generations=None,
    truncated=None,
    questions=None,
    limit=32768,
    correctness=None,
    columns=None,
):
    """One group unless `num_generations` says otherwise, nothing truncated, one target for all or one for each."""
    size = len(lengths)
    num_generations = num_generations or size
    if target is None:
        target = math.nan
    targets = target if isinstance(target, list) else [target] * size
    return Rollouts(
        task_rewards=torch.tensor(rewards, dtype=torch.float64),
        lengths=torch.tensor(lengths),
        target_lengths=torch.tensor(targets, dtype=torch.float64),
        is_truncated=torch.tensor(truncated or [False] * size),
        questions=torch.tensor(questions or [row // num_generations for row in range(size)]),
        num_generations=num_generations,
        max_completion_length=limit,
        common_target=math.nan if isinstance(target, list) else float(target),
        correctness_rewards=None if correctness is None else torch.tensor(correctness, dtype=torch.float64),
        columns=columns or {},
    )


def updated(method, *batches):
    """The method after a policy update on each of these batches."""
    for rollouts in batches:
        method.observe(rollouts)
        method.step()
    return method


def close(actual, expected, rtol=1e-9, atol=1e-12):
    """Asserts that values in float64 are those expected; NaN where NaN is."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
