"""Our controller: by hand, in closed form on a toy plant, and against LEASH's on the same plant."""

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.length_control.dual import pi_multiplier, projected_ascent
from leash_trl.length_control.leash_pi import LeashPI


def pi(violation, integral, gains=(0.5, 0.1), ceiling=math.inf):
    return pi_multiplier(violation, integral, gains, ceiling, 0.0, 1.0)


def test_pi_by_hand():
    # 0.5 * 0.4 + 0.1 = 0.3; the integral moves by 0.1 * 0.4
    assert pi(0.4, 0.1) == (pytest.approx(0.3), pytest.approx(0.14))


@pytest.mark.parametrize(
    ("violation", "integral", "lam", "expected"),
    [
        (3.0, 0.2, 1.0, 0.2),  # on the upper bound and still over the target: the integral stands still
        (-1.0, 0.2, 0.0, 0.2),  # on the lower bound and still under it
    ],
)
def test_the_integral_does_not_wind_up(violation, integral, lam, expected):
    assert pi(violation, integral) == (pytest.approx(lam), pytest.approx(expected))


def test_the_ceiling_holds_the_multiplier_and_the_integral_stands_still():
    assert pi(0.1, 0.8, ceiling=2.0) == (pytest.approx(0.2), pytest.approx(0.8))
    assert pi(0.0, 0.8, ceiling=2.0) == (0.0, pytest.approx(0.8))
    assert pi(-0.1, 0.8, ceiling=2.0) == (0.0, pytest.approx(0.79))  # under the target it comes down


@given(st.floats(-1, 0.5), st.floats(0.1, 0.5), st.floats(0, 0.1))
def test_within_the_bounds_the_integral_moves_as_leashs_multiplier(violation, lam, lr):
    _, integral = pi_multiplier(violation, lam, (0.0, lr), math.inf, 0.0, 1.0)
    assert integral == projected_ascent(lam, violation, lr, 0.0, 1.0)


@given(st.floats(-1, 50), st.floats(0, 1), st.floats(0, 5), st.floats(0, 5), st.floats(0.01, 5))
def test_multiplier_and_integral_stay_within_the_bounds(violation, integral, p, i, ceiling):
    lam, after = pi(violation, integral, (p, i), ceiling)
    assert 0 <= lam <= min(1, max(0, ceiling * violation))
    assert 0 <= after <= 1


def plant(length, lam, speed=0.2, drift=0.0):
    """A policy whose length shrinks in proportion to lambda, and grows on its own by `drift`."""
    return length * (1.0 + drift - speed * lam)


def settle(next_lambda, length, target, steps, **kwargs):
    lengths, lam = [length], 0.1
    for _ in range(steps):
        lengths.append(plant(lengths[-1], lam, **kwargs))
        lam = next_lambda(lam, lengths[-1] / target - 1.0)
    return lengths


def moved(method, violation):
    (multiplier,) = method.multipliers.values()
    multiplier.move(violation)
    return method.lam


def ours(**fields):
    method = LeashPI(smoothing=0.0, lambda_lr=0.02, **fields)
    return lambda lam, violation: moved(method, violation)


def leash(lam, violation):
    return projected_ascent(lam, violation, 0.02, 0.0, 1.0)


def test_on_the_toy_plant_the_length_converges_to_the_target_without_overshoot():
    lengths = settle(ours(), 250.0, 100, steps=300)
    assert min(lengths) >= 100
    assert lengths[-1] == pytest.approx(100, abs=1e-6)
    # near the target the ceiling rules: e' = (1 + e)(1 - 0.2 * 4 e) - 1, so e shrinks by 1 - 0.8 = 0.2 a step
    errors = [length / 100 - 1 for length in lengths]
    tail = [(a, b) for a, b in itertools.pairwise(errors) if a < 1e-4 and b > 1e-12]
    assert len(tail) > 5
    assert all(b / a == pytest.approx(0.2, abs=1e-3) for a, b in tail)


def test_the_offset_that_drift_leaves_is_that_of_the_ceiling():
    # at rest drift = speed * lam, so lam = 0.05 and e = lam / K_c: 2.5 % over the target with 2, 1.25 % with 4
    for ceiling, rest in ((2.0, 102.5), (4.0, 101.25)):
        lengths = settle(ours(ceiling_gain=ceiling), 250.0, 100, steps=2000, drift=0.01)
        assert lengths[-1] == pytest.approx(rest, abs=0.01)


@pytest.mark.parametrize(("speed", "lowest"), [(0.1, 97), (0.2, 94), (0.4, 89)])
def test_as_shipped_it_undershoots_far_less_than_leash_on_the_same_plant(speed, lowest):
    """With smoothing, which delays it by about a step; 0.02 is the gym's step size for both."""
    method = LeashPI(lambda_lr=0.02)
    shipped = settle(lambda lam, violation: moved(method, violation), 250.0, 100, steps=400, speed=speed)
    theirs = settle(leash, 250.0, 100, steps=400, speed=speed)
    assert lowest - 1 < min(shipped) < lowest + 1
    assert min(theirs) < 26.5
    assert min(shipped) == pytest.approx(shipped[-1])  # nothing on this plant makes answers longer again


def test_as_shipped_it_meets_the_target_no_later_than_leash_on_the_same_plant():
    method = LeashPI(lambda_lr=0.02)
    shipped = settle(lambda lam, violation: moved(method, violation), 250.0, 100, steps=400)
    theirs = settle(leash, 250.0, 100, steps=400)
    first = [next(i for i, length in enumerate(run) if length <= 100) for run in (shipped, theirs)]
    assert first == [15, 17]


def test_lengths_that_rise_again_meet_the_integral_at_once():
    method = LeashPI(smoothing=0.0, lambda_lr=0.02, ceiling_gain=2.0)
    for violation in [1.0] * 30 + [0.0] * 5:
        lam = moved(method, violation)
    assert lam == 0
    assert moved(method, 0.3) == pytest.approx(0.6)  # the ceiling, not a climb from nothing


def test_state_round_trip_gives_the_same_next_multiplier():
    one, other = LeashPI(), LeashPI()
    for violation in (1.5, 0.9, 0.4):
        moved(one, violation)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.statistics() == one.statistics()
    assert moved(other, 0.1) == moved(one, 0.1)
