"""Our gate against LEASH and the controller it replaced, on toy plants that took no part in choosing it."""

import math
import statistics

import pytest
from length_plants import (
    REPORT_SEED,
    RULES,
    Plant,
    Rule,
    draw,
    leash,
    mean_measures,
    mean_overshoot,
    measures,
    run,
    share_over,
)


KINDS = ("ratchet", "elastic")
NAMES = ("leash", "leash_pi (retired)", "leash_gated")


@pytest.fixture(scope="module")
def table():
    plants = {kind: draw(kind, REPORT_SEED, 60) for kind in KINDS}
    return {kind: {name: mean_measures(plants[kind], RULES[name]) for name in NAMES} for kind in KINDS}


def still(**fields):
    usual = {"push": "overshoot", "gain": 0.2, "growth": 0.0, "delay": 0, "noise": 0.0, "lr": 0.02}
    return Plant(**{**usual, "updates": 400, "change": 1.0, "seed": 0, **fields})


def test_mean_overshoot_and_share_by_sampling():
    draws = statistics.NormalDist(0, 1).samples(200_000, seed=0)
    sigma = math.sqrt(math.log(1.16))
    lengths = [1.5 * math.exp(sigma * z - sigma**2 / 2) for z in draws]
    assert statistics.fmean(lengths) == pytest.approx(1.5, rel=0.005)
    assert statistics.stdev(lengths) / 1.5 == pytest.approx(0.4, rel=0.01)
    assert statistics.fmean(max(0, length - 1) for length in lengths) == pytest.approx(mean_overshoot(1.5), rel=0.01)
    assert statistics.fmean(length > 1 for length in lengths) == pytest.approx(share_over(1.5), rel=0.01)


def test_a_constant_price_settles_where_growth_balances_it():
    """At rest growth * (2.5 - L) = gain * lam * E[max(0, L_i - 1)] * L."""
    plant = still(growth=0.02, updates=2000)
    length = run(plant, Rule((), lambda state, e, lr: (0.5, state))).ratios[-1]
    assert 0.02 * (2.5 - length) == pytest.approx(0.2 * 0.5 * mean_overshoot(length) * length)


def test_a_delay_of_five_shifts_every_answer_by_five_updates():
    pulse = Rule((0,), lambda state, e, lr: (0.5 * (state[0] == 2), (state[0] + 1,)))  # 0.1 at first, 0.5 at update 3
    for delay in (0, 5):
        ratios = run(still(delay=delay, updates=20), pulse).ratios
        assert [i for i in range(1, 20) if ratios[i] < ratios[i - 1]] == [1 + delay, 4 + delay]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", NAMES[:2])
def test_the_gate_beats_both_on_both_kinds_of_plant(table, kind, other):
    assert table[kind]["leash_gated"]["rms"] < 0.95 * table[kind][other]["rms"]


def test_what_it_gains_and_what_it_costs(table):
    ratchet, elastic = table["ratchet"], table["elastic"]
    assert ratchet["leash_gated"]["undershoot"] < 0.25 * ratchet["leash"]["undershoot"]
    assert elastic["leash_gated"]["undershoot"] < 0.5 * elastic["leash"]["undershoot"]
    # a few updates later, and less steady where lengths grow back
    assert ratchet["leash_gated"]["steps"] <= 1.1 * ratchet["leash"]["steps"]
    assert elastic["leash_gated"]["wobble"] > elastic["leash"]["wobble"]


@pytest.mark.parametrize("gain", [0.02, 0.1, 0.5])
def test_without_noise_the_gate_stops_a_ratchet_within_one_update_of_the_target(gain):
    """The smallest length is the first at or under the target, or the next: its update still had the price."""
    ratios = run(still(gain=gain, updates=1000), RULES["leash_gated"]).ratios
    first = next(i for i, ratio in enumerate(ratios) if ratio <= 1)
    assert min(ratios) == ratios[-1] == ratios[first + 1]
    theirs = run(still(gain=gain, updates=1000), Rule((0.1,), leash)).ratios
    assert 1 - min(ratios) < 0.15 * (1 - min(theirs))


def test_steps_and_undershoot_by_hand():
    plant = still(updates=6)

    class Result:
        ratios, lambdas, change_at = [2.0, 1.04, 0.9, 1.0, 1.1, 1.2], [0.5] * 6, 3

    found = measures(plant, Result)
    assert found["steps"] == 1
    assert found["undershoot"] == pytest.approx(0.1)
    assert found["offset"] == pytest.approx((-0.1 + 0.2) / 2)
    assert found["error"] == pytest.approx(0.15)
    assert found["rms"] == pytest.approx(math.sqrt((0.01 + 0.04) / 2))
