"""NeMo-RL's band by hand, configured and of a row."""

import math

import pytest
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.nemo_rl import Band, NemoRL, band_of


NAN = math.nan
BAND = {"a": 10, "b": 20, "f": 0.5}


@pytest.mark.parametrize(
    "value", [{"a": 1, "b": 2, "f": 0.1}, {"total": {"a": 1, "b": 2, "f": 0.1}, "reasoning": BAND}]
)
def test_a_row_may_have_a_band_of_its_own_or_of_nemo_rls_data(value):
    assert band_of(value, "band") == Band(1, 2, 0.1)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        NAN,
        {"a": NAN, "b": NAN, "f": NAN},
        {"answer": BAND, "total": None},
    ],
    ids=str,
)
def test_a_row_may_have_no_band(value):
    assert band_of(value, "band") is None


@pytest.mark.parametrize(
    "value",
    [
        {"a": 9, "b": 9, "f": 0.5},
        {"total": {"a": 9, "b": 10, "f": 2.0}},
        {"a": 9, "f": 0.5},
        {"a": "9", "b": 10, "f": 0.5},
        18000,
    ],
    ids=str,
)
def test_what_is_no_band_is_refused_in_a_line_that_names_it(value):
    with pytest.raises(ValueError, match=r"column_of_bands of row 1 is ") as error:
        NemoRL(profile_band_column="column_of_bands").check_columns({"column_of_bands": [BAND, value]})
    assert "\n" not in str(error.value)


# the first prompt has no band of its own; that of the second falls from 20 to 40 tokens, halfway down to 0.9 at 30
SECOND = {"a": 20, "b": 40, "f": 0.9}
ROLLOUTS = toy_rollouts(
    [1, 1, 1, 1], [10, 30, 10, 30], num_generations=2, columns={"band": [None, None, SECOND, SECOND]}
)


def test_each_prompt_has_its_own_band_or_the_configured_one():
    method = NemoRL(profile_band=BAND, profile_band_column="band")
    close(method.shaped_rewards(ROLLOUTS), [1, 0.5, 1, 0.95])
    assert method.check_columns({"band": [SECOND, SECOND]}) is None
    assert method.check_columns({"band": [None]}) is None


def test_without_a_configured_band_a_prompt_has_its_own_or_none():
    method = NemoRL(profile_band_column="band")
    close(method.shaped_rewards(ROLLOUTS), [1, 1, 1, 0.95])
    assert method.check_columns({"band": [SECOND, SECOND]}) is None
    assert "'band'" in method.check_columns({"band": [None]})
