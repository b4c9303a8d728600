"""The dual step: by hand, its properties, and the authors' published log."""

import csv
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.length_control.dual import mean_violation, projected_ascent


def test_each_completion_is_measured_by_its_own_target_and_only_where_it_has_one():
    assert mean_violation([200, 400, 100, 7], [100, 200, 200, math.nan]) == 0.5
    assert math.isnan(mean_violation([7], [math.nan]))


@given(st.lists(st.tuples(st.integers(1, 40_000), st.sampled_from([4096.0, 700.0])), min_size=1), st.randoms())
def test_the_order_of_completions_does_not_move_the_violation_by_a_bit(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    lengths, targets = zip(*pairs, strict=True)
    shuffled_lengths, shuffled_targets = zip(*shuffled, strict=True)
    assert mean_violation(lengths, targets) == mean_violation(shuffled_lengths, shuffled_targets)


def test_every_step_of_the_published_log_is_replayed(shared_data):
    with open(shared_data / "leash_log_train.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    num_gaps = 0
    for row, next_row in itertools.pairwise(rows):
        if float(next_row["_step"]) != float(row["_step"]) + 1:
            num_gaps += 1
            continue
        overshoot = mean_violation([float(next_row["constraint/avg_length"])], [4096])
        before = float(row["constraint/lambda"])
        replayed = projected_ascent(before, overshoot, lr=0.005, minimum=0.0, maximum=1.0)
        assert replayed == pytest.approx(float(next_row["constraint/lambda"]), abs=1e-8)
    assert num_gaps == 2
