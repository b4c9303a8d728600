"""How many positions the largest micro-batch of a GPU computes: TRL's cut by rows, and ours by tokens."""

from dataclasses import dataclass

from leash_trl.planning.settings import Settings


CAP_SLACK = 1.25
"""As in `leash_trl.microbatching.partition`, repeated because importing it would load torch; a test compares."""

MAX_ROWS_OVER_MEAN = 8
"""`leash_trl.microbatching.partition.MAX_ROWS_OVER_MEAN`, repeated for the same reason."""


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


def _covers(cap: int, num_rows: int, num_runs: int, tokens: int, longest: int) -> bool:
    """Whether runs of at most `cap` positions surely hold all rows; see [`least_cap_bound`]."""
    covered = 0
    for _ in range(num_runs):
        covered += max(cap // longest, cap * (covered + 1) // tokens)
        if covered >= num_rows:
            return True
    return False


def least_cap_bound(num_rows: int, num_parts: int, tokens: int, longest: int) -> int:
    r"""
    Positions that the largest micro-batch need not exceed, whatever the lengths: a bound on M of
    `leash_trl.microbatching.partition.partition`.

    Sorted by length, row $k + 1$ is no longer than $\min(T, S / (k + 1))$, for $k + 1$ rows are at least as long and
    sum to at most S. So the run that begins after k rows holds, within C positions,
    $\lfloor \max(C / T,\ C (k + 1) / S) \rfloor$ rows. The bound is the least C with which such runs hold all rows.

    `partition` also allows a run $m = \lceil 8 N / W \rceil$ rows at most for N rows and W parts. Splitting runs with
    more adds less than $N / m \le W / 8$ of them, so as many fewer are counted with here. Fewer rows, as zero signal
    is skipped, end such runs early.

    Args:
        num_rows (`int`):
            Most rows, N.
        num_parts (`int`):
            Micro-batches, W, from 1 to N.
        tokens (`int`):
            Most positions of all rows together, S.
        longest (`int`):
            Most positions of a row, T.

    Example:
        >>> least_cap_bound(8, 1, tokens=1000, longest=900), least_cap_bound(8, 2, tokens=1000, longest=900)
        (7200, 2000)
    """
    num_runs = num_parts - (-(-num_parts // MAX_ROWS_OVER_MEAN) - 1)
    low, high = 1, num_rows * longest
    while low < high:
        middle = (low + high) // 2
        if _covers(middle, num_rows, num_runs, tokens, longest):
            high = middle
        else:
            low = middle + 1
    return low


def grouped_micro_batch(settings: Settings) -> MicroBatch:
    r"""
    The largest micro-batch of `length_grouped_microbatches`: an upper bound for every window of completions whose mean
    length, over all GPUs, is at most the planned one.

    $$\min(s C,\ B\,T)$$

    for B rows a micro-batch on average, the slack s, T positions of the longest row and C of [`least_cap_bound`]. A
    window has W = gcd(`gradient_accumulation_steps`, `steps_per_generation`) micro-batches a GPU and B W rows. With R
    GPUs each row stands for R neighbours and is as long as their longest: that is above their mean by
    $(1 - 1/R)$ times what the first of them exceeds the last, and these differences sum to at most T. So the rows
    have $B W \bar T + (1 - 1/R) T$ positions at most. Source: `arrange` and `partition` in
    `leash_trl.microbatching.partition`.

    Differs: `pad_to_multiple_of` may add up to its value to prompts and to completions.
    """
    rows, longest = settings.per_device_train_batch_size, settings.max_length
    num_rows = rows * settings.window_size
    tokens = num_rows * (settings.max_prompt_length + settings.mean_completion_length)
    tokens += longest - longest // settings.num_gpus
    cap = CAP_SLACK * least_cap_bound(num_rows, settings.window_size, tokens, longest)
    return MicroBatch(float(min(cap, rows * longest)), longest, is_padded=rows > 1)


def largest_micro_batch(settings: Settings) -> MicroBatch:
    """The largest micro-batch of this run."""
    return grouped_micro_batch(settings) if settings.groups_lengths else stock_micro_batch(settings)
