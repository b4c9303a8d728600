"""How many positions the largest micro-batch of a GPU computes: TRL's cut by rows, and ours by tokens."""

from dataclasses import dataclass

from leash_trl.planning.settings import Settings


CAP_SLACK = 1.25
"""The slack of `leash_trl.microbatch.CAP_SLACK`, repeated because importing it would load torch; a test compares."""

FILL_SLACK = 1.7
"""How far the least possible largest micro-batch may lie above the mean one, as rows are whole and padded: the most
that random windows of log-normal lengths showed, rounded up; not a proven bound."""


@dataclass(frozen=True)
class MicroBatch:
    """The largest micro-batch of a GPU.

    Args:
        tokens (`float`):
            Positions that it computes, padding included.
        length (`int`):
            Positions of its longest row.
        is_padded (`bool`):
            Whether a row may be shorter than the longest, and so need an attention mask.
    """

    tokens: float
    length: int
    is_padded: bool


def stock_micro_batch(settings: Settings) -> MicroBatch:
    """The largest micro-batch of TRL: its rows, all padded to the longest of the generation batch."""
    rows = settings.per_device_train_batch_size
    return MicroBatch(float(rows * settings.max_length), settings.max_length, is_padded=True)


def grouped_micro_batch(settings: Settings) -> MicroBatch:
    r"""
    The largest micro-batch of `length_grouped_microbatches`, an upper bound.

    $$\min\bigl(s \max(T_{\max},\ f B \bar T),\ B\,T_{\max}\bigr)$$

    for B rows a micro-batch on average, of mean length $\bar T$ and maximum $T_{\max}$, and the slacks s and f: where
    the longest rows fill a micro-batch each, the others share what is left. Source: `leash_trl.microbatch.partition`.
    """
    rows = settings.per_device_train_batch_size
    mean_tokens = rows * (settings.max_prompt_length + settings.mean_completion_length)
    bound = CAP_SLACK * max(settings.max_length, FILL_SLACK * mean_tokens)
    return MicroBatch(min(bound, rows * settings.max_length), settings.max_length, is_padded=rows > 1)


def largest_micro_batch(settings: Settings) -> MicroBatch:
    """The largest micro-batch of this run."""
    return grouped_micro_batch(settings) if settings.groups_lengths else stock_micro_batch(settings)
