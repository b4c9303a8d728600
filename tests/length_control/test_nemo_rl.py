"""NeMo-RL's length rewards by hand, and what its band must never do."""

import math
from dataclasses import replace

import pytest
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.nemo_rl import NemoRL, band_of


NAN = float("nan")
BAND = {"a": 10, "b": 20, "f": 0.5}


def test_the_example_of_its_review_without_its_fault():
    # all right; the longest pays 2.4, and 1 - 2.4 * 1 is cut at 0. NeMo-RL's first version gave -1.4 * 0.6 = -0.84 to
    # the longest, more than -1.4. Factors: 400 lies 300/900 within the band, 1 - 0.4/3.
    method = NemoRL(profile_band={"a": 100, "b": 1000, "f": 0.6}, longest_total_penalty=2.4)
    rollouts = toy_rollouts([1, 1, 1, 1], [100, 400, 1000, 2000])
    close(method.shape(rollouts), [1, 1 - 0.4 / 3, 0.6, 0])
    close(method.score(rollouts, AdvantageRule()).penalty, [0, 0.4 / 3, 0.4, 2.4])


@pytest.mark.parametrize(
    ("rewards", "lengths", "shaped"),
    [
        ([1, 1, 1, 0, 1], [10, 10, 30, 5, 20], [1.25, 1.25, 0.5, 0, 1]),
        ([1, 1, 0], [10, 10, 5], [1, 1, 0]),
        ([1, 0], [10, 5], [1, 0]),
    ],
)
def test_the_shortest_right_answer_has_the_bonus_and_equals_share_alike(rewards, lengths, shaped):
    method = NemoRL(total_bonus=0.25, longest_total_penalty=0.5)
    close(method.shape(toy_rollouts(rewards, lengths)), shaped)


def test_a_robust_z_score_at_the_threshold_is_no_outlier():
    # median 120, MAD 10, spread 1.4826 * 10 = 14.826: 400 lies 280 / 14.826 above, to the last bit
    at = 280 / (1.4826 * 10)
    for threshold, longest in ((at, 1), (math.nextafter(at, 0), 0.7)):
        method = NemoRL(total_zmad_penalty=0.3, total_zmad_threshold=threshold)
        close(method.shape(toy_rollouts([1] * 5, [100, 110, 120, 130, 400])), [1, 1, 1, 1, longest])


def test_all_terms_together_by_hand():
    # right 10, 20, 30: min-max 0.2 * (0.5, 0, -0.5), bonus 0.1, longest 0.3, MAI 0.3 * 3/4 * (1/3, 2/3, 1)
    # sums: 1 + 0.1 + 0.1 - 0.075 = 1.125; 1 - 0.15 = 0.85; 1 - 0.1 - 0.3 - 0.225 = 0.375
    # band 10 to 20, 0.5: factors 1, 0.5, 0.5
    method = NemoRL(
        profile_band=BAND,
        group_total_length_penalty_coeff=0.2,
        total_bonus=0.1,
        longest_total_penalty=0.3,
        pass_rate_length_penalty_weight=0.3,
    )
    rollouts = toy_rollouts([1, 1, 1, 0], [10, 20, 30, 15])
    close(method.shape(rollouts), [1.125, 0.425, 0.1875, 0])
    close(method.score(rollouts, AdvantageRule()).penalty, [-0.125, 0.575, 0.8125, 0])


# right ones 20, 21, 41 on the mean in groups of 10 and 30, 10 and 32, 10 and 72; a mean at the limit is closed
PAIRS = toy_rollouts([1] * 6, [10, 30, 10, 32, 10, 72], num_generations=2)
# right ones 10 and 20, mean 15; with the wrong 90 it is 40; the unscorable one counts in neither
MIXED = toy_rollouts([1, 1, 0, NAN], [10, 20, 90, 9000])

# a prompt without a limit, whose gate is closed, and one with
IN_ROWS = replace(PAIRS, columns={"band": [None] * 4 + [{"a": 15, "b": 90, "f": 1.0}] * 2})


@pytest.mark.parametrize(
    ("batch", "gate", "shaped"),
    [
        (PAIRS, {}, [1, 1, 1.05, 0.95, 1.05, 0.95]),
        (PAIRS, {"group_length_penalty_profile_gate_field": "b"}, [1, 1, 1, 1, 1.05, 0.95]),
        (MIXED, {}, [1, 1, 0, NAN]),
        (MIXED, {"group_length_penalty_profile_gate_positive_only": False}, [1.05, 0.95, 0, NAN]),
        (IN_ROWS, {"profile_band": None, "profile_band_column": "band"}, [1, 1, 1, 1, 1.05, 0.95]),
    ],
    ids=str,
)
def test_the_gate_lets_min_max_act_where_the_mean_is_above_a_limit(batch, gate, shaped):
    settings = {"profile_band": {"a": 20, "b": 40, "f": 0.5}, "profile_band_total": False} | gate
    terms = {"group_total_length_penalty_coeff": 0.1, "group_length_penalty_profile_gate": True}
    close(NemoRL(**settings, **terms).shape(batch), shaped)


def test_a_row_with_a_band_replaces_the_configured_one_as_a_whole():
    configured, own = (100, 200, 0.5), {"a": 1, "b": 2, "f": 0.1}
    for without in (None, {}, NAN, {"a": None, "b": None, "f": None, "total": None}, {"answer": own, "total": None}):
        assert band_of(without, configured) == configured
        assert all(value != value for value in band_of(without))
    assert band_of(own, configured) == band_of({"total": own, "reasoning": BAND}, configured) == (1, 2, 0.1)


@pytest.mark.parametrize("value", ["900", 900, {"total": {"a": 900}}, {"a": 9, "b": None, "f": 0.5}], ids=str)
def test_what_is_no_band_is_refused_in_a_line_that_names_it(value):
    with pytest.raises(ValueError, match=r"column_of_bands of row 1 is ") as error:
        NemoRL(profile_band_column="column_of_bands").check_columns({"column_of_bands": [BAND, value]})
    assert "\n" not in str(error.value)


# configured 10 to 20, 0.5; the second prompt 20 to 40, down to 0.9: factors at 30: 0.5, 0.95
@pytest.mark.parametrize(
    ("settings", "shaped"),
    [
        ({"profile_band": BAND}, [1, 0.5, 1, 0.95]),
        ({"profile_band_total": True}, [1, 1, 1, 0.95]),
        # bands in rows alone multiply only if they are told to
        ({}, [1] * 4),
        ({"profile_band": BAND, "profile_band_total": False}, [1] * 4),
    ],
)
def test_each_prompt_has_its_own_band_the_configured_one_or_none(settings, shaped):
    rollouts, rows = toy_rollouts([1] * 4, [10, 30] * 2, num_generations=2), [{"a": 20, "b": 40, "f": 0.9}] * 2
    method = NemoRL(profile_band_column="band", **settings)
    close(method.shape(replace(rollouts, columns={"band": [None] * 2 + rows})), shaped)
    assert method.check_columns({"band": rows}) is None
    assert (method.check_columns({"band": [None]}) is None) == ("profile_band" in settings)
