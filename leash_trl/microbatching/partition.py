"""Chooses which completions share a micro-batch and which need no forward pass. All functions are pure.

The cost of a micro-batch is the number of positions that it computes: its rows times the sum of its longest prompt and
its longest completion. Costs that grow with the square of the length, such as eager attention, are ignored.
"""

import math
from collections.abc import Callable, Sequence
from itertools import islice

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


def _run_costs(prompt_lengths: Sequence[int], completion_lengths: Sequence[int], max_rows: int) -> torch.Tensor:
    """Returns the number of positions of every run of at most `max_rows` neighbors, for rows sorted by completion
    length, longest first.

    Returns:
        `torch.Tensor` of shape `(N + 1, max_rows)`: At index `[end, -size]` the positions of the `size` rows before
            `end`; infinite if there are fewer.
    """
    prompts = torch.tensor(prompt_lengths)
    completions = torch.tensor(completion_lengths)
    num_rows = len(prompts)
    costs = torch.full((num_rows + 1, max_rows), torch.inf, dtype=torch.float64)
    prompt_widths = prompts  # of the runs of this size, by their first row
    for size in range(1, max_rows + 1):
        completion_widths = completions[: num_rows - size + 1]  # the first row of a run has the longest completion
        costs[size:, -size] = (size * (prompt_widths + completion_widths)).double()
        prompt_widths = torch.maximum(prompt_widths[:-1], prompts[size:])
    return costs


def _best_runs(
    costs: torch.Tensor, num_parts: int, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> tuple[float, list[int]]:
    """Divides all rows into `num_parts` runs with the least combined cost, by dynamic programming.

    Args:
        costs (`torch.Tensor` of shape `(N + 1, max_rows)`): Cost of each run, as from [`_run_costs`].
        combine (`Callable`): `torch.add` for the sum of the costs, `torch.maximum` for the largest of them.

    Returns:
        `tuple[float, list[int]]`: The combined cost, and the number of rows of each run.
    """
    num_ends, max_rows = costs.shape
    sizes = torch.arange(max_rows, 0, -1)
    starts = (torch.arange(num_ends)[:, None] - sizes).clamp(min=0)  # of each run; runs that are clamped cost infinity
    least = torch.full((num_ends,), torch.inf, dtype=torch.float64)  # cost of all rows before each end, in no run yet
    least[0] = 0.0
    best_sizes = []  # after one run, two runs, ...: the size of the last run, by its end
    for _ in range(num_parts):
        least, best = combine(least[starts], costs).min(dim=1)
        best_sizes.append(sizes[best].tolist())
    # from the last run back to the first
    sizes_of_runs: list[int] = []
    end = num_ends - 1
    for size_by_end in reversed(best_sizes):
        sizes_of_runs.insert(0, size_by_end[end])
        end -= size_by_end[end]
    return least[-1].item(), sizes_of_runs


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
    costs = _run_costs(prompts, completions, max_rows)
    smallest_cap, _ = _best_runs(costs, num_parts, combine=torch.maximum)
    cap_by_number = math.ceil(num_rows / num_parts) * (max(prompts) + max(completions))  # as TRL splits rows
    cap = min(CAP_SLACK * smallest_cap, cap_by_number)
    _, sizes = _best_runs(costs.masked_fill(costs > cap, torch.inf), num_parts, combine=torch.add)
    rows = iter(order)
    return [list(islice(rows, size)) for size in sizes]


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
