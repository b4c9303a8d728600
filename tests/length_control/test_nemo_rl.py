"""NeMo-RL's band by hand, configured and of a row."""

from dataclasses import replace

import pytest
from toy_rollouts import close, toy_rollouts

from leash_trl.length_control.advantages import AdvantageRule
from leash_trl.length_control.nemo_rl import NemoRL, band_of


NAN = float("nan")
BAND = {"a": 10, "b": 20, "f": 0.5}


def test_the_band_by_hand():
    # 400 lies 300/900 within the band: 1 - 0.4/3
    rollouts = toy_rollouts([1, 1, 1, 0, NAN], [100, 400, 2000, 400, 400])
    method = NemoRL(profile_band={"a": 100, "b": 1000, "f": 0.6})
    close(method.shape(rollouts), [1, 1 - 0.4 / 3, 0.6, 0, NAN])
    close(method.score(rollouts, AdvantageRule()).penalty, [0, 0.4 / 3, 0.4, 0, NAN])


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
    ("settings", "shaped"), [({"profile_band": BAND}, [1, 0.5, 1, 0.95]), ({}, [1, 1, 1, 0.95])], ids=str
)
def test_each_prompt_has_its_own_band_the_configured_one_or_none(settings, shaped):
    rollouts, rows = toy_rollouts([1] * 4, [10, 30] * 2, num_generations=2), [{"a": 20, "b": 40, "f": 0.9}] * 2
    method = NemoRL(profile_band_column="band", **settings)
    close(method.shape(replace(rollouts, columns={"band": [None] * 2 + rows})), shaped)
    assert method.check_columns({"band": rows}) is None
    assert (method.check_columns({"band": [None]}) is None) == ("profile_band" in settings)
