"""Which methods of a comparison can be told apart: vectors by hand, and what the report says."""

import math

import mpmath
import numpy as np
import pytest

from leash_trl.evaluation.intervals import t_p_value, t_quantile
from leash_trl.evaluation.separation import (
    Place,
    Point,
    accuracy_at_equal_length,
    front,
    holm,
    method_pairs,
    shown_signs,
    welch_difference,
)
from leash_trl.evaluation.separation_report import separation_paragraphs


def point(method, target, accuracies, tokens, seeds=None, settings=""):
    seeds = tuple(range(len(accuracies))) if seeds is None else seeds
    return Point(method, settings, target, seeds, np.array(accuracies, dtype=float), np.array(tokens, dtype=float))


def near(method, target, accuracy, tokens, spread=0.001):
    """A point of three seeds that differ little."""
    steps = np.array([-1.0, 0.0, 1.0])
    return point(method, target, accuracy + spread * steps, tokens * (1 + 0.001 * steps))


# --- differences -----------------------------------------------------------------------------------------------------


def test_welch_by_hand():
    # means 2 and 5, variances 2 over 2 seeds: v = 1 and 1, nu = 2^2 / (1 + 1) = 2, t = 4.3027, sqrt(2) * t = 6.085
    difference = welch_difference(np.array([1.0, 3.0]), np.array([4.0, 6.0]))
    assert difference.estimate.value == -3
    assert (difference.estimate.low, difference.estimate.high) == pytest.approx((-9.08486, 3.08486), abs=1e-4)
    # with two degrees of freedom p = 1 - |t| / sqrt(2 + t^2), t = -3 / sqrt(2)
    assert difference.p_value == pytest.approx(1 - math.sqrt(4.5 / 6.5), abs=1e-7)


def test_degrees_of_freedom_are_those_of_the_sample_that_varies():
    # variance 1.5 * 8 / 3 = 4, v = 4 / 4 and 0: nu = 1 / (1 / 3) = 3, t = 3.18245
    difference = welch_difference(np.array([0.0, 4.0, 2.0, 2.0]) * math.sqrt(1.5), np.array([5.0, 5.0]))
    mean = 2 * math.sqrt(1.5) - 5
    assert difference.estimate.value == pytest.approx(mean)
    assert difference.estimate.high == pytest.approx(mean + 3.18245, abs=1e-4)


def test_samples_of_unequal_size_and_spread():
    # v = 2 / 2 and 4 / 3: nu = (7/3)^2 / (1 / 1 + (16/9) / 2) = 49 / 17
    difference = welch_difference(np.array([1.0, 3.0]), np.array([4.0, 8.0, 6.0]))
    reach = t_quantile(49 / 17) * math.sqrt(7 / 3)
    assert difference.estimate.high == pytest.approx(-4 + reach)
    assert t_quantile(2) > t_quantile(49 / 17) > t_quantile(3)


@pytest.mark.parametrize("degrees", [1.0, 1.5, 49 / 17, 4.0, 7.9, 40.0])
@pytest.mark.parametrize("statistic", [0.3, -2.0, 9.0])
def test_p_values_are_those_of_the_incomplete_beta_function(statistic, degrees):
    share = mpmath.betainc(degrees / 2, 0.5, 0, degrees / (degrees + statistic**2), regularized=True)
    assert t_p_value(statistic, degrees) == pytest.approx(float(share), rel=2e-4, abs=1e-9)
    assert t_p_value(t_quantile(degrees), degrees) == pytest.approx(0.05, abs=1e-5)


def test_samples_without_spread_are_told_apart_by_their_values():
    same, other = (welch_difference(np.array([1.0, 1.0]), np.full(2, value)) for value in (1.0, 2.0))
    assert (same.p_value, other.p_value) == (1, 0)
    assert (other.estimate.low, other.estimate.high) == (-1, -1)


@pytest.mark.parametrize(
    ("p_values", "rejected"),
    [
        ([], []),
        ([0.05], [True]),
        ([0.051], [False]),
        ([0.05, 0.012, 0.024, 0.016], [True, True, True, True]),  # 0.0125, 0.0167, 0.025, 0.05
        ([0.001, 0.02, 0.024, 0.04], [True, False, False, False]),  # 0.02 > 0.05 / 3 ends it
    ],
)
def test_holm_by_hand(p_values, rejected):
    assert holm(p_values) == rejected


# --- pairs -----------------------------------------------------------------------------------------------------------


def test_pairs_are_of_two_methods_at_one_target():
    points = [near("A", 12, 0.5, 10), near("A", 18, 0.6, 20), near("B", 12, 0.5, 10), near("none", None, 0.7, 60)]
    assert method_pairs(points) == [(0, 2)]
    assert method_pairs([near("A", None, 0.5, 10), near("B", None, 0.6, 20)]) == []


def test_a_difference_is_shown_by_its_interval_and_less_often_after_the_correction():
    # t = -0.3 / sqrt(2 * 0.01 / 3) = -3.67 with 4 degrees of freedom: p = 0.021
    steps = 0.1 * np.array([-1, 0, 1])
    down, same = welch_difference(0.5 + steps, 0.8 + steps), welch_difference(0.5 + steps, 0.5 + steps)
    up = welch_difference(0.8 + steps, 0.5 + steps)
    assert down.p_value == pytest.approx(0.0214, abs=1e-4)
    assert shown_signs([down, same, up]).tolist() == [-1, 0, 1]
    assert shown_signs([down, same], is_corrected=True).tolist() == [-1, 0]  # 0.0214 <= 0.05 / 2
    assert shown_signs([down, same, same], is_corrected=True).tolist() == [0, 0, 0]  # 0.0214 > 0.05 / 3


# --- the front -------------------------------------------------------------------------------------------------------


def places(points, is_corrected=False):
    found = front(points, is_corrected)
    return {
        own.name: (place, [points[other].name for other in others])
        for own, (place, others) in zip(points, found, strict=True)
    }


def test_places_by_hand():
    points = [
        near("best", 18, 0.9, 20),
        near("dearer and worse", 18, 0.8, 25),
        near("short", 12, 0.7, 10),
        near("as long and worse", 18, 0.85, 20),
    ]
    assert places(points) == {
        "best at 18": (Place.ON, []),
        "dearer and worse at 18": (Place.OFF, ["best at 18", "as long and worse at 18"]),
        "short at 12": (Place.ON, []),
        "as long and worse at 18": (Place.OFF, ["best at 18"]),
    }


def test_what_no_interval_shows_cannot_be_told():
    points = [near("A", 18, 0.9, 20), near("noisy", 18, 0.88, 20.001, spread=0.1), near("short", 12, 0.5, 10)]
    assert [place for place, _ in places(points).values()] == [Place.UNKNOWN, Place.UNKNOWN, Place.ON]


@pytest.mark.parametrize(
    ("tokens", "place"),
    [
        (20.8, Place.OFF),  # 4 % more, with little spread: shown to be less than 5 %
        (21.2, Place.ON),  # 6 % more, and shown to be more
        ([19.0, 20.0, 21.0], Place.UNKNOWN),  # as many on average, but they may be 5 % more
    ],
)
def test_a_point_beats_another_at_few_more_tokens_if_that_is_shown(tokens, place):
    accurate = point("accurate", 18, [0.9, 0.901, 0.899], np.ones(3) * tokens)
    short = near("short", 18, 0.8, 20)
    found = places([short, accurate])
    assert found["short at 18"][0] is place
    assert found["accurate at 18"][0] is Place.ON  # by its accuracy


def test_the_correction_clears_what_was_barely_beaten():
    barely = [point("A", 18, [0.8, 0.9, 1.0], [10, 10, 10]), point("B", 18, [0.5, 0.6, 0.7], [20, 20, 20])]
    assert places(barely)["B at 18"] == (Place.OFF, ["A at 18"])
    # p = 0.021 for the accuracy; the other three of four hypotheses are certain, so it is compared with 0.05
    assert places(barely, is_corrected=True)["B at 18"] == (Place.OFF, ["A at 18"])
    crowd = [*barely, point("C", 18, [0.5, 0.6, 0.7], [20, 20, 20])]
    assert places(crowd)["B at 18"] == (Place.OFF, ["A at 18"])
    assert places(crowd, is_corrected=True)["B at 18"] == (Place.UNKNOWN, [])


# --- equal length ----------------------------------------------------------------------------------------------------


def curve(method, lengths, accuracies, seeds=None):
    """One point for each column of lengths (logarithms of tokens) and accuracies, whose rows are seeds."""
    lengths, accuracies = np.array(lengths, dtype=float), np.array(accuracies, dtype=float)
    return [
        point(method, 10 * index, accuracies[:, index], np.exp(lengths[:, index]), seeds)
        for index in range(lengths.shape[1])
    ]


def test_accuracy_at_equal_length_by_hand():
    first = curve("A", [[1, 3], [1, 3]], [[0.5, 0.9], [0.5, 0.7]])
    second = curve("B", [[2, 4], [2, 4]], [[0.5, 0.8], [0.4, 0.6]])
    # both cover 2 to 3. seed 0: 0.7 - 0.5 to 0.9 - 0.65, mean 0.225; seed 1: 0.6 - 0.4 to 0.7 - 0.5, mean 0.2
    found = accuracy_at_equal_length(first, second)
    assert found.difference.value == pytest.approx(0.2125)
    # standard deviation 0.025 / sqrt(2), over sqrt(2)
    assert found.difference.low == pytest.approx(0.2125 - 12.7062 * 0.0125, abs=1e-5)
    assert (found.shortest, found.longest) == pytest.approx((math.e**2, math.e**3))
    assert accuracy_at_equal_length(second, first).difference.value == pytest.approx(-0.2125)


def test_bends_inside_the_range_count_and_order_of_points_and_seeds_does_not():
    tent = curve("A", [[0, 1, 2], [0, 1, 2]], [[0, 1, 0], [0, 0.8, 0]])
    flat = curve("B", [[0, 2], [0, 2]], [[0, 0], [0.1, 0.1]])
    found = accuracy_at_equal_length(tent, flat)
    assert found.difference.value == pytest.approx((0.5 + 0.3) / 2)
    turned = [point("A", own.target_length, own.accuracies[::-1], own.tokens[::-1], (1, 0)) for own in reversed(tent)]
    assert accuracy_at_equal_length(turned, flat) == found


def test_only_lengths_that_every_seed_covers_count():
    first = curve("A", [[0, 2], [0.5, 1.5]], [[0, 0], [0, 0]])
    found = accuracy_at_equal_length(first, curve("B", [[0, 2], [0, 2]], [[1, 1], [1, 1]]))
    assert (found.shortest, found.longest) == pytest.approx((math.exp(0.5), math.exp(1.5)))
    assert (found.difference.value, found.difference.low, found.difference.high) == (-1, -1, -1)


@pytest.mark.parametrize(
    "other",
    [
        curve("B", [[3, 4], [3, 4]], [[0, 0], [0, 0]]),
        curve("B", [[2, 4], [2, 4]], [[0, 0], [0, 0]]),  # touches in one point
        curve("B", [[0, 1], [0, 1]], [[0, 0], [0, 0]], seeds=(4, 5)),
        curve("B", [[1], [1]], [[0], [0]]),
    ],
)
def test_where_curves_cannot_be_compared_there_is_no_number(other):
    assert accuracy_at_equal_length(curve("A", [[0, 2], [0, 2]], [[0, 0], [0, 0]]), other) is None


# --- the report ------------------------------------------------------------------------------------------------------


def cells(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_report_by_hand():
    points = [
        near("L1", 12, 0.6, 12),
        near("L1", 18, 0.8, 18),
        near("LEASH", 12, 0.5, 12),
        near("LEASH", 18, 0.8, 18.3),
        near("far", 12, 0.9, 300),
        near("far", 18, 0.9, 400),
        point("lonely", 12, [0.5], [9.0]),
        point("DOT", None, [0.6, 0.601, 0.6], [11.9, 12, 12.1], settings="alpha 1"),
        point("DOT", None, [0.8, 0.801, 0.8], [17.9, 18, 18.1], settings="alpha 3"),
    ]
    pairs, left_out, places, _, equal, _ = separation_paragraphs(points)
    # L1 and LEASH: at 12 by accuracy, at 18 by tokens; far from both at both by both
    assert "Of 6 pairs" in pairs
    assert "5 are told apart by accuracy, 5 by tokens, 6 by either" in pairs
    assert "over these 12 intervals: 5, 5 and 6." in pairs
    assert left_out == "Not told apart, for want of a second seed: lonely at 12."
    rows = cells(places)
    assert rows[2][:2] == ["LEASH at 12", "off it"]
    assert rows[2][2] == "L1 at 12, DOT, alpha 1"
    assert rows[6][0] == "DOT, alpha 1"
    assert "lonely" not in places
    assert "accuracy minus that of LEASH" in equal.splitlines()[0]
    first, second, third = cells(equal)
    assert first[0] == "L1"
    assert first[2] == "12.0 to 18.0"
    assert second[:2] == ["far", "n/a"]
    assert third[0] == "DOT"


def test_who_beats_a_point_stands_beside_what_is_said_without_the_correction():
    crowd = [
        point("A", 18, [0.8, 0.9, 1.0], [10, 10, 10]),
        point("B", 18, [0.5, 0.6, 0.7], [20, 20, 20]),
        point("C", 18, [0.5, 0.6, 0.7], [20, 20, 20]),
    ]
    table = separation_paragraphs(crowd)[1]
    assert cells(table)[1] == ["B at 18", "off it", "A at 18", "cannot be told"]
    assert table.splitlines()[0] == "| point | front | beaten by | after Holm |"


def test_points_of_one_seed_say_nothing():
    assert separation_paragraphs([point("A", 12, [0.5], [9.0]), near("B", 12, 0.5, 9)]) == []


def test_methods_of_one_target_have_no_curves():
    paragraphs = separation_paragraphs([near("A", 12, 0.5, 9), near("B", 12, 0.6, 9)])
    assert len(paragraphs) == 3
