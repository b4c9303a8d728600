"""Chooses which completions share a micro-batch and which need no forward pass. All functions are pure.

The cost of a micro-batch is the number of positions that it computes: its rows times the sum of its longest prompt and
its longest completion. Costs that grow with the square of the length, such as eager attention, are ignored.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import torch


CAP_SLACK = 1.25
"""Factor by which the largest micro-batch may exceed its smallest possible size, to reduce padding in the others."""

MAX_ROWS_OVER_MEAN = 8
"""Maximum number of rows of a micro-batch, as a multiple of the mean, which limits the search."""

Arrangement = list[list[list[int]]]
"""For each process, for each of its micro-batches in their order, the rows."""


def positions(prompt_lengths: Sequence[int], completion_lengths: Sequence[int]) -> int:
    """Returns the number of positions that a micro-batch of these rows computes, including padding.

    >>> positions([2, 5], [30, 10])
    70
    """
    prompt_width = max(prompt_lengths, default=0)
    completion_width = max(completion_lengths, default=0)
    return len(prompt_lengths) * (prompt_width + completion_width)


def _fewest_parts(prompts: Sequence[int], completions: Sequence[int], cap: int, max_rows: int) -> int:
    """Returns the smallest number of runs of neighboring rows with at most `cap` positions and `max_rows` rows each,
    for rows sorted by completion length, longest first."""
    num_parts = 0
    num_rows = 0  # of the last run, as are the two widths
    prompt_width = 0
    completion_width = 0
    for prompt, completion in zip(prompts, completions, strict=True):
        prompt_width = max(prompt_width, prompt)
        num_positions = (num_rows + 1) * (prompt_width + completion_width)  # with this row
        if num_parts > 0 and num_rows < max_rows and num_positions <= cap:
            num_rows += 1
        else:  # this row begins a run, and its completion is the longest of that run
            num_parts += 1
            num_rows = 1
            prompt_width = prompt
            completion_width = completion
    return num_parts


def _smallest_cap(prompts: Sequence[int], completions: Sequence[int], num_parts: int, max_rows: int) -> int:
    """Returns the smallest possible number of positions of the largest of `num_parts` runs."""
    longest_row = max(prompt + completion for prompt, completion in zip(prompts, completions, strict=True))
    all_in_one_run = max(longest_row, positions(prompts, completions))

    def suffices(cap: int) -> bool:
        return _fewest_parts(prompts, completions, cap, max_rows) <= num_parts

    # `suffices` is false for all caps below the result and true from there on
    return bisect_left(range(all_in_one_run), True, lo=longest_row, key=suffices)


def _run_costs(prompts: Sequence[int], completions: Sequence[int], cap: float, max_rows: int) -> torch.Tensor:
    """Returns the number of positions of every run, as a tensor of shape `(N + 1, N + 1)`: at index `[end, start]`
    that of the rows from `start` to `end` (exclusive), infinite if there is no such run or it exceeds `cap`."""
    num_rows = len(prompts)
    costs = torch.full((num_rows + 1, num_rows + 1), torch.inf, dtype=torch.float64)
    for start in range(num_rows):
        # one element for each run from `start` on: of one row, two rows, ..., `max_rows` rows
        prompt_widths = torch.tensor(list(accumulate(prompts[start : start + max_rows], max)))
        sizes = torch.arange(1, len(prompt_widths) + 1)
        completion_width = completions[start]  # the first row has the longest completion
        costs[start + sizes, start] = (sizes * (prompt_widths + completion_width)).double()
    return costs.masked_fill(costs > cap, torch.inf)


def _cheapest_cuts(costs: torch.Tensor, num_parts: int) -> list[int]:
    """Returns the ends of the `num_parts` runs with the fewest positions in total, by dynamic programming."""
    # fewest positions of all rows before each end, in as many runs as the loop has counted
    least = torch.full((len(costs),), torch.inf, dtype=torch.float64)
    least[0] = 0.0
    best_starts = []  # for one run, two runs, ...: the start of the last run, by its end
    for _ in range(num_parts):
        # entry [end, start]: the best runs of all rows before `start`, and one from there to `end`
        least, best_start = (least + costs).min(dim=1)
        best_starts.append(best_start.tolist())
    # follow the starts back from the last row; the first run starts at 0
    ends = [len(costs) - 1]
    for best_start in reversed(best_starts[1:]):
        ends.append(best_start[ends[-1]])
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
    # each of the other micro-batches has at least one row
    max_rows = min(num_rows - (num_parts - 1), math.ceil(MAX_ROWS_OVER_MEAN * num_rows / num_parts))
    smallest_cap = _smallest_cap(prompts, completions, num_parts=num_parts, max_rows=max_rows)
    cap_by_number = math.ceil(num_rows / num_parts) * (max(prompts) + max(completions))  # as TRL splits rows
    cap = min(CAP_SLACK * smallest_cap, cap_by_number)
    costs = _run_costs(prompts, completions, cap=cap, max_rows=max_rows)
    ends = _cheapest_cuts(costs, num_parts)
    starts = [0, *ends[:-1]]
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]


def rows_to_compute(is_needed: Sequence[bool], lengths: Sequence[int], least: int, multiple_of: int = 1) -> list[int]:
    """Returns the needed rows, and as many of the shortest other rows as are required for at least `least` rows and a
    multiple of `multiple_of`.

    Every process must run the same number of forward passes, since DDP, FSDP and ZeRO synchronize in them, and on the
    same number of rows, since TRL gathers a statistic of each row. So some rows are computed although they have no
    signal.

    >>> rows_to_compute([False, True, False], [7, 9, 3], least=2)
    [1, 2]
    """
    rows = range(len(lengths))
    needed = [row for row in rows if is_needed[row]]
    others = [row for row in rows if not is_needed[row]]
    shortest_first = sorted(others, key=lambda row: lengths[row])
    rounded_up = math.ceil(len(needed) / multiple_of) * multiple_of
    num_added = max(least, rounded_up) - len(needed)
    return sorted(needed + shortest_first[:num_added])


def arrange(
    prompt_lengths: Sequence[int],
    completion_lengths: Sequence[int],
    is_needed: Sequence[bool],
    num_steps: int,
    num_processes: int = 1,
) -> Arrangement:
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
        `Arrangement`: For each process, `num_steps` lists of rows; none is empty.

    Example:
        >>> arrange([0] * 4, [8, 2, 8, 3], [True] * 4, num_steps=2, num_processes=2)
        [[[0], [1]], [[2], [3]]]
    """
    lengths = [sum(pair) for pair in zip(prompt_lengths, completion_lengths, strict=True)]
    rows = rows_to_compute(is_needed, lengths, least=num_steps * num_processes, multiple_of=num_processes)
    rows.sort(key=lambda row: (-completion_lengths[row], -prompt_lengths[row]))
    # rows of about the same length, of which each process gets one
    neighbors = [rows[start : start + num_processes] for start in range(0, len(rows), num_processes)]
    prompts = [max(prompt_lengths[row] for row in block) for block in neighbors]
    completions = [max(completion_lengths[row] for row in block) for block in neighbors]

    def num_positions(part: list[int]) -> int:
        return positions([prompts[block] for block in part], [completions[block] for block in part])

    parts = partition(prompts, completions, num_parts=num_steps)  # of blocks, not of rows
    parts.sort(key=num_positions, reverse=True)
    microbatches = []
    for process in range(num_processes):
        of_process = []
        for part in parts:
            # the processes take turns in getting the longest of the neighbors
            of_process.append([neighbors[block][(process + block) % num_processes] for block in part])
        microbatches.append(of_process)
    return microbatches
