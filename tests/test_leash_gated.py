"""Our gate on LEASH's multiplier: by hand, its properties, its state, and that it replaces `leash_pi`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.checkpoints.state_file import restore_method
from leash_trl.length_control.dual import gate_level, projected_ascent
from leash_trl.length_control.leash_gated import LeashGated
from leash_trl.length_control.methods import find_method


violations = st.lists(st.floats(-1, 5), min_size=1, max_size=40)


def moved(method, *violations):
    (multiplier,) = method.multipliers.values()
    for violation in violations:
        multiplier.move(violation)
    return method.lam


def levels(violations, memory, level=0.0):
    for violation in violations:
        level = gate_level(violation, level, memory)
        yield level


def test_the_gate_by_hand():
    # over, over: the level is the violation; under: closed, debt 0.5; then 0.25 - 0.25 and 0.25 - 0: open from there
    assert list(levels([1.0, 0.25, -0.5, 0.25, 0.25, -0.125], 0.5)) == [1.0, 0.25, -0.5, 0.0, 0.25, -0.125]
    # debts add up: -0.25, then -0.25 + 0.5 * -0.25, then 0.25 + 0.5 * -0.375
    assert list(levels([-0.25, -0.25, 0.25], 0.5)) == [-0.25, -0.375, 0.0625]


def test_the_multiplier_by_hand():
    method = LeashGated(lambda_init=0.25, lambda_lr=0.25, lambda_min=0.0, memory=0.5)
    assert moved(method, 1.0) == 0.5
    assert moved(method, -0.5) == 0.0  # closed; behind it 0.5 - 0.125
    assert method.statistics() == {"lambda": 0.0, "integral": 0.375}
    assert moved(method, 0.25) == 0.0  # 0.25 - 0.25: the debt is paid, but not more
    assert moved(method, 0.25) == 0.5  # 0.375 + 2 * 0.0625


def test_a_closed_gate_leaves_lambda_min():
    assert moved(LeashGated(lambda_init=0.25, lambda_min=0.125), 1.0, -0.5) == 0.125


def test_a_batch_on_the_target_closes_the_gate():
    assert moved(LeashGated(), 1.0, 0.0) == 0.0


@given(violations, st.floats(0, 1, exclude_max=True))
def test_behind_the_gate_is_leashs_multiplier_to_the_last_bit(violations, memory):
    method, lam = LeashGated(lambda_lr=0.05, memory=memory), 0.1
    for violation in violations:
        used, lam = moved(method, violation), projected_ascent(lam, violation, 0.05, 0.0, 1.0)
        assert method.statistics()["integral"] == lam
        assert used in (0.0, lam)
        if violation <= 0:
            assert used == 0.0


@given(violations)
def test_over_the_target_it_is_leash(violations):
    method, lam = LeashGated(lambda_lr=0.05), 0.1
    for violation in violations:
        lam = projected_ascent(lam, abs(violation) + 1e-3, 0.05, 0.0, 1.0)
        assert moved(method, abs(violation) + 1e-3) == lam


@given(st.floats(-1, 5), st.floats(-20, 5), st.floats(0, 1, exclude_max=True))
def test_the_level_is_never_above_the_violation_and_rises_with_it(violation, level, memory):
    after = gate_level(violation, level, memory)
    assert after <= violation
    assert gate_level(violation + 0.5, level, memory) > after
    assert gate_level(violation, level - 0.5, memory) <= after


@given(st.floats(0.01, 1), st.integers(1, 20), st.floats(0.1, 0.95))
def test_closed_form_of_the_debt(depth, steps, memory):
    """A batch `depth` under the target, and later ones that lie exactly on it, leave a debt that fades as `rho ** t`.
    The smallest violation that opens the gate is just above it."""
    level = list(levels([-depth, *[0.0] * steps], memory))[-1]
    assert level == pytest.approx(-depth * memory**steps)
    assert gate_level(depth * memory ** (steps + 1) * 1.001, level, memory) > 0
    assert gate_level(depth * memory ** (steps + 1) * 0.999, level, memory) < 0


def test_lengths_that_rise_again_meet_the_multiplier_at_once():
    method = LeashGated(lambda_lr=0.02)
    assert moved(method, *[1.0] * 30, *[-0.05] * 5) == 0
    # a debt of 0.05 * (1 - 0.9 ** 5) / (1 - 0.9) = 0.2048: 0.15 does not pay 0.9 of it, but with 0.3 after it does
    assert moved(method, 0.15) == 0
    assert moved(method, 0.3) == pytest.approx(0.1 + 0.02 * (30 - 0.25 + 0.15 + 0.3))


def test_state_round_trip_goes_on_with_the_same_multipliers():
    one, other = LeashGated(memory=0.5), LeashGated(memory=0.5)
    moved(one, 1.5, 0.9, -0.4)
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert other.statistics() == one.statistics()
    for violation in (0.1, 0.15, 0.3):
        assert moved(other, violation) == moved(one, violation)
    assert other.state_dict() == one.state_dict()


def test_the_retired_controller_names_its_successor():
    with pytest.raises(ValueError, match=r"^length_control is 'leash_pi', which is retired; use 'leash_gated' in its"):
        find_method("leash_pi")
    record = {"method": "leash_pi", "controller": {"lambda": 0.1, "integral": 0.2, "violation": 0.3}}
    with pytest.raises(ValueError, match=r"saved by length control 'leash_pi', this is 'leash_gated'; .*start a run"):
        restore_method(LeashGated(), record, "checkpoint-5")
