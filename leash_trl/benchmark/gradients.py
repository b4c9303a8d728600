"""Writes gradients to disk, and measures the distance between two sets of them."""

import math
from pathlib import Path

import torch


def save_gradients(model: torch.nn.Module, path: Path) -> None:
    """Writes the gradients of all parameters that have one, by name."""
    gradients = {name: weight.grad.cpu() for name, weight in model.named_parameters() if weight.grad is not None}
    torch.save(gradients, path)


def gradient_difference(ours: Path, stock: Path) -> dict[str, float]:
    """The distance of our gradients from the stock trainer's, dimensionless; computed in float64.

    TRL computes log-probabilities in float32 whatever the model's type, so another split of the same rows moves the
    gradients of a float64 model by some 1e-7 too.

    Args:
        ours (`Path`), stock (`Path`):
            Files of [`save_gradients`].

    Returns:
        `dict[str, float]`: `relative_l2` is $|g - g_0| / |g_0|$ over all parameters together, `relative_max` is
        $\\max|g - g_0| / \\max|g_0|$.

    Raises:
        `ValueError`: If the files hold other parameters, a gradient is not finite, or all stock gradients are 0.
    """
    mine, theirs = (torch.load(path, mmap=True, weights_only=True) for path in (ours, stock))
    if mine.keys() != theirs.keys():
        raise ValueError(f"only one of the arms has gradients for {sorted(mine.keys() ^ theirs.keys())}")
    squares = norm_squares = largest = largest_stock = 0.0
    for name, gradient in theirs.items():
        expected = gradient.double()
        difference = mine[name].double() - expected
        if not difference.isfinite().all():  # max() below would skip NaN
            raise ValueError(f"gradients of {name} are not finite in one of the arms; try another dtype")
        squares += difference.square().sum().item()
        norm_squares += expected.square().sum().item()
        largest = max(largest, difference.abs().max().item())
        largest_stock = max(largest_stock, expected.abs().max().item())
    if largest_stock == 0:
        raise ValueError("all gradients of the stock trainer are 0; lower dead_share below 1 to compare gradients")
    return {"relative_l2": math.sqrt(squares / norm_squares), "relative_max": largest / largest_stock}
