"""Our controller against LEASH and the one it replaced, on toy plants that took no part in choosing it."""

import pytest
from length_plants import REPORT_SEED, RULES, draw, mean_measures


@pytest.mark.parametrize("kind", ["ratchet", "elastic"])
def test_the_forecast_beats_both_and_what_it_gains_costs_neither_time_nor_an_offset(kind):
    plants = draw(kind, REPORT_SEED, 60)
    names = ("leash_predictive", "leash", "leash_gated (retired)")
    ours, leash, gated = (mean_measures(plants, RULES[name]) for name in names)
    assert ours["rms"] < 0.95 * min(leash["rms"], gated["rms"])
    assert ours["error"] <= min(leash["error"], gated["error"])
    assert ours["undershoot"] < 0.35 * leash["undershoot"]
    assert ours["steps"] <= 1.1 * leash["steps"]
