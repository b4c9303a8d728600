"""Stops a run whose gradients or weights are not finite, before they reach the model or a checkpoint."""

import math
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def check_finite_gradients(model: nn.Module, update: int, output_dir: str | Path) -> None:
    """Raises `FloatingPointError`, before the optimizer applies the gradients, if one of them is not finite."""
    # Frozen weights have no gradient, and where weights are sharded, a process can hold an empty part of some.
    gradients = [weights.grad for weights in model.parameters() if weights.grad is not None and weights.grad.numel()]
    # The norm is infinite or NaN, which is not below infinity either, if any of the gradients is.
    if not gradients or _norm(gradients) < math.inf:
        return
    raise FloatingPointError(
        f"the gradient of update {update} is not finite, so the update was not applied; {_remedy(output_dir)}"
    )


def _norm(gradients: list[torch.Tensor]) -> float:
    """Returns the norm of all gradients together."""
    norm = torch.nn.utils.get_total_norm(gradients)
    if isinstance(norm, DTensor):  # with FSDP, each process has computed the norm of its part of the weights
        norm = norm.full_tensor()
    return float(norm)


def check_finite_weights(model: nn.Module, update: int, output_dir: str | Path) -> None:
    """Raises `FloatingPointError`, before anything is saved, if a trained weight is not finite.

    Otherwise, with `save_total_limit`, a bad checkpoint could replace the last good one.
    """
    trained = [weights for weights in model.parameters() if weights.requires_grad]
    if not all(weights.isfinite().all() for weights in trained):
        raise FloatingPointError(
            f"weights are not finite after update {update}, so nothing was saved; {_remedy(output_dir)}"
        )


def _remedy(output_dir: str | Path) -> str:
    """Returns the remedy for an error message: a new run, since a resumed one would keep its learning rate."""
    return f"pass the last checkpoint in {output_dir} as model to a new run, for which a lower learning_rate may help"
