"""Our controller against those it is compared with, on toy plants that took no part in choosing it."""

from statistics import fmean

import pytest
from length_plants import REPORT_SEED, RULES, draw, learned, measures


KINDS = ("linear", "falling", "ratchet", "elastic", "gym")
OTHERS = ("LEASH, lr 0.005", "LEASH, lr 0.05", "PID-Lagrangian")


@pytest.fixture(scope="module")
def found():
    plants = {kind: draw(kind, REPORT_SEED, 12) for kind in KINDS}
    names = (*OTHERS, "LEASH-Predictive")
    return {name: [measures(plant, RULES[name]) for kind in KINDS for plant in plants[kind]] for name in names}


@pytest.mark.parametrize("other", OTHERS)
def test_it_is_sooner_at_the_target_and_ends_nearer_than_the_others(found, other):
    (early, _, rms), (other_early, _, other_rms) = (
        map(fmean, zip(*found[name], strict=True)) for name in ("LEASH-Predictive", other)
    )
    assert early > 1.5 * other_early
    assert rms < 0.8 * other_rms


@pytest.mark.parametrize(("response", "holding"), [(0.02, 0.5), (0.05, 0.2)])
def test_it_learns_how_fast_lengths_respond_and_ends_at_the_target(response, holding):
    found, off = learned(response, holding)
    assert 0.5 < found / response < 2
    assert abs(off) < 0.01
