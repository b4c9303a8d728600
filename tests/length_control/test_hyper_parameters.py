"""What a hyper-parameter may hold: each method's own ranges, annotations, and what does not fit the run.

A message is one line if `\\A.*\\Z` matches it, since `.` matches no line end.
"""

import math
import re
from pathlib import Path
from typing import Literal

import pytest
import yaml

from leash_trl.length_control import LengthControl, hyperparameter
from leash_trl.length_control.methods import METHODS


FILE = Path(__file__).parents[1] / "fixtures" / "senseless_hyper_parameters.yaml"


def assert_refused(make, name, value):
    """A value is refused in a line that names the field and the value."""
    settings = {name: value}
    with pytest.raises(ValueError, match=rf"\A.*\b{name}( is |=){re.escape(repr(value))}.*\Z"):
        make(**settings)


def senseless_values():
    for method, values_by_field in yaml.safe_load(FILE.read_text(encoding="utf-8")).items():
        for field, values in values_by_field.items():
            for value in values:
                yield method, field, value


@pytest.mark.parametrize(("method", "field", "value"), [*senseless_values()], ids=str)
def test_a_hyper_parameter_out_of_its_range_is_refused(method, field, value):
    assert_refused(METHODS[method], field, value)


@pytest.mark.parametrize(
    ("method", "settings", "target", "limit", "message"),
    [
        ("dapo_overlong", {"cache_length": 100, "max_length": 100}, None, 512, "cache_length is 100"),
        ("dapo_overlong", {}, None, 512, "cache_length is 4096"),
        ("l1_max", {"budget_range": None}, None, 4000, "budget_range"),
        ("l1_max", {"budget_range": (1, 4001)}, None, 4000, "budget_range"),
        ("laser_d", {}, 16385, 32768, "upper_bound is 16384"),
        ("lead", {}, None, 512, "lower_bound is 1000, .*512"),
        ("lead", {"upper_bound": 999}, None, 8000, "lower_bound is 1000, .*999"),
        ("lead", {}, None, math.inf, "upper_bound is None"),
        ("nemo_rl", {}, None, 100, "profile_band"),
        ("nemo_rl", {"profile_band": {"total": None}}, None, 100, "profile_band"),
    ],
)
def test_what_does_not_fit_the_run_is_refused(method, settings, target, limit, message):
    with pytest.raises(ValueError, match=rf"\A.*{message}.*\Z"):
        METHODS[method](**settings).check(target, limit)


@pytest.mark.parametrize(
    ("method", "settings", "target", "limit"),
    [
        ("dapo_overlong", {}, None, 4097),
        ("l1_max", {"budget_range": (1, 4000)}, None, 4000),
        ("laser_d", {}, 16384, 32768),
        ("lead", {"upper_bound": 1000}, None, math.inf),
        ("cosine", {"max_length": 3}, None, math.inf),
        ("dapo_overlong", {"max_length": 3, "cache_length": 1}, None, math.inf),
    ],
)
def test_what_just_fits_the_run_is_not_refused(method, settings, target, limit):
    METHODS[method](**settings).check(target, limit)


class Mine(LengthControl):
    name = "mine"

    share: float = hyperparameter(0.5, ge=0, lt=1)
    count: int | None = hyperparameter(None, gt=0, le=9)
    mode: Literal["a", "b"] = "a"
    flag: bool = False
    table: dict[str, float] | None = None
    momentum: float = 0.99


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("share", [1, 1.0, -1e-9, None, "0.5", True, [0.5], math.nan, math.inf, -math.inf]),
        ("count", [0, 10, 1.0, True]),
        ("mode", ["c", None, ["a"]]),
        ("flag", [1, None]),
        ("table", [[], "a"]),
    ],
)
def test_a_users_own_method_is_checked_by_its_annotations_and_bounds(field, values):
    for value in values:
        assert_refused(Mine, field, value)


@pytest.mark.parametrize("name", ["leash_c", "leash_predictive"])
def test_a_step_size_that_must_be_0_is_not_described_as_a_range(name):
    with pytest.raises(ValueError, match=r"\A.*lambda_lr is 0\.005.*\b0\b.*\Z") as refusal:
        METHODS[name](lambda_lr=0.005)
    assert not re.search("[<>]", str(refusal.value))
