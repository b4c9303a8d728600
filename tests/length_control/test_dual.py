"""The dual step: by hand, its properties, and the authors' published log."""

import csv
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.length_control.dual import projected_ascent, violation


def test_each_completion_is_measured_by_its_own_target_and_only_where_it_has_one():
    assert violation([200, 200, 50, 50], [100, 100, 100, 100]) == 0.25
    assert violation([200, 400, 100, 7], [100, 200, 200, math.nan]) == 0.5
    assert math.isnan(violation([7], [math.nan]))


@given(st.lists(st.tuples(st.integers(1, 40_000), st.sampled_from([4096.0, 700.0])), min_size=1), st.randoms())
def test_the_order_of_completions_does_not_move_the_violation_by_a_bit(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    assert violation(*zip(*pairs, strict=True)) == violation(*zip(*shuffled, strict=True))


@given(st.floats(0.25, 0.75), st.floats(-1, 50), st.floats(0, 2))
def test_lambda_stays_in_bounds_and_moves_with_the_sign_of_the_violation(lam, overshoot, lr):
    after = projected_ascent(lam, overshoot, lr, 0.25, 0.75)
    assert 0.25 <= after <= 0.75
    assert (after - lam) * overshoot >= 0


def test_every_step_of_the_published_log_is_replayed(shared_data):
    keys = ("_step", "constraint/avg_length", "constraint/lambda")
    with open(shared_data / "leash_log_train.csv", newline="") as file:
        rows = [[float(row[key]) for key in keys] for row in csv.DictReader(file)]
    compared = 0
    for (step, _, before), (next_step, mean_length, after) in itertools.pairwise(rows):
        if next_step == step + 1:  # the log has two gaps
            replayed = projected_ascent(before, violation([mean_length], [4096]), 0.005, 0.0, 1.0)
            assert replayed == pytest.approx(after, abs=1e-8)
            compared += 1
    assert compared == len(rows) - 1 - 2
