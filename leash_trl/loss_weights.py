"""What keeps the gradient and the logged means the same when completions move between micro-batches. Pure.

TRL's losses differ in what they divide by, and so in how freely a window of completions may be split.
"""

from collections.abc import Sequence


WINDOW_NORMALIZED = frozenset({"dapo", "cispo", "vespo"})
"""Sums over tokens, divided by the tokens of the whole window: any split has the same gradient."""

ROW_NORMALIZED = frozenset({"grpo", "dr_grpo", "sapo", "luspo"})
"""Means over the rows of a micro-batch: any split has the same gradient once each is weighted by its rows."""

TOKEN_NORMALIZED = frozenset({"bnpo"})
"""Mean over the tokens of a micro-batch: another split is another loss, but rows without signal can be left out."""

LOSS_TYPES = WINDOW_NORMALIZED | ROW_NORMALIZED | TOKEN_NORMALIZED


def loss_factor(
    loss_type: str, num_rows: int, num_rows_before: int, num_tokens: int = 1, num_tokens_before: int = 1
) -> float:
    """
    Factor that gives a micro-batch's loss the weight its rows have in TRL's own split.

    Args:
        loss_type (`str`):
            TRL's `loss_type`, one of `LOSS_TYPES`.
        num_rows (`int`):
            Rows computed in this micro-batch.
        num_rows_before (`int`):
            Rows of each micro-batch in TRL's split.
        num_tokens (`int`, *optional*, defaults to 1):
            Loss tokens of the computed rows; counts for `bnpo` only.
        num_tokens_before (`int`, *optional*, defaults to 1):
            Loss tokens of the micro-batch in TRL's split; counts for `bnpo` only.

    Returns:
        `float`: Dimensionless factor.

    Raises:
        `ValueError`: If the loss is not known here.

    Example:
        >>> loss_factor("grpo", num_rows=6, num_rows_before=4)
        1.5
    """
    if loss_type in WINDOW_NORMALIZED:
        return 1.0
    if loss_type in ROW_NORMALIZED:
        return num_rows / num_rows_before
    if loss_type in TOKEN_NORMALIZED:
        return max(num_tokens, 1) / max(num_tokens_before, 1)  # TRL divides by at least one token
    raise ValueError(f"loss_type is {loss_type!r}, but must be one of {', '.join(sorted(LOSS_TYPES))}")


def mean_factors(counts: Sequence[float]) -> list[float]:
    """
    Factors that turn TRL's plain mean over micro-batches into the mean over all that they hold.

    TRL logs the mean over the tokens of each micro-batch and averages these as if all micro-batches were of one size,
    which those filled by length are not. Ones where there is nothing to count.

    >>> mean_factors([30, 10])
    [1.5, 0.5]
    """
    total = sum(counts)
    return [count * len(counts) / total if total else 1.0 for count in counts]
