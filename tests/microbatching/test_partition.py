"""Which rows share a micro-batch: against brute force, and by the properties that the trainer relies on."""

import itertools
import math
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from leash_trl.microbatching import partition as microbatch


def costs_of(parts, prompts, completions):
    """Positions of each micro-batch: rows times the longest prompt and the longest completion."""
    costs = []
    for part in parts:
        longest_prompt = max(prompts[row] for row in part)
        longest_completion = max(completions[row] for row in part)
        costs.append(len(part) * (longest_prompt + longest_completion))
    return costs


def all_cuts(num_rows, num_parts):
    """All ways to cut `num_rows` rows into runs."""
    for inner in itertools.combinations(range(1, num_rows), num_parts - 1):
        ends = [0, *inner, num_rows]
        yield [list(range(start, end)) for start, end in itertools.pairwise(ends)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=9), st.data())
def test_no_cut_within_the_cap_computes_fewer_positions(lengths, data):
    num_rows = len(lengths)
    num_parts = data.draw(st.integers(1, num_rows))
    # the longest completions first, and of equal ones the longest prompts
    pairs = sorted(((completion, prompt) for prompt, completion in lengths), reverse=True)
    completions, prompts = zip(*pairs, strict=True)
    possible_costs = [costs_of(cut, prompts, completions) for cut in all_cuts(num_rows, num_parts)]

    smallest_maximum = min(map(max, possible_costs))
    most_rows = math.ceil(num_rows / num_parts)
    by_number = most_rows * (max(prompts) + max(completions))
    cap = min(1.25 * smallest_maximum, by_number)
    parts = microbatch.partition(microbatch.RowWidths(prompts, completions), num_parts)
    costs = costs_of(parts, prompts, completions)
    assert max(costs) <= cap
    sums_within_cap = [sum(others) for others in possible_costs if max(others) <= cap]
    assert sum(costs) == min(sums_within_cap)


@dataclass
class Window:
    """Lengths of a window's rows, which of them are needed, and how many steps and processes share them."""

    prompts: list[int]
    completions: list[int]
    is_needed: list[bool]
    num_steps: int
    num_processes: int


@st.composite
def windows(draw):
    num_processes = draw(st.integers(1, 3))
    num_steps = draw(st.integers(1, 4))
    num_rows = num_processes * num_steps * draw(st.integers(1, 4))

    def draw_rows(values):
        return draw(st.lists(values, min_size=num_rows, max_size=num_rows))

    return Window(
        prompts=draw_rows(st.integers(1, 9)),
        completions=draw_rows(st.integers(0, 60)),
        is_needed=draw_rows(st.booleans()),
        num_steps=num_steps,
        num_processes=num_processes,
    )


def arranged(window):
    widths = microbatch.RowWidths(window.prompts, window.completions)
    return microbatch.arrange(widths, window.is_needed, window.num_steps, window.num_processes)


@given(windows())
def test_every_needed_row_is_in_one_micro_batch(window):
    plan = arranged(window)
    parts = list(itertools.chain.from_iterable(plan))
    rows = list(itertools.chain.from_iterable(parts))
    needed = {row for row, is_needed in enumerate(window.is_needed) if is_needed}
    assert len(rows) == len(set(rows))
    assert needed <= set(rows)
    # others are added only for as many rows in each process, and for at least one in each micro-batch
    num_parts = window.num_steps * window.num_processes
    assert len(rows) <= max(len(needed) + window.num_processes - 1, num_parts)


@given(windows())
def test_each_process_has_a_micro_batch_for_each_step_and_none_is_empty(window):
    plan = arranged(window)
    assert [len(parts) for parts in plan] == [window.num_steps] * window.num_processes
    for parts in plan:
        assert all(len(part) > 0 for part in parts)


@given(windows())
def test_processes_compute_the_same_number_of_rows_at_the_same_time(window):
    for parts_of_step in zip(*arranged(window), strict=True):
        assert len({len(part) for part in parts_of_step}) == 1


@given(windows())
def test_the_largest_micro_batches_come_first(window):
    is_needed = [True] * len(window.prompts)
    widths = microbatch.RowWidths(window.prompts, window.completions)
    (parts,) = microbatch.arrange(widths, is_needed, window.num_steps)
    costs = costs_of(parts, window.prompts, window.completions)
    assert costs == sorted(costs, reverse=True)


def test_large_windows_are_cut_well():
    """2,048 rows as in a run on 32 GPUs, lengths like a log-normal's quantiles."""
    prompts = [100] * 2048
    completions = [int(300 * 1.0035**i) for i in range(1340)] + [100] * 708
    parts = microbatch.partition(microbatch.RowWidths(prompts, completions), num_parts=512)
    num_computed = sum(costs_of(parts, prompts, completions))
    num_tokens = sum(prompts) + sum(completions)
    padding_share = 1 - num_tokens / num_computed
    assert padding_share < 0.02
