"""What a hyper-parameter may hold: each method's own ranges, and what the base class makes of annotations."""

import math
import re
from dataclasses import dataclass, fields
from typing import Any, Literal

import pytest

from leash_trl.length_control.method import LengthControl, knob
from leash_trl.length_control.methods import METHODS


NAN, INF = math.nan, math.inf

# What a field may not hold, with the others at their defaults.
SENSELESS = [
    ("leash", "lambda_lr", (-0.1, INF, "0.1", True)),
    ("leash", "lambda_init", (1.5, NAN)),
    ("leash_predictive", "lambda_lr", (0.005, NAN)),
    ("leash_predictive", "lambda_max", (0.5,)),
    ("leash_predictive", "momentum", (1.0, -0.1, "0.9")),
    ("leash", "multiplier_per", (3, True)),
    ("dapo_overlong", "mask_truncated", ("yes", 1)),
    ("cosine", "max_length", (100.5,)),
    ("l1_exact", "suffix", (None,)),
    ("laconic", "lambda_init", (0.2,)),
    ("l1_max", "alpha", (-1.0,)),
    ("l1_max", "budget_range", ((5, 4), (0, 4), (1.5, 4))),
    ("l1_max", "suffix", (" Be brief.",)),
    ("l1_max", "delta", (1.5,)),
    ("thinkprune", "stages", ({}, {1: 4000}, {0: 0}, {-1: 5, 0: 4}, [4000])),
    ("thinkprune", "suffix", (" Be brief.",)),
    ("laser", "alpha", (-0.1,)),
    ("laser_de", "refresh_steps", (0,)),
    ("laser_de", "interval", (1.5,)),
    ("laser_de", "expected_correct", (True,)),
    ("laser_de", "rounding", ("up",)),
    ("kimi", "weight", (-1,)),
    ("dapo_overlong", "cache_length", (0,)),
    ("dapo_overlong", "max_length", (1,)),
    ("efficient", "alpha", (-0.1, 1.0)),
    ("a_dlp", "lambda_init", (-1.0,)),
    ("a_dlp", "lambda_lr", (INF, NAN)),
    ("a_dlp", "accuracy_reference", (62,)),
    ("alp", "beta", (-1,)),
    ("gfpo", "metric", ("words",)),
    ("gfpo", "num_kept", (1, 2.5)),
    ("dler", "variant", ("code",)),
    ("dler", "easy_limit", (0,)),
    ("dler", "easy_threshold", (1.5,)),
    ("dot", "alpha", (-1.0, NAN)),
    ("dot", "min_excess", (0, 1.5)),
    ("cosine", "margin", (-1,)),
    ("cosine", "max_length", (0,)),
    ("grpo_lead", "alpha", (-1.0,)),
    ("grpo_lead", "gate", (0,)),
    ("grpo_lead", "weight_min", (-0.1,)),
    ("prime_rl", "variant", ("may",)),
    ("prime_rl", "weight", (-1.0,)),
    ("mai", "weight", (-0.1, 1.5)),
    ("nemo_rl", "profile_band", ({"a": 20, "b": 10, "f": 0.5}, {"a": 10, "b": 20, "f": 1.5}, {"a": 10, "b": 20}, 0.5)),
    (
        "nemo_rl",
        "profile_band",
        ({"a": -1, "b": 20, "f": 0.5}, {"a": "10", "b": 20, "f": 0.5}, {"tau1": 10}),
    ),
    ("nemo_rl", "group_total_length_penalty_coeff", (-0.1, INF)),
    ("nemo_rl", "total_bonus", (-0.1, "0.1")),
    ("nemo_rl", "longest_total_penalty", (-0.1,)),
    ("nemo_rl", "total_zmad_penalty", (-0.1,)),
    ("nemo_rl", "total_zmad_threshold", (-2.0, 0.0)),
    ("nemo_rl", "pass_rate_length_penalty_weight", (-0.2,)),
    ("nemo_rl", "group_length_penalty_profile_gate", (True, "false")),
    ("nemo_rl", "group_length_penalty_profile_gate_field", ("f",)),
    ("nemo_rl", "profile_band_column", (3,)),
    ("gr3", "alpha", (-1.0,)),
    ("grlc", "weight", (-1.0,)),
    ("hapo", "weight", (-1.0,)),
    ("shorter_better", "alpha", (-1.0,)),
    ("shorter_better", "beta", (-0.1, INF)),
    ("lead", "lower_bound", (0, 10.5)),
    ("lead", "upper_bound", (0,)),
    ("lead", "weight_min", (1.5,)),
    ("lead", "alpha", (-1.0,)),
    ("lead", "beta", (1.5,)),
    ("drpo", "temperature", (0, -0.1, NAN, None)),
    ("hapo", "correct_minimum", (0.5,)),
    ("toggle", "method", ("thinkprune", "dler", "l1_max", "toggle", "none", 5, ["leash"])),
    ("toggle", "method_kwargs", ({"weight": 0.5},)),
    ("toggle", "period", (0, 1.5)),
    ("toggle", "accuracy_threshold", (-0.1, 1.5)),
    ("toggle", "percentile", (-1.0, 101.0)),
]


def refused(make, name, value):
    """The one line that refuses a value; it names the field and the value."""
    with pytest.raises(ValueError, match=rf"\b{name}( is |=){re.escape(repr(value))}") as error:
        make(**{name: value})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "field", "value"), [(n, f, v) for n, f, values in SENSELESS for v in values], ids=str
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
    if isinstance(None, field.type):
        assert getattr(METHODS[name](**{field.name: None}), field.name) is None
    else:
        refused(METHODS[name], field.name, None)


def test_a_method_of_a_users_own_is_checked_by_its_annotations_and_its_knobs():
    @dataclass
    class Mine(LengthControl):
        name = "mine"

        share: float = knob(0.5, least=0, below=1)
        count: int | None = knob(None, above=0, most=9)
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
