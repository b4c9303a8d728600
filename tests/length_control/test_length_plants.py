"""Our controller against those it is compared with, on simulated systems that took no part in choosing it."""

from functools import partial
from statistics import fmean
from typing import NamedTuple

import pytest
from length_plants import REPORT_SEED, RULES, draw, draw_shrinking, learned, measures, predictive


KINDS = ("linear", "falling", "ratchet", "elastic", "gym")
OURS = "LEASH-Predictive"
OTHERS = ("LEASH, lr 0.005", "LEASH, lr 0.05", "PID-Lagrangian")


class Results(NamedTuple):
    """Share of plants that are early at the target, and mean of their final distances from it."""

    share_early: float
    distance: float


@pytest.fixture(scope="module")
def results():
    plants = []
    for kind in KINDS:
        plants.extend(draw(kind, REPORT_SEED, 12))
    results_by_rule = {}
    for name in (OURS, *OTHERS):
        measured = [measures(plant, RULES[name]) for plant in plants]
        share_early = fmean(early for early, _, _ in measured)
        distance = fmean(distance for _, _, distance in measured)
        results_by_rule[name] = Results(share_early, distance)
    return results_by_rule


@pytest.mark.parametrize("other", OTHERS)
def test_it_is_sooner_at_the_target_and_ends_nearer_than_the_others(results, other):
    assert results[OURS].share_early > 1.5 * results[other].share_early
    assert results[OURS].distance < 0.8 * results[other].distance


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
