"""What a hyper-parameter may hold: each method's own ranges, annotations, and what does not fit the run."""

import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from leash_trl.length_control.method import LengthControl, hyperparameter
from leash_trl.length_control.methods import METHODS


NAN, INF = math.nan, math.inf

FILE = Path(__file__).parents[1] / "fixtures" / "senseless_hyper_parameters.yaml"
SENSELESS = yaml.safe_load(FILE.read_text(encoding="utf-8"))


def refused(make, name, value):
    """The one line that refuses a value; it names the field and the value."""
    with pytest.raises(ValueError, match=rf"\b{name}( is |=){re.escape(repr(value))}") as error:
        make(**{name: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [(name, field, value) for name, table in SENSELESS.items() for field, values in table.items() for value in values],
    ids=str,
)
def test_a_hyper_parameter_out_of_its_range_is_refused(name, field, value):
    refused(METHODS[name], field, value)


NUMBERS = [
    (name, field)
    for name, method in METHODS.items()
    for field in fields(method)
    if field.init and isinstance(field.default, int | float) and not isinstance(field.default, bool)
]


@pytest.mark.parametrize(("name", "field"), NUMBERS, ids=lambda each: getattr(each, "name", each))
def test_what_is_no_finite_number_is_refused_where_one_is_needed(name, field):
    for value in (NAN, INF, -INF, "1", True, [1]):
        refused(METHODS[name], field.name, value)
    if not isinstance(None, field.type):
        refused(METHODS[name], field.name, None)


BAND = {"a": 10, "b": 20, "f": 0.5}
UNFIT = [
    ("dapo_overlong", {"cache_length": 100, "max_length": 100}, None, 512, "cache_length is 100"),
    ("dapo_overlong", {}, None, 512, "cache_length is 4096"),
    ("l1_max", {"budget_range": None}, None, 4000, "budget_range"),
    ("l1_max", {"budget_range": (1, 4001)}, None, 4000, "budget_range"),
    ("laser_d", {}, 16385, 32768, "upper_bound is 16384"),
    ("lead", {}, None, 512, "lower_bound is 1000, .*512"),
    ("lead", {"upper_bound": 999}, None, 8000, "lower_bound is 1000, .*999"),
    ("lead", {}, None, INF, "lower_bound is 1000, .*inf"),
    ("nemo_rl", {}, None, 100, "profile_band"),
    ("nemo_rl", {"profile_band": {"total": None}}, None, 100, "profile_band"),
]
FIT = [
    ("dapo_overlong", {}, None, 4097),
    ("l1_max", {"budget_range": None}, 9, 4000),
    ("l1_max", {"budget_range": (1, 4000)}, None, 4000),
    ("laser_d", {}, 16384, 32768),
    ("lead", {"upper_bound": 1000}, None, INF),
    ("nemo_rl", {"profile_band": BAND}, None, 100),
    ("nemo_rl", {"profile_band_column": "band"}, None, 100),
]


@pytest.mark.parametrize(("name", "fields", "target", "limit", "named"), UNFIT, ids=str)
def test_what_does_not_fit_the_run_is_refused(name, fields, target, limit, named):
    with pytest.raises(ValueError, match=named) as error:
        METHODS[name](**fields).check(target, limit, 8)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("name", "fields", "target", "limit"), FIT, ids=str)
def test_what_just_fits_the_run_is_not_refused(name, fields, target, limit):
    METHODS[name](**fields).check(target, limit, 8)


def test_a_method_of_a_users_own_is_checked_by_its_annotations_and_its_knobs():
    @dataclass
    class Mine(LengthControl):
        name = "mine"

        share: float = hyperparameter(0.5, ge=0, lt=1)
        count: int | None = hyperparameter(None, gt=0, le=9)
        mode: Literal["a", "b"] = "a"
        flag: bool = False
        table: dict[str, float] | None = None
        anything: Any = None

    for good in ({"share": 0}, {"count": 9}, {"mode": "b"}, {"flag": True}, {"table": {}}, {"anything": object()}):
        assert vars(Mine(**good)).items() >= good.items()
    for name, values in {
        "share": (1, 1.0, -1e-9, None, "0.5"),
        "count": (0, 10, 1.0, True),
        "mode": ("c", None, ["a"]),
        "flag": (1, None),
        "table": ([], "a"),
    }.items():
        for value in values:
            refused(Mine, name, value)
