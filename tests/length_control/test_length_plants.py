"""Our controller against LEASH and the one it replaced, on toy plants that took no part in choosing it."""

import itertools
import math
import statistics

import pytest
from length_plants import (
    REPORT_SEED,
    RULES,
    Plant,
    Rule,
    draw,
    gate,
    mean_measures,
    mean_overshoot,
    measures,
    run,
    share_over,
)


KINDS = ("ratchet", "elastic")
NAMES = ("leash", "leash_gated (retired)", "leash_predictive")


@pytest.fixture(scope="module")
def table():
    plants = {kind: draw(kind, REPORT_SEED, 60) for kind in KINDS}
    return {kind: {name: mean_measures(plants[kind], RULES[name]) for name in NAMES} for kind in KINDS}


def still(**fields):
    usual = {"form": "overshoot", "gain": 0.2, "growth": 0.0, "momentum": 0.0, "noise": 0.0, "lr": 0.02}
    return Plant(**{**usual, "updates": 400, "change": 1.0, "seed": 0, **fields})


def constant(lam, **fields):
    return Rule(lam, (), lambda state, lam, e, target, plant: (lam, state), **fields)


def test_mean_overshoot_and_share_by_sampling():
    draws = statistics.NormalDist(0, 1).samples(200_000, seed=0)
    sigma = math.sqrt(math.log(1.16))
    lengths = [1.5 * math.exp(sigma * z - sigma**2 / 2) for z in draws]
    assert statistics.fmean(lengths) == pytest.approx(1.5, rel=0.005)
    assert statistics.stdev(lengths) / 1.5 == pytest.approx(0.4, rel=0.01)
    assert statistics.fmean(max(0, length - 1) for length in lengths) == pytest.approx(mean_overshoot(1.5), rel=0.01)
    assert statistics.fmean(length > 1 for length in lengths) == pytest.approx(share_over(1.5), rel=0.01)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_constant_price_settles_where_growth_balances_it(momentum):
    """At rest growth * (2.5 - L) = gain * lam * E[max(0, L_i - 1)] * L, whatever the momentum."""
    length = run(still(growth=0.02, updates=2000, momentum=momentum), constant(0.5)).ratios[-1]
    assert 0.02 * (2.5 - length) == pytest.approx(0.2 * 0.5 * mean_overshoot(length) * length)


def test_momentum_carries_on_after_the_price_is_gone():
    pulse = Rule(1.0, (), lambda state, lam, e, target, plant: (0.0, state), weighs_length=True)
    ratios = run(still(momentum=0.5, gain=0.1, updates=60), pulse).ratios
    falls = [1 - after / before for before, after in itertools.pairwise(ratios)]
    assert falls[:4] == pytest.approx([0.1 * share_over(2.5) * 0.5**k for k in range(1, 5)])


def test_in_the_reward_any_price_pushes_at_full_strength_and_as_a_weight_half_of_it_half_as_hard():
    plant = still(form="any", gain=0.1, updates=2)
    falls = {
        (lam, weighs): 1 - run(plant, constant(lam, weighs_length=weighs)).ratios[1] / 2.5
        for lam in (0.5, 1.0)
        for weighs in (False, True)
    }
    assert falls[0.5, False] == pytest.approx(falls[1.0, False], rel=0.01)
    assert falls[0.5, True] == pytest.approx(0.5 * falls[1.0, True])


def test_the_retired_gate_by_hand():
    level, levels = 0.0, []
    for e in (1.0, -0.5, 0.25, 0.5):
        levels.append(level := gate(level, e))
    assert levels == pytest.approx([1.0, -0.5, -0.2, 0.32])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("other", NAMES[:2])
def test_the_forecast_beats_both_on_both_kinds_of_plant(table, kind, other):
    assert table[kind]["leash_predictive"]["rms"] < 0.95 * table[kind][other]["rms"]


def test_what_it_gains_and_what_it_costs(table):
    ratchet, elastic = table["ratchet"], table["elastic"]
    assert ratchet["leash_predictive"]["undershoot"] < 0.35 * ratchet["leash"]["undershoot"]
    assert elastic["leash_predictive"]["undershoot"] < 0.35 * elastic["leash"]["undershoot"]
    # not slower, and no offset of its own that is worse than that of the others
    for kind in KINDS:
        assert table[kind]["leash_predictive"]["steps"] <= 1.1 * table[kind]["leash"]["steps"]
        assert table[kind]["leash_predictive"]["error"] <= min(table[kind][name]["error"] for name in NAMES[:2])


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
