"""Computes the weights that keep gradients and logged means unchanged when completions move between micro-batches.

TRL's losses divide by different counts, so it depends on the loss how freely completions can be distributed. All
functions are pure.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from trl import GRPOConfig


WINDOW_NORMALIZED = frozenset({"dapo", "cispo", "vespo"})
"""Losses that are sums over tokens, divided by the number of tokens of the whole accumulation window: the gradient is
the same however rows are distributed over micro-batches."""

ROW_NORMALIZED = frozenset({"grpo", "dr_grpo", "sapo", "luspo"})
"""Losses that are means over the rows of a micro-batch: the gradient is the same for every distribution of the rows if
each micro-batch is weighted by its number of rows."""

TOKEN_NORMALIZED = frozenset({"bnpo"})
"""Losses that are means over the tokens of a micro-batch: the gradient changes if rows move to another micro-batch.
Rows without signal can still be dropped if each micro-batch is weighted by its number of tokens."""

LOSS_TYPES = WINDOW_NORMALIZED | ROW_NORMALIZED | TOKEN_NORMALIZED


def loss_factor(
    loss_type: str, num_rows: int, num_rows_before: int, num_tokens: int = 1, num_tokens_before: int = 1
) -> float:
    """Returns the factor that gives a micro-batch's loss the weight that its rows have in TRL's own split,
    dimensionless.

    Args:
        num_rows (`int`): Number of rows computed in this micro-batch.
        num_rows_before (`int`): Number of rows of each micro-batch in TRL's split.
        num_tokens (`int`), num_tokens_before (`int`): The same for tokens in the loss; only `bnpo` uses them.

    Example:
        >>> loss_factor("grpo", num_rows=6, num_rows_before=4)
        1.5
    """
    # These losses are divided by the tokens of the whole window, which does not depend on micro-batches.
    if loss_type in WINDOW_NORMALIZED:
        return 1.0
    # TRL divides the loss by the rows, or by the tokens, of this micro-batch; the factor undoes that and divides by
    # those of TRL's own micro-batch instead.
    if loss_type in ROW_NORMALIZED:
        return num_rows / num_rows_before
    return max(num_tokens, 1) / max(num_tokens_before, 1)  # TRL divides by at least one token


def weighted_mean_factors(counts: Sequence[float]) -> list[float]:
    """Returns the factors that turn TRL's unweighted mean over micro-batches into a mean weighted by `counts`.

    TRL averages the means of micro-batches as if all had the same size, but micro-batches grouped by length have
    different sizes. If all counts are 0, all factors are 1.

    >>> weighted_mean_factors([30, 10])
    [1.5, 0.5]
    """
    total = sum(counts)
    if total == 0:
        return [1.0] * len(counts)
    return [count * len(counts) / total for count in counts]


def reasons_against_skipping(args: "GRPOConfig", has_router_loss: bool) -> list[str]:
    """Returns the settings because of which a completion with advantage 0 affects the loss or the weight of other
    completions."""
    reasons = []
    if args.beta != 0.0:
        reasons.append("beta gives every completion a KL term")
    # Where the rows of a micro-batch affect each other, those with advantage 0 affect the others too.
    return reasons + _reasons_of_coupled_rows(args, has_router_loss)


def reasons_against_regrouping(args: "GRPOConfig", has_router_loss: bool) -> list[str]:
    """Returns the settings because of which the loss depends on which completions share a micro-batch."""
    reasons = []
    if args.loss_type in TOKEN_NORMALIZED:
        reasons.append(f"loss_type={args.loss_type!r} is a mean over the tokens of each micro-batch")
    return reasons + _reasons_of_coupled_rows(args, has_router_loss)


def _reasons_of_coupled_rows(args: "GRPOConfig", has_router_loss: bool) -> list[str]:
    """Returns the settings with which every completion affects what the others of its micro-batch add to the loss."""
    reasons = []
    # A loss that TRL has added since may be of any type, so nothing can be assumed of it.
    if args.loss_type not in LOSS_TYPES:
        reasons.append(f"loss_type={args.loss_type!r} is not known")
    if args.entropy_coef != 0.0 or args.use_adaptive_entropy:
        reasons.append("the entropy bonus is a mean over each micro-batch")
    if args.top_entropy_quantile < 1.0:
        reasons.append("top_entropy_quantile is a quantile of each micro-batch")
    if has_router_loss:
        reasons.append("the router loss is computed for each micro-batch")
    return reasons
