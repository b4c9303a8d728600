"""The dual step: by hand, its properties, its closed form, and the authors' published log."""

import csv
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leash_trl.length_control.dual import projected_ascent, violation


# The first eight steps of the authors' 1.5B run (target 4096, lambda_lr 0.005): mean length, lambda after the step.
PUBLISHED_LOG = [
    (8621.1796875, 0.1055239009857177),
    (8776.283203125, 0.1112371373176574),
    (8590.904296875, 0.1167240810394287),
    (8679.73046875, 0.1223194551467895),
    (8288.013671875, 0.12743665933609),
    (8520.45703125, 0.1328376078605651),
    (8588.123046875, 0.13832115650177),
    (8602.8828125, 0.1438227224349975),
]


def replay(lam: float, mean_length: float) -> float:
    return projected_ascent(lam, violation([mean_length], [4096]), 0.005, 0.0, 1.0)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([4096, 8192, 12288, 8192], 1.0),  # mean 8192, twice the target
        ([2048, 2048], -0.5),  # half of it: two-sided, no floor at 0
        ([4096], 0.0),
        ([0], -1.0),
    ],
)
def test_violation_by_hand(lengths, expected):
    assert violation(lengths, [4096] * len(lengths)) == expected


def test_each_completion_is_measured_by_its_own_target_and_only_where_it_has_one():
    assert violation([200, 200, 50, 50], [100, 100, 100, 100]) == 0.25
    assert violation([200, 400, 100, 7], [100, 200, 200, math.nan]) == 0.5
    assert math.isnan(violation([7], [math.nan]))
    assert math.isnan(violation([], []))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40_000), st.sampled_from([4096.0, 700.0])), min_size=1), st.randoms())
def test_the_order_of_completions_does_not_move_the_violation_by_a_bit(pairs, random):
    shuffled = random.sample(pairs, len(pairs))
    assert violation(*zip(*pairs, strict=True)) == violation(*zip(*shuffled, strict=True))


@pytest.mark.parametrize(
    ("lam", "overshoot", "lr", "expected"),
    [
        (0.1, 1.0, 0.005, 0.105),  # golden leash_dual_up
        (0.1, -0.5, 0.005, 0.0975),  # golden leash_dual_down_and_floor
        (0.002, -0.5, 0.005, 0.0),  # on the floor: 0.002 - 0.0025 < 0
        (0.99, 1.0, 0.05, 1.0),  # golden leash_dual_ceiling
        (0.1, 2.0, 0.0, 0.1),  # golden leash_c_fixed: frozen
    ],
)
def test_projected_ascent_by_hand(lam, overshoot, lr, expected):
    assert projected_ascent(lam, overshoot, lr, 0.0, 1.0) == pytest.approx(expected, abs=1e-15)


@given(st.floats(0, 1), st.floats(-1, 50), st.floats(0, 2))
def test_lambda_stays_in_bounds_and_moves_with_the_sign_of_the_violation(lam, overshoot, lr):
    after = projected_ascent(lam, overshoot, lr, 0.0, 1.0)
    assert 0.0 <= after <= 1.0
    assert (after - lam) * overshoot >= 0


def test_lambda_reaches_its_closed_form_on_a_linear_plant():
    # A plant whose mean length is 2000 - 1500 lambda meets the target 1000 at lambda = 2/3.
    lam = 0.1
    for _ in range(200):
        lam = projected_ascent(lam, violation([2000 - 1500 * lam], [1000]), 0.2, 0.0, 1.0)
    assert lam == pytest.approx(2 / 3, abs=1e-4)


def test_published_log_first_steps():
    lam = 0.1
    for mean_length, published in PUBLISHED_LOG:
        lam = replay(lam, mean_length)
        assert lam == pytest.approx(published, abs=1e-9)


def test_published_log_whole(shared_data):
    with open(shared_data / "leash_log_train.csv", newline="") as file:
        rows = [
            (int(r["_step"]), float(r["constraint/avg_length"]), float(r["constraint/lambda"]))
            for r in csv.DictReader(file)
        ]
    compared = 0
    for (step, _, before), (next_step, mean_length, after) in itertools.pairwise(rows):
        if next_step == step + 1:  # the log has two gaps
            assert replay(before, mean_length) == pytest.approx(after, abs=1e-8)
            compared += 1
    assert compared == len(rows) - 1 - 2
