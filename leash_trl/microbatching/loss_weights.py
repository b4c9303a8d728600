"""Computes the weights that keep gradients and logged means unchanged when completions move between micro-batches.

TRL's losses divide by different counts, so how freely completions can be distributed depends on the loss. An
accumulation window holds the micro-batches of one policy update. All functions are pure.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple


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


class Factors(NamedTuple):
    """Factors by which the loss of a micro-batch, and its logged means over tokens and over rows, are multiplied."""

    loss: float
    token: float
    row: float


def factors_of_microbatches(
    loss_type: str,
    plan: Sequence[Sequence[Sequence[int]]],
    process: int,
    num_loss_tokens: Sequence[int],
    num_rows_before: int,
) -> list[Factors]:
    """Returns the factors of each micro-batch of a process.

    Args:
        plan (`Sequence`): For each process, for each of its micro-batches in their order, the rows.
        num_loss_tokens (`Sequence[int]`): Tokens in the loss, of each row.
        num_rows_before (`int`): Number of rows of each micro-batch in TRL's split.

    Example:
        >>> factors_of_microbatches("grpo", [[[0, 1, 2], [3]]], 0, num_loss_tokens=[4, 4, 4, 8], num_rows_before=2)
        [Factors(loss=1.5, token=1.2, row=1.5), Factors(loss=0.5, token=0.8, row=0.5)]
    """
    num_tokens_by_process = [[sum(num_loss_tokens[row] for row in part) for part in parts] for parts in plan]
    num_rows_by_process = [[len(part) for part in parts] for parts in plan]
    # At each step, TRL logs one mean over the micro-batches of all processes. So the logged means are weighted by the
    # rows and tokens of all.
    token_factors = weighted_mean_factors([sum(counts) for counts in zip(*num_tokens_by_process, strict=True)])
    row_factors = weighted_mean_factors([sum(counts) for counts in zip(*num_rows_by_process, strict=True)])
    factors = []
    # The gradient is a mean over processes already, so the loss is weighted by the rows of this process alone.
    for step, num_rows in enumerate(num_rows_by_process[process]):
        factor = loss_factor(
            loss_type,
            num_rows=num_rows,
            num_rows_before=num_rows_before,
            num_tokens=num_tokens_by_process[process][step],
            num_tokens_before=sum(num_loss_tokens),  # only used without regrouping, where a window is one batch
        )
        factors.append(Factors(factor, token_factors[step], row_factors[step]))
    return factors


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
