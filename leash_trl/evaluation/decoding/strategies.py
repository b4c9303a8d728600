"""Every decoding strategy by its name."""

import json
from dataclasses import fields
from typing import Any

from leash_trl.evaluation.decoding.budget_forcing import BudgetForcing
from leash_trl.evaluation.decoding.deer import Deer
from leash_trl.evaluation.decoding.plain import Plain
from leash_trl.evaluation.decoding.strategy import DecodingStrategy


STRATEGIES: dict[str, type[DecodingStrategy]] = {strategy.name: strategy for strategy in (Plain, BudgetForcing, Deer)}


# types of parameters in words, and what is taken for each; `Literal` texts come under the strategy's own checks
TYPES: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
}
TEXT: tuple[str, tuple[type, ...]] = ("a text", (str,))


def strategy_parameters() -> str:
    """One line per strategy: its name, and its parameters with their defaults as JSON, without the braces."""
    lines = []
    for name, strategy in STRATEGIES.items():
        defaults = {field.name: field.default for field in fields(strategy)}
        lines.append(f"{name}: {json.dumps(defaults)[1:-1] or 'no parameters'}")
    return "\n".join(lines)


def _check_types(strategy: type[DecodingStrategy], parameters: dict[str, Any]) -> None:
    for field in fields(strategy):
        if field.name not in parameters:
            continue
        value = parameters[field.name]
        in_words, types = TYPES.get(field.type, TEXT)
        # a bool is an int to Python
        if not isinstance(value, types) or (isinstance(value, bool) and field.type is not bool):
            raise ValueError(f"{strategy.name}'s {field.name} is {value!r}, but must be {in_words}")


def make_strategy(name: str = "plain", **parameters: Any) -> DecodingStrategy:
    """A strategy by its name and parameters.

    Raises:
        `ValueError`: If there is no such strategy or parameter, or a value is of another type or out of its range.

    Example:
        >>> make_strategy("budget_forcing", max_thinking_tokens=1000).to_dict()["max_thinking_tokens"]
        1000
    """
    if name not in STRATEGIES:
        raise ValueError(f"decoding is {name!r}, but must be one of {', '.join(STRATEGIES)}")
    known = [field.name for field in fields(STRATEGIES[name])]
    unknown = sorted(parameters.keys() - set(known))
    if unknown:
        raise ValueError(
            f"decoding strategy {name!r} has no parameter {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
        )
    _check_types(STRATEGIES[name], parameters)
    return STRATEGIES[name](**parameters)
