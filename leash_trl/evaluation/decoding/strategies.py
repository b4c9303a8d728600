"""Finds a decoding strategy by its name, and defines plain sampling."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar

from leash_trl.evaluation.decoding.budget_forcing import BudgetForcing
from leash_trl.evaluation.decoding.deer import Deer
from leash_trl.evaluation.decoding.strategy import Ask, Decoded, DecodingStrategy, Script


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Plain(DecodingStrategy):
    """Samples one completion, once; for every method that trains a model to stop by itself."""

    name: ClassVar[str] = "plain"

    def scripts(
        self, tokenizer: "PreTrainedTokenizerBase", prompts_ids: Sequence[Sequence[int]], max_new_tokens: int
    ) -> list[Script]:
        """One script per prompt; see [`DecodingStrategy.scripts`]."""
        return [self._script(prompt_ids, max_new_tokens) for prompt_ids in prompts_ids]

    def _script(self, prompt_ids: Sequence[int], max_new_tokens: int) -> Script:
        generation = yield Ask(list(prompt_ids), max_new_tokens)
        return Decoded(generation.token_ids, len(generation.token_ids), generation.finish_reason == "length")


STRATEGIES: dict[str, type[DecodingStrategy]] = {strategy.name: strategy for strategy in (Plain, BudgetForcing, Deer)}


def strategy_parameters() -> str:
    """One line per strategy: its name, and its parameters with their defaults as JSON, without the braces."""
    lines = []
    for name, strategy in STRATEGIES.items():
        defaults = {field.name: field.default for field in fields(strategy)}
        lines.append(f"{name}: {json.dumps(defaults)[1:-1] or 'no parameters'}")
    return "\n".join(lines)


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
    defaults = {field.name: field.default for field in fields(STRATEGIES[name])}
    for parameter, value in parameters.items():
        if parameter not in defaults:
            raise ValueError(
                f"decoding strategy {name!r} has no parameter {parameter}; it has {', '.join(defaults) or 'none'}"
            )
        expected = type(defaults[parameter])
        # a whole number is a number; a bool is an int in Python, but not here
        if type(value) is not expected and not (expected is float and type(value) is int):
            raise ValueError(f"{name}'s {parameter} is {value!r}, but must be of type {expected.__name__}")
    return STRATEGIES[name](**parameters)
