"""Fields of a method: declares hyper-parameters with their bounds and training state, and checks their values."""

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from inspect import formatannotation
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints


class Comparison(NamedTuple):
    """What a hyper-parameter must satisfy: a comparison of its value with a bound, and how messages write it."""

    holds: Callable[[float, float], bool]
    symbol: str


COMPARISONS = {
    "eq": Comparison(operator.eq, "equal to"),
    "ge": Comparison(operator.ge, ">="),
    "le": Comparison(operator.le, "<="),
    "gt": Comparison(operator.gt, ">"),
    "lt": Comparison(operator.lt, "<"),
}


def hyperparameter(default: Any, **bounds: float) -> Any:
    """Declares a hyper-parameter with optional bounds: `ge` and `le` are inclusive, `gt` and `lt` exclusive, and `eq`
    permits one value only."""
    return field(default=default, metadata=bounds)


def state_field(make: Callable[[], Any]) -> Any:
    """Declares a field that holds training state, which checkpoints save and restore; `make` returns its initial
    value."""
    return field(init=False, compare=False, default_factory=make)


def hyperparameter_names(method: type) -> list[str]:
    """Returns the names of a method's hyper-parameters, which are the fields that are not state."""
    return [declared.name for declared in fields(method) if declared.init]


def state_names(method: type) -> list[str]:
    """Returns the names of the fields made by [`state_field`]."""
    return [declared.name for declared in fields(method) if not declared.init]


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def has_type(value: Any, annotation: Any) -> bool:
    """Returns whether a value has the annotated type. The elements of a list or a mapping are not checked; the method
    itself must check them."""
    # `dict` of `dict[str, float]`; a plain type such as `float` has no origin and stands for itself
    plain_type = get_origin(annotation) or annotation
    if plain_type in (Union, UnionType):  # such as `int | None`, whose members are `int` and `NoneType`
        return any(has_type(value, member) for member in get_args(annotation))
    if plain_type is Literal:
        return value in get_args(annotation)
    if plain_type is float:
        return is_number(value)  # Python's `isinstance` would refuse a whole number, which recipes often have
    if plain_type is int:
        # `is_number` refuses `True` and `False`, which Python counts as integers
        return is_number(value) and isinstance(value, int)
    return plain_type is Any or isinstance(value, plain_type)


def check_values(method: Any) -> None:
    """Raises `ValueError` if a field of a method does not have its annotated type, or is outside its bounds."""
    annotations = get_type_hints(type(method))
    for declared in fields(method):
        value = getattr(method, declared.name)
        annotation = annotations[declared.name]
        bounds = declared.metadata  # such as {"ge": 0, "lt": 1}
        if not has_type(value, annotation) or not is_within(value, bounds):
            needed = formatannotation(annotation)  # for the message, such as "float, >= 0, < 1"
            for comparison, bound in bounds.items():
                needed += f", {COMPARISONS[comparison].symbol} {bound}"
            raise ValueError(f"{declared.name} is {value!r}, but must be {needed}; or leave it out")


def is_within(value: Any, bounds: Mapping[str, float]) -> bool:
    """Returns whether a value is within bounds such as `{"ge": 0, "lt": 1}`, as is every value that is not a number,
    such as the `None` of an optional field."""
    if not is_number(value):
        return True
    return all(COMPARISONS[comparison].holds(value, bound) for comparison, bound in bounds.items())
