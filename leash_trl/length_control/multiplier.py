"""Checks of a multiplier: its configuration and its saved value."""

import math
from typing import Any


def check_multiplier(method: Any) -> None:
    """Raises `ValueError` unless `lambda_init`, `lambda_lr`, `lambda_min` and `lambda_max` of a method make sense."""
    for name in ("lambda_init", "lambda_lr", "lambda_min", "lambda_max"):
        value = getattr(method, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}, but must be a finite number")
    if not 0 <= method.lambda_min <= method.lambda_init <= method.lambda_max:
        raise ValueError(
            "lambda needs 0 <= lambda_min <= lambda_init <= lambda_max, but they are "
            f"lambda_min={method.lambda_min}, lambda_init={method.lambda_init}, lambda_max={method.lambda_max}"
        )
    if method.lambda_lr < 0:
        raise ValueError(f"lambda_lr is {method.lambda_lr}, but must be 0 (lambda frozen, LEASH-C) or positive")


def checked_multiplier(state: dict[str, Any], name: str, minimum: float, maximum: float) -> float:
    """The value of a saved state; raises `ValueError` if it is no finite number within the bounds."""
    lam = state.get(name)
    if isinstance(lam, bool) or not isinstance(lam, int | float) or not math.isfinite(lam):
        raise ValueError(f"the saved state holds {name}={lam!r}, which is not a finite number")
    if not minimum <= lam <= maximum:
        raise ValueError(
            f"the saved {name}={lam} lies outside [lambda_min, lambda_max] = [{minimum}, {maximum}]; widen the "
            "bounds to those of the run that saved it"
        )
    return float(lam)
