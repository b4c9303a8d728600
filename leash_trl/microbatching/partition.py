"""Chooses which completions share a micro-batch and which need no forward pass. All functions are pure.

The cost of a micro-batch is the number of positions that it computes: its rows times the sum of its longest prompt and
its longest completion. Costs that grow with the square of the length, such as eager attention, are ignored.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import torch


CAP_SLACK = 1.25
"""Factor by which the largest micro-batch may exceed its smallest possible size, to reduce padding in the others."""

MAX_ROWS_OVER_MEAN = 8
"""Maximum number of rows of a micro-batch, as a multiple of the mean, which limits the search."""


def positions(prompt_lengths: Sequence[int], completion_lengths: Sequence[int]) -> int:
    """Returns the number of positions that a micro-batch of these rows computes, including padding.

    >>> positions([2, 5], [30, 10])
    70
    """
    return len(prompt_lengths) * (max(prompt_lengths, default=0) + max(completion_lengths, default=0))


def _fewest_parts(prompts: Sequence[int], completions: Sequence[int], cap: int, max_rows: int) -> int:
    """Returns the smallest number of runs of rows, sorted by completion length, with at most `cap` positions each."""
    parts, rows, longest_prompt, longest_completion = 0, 0, 0, 0
    for prompt, completion in zip(prompts, completions, strict=True):
        longest_prompt = max(longest_prompt, prompt)
        if parts and rows < max_rows and (rows + 1) * (longest_prompt + longest_completion) <= cap:
            rows += 1
        else:
            parts, rows, longest_prompt, longest_completion = parts + 1, 1, prompt, completion
    return parts


def _smallest_cap(prompts: Sequence[int], completions: Sequence[int], num_parts: int, max_rows: int) -> int:
    """Returns the smallest possible number of positions of the largest of `num_parts` runs."""
    low = max(prompt + completion for prompt, completion in zip(prompts, completions, strict=True))
    high = max(low, positions(prompts, completions))

    def suffices(cap: int) -> bool:
        return _fewest_parts(prompts, completions, cap, max_rows) <= num_parts

    return bisect_left(range(high), True, lo=low, key=suffices)


def _run_costs(prompts: Sequence[int], completions: Sequence[int], cap: float, max_rows: int) -> torch.Tensor:
    """`torch.Tensor` of shape `(N + 1, N + 1)`: Number of positions of the run of rows from `start` to `end`
    (exclusive), at index `[end, start]`; infinite if this is not a run or exceeds `cap`."""
    num_rows = len(prompts)
    costs = torch.full((num_rows + 1, num_rows + 1), torch.inf, dtype=torch.float64)
    for start in range(num_rows):
        longest_prompts = torch.tensor([*accumulate(prompts[start : start + max_rows], max)])
        sizes = torch.arange(1, len(longest_prompts) + 1)
        costs[start + sizes, start] = (sizes * (longest_prompts + completions[start])).double()
    return costs.masked_fill(costs > cap, torch.inf)


def _cheapest_cuts(costs: torch.Tensor, num_parts: int) -> list[int]:
    """Returns the ends of the `num_parts` runs with the fewest positions in total, by dynamic programming."""
    least = torch.full((len(costs),), torch.inf, dtype=torch.float64)  # fewest positions of all rows before each end
    least[0] = 0.0
    starts = []  # start of the last run before each end, for one run, two runs, ...
    for _ in range(num_parts):
        least, start_of_last_run = (least + costs).min(dim=1)
        starts.append(start_of_last_run.tolist())
    ends = [len(costs) - 1]
    for start_of_last_run in reversed(starts[1:]):
        ends.append(start_of_last_run[ends[-1]])
    return ends[::-1]


def partition(prompt_lengths: Sequence[int], completion_lengths: Sequence[int], num_parts: int) -> list[list[int]]:
    """Divides rows into micro-batches that compute the fewest positions in total, with a bound on the largest one.

    Rows are sorted by completion length and divided into runs so that the sum of positions is minimal. Let M be the
    smallest possible number of positions of the largest run. Each run has at most `CAP_SLACK * M` positions, and at
    most as many as if rows were split by number and padded to the longest of all, as TRL does.

    Args:
        prompt_lengths (`Sequence[int]` of length N): Tokens of the prompts.
        completion_lengths (`Sequence[int]` of length N): Tokens of the completions.
        num_parts (`int`): Number of micro-batches, from 1 to N. None of them is empty.

    Returns:
        `list[list[int]]`: `num_parts` lists of rows, longest completions first.

    Example:
        >>> partition([0, 0, 0, 0], [2, 8, 2, 2], num_parts=2)
        [[1], [0, 2, 3]]
    """
    num_rows = len(completion_lengths)
    order = sorted(range(num_rows), key=lambda row: (-completion_lengths[row], -prompt_lengths[row]))
    prompts = [prompt_lengths[row] for row in order]
    completions = [completion_lengths[row] for row in order]
    max_rows = min(num_rows - num_parts + 1, -(-MAX_ROWS_OVER_MEAN * num_rows // num_parts))
    cap = min(
        CAP_SLACK * _smallest_cap(prompts, completions, num_parts, max_rows),
        -(-num_rows // num_parts) * (max(prompts) + max(completions)),
    )
    ends = _cheapest_cuts(_run_costs(prompts, completions, cap, max_rows), num_parts)
    return [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def rows_to_compute(is_needed: Sequence[bool], lengths: Sequence[int], least: int, multiple_of: int = 1) -> list[int]:
    """Returns the needed rows, and as many of the shortest other rows as are required for at least `least` rows and a
    multiple of `multiple_of`.

    Every process must run the same number of forward passes, since DDP, FSDP and ZeRO synchronize in them, and on the
    same number of rows, since TRL gathers a statistic of each row. So some rows are computed although they have no
    signal.

    >>> rows_to_compute([False, True, False], [7, 9, 3], least=2)
    [1, 2]
    """
    needed = [row for row, needed in enumerate(is_needed) if needed]
    spare = sorted((row for row, needed in enumerate(is_needed) if not needed), key=lambda row: lengths[row])
    total = max(least, -(-len(needed) // multiple_of) * multiple_of)
    return sorted(needed + spare[: total - len(needed)])


def arrange(
    prompt_lengths: Sequence[int],
    completion_lengths: Sequence[int],
    is_needed: Sequence[bool],
    num_steps: int,
    num_processes: int = 1,
) -> list[list[list[int]]]:
    """Returns the micro-batches of every process for rows that may be distributed freely.

    Rows are sorted by length, and each process takes one of every `num_processes` neighbors. So at any time, all
    processes compute the same number of rows of about the same length, and no process waits long. The largest
    micro-batches come first, so that too little memory shows at once.

    Args:
        prompt_lengths (`Sequence[int]` of length N): Tokens of the prompts, of all processes.
        completion_lengths (`Sequence[int]` of length N): Tokens of the completions.
        is_needed (`Sequence[bool]` of length N): Whether a row adds to the loss.
        num_steps (`int`): Number of micro-batches per process.
        num_processes (`int`): Number of processes. N must be a multiple of it, and at least `num_steps *
            num_processes`.

    Returns:
        `list[list[list[int]]]`: For each process, `num_steps` lists of rows; none is empty.

    Example:
        >>> arrange([0] * 4, [8, 2, 8, 3], [True] * 4, num_steps=2, num_processes=2)
        [[[0], [1]], [[2], [3]]]
    """
    lengths = [sum(pair) for pair in zip(prompt_lengths, completion_lengths, strict=True)]
    rows = rows_to_compute(is_needed, lengths, num_steps * num_processes, num_processes)
    rows.sort(key=lambda row: (-completion_lengths[row], -prompt_lengths[row]))
    neighbors = [rows[start : start + num_processes] for start in range(0, len(rows), num_processes)]
    prompts = [max(prompt_lengths[row] for row in block) for block in neighbors]
    completions = [max(completion_lengths[row] for row in block) for block in neighbors]
    parts = partition(prompts, completions, num_steps)
    parts.sort(key=lambda part: -positions([prompts[k] for k in part], [completions[k] for k in part]))
    # the processes take turns in getting the longest of the neighbors
    return [
        [[neighbors[k][(process + k) % num_processes] for k in part] for part in parts]
        for process in range(num_processes)
    ]
