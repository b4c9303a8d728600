"""Which rows share a micro-batch: against brute force, and by the properties that the trainer relies on."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from leash_trl.microbatching import partition as microbatch


def costs_of(parts, prompts, completions) -> list[int]:
    return [len(p) * (max(prompts[i] for i in p) + max(completions[i] for i in p)) for p in parts]


def all_cuts(num_rows: int, num_parts: int):
    """All ways to cut `num_rows` rows into runs."""
    for inner in itertools.combinations(range(1, num_rows), num_parts - 1):
        ends = [0, *inner, num_rows]
        yield [list(range(a, b)) for a, b in itertools.pairwise(ends)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=9), st.data())
def test_no_cut_within_the_cap_computes_fewer_positions(lengths, data):
    num_parts = data.draw(st.integers(1, len(lengths)))
    lengths = sorted(lengths, key=lambda pair: (-pair[1], -pair[0]))
    prompts, completions = map(list, zip(*lengths, strict=True))
    cuts = [costs_of(cut, prompts, completions) for cut in all_cuts(len(lengths), num_parts)]
    least_largest = min(max(costs) for costs in cuts)
    as_by_number = -(-len(lengths) // num_parts) * (max(prompts) + max(completions))
    cap = min(1.25 * least_largest, as_by_number)
    mine = costs_of(microbatch.partition(prompts, completions, num_parts), prompts, completions)
    assert max(mine) <= cap
    assert sum(mine) == min(sum(costs) for costs in cuts if max(costs) <= cap)


@st.composite
def windows(draw):
    """Lengths of a window's rows, which of them are needed, and how many steps and processes share them."""
    processes, steps = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    num_rows = processes * steps * draw(st.integers(1, 4))
    pairs = draw(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 60)), min_size=num_rows, max_size=num_rows))
    needed = draw(st.lists(st.booleans(), min_size=num_rows, max_size=num_rows))
    return *map(list, zip(*pairs, strict=True)), needed, steps, processes


@given(windows())
def test_every_needed_row_is_in_one_micro_batch_and_none_is_empty(window):
    _, _, needed, steps, processes = window
    plan = microbatch.arrange(*window)
    rows = [row for mine in plan for part in mine for row in part]
    assert len(rows) == len(set(rows))
    assert {row for row, is_needed in enumerate(needed) if is_needed} <= set(rows)
    assert all(len(part) > 0 for mine in plan for part in mine)
    assert [len(mine) for mine in plan] == [steps] * processes
    assert len(rows) <= max(sum(needed) + processes - 1, steps * processes)
    # processes compute the same number of rows at the same time
    assert all(len({len(part) for part in step}) == 1 for step in zip(*plan, strict=True))


@given(windows())
def test_the_largest_micro_batches_come_first(window):
    prompts, completions, _, steps, _ = window
    costs = costs_of(microbatch.arrange(prompts, completions, [True] * len(prompts), steps)[0], prompts, completions)
    assert costs == sorted(costs, reverse=True)


def test_the_shortest_fill_what_would_be_empty():
    assert microbatch.rows_to_compute([False, False, True, False], [9, 2, 50, 1], least=3) == [1, 2, 3]
    assert microbatch.rows_to_compute([True, True, False], [5, 5, 1], least=1) == [0, 1]
    assert microbatch.rows_to_compute([True, True, True, False], [5, 5, 5, 9], least=2, multiple_of=2) == [0, 1, 2, 3]


def test_large_windows_are_cut_well():
    """2,048 rows as in a run on 32 GPUs, lengths like a log-normal's quantiles."""
    completions = [int(300 * 1.0035**i) for i in range(1340)] + [100] * 708
    parts = microbatch.partition([100] * 2048, completions, 512)
    costs = costs_of(parts, [100] * 2048, completions)
    assert 1 - (sum(completions) + 100 * 2048) / sum(costs) < 0.02
