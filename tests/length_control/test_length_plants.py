"""Our controller against LEASH and the one it replaced, on toy plants that took no part in choosing it."""

import pytest
from length_plants import (
    REPORT_SEED,
    RULES,
    draw,
    mean_measures,
)


KINDS = ("ratchet", "elastic")
NAMES = ("leash", "leash_gated (retired)", "leash_predictive")


@pytest.fixture(scope="module")
def table():
    plants = {kind: draw(kind, REPORT_SEED, 60) for kind in KINDS}
    return {kind: {name: mean_measures(plants[kind], RULES[name]) for name in NAMES} for kind in KINDS}


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
