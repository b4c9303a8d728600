"""Our controller against those it is compared with, on toy plants that took no part in choosing it."""

from statistics import fmean

import pytest
from length_plants import REPORT_SEED, RULES, draw, learned, measures


KINDS = ("linear", "falling", "ratchet", "elastic", "gym")
OTHERS = ("LEASH, lr 0.05", "PID-Lagrangian", "before: least mean squares")


@pytest.fixture(scope="module")
def rms():
    plants = {kind: draw(kind, REPORT_SEED, 12) for kind in KINDS}
    names = (*OTHERS, "LEASH-Predictive")
    return {name: {kind: fmean(measures(p, RULES[name])[2] for p in plants[kind]) for kind in KINDS} for name in names}


@pytest.mark.parametrize("other", OTHERS)
def test_it_ends_nearer_to_the_target_than_the_others(rms, other):
    assert fmean(rms["LEASH-Predictive"].values()) < 0.6 * fmean(rms[other].values())


@pytest.mark.parametrize("holding", [0.2, 0.5])
def test_the_response_that_is_learned_is_near_the_true_one(holding):
    response, length = learned(0.02, holding)
    assert 0.5 < response / 0.02 < 2
    assert abs(length) < 0.01
