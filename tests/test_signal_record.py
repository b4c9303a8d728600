"""Predictive oversampling: what the record says of the next groups, how many extra ones that asks for, which stay."""

import json
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.trainer.signal_record import (
    MEMORY,
    SignalRecord,
    extra_groups,
    kept_groups,
    most_extra_groups,
    own_groups,
)


def test_probabilities_by_hand():
    record = SignalRecord()
    assert record.running_share == record.probability(7) == 1.0
    record.add([7, 8, 9, 10], [True, False, True, False])
    assert record.running_share == 0.5
    # (s + 0.5) / (n + 1): one of one, none of one, none of none
    assert [record.probability(question) for question in (7, 8, 11)] == [0.75, 0.25, 0.5]
    record.add([7, 8], [False, False])
    assert record.running_share == pytest.approx((2 / 2 + 0) / (4 / 2 + 2))  # 0.25
    assert record.probability(7) == pytest.approx((1 + 0.25) / 3)
    assert record.probability(8) == pytest.approx(0.25 / 3)


def test_only_the_last_outcomes_count():
    record = SignalRecord()
    for _ in range(9):
        record.add([7, 8], [True, False])
    record.add([7] * MEMORY, [False] * MEMORY)
    assert record.state_dict()["outcomes"] == {"7": "0" * MEMORY, "8": "0" * MEMORY}


def test_a_question_without_signal_is_passed_over_but_not_for_ever():
    record = SignalRecord()
    for _ in range(9):
        record.add([7, 8, 9], [False, True, True])
    # below half the share while more than one outcome is known: 4, 3 and 2 of them
    assert [record.passes_over(7) for _ in range(6)] == [True, True, True, False, False, False]
    assert not any(record.passes_over(question) for question in (8, 9, 10))


def test_nobody_is_passed_over_where_nothing_is_known_or_everything_is_dead():
    record = SignalRecord()
    assert not record.passes_over(7)
    record.add([7, 7, 7, 7], [False] * 4)
    assert record.running_share == 0.0
    assert not record.passes_over(7)


def test_the_record_survives_json():
    record, restored = SignalRecord(), SignalRecord()
    for step in range(3):
        record.add([2**62 + step, 7, 8], [True, step == 1, False])
    restored.load_state_dict(json.loads(json.dumps(record.state_dict())))
    assert restored.state_dict() == record.state_dict()
    assert restored.probability(7) == record.probability(7)
    assert [restored.passes_over(8), restored.passes_over(8)] == [record.passes_over(8), record.passes_over(8)]
    restored.load_state_dict({})  # a checkpoint without it
    assert restored.running_share == 1.0


def test_extra_groups_by_hand():
    # 4 groups, mean 3 + E / 2 + 1 / 2, variance 1 / 2 + E / 4: 4.50 - 1.12 = 3.88 for E = 3, 5.50 - 1.22 = 4.28 for 4
    assert extra_groups([1.0, 1.0, 0.5, 0.5], 0.5, num_processes=1, most=8) == 4
    assert extra_groups([1.0, 1.0, 0.5, 0.5], 0.5, num_processes=1, most=2) == 2
    # two processes: nothing for the first; mean 1 + E / 2 + 1 / 2 and the same variance need 2 of the second: E = 4
    assert extra_groups([1.0, 1.0, 0.5, 0.5], 0.5, num_processes=2, most=8) == 4
    # certain: exactly as many as are missing
    assert extra_groups([1.0, 0.0, 0.0], 1.0, num_processes=1, most=8) == 2


def test_nothing_is_drawn_where_nothing_is_dead():
    assert extra_groups([1.0] * 32, 1.0, num_processes=2, most=8) == 0
    assert extra_groups([0.999] * 32, 0.999, num_processes=1, most=8) == 0


def test_the_most_extra_groups_are_a_part_of_each_processs_share_by_hand():
    # 12 groups in two processes: 0.3 * 6 = 1.8, and not half of 0.3 * 12 = 3.6
    assert most_extra_groups(0.3, 12, num_processes=2) == 2
    assert most_extra_groups(1.0, 12, num_processes=3) == 4
    assert most_extra_groups(0.0, 12, num_processes=1) == 0


probability = st.floats(0.0, 1.0)


@given(st.lists(probability, min_size=6, max_size=6), probability, st.sampled_from([1, 2, 3]), st.integers(0, 9))
def test_extra_groups_stay_within_the_bound_and_grow_with_the_need(chances, fresh, processes, most):
    count = extra_groups(chances, fresh, processes, most)
    assert 0 <= count <= most
    assert count >= extra_groups([1.0] * 6, fresh, processes, most) == 0
    assert count <= extra_groups([0.0] * 6, 0.0, processes, most) == most
    share = 6 // processes
    alone = [extra_groups(chances[i : i + share], fresh, 1, most) for i in range(0, 6, share)]
    assert count == max(alone)


def test_the_drawn_groups_suffice_in_five_of_six_batches():
    """Groups drawn from the very probabilities, 2,000 batches of 16."""
    generator = torch.Generator().manual_seed(0)
    chances = [0.9] * 6 + [0.5] * 6 + [0.1] * 4
    for fresh in (0.3, 0.6, 0.9):
        count = extra_groups(chances, fresh, 1, most=1000)
        draws = torch.rand(2000, 16 + count, generator=generator)
        alive = (draws < torch.tensor(chances + [fresh] * count)).sum(dim=1)
        assert (alive >= 16).double().mean().item() == pytest.approx(0.84, abs=0.06)


@given(st.lists(st.booleans(), min_size=12, max_size=12), st.sampled_from([1, 2, 3]), st.integers(0, 3))
def test_live_groups_of_the_batch_stay_and_dead_ones_give_way_to_the_first_live_extra(alive, processes, num_extra):
    has_signal, whole = torch.tensor(alive), 12 // processes
    kept = kept_groups(has_signal, num_extra, processes)
    assert len(set(kept)) == len(kept) == 12 - num_extra * processes
    for process in range(processes):
        own = list(range(process * whole, (process + 1) * whole))
        batch, extra = own[: whole - num_extra], [g for g in own[whole - num_extra :] if alive[g]]
        mine = kept[process * len(batch) : (process + 1) * len(batch)]
        num_dead = list(accumulate(not alive[group] for group in batch))
        expected = [
            g if alive[g] or dead > len(extra) else extra[dead - 1] for g, dead in zip(batch, num_dead, strict=True)
        ]
        assert mine == expected
        assert [own[group] for group in own_groups(kept, 12, process, processes)] == mine
