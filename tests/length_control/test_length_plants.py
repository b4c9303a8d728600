"""Our controller against those it is compared with, on simulated systems that took no part in choosing it."""

from functools import partial
from statistics import fmean

import pytest
from length_plants import REPORT_SEED, distance_after_jump, draw_shrinking, draw_switching, measures, predictive


@pytest.mark.parametrize("kind", ["linear", "falling", "hazard"])
def test_with_a_negative_lambda_lengths_that_fall_by_themselves_are_held_at_the_target(kind):
    both_sides = partial(predictive, lambda_min=-1.0)
    measured = [measures(plant, both_sides) for plant in draw_shrinking(kind, REPORT_SEED, 12)]
    assert fmean(late for _, late, _ in measured) > 0.9


def test_after_a_jump_of_the_length_it_learns_the_response_again():
    both_sides = partial(predictive, lambda_min=-1.0)
    distances = [distance_after_jump(plant, both_sides) for plant in draw_switching(REPORT_SEED, 20)]
    assert fmean(distances) < 0.03
