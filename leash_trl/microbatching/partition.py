"""Chooses which completions share a micro-batch and which need no forward pass. All functions are pure.

The cost of a micro-batch is the number of positions that it computes: its rows times the sum of its longest prompt and
its longest completion. Costs that grow with the square of the length, such as eager attention, are ignored.
"""

import math
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import torch


CAP_SLACK = 1.25
"""Factor by which the largest micro-batch may exceed its smallest possible size, to reduce padding in the others."""

MAX_ROWS_OVER_MEAN = 8
"""Maximum number of rows of a micro-batch, as a multiple of the mean, which limits the search."""

Arrangement = list[list[list[int]]]
"""For each process, for each of its micro-batches in their order, the rows."""


class RowWidths(NamedTuple):
    """The numbers of columns that each row needs for its prompt and for its completion."""

    prompt_widths: list[int]
    completion_widths: list[int]

    @property
    def sums(self) -> list[int]:
        """The number of columns of each row."""
        return [sum(pair) for pair in zip(self.prompt_widths, self.completion_widths, strict=True)]

    def of_batch(self, rows: Sequence[int]) -> tuple[int, int]:
        """Returns the widths of prompts and of completions in a micro-batch of these rows."""
        prompt_width = max(self.prompt_widths[row] for row in rows)
        completion_width = max(self.completion_widths[row] for row in rows)
        return prompt_width, completion_width

    def num_positions(self, rows: Sequence[int]) -> int:
        """Returns the number of positions that a micro-batch of these rows computes, including padding.

        >>> RowWidths([2, 9, 5], [30, 90, 10]).num_positions([0, 2])
        70
        """
        return len(rows) * sum(self.of_batch(rows))

    def longest_first(self, rows: Sequence[int]) -> list[int]:
        """Returns rows in an order in which neighbors need about the same width, the longest completion first."""
        return sorted(rows, key=lambda row: (-self.completion_widths[row], -self.prompt_widths[row]))


class Division(NamedTuple):
    """A division of all rows into runs of neighbors.

    Args:
        combined_cost (`float`): The sum of the costs of its runs, or the largest of them.
        run_sizes (`list[int]`): Number of rows of each run.
    """

    combined_cost: float
    run_sizes: list[int]


def _run_positions(prompt_lengths: Sequence[int], completion_lengths: Sequence[int], max_rows: int) -> torch.Tensor:
    """Returns the number of positions of every run of at most `max_rows` neighbors, for rows sorted by completion
    length, longest first.

    Returns:
        `torch.Tensor` of shape `(N + 1, max_rows)`: At index `[end, -size]` the positions of the `size` rows before
            `end`; infinite if there are fewer.
    """
    prompts = torch.tensor(prompt_lengths)
    completions = torch.tensor(completion_lengths)
    num_rows = len(prompts)
    positions = torch.full((num_rows + 1, max_rows), torch.inf, dtype=torch.float64)
    # For runs of `size` rows, both widths are lists by the first row of the run: the longest prompt and the longest
    # completion in it. The latter is that of the first row itself, since rows are sorted.
    prompt_widths = prompts
    for size in range(1, max_rows + 1):
        completion_widths = completions[: num_rows - size + 1]
        # The run that begins at row 0 ends before row `size`, and so on.
        positions[size:, -size] = (size * (prompt_widths + completion_widths)).double()
        # A run that is one row longer has the longer prompt of the shorter run and its new last row.
        prompt_widths = torch.maximum(prompt_widths[:-1], prompts[size:])
    return positions


def _cheapest_division(
    costs: torch.Tensor, num_parts: int, combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> Division:
    """Returns the division of all rows into `num_parts` runs with the least combined cost, by dynamic programming.

    Args:
        costs (`torch.Tensor` of shape `(N + 1, max_rows)`): Cost of each run, as from [`_run_positions`].
        combine (`Callable`): `torch.add` for the sum of the costs, `torch.maximum` for the largest of them.
    """
    num_ends, max_rows = costs.shape
    # At [end, -size], `costs` has the cost of the run of the `size` rows before `end`, and `starts` its first row.
    sizes = torch.arange(max_rows, 0, -1)
    starts = (torch.arange(num_ends)[:, None] - sizes).clamp(min=0)  # runs that are clamped cost infinity
    # At index `end`, the least combined cost of all rows before `end`, first for a division into no runs: 0 for no
    # rows, and infinite for all others.
    least_costs = torch.full((num_ends,), torch.inf, dtype=torch.float64)
    least_costs[0] = 0.0
    # For one run, two runs and so on: at index `end`, the size of the last run of the cheapest division of the rows
    # before `end`.
    best_sizes: list[list[int]] = []
    for _ in range(num_parts):
        # The cost of the last run is in `costs`; the rows before its start were divided in the round before.
        least_costs, best = combine(least_costs[starts], costs).min(dim=1)
        best_sizes.append(sizes[best].tolist())

    # The last run ends after all rows. Its size says where the run before it ends, and so on, back to the first run.
    run_sizes: list[int] = []
    end = num_ends - 1
    for size_by_end in reversed(best_sizes):
        run_sizes.insert(0, size_by_end[end])
        end -= size_by_end[end]
    return Division(least_costs[-1].item(), run_sizes)


def partition(widths: RowWidths, num_parts: int) -> list[list[int]]:
    """Divides rows into micro-batches that compute the fewest positions in total, with a bound on the largest one.

    Rows are sorted by completion length and divided into runs so that the sum of positions is minimal. Let M be the
    smallest possible number of positions of the largest run. Each run has at most `CAP_SLACK * M` positions, and at
    most as many as if rows were split by number and padded to the longest of all, as TRL does.

    Args:
        widths ([`RowWidths`]): Widths of the N rows.
        num_parts (`int`): Number of micro-batches, from 1 to N. None of them is empty.

    Returns:
        `list[list[int]]`: `num_parts` lists of rows, longest completions first.

    Example:
        >>> partition(RowWidths([0, 0, 0, 0], [2, 8, 2, 2]), num_parts=2)
        [[1], [0, 2, 3]]
    """
    num_rows = len(widths.completion_widths)
    order = widths.longest_first(range(num_rows))
    prompts = [widths.prompt_widths[row] for row in order]
    completions = [widths.completion_widths[row] for row in order]
    # Each of the other micro-batches has at least one row.
    max_rows = min(num_rows - (num_parts - 1), math.ceil(MAX_ROWS_OVER_MEAN * num_rows / num_parts))
    # At [end, -size], the number of positions of a micro-batch of the `size` rows before `end`, in this order.
    positions = _run_positions(prompts, completions, max_rows)
    # The division with the fewest positions in total may have one huge micro-batch, which takes too much memory. So a
    # first search finds the smallest possible size of the largest micro-batch, and a second one looks for the fewest
    # positions in total among the divisions whose micro-batches are not much larger than that.
    smallest_cap = _cheapest_division(positions, num_parts, combine=torch.maximum).combined_cost
    cap_by_number = math.ceil(num_rows / num_parts) * (max(prompts) + max(completions))  # as TRL splits rows
    cap = min(CAP_SLACK * smallest_cap, cap_by_number)
    capped_positions = positions.masked_fill(positions > cap, torch.inf)
    division = _cheapest_division(capped_positions, num_parts, combine=torch.add)
    rows = iter(order)
    return [list(islice(rows, size)) for size in division.run_sizes]


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
    widths: RowWidths,
    is_needed: Sequence[bool],
    num_steps: int,
    num_processes: int = 1,
) -> Arrangement:
    """Returns the micro-batches of every process for rows that may be distributed freely.

    Rows are sorted by length, and each process takes one of every `num_processes` neighbors. So at any time, all
    processes compute the same number of rows of about the same length, and no process waits long. The largest
    micro-batches come first, so that too little memory shows at once.

    Args:
        widths ([`RowWidths`]): Widths of the N rows of all processes.
        is_needed (`Sequence[bool]` of length N): Whether a row adds to the loss.
        num_steps (`int`): Number of micro-batches per process.
        num_processes (`int`): Number of processes. N must be a multiple of it, and at least `num_steps *
            num_processes`.

    Returns:
        `Arrangement`: For each process, `num_steps` lists of rows; none is empty.

    Example:
        >>> arrange(RowWidths([0] * 4, [8, 2, 8, 3]), [True] * 4, num_steps=2, num_processes=2)
        [[[0], [1]], [[2], [3]]]
    """
    least = num_steps * num_processes
    rows = widths.longest_first(rows_to_compute(is_needed, widths.sums, least, multiple_of=num_processes))
    # A block holds rows of about the same length, of which each process gets one. Its widths are those of its rows.
    blocks = [rows[start : start + num_processes] for start in range(0, len(rows), num_processes)]
    prompt_widths, completion_widths = zip(*map(widths.of_batch, blocks), strict=True)
    block_widths = RowWidths(list(prompt_widths), list(completion_widths))
    # Each part lists the indices of the blocks that make up one micro-batch of every process.
    parts = partition(block_widths, num_parts=num_steps)
    parts.sort(key=block_widths.num_positions, reverse=True)
    return [[_rows_of_process(part, blocks, process) for part in parts] for process in range(num_processes)]


def _rows_of_process(part: Sequence[int], blocks: Sequence[Sequence[int]], process: int) -> list[int]:
    """Returns the rows that a process gets of the blocks of a part."""
    # The first row of a block is its longest, so the processes take turns in getting it.
    return [blocks[index][(process + index) % len(blocks[index])] for index in part]
