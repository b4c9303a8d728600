"""Checks hyper-parameters and saved state of methods; a `ValueError` names the field and the bad value."""

import math
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints


def is_number(value: Any) -> bool:
    """Whether a value is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number, 0 or more."""
    return type(value) is int and value >= 0


def are_states(value: Any) -> bool:
    """Whether a value is a dictionary of saved states by name."""
    return isinstance(value, dict) and all(isinstance(state, dict) for state in value.values())


def check_range(
    method: Any,
    names: str,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    below: float = math.inf,
    whole: bool = False,
) -> None:
    """Raises `ValueError` unless the named fields of a method are finite numbers within the bounds.

    `None` passes only where the field's annotation allows it. No value may reach `below`.
    """
    bounds = "a finite number" if minimum == -math.inf else f"at least {minimum}"
    if maximum < math.inf:
        bounds = f"within [{minimum}, {maximum}]"
    if below < math.inf:
        bounds = f"within [{minimum}, {below})"
    needed = f"a whole number, {bounds}" if whole else bounds
    for name in names.split():
        value = getattr(method, name)
        if value is None and isinstance(None, get_type_hints(type(method))[name]):
            continue
        is_within = is_number(value) and minimum <= value <= maximum and value < below
        if not is_within or (whole and type(value) is not int):
            raise ValueError(f"{name} is {value!r}, but must be {needed}")


def check_choice(method: Any, name: str, *choices: str) -> None:
    """Raises `ValueError` unless a field of a method is one of the choices."""
    if (value := getattr(method, name)) not in choices:
        raise ValueError(f"{name} is {value!r}, but must be {' or '.join(map(repr, choices))}")


def check_column(method: Any, name: str) -> None:
    """Raises `ValueError` unless a field of a method is `None` or can be the name of a data set column."""
    if (value := getattr(method, name)) is not None and not (isinstance(value, str) and value):
        raise ValueError(f"{name} is {value!r}, but must be the name of a data set column, or None")


def check_limit(method: Any, max_length: float) -> None:
    """Raises `ValueError` if neither the method nor the run sets the greatest length, in tokens, that it needs."""
    if math.isinf(max_length):
        raise ValueError(
            f"max_completion_length is None, but length_control={method.name!r} measures by the generation limit; set "
            "it to the most tokens that a completion may have"
        )


def check_multiplier(method: Any) -> None:
    """Raises `ValueError` unless `lambda_init`, `lambda_lr`, `lambda_min` and `lambda_max` of a method are valid."""
    check_range(method, "lambda_init lambda_min lambda_max")
    if not 0 <= method.lambda_min <= method.lambda_init <= method.lambda_max:
        raise ValueError(
            "lambda needs 0 <= lambda_min <= lambda_init <= lambda_max, but they are "
            f"lambda_min={method.lambda_min}, lambda_init={method.lambda_init}, lambda_max={method.lambda_max}; "
            "change the others along with the one you set"
        )
    check_range(method, "lambda_lr", 0)


def saved_value(state: Mapping[str, Any], name: str, is_valid: Callable[[Any], bool], needed: str) -> Any:
    """One value of a saved state; raises `ValueError` if it is missing or damaged."""
    if name not in state:
        raise ValueError(f"the saved state has no {name}, which this release needs: {needed}")
    if not is_valid(value := state[name]):
        raise ValueError(f"the saved state holds {name}={value!r}, which is not {needed}")
    return value


def saved_multiplier(state: Mapping[str, Any], name: str, minimum: float, maximum: float) -> float:
    """The multiplier of a saved state; raises `ValueError` unless it is a finite number within the bounds."""
    lam = float(saved_value(state, name, is_number, "a finite number"))
    if not minimum <= lam <= maximum:
        raise ValueError(
            f"the saved state holds {name}={lam}, outside [lambda_min, lambda_max] = [{minimum}, {maximum}]; widen "
            "the bounds to those of the run that saved it"
        )
    return lam
