"""What a hyper-parameter may hold: each method's own ranges, and what the base class makes of annotations."""

import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from leash_trl.length_control.method import LengthControl, knob
from leash_trl.length_control.methods import METHODS


NAN, INF = math.nan, math.inf

FILE = Path(__file__).parents[1] / "data" / "senseless_hyper_parameters.yaml"
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
