"""Our controller against those it is compared with, on simulated systems that took no part in choosing it."""

from functools import partial
from statistics import fmean

import pytest
from length_plants import REPORT_SEED, draw_shrinking, learned, measures, predictive


@pytest.mark.parametrize(("response", "holding"), [(0.02, 0.5), (0.05, 0.2)])
def test_it_learns_how_fast_lengths_respond_and_ends_at_the_target(response, holding):
    learned_response, log_distance = learned(response, holding)
    assert 0.5 < learned_response / response < 2
    assert abs(log_distance) < 0.01


@pytest.mark.parametrize("kind", ["linear", "falling", "hazard"])
def test_with_a_negative_lambda_lengths_that_fall_by_themselves_are_held_at_the_target(kind):
    both_sides = partial(predictive, lambda_min=-1.0)
    measured = [measures(plant, both_sides) for plant in draw_shrinking(kind, REPORT_SEED, 12)]
    assert fmean(late for _, late, _ in measured) > 0.9
