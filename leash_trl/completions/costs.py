"""What a target limits (`length_of`): tokens, tool calls, turns, or what a function counts of a completion."""

import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

from leash_trl.completions.checking import check_right_answer, checking_length
from leash_trl.completions.facts import CompletionFacts
from leash_trl.completions.thinking import ThinkingMarkers
from leash_trl.errors import TrainingError
from leash_trl.importing import import_by_path


TOKEN_COSTS = ("completion", "thinking", "checking")
MESSAGE_COSTS = ("tool_calls", "turns")
COSTS = (*TOKEN_COSTS, *MESSAGE_COSTS)
COST_COLUMN = "cost"  # column of an evaluation's samples for costs without a column of their own


@dataclass(frozen=True)
class Cost:
    """What a target limits.

    Args:
        name (`str`): One of `COSTS`, or the import path of a function.
        function (`Callable`): The user's function, which is called like a reward function of TRL and returns one
            number of at least 0 for each completion; `None` for one of `COSTS`.
    """

    name: str
    function: Callable[..., Any] | None = None

    @property
    def counts_tokens(self) -> bool:
        """Whether the cost is a number of tokens of the completion, which generation limits bound."""
        return self.name in TOKEN_COSTS


def unit_of(length_of: str) -> str:
    """Returns what a cost of this name counts, for labels.

    Example:
        >>> unit_of("thinking"), unit_of("tool_calls"), unit_of("my_costs.py:num_lines")
        ('tokens', 'tool calls', 'num_lines')
    """
    if length_of in TOKEN_COSTS:
        return "tokens"
    if length_of in MESSAGE_COSTS:
        return length_of.replace("_", " ")
    return name_without_path(length_of).rpartition(".")[-1]  # the name that the user gave the function


def cost_label(length_of: str) -> str:
    """Returns the name of a cost in tables, which tells it from the tokens of whole completions.

    Example:
        >>> cost_label("completion"), cost_label("checking"), cost_label("tool_calls")
        ('tokens', 'checking tokens', 'tool calls')
    """
    unit = unit_of(length_of)
    return f"{length_of} {unit}" if length_of in TOKEN_COSTS[1:] else unit


def cost_column(length_of: str) -> str:
    """Returns the column of an evaluation's samples that has a cost of this name."""
    if length_of == "completion":
        return "num_tokens"
    if length_of == "thinking":
        return "num_thinking_tokens"
    return COST_COLUMN


def name_without_path(length_of: str) -> str:
    """Returns the name of a cost without the folder or package of a function, which depend on how the user names it.

    Example:
        >>> [name_without_path(name) for name in ("runs/my_costs.py:num_lines", "lab.my_costs.num_lines", "turns")]
        ['my_costs.num_lines', 'my_costs.num_lines', 'turns']
    """
    parts = re.split(r"[./]", length_of.replace(".py:", "."))
    return ".".join(parts[-2:])


def find_cost(length_of: str | Callable[..., Any]) -> Cost:
    """Returns the cost that `length_of` means: the name of one of `COSTS`, a function, or its import path or
    `my_file.py:my_function`.

    Raises:
        `ValueError`: If there is no such cost, or if the import path of a function does not lead to it, as for a
            lambda.
    """
    if callable(length_of):
        return _cost_of_function(length_of)
    if length_of in COSTS:
        return Cost(length_of)
    return Cost(length_of, function=import_by_path("length_of", length_of, *COSTS))


def _cost_of_function(function: Callable[..., Any]) -> Cost:
    """Returns the cost with the import path of a function as its name, by which a resumed run finds it again."""
    # A lambda, or a function inside another one, cannot be imported, so `import_by_path` raises an error.
    path = f"{function.__module__}.{function.__qualname__}"
    if import_by_path("length_of", path) is not function:
        raise ValueError(
            f"length_of is {function!r}, but {path} is another function, which a resumed run would take; rename one"
        )
    return Cost(path, function)


def costs_of(
    cost: Cost,
    facts: Sequence[CompletionFacts],
    arguments: Mapping[str, Any],
    decode: Callable[[Sequence[int]], str],
) -> list[float]:
    """Returns the cost of each completion, in the unit of `cost`.

    Args:
        cost ([`Cost`]): What is counted.
        facts (`Sequence[CompletionFacts]`): Sizes of the completions in tokens.
        arguments (`Mapping[str, Any]`): What TRL passes to reward functions, by name: `prompts`, `completions`,
            `completion_ids` without padding, and the columns of the data set.
        decode (`Callable`): Turns tokens into text.

    Raises:
        `TrainingError`: If a function does not return one finite number of at least 0 for each completion. With
            `checking`, if a correct answer is missing or is neither a number nor a short text, or if a completion has
            the output of a tool.

    Example:
        >>> facts = [CompletionFacts(num_tokens=9, num_thinking_tokens=6, is_truncated=False)]
        >>> costs_of(Cost("thinking"), facts, {}, decode=str)
        [6]
    """
    if cost.name == "completion":
        return [completion.num_tokens for completion in facts]
    if cost.name == "thinking":
        return [completion.num_thinking_tokens for completion in facts]
    if cost.name == "checking":
        return _checking_lengths(arguments, decode)
    if cost.name == "tool_calls":
        return [_num_tool_calls(messages) for messages in arguments["completions"]]
    # A turn is a message of the model; the others are the results of tools.
    if cost.name == "turns":
        return [len(_assistant_messages(messages)) for messages in arguments["completions"]]
    return _costs_by_function(cost, arguments, num_completions=len(facts))


def _checking_lengths(arguments: Mapping[str, Any], decode: Callable[[Sequence[int]], str]) -> list[float]:
    """Returns the [`checking_length`] of each completion, by the column `solution` of the data set."""
    solutions = arguments["solution"]
    check_right_answers(solutions)
    if have_tool_outputs(arguments["completions"]):
        raise TrainingError(
            "length_of is 'checking', but a completion has the output of a tool, which may hold the correct answer; "
            "set 'tool_calls' or a function"
        )
    return [
        checking_length(token_ids, _right_answer(solution), decode)
        for token_ids, solution in zip(arguments["completion_ids"], solutions, strict=True)
    ]


def have_tool_outputs(completions: Sequence[Any]) -> bool:
    """Returns whether any completion has the output of a tool."""
    # A completion is a list of messages such as {"role": "tool", "content": "7"}, or a text without any.
    for messages in completions:
        if any(isinstance(message, Mapping) and message.get("role") == "tool" for message in messages):
            return True
    return False


def check_right_answers(solutions: Sequence[Any]) -> None:
    """Checks that the correct answers in a column `solution` can be looked for in completions.

    Raises:
        `TrainingError`: If an answer is missing, or is neither a number nor a short text.
    """
    for solution in solutions:
        check_right_answer(_right_answer(solution))


def _right_answer(solution: Any) -> str:
    """Returns the text of a correct answer, which may be a number, also one of NumPy or PyTorch; raises
    `TrainingError` if the answer is missing."""
    # `tolist` turns a number of NumPy or PyTorch into one of Python.
    value = solution.tolist() if hasattr(solution, "tolist") else solution
    # Tables have NaN for a missing value, and only NaN differs from itself.
    is_missing = value != value
    if not isinstance(value, str | Number) or is_missing:
        raise TrainingError(
            f"length_of is 'checking', but a row has solution={solution!r:.100}, which must be a number or a text; "
            "leave out such rows, or set length_of to 'completion'"
        )
    return str(value)


def _assistant_messages(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Returns the messages that the model wrote; the others hold the results of tools."""
    return [message for message in messages if message.get("role") == "assistant"]


def _num_tool_calls(messages: Sequence[Mapping[str, Any]]) -> int:
    """Returns the number of tool calls that the model wrote, whether or not a tool could be run."""
    return sum(len(message.get("tool_calls") or ()) for message in _assistant_messages(messages))


def _costs_by_function(cost: Cost, arguments: Mapping[str, Any], num_completions: int) -> list[float]:
    """Returns what the user's function counts of each completion; raises `TrainingError` unless this is one finite
    number of at least 0 for each."""
    assert cost.function is not None
    costs = [float(value) for value in cost.function(**arguments)]
    are_costs = all(0 <= value < math.inf for value in costs)  # both comparisons are False for NaN
    if not are_costs or len(costs) != num_completions:
        raise TrainingError(
            f"length_of {cost.name!r} returned {str(costs)[:100]} for {num_completions} completions, but must return "
            "one finite number of at least 0 for each"
        )
    return costs


def warn_of_no_thinking(lengths: Sequence[float], markers: ThinkingMarkers) -> None:
    """Warns if some completions have no thinking, although the length of the thinking is controlled."""
    # the length in thinking tokens is 0 exactly where a completion has no thinking
    if not all(lengths):
        # An end without a slash has no start, and only the end shows that there was thinking.
        lacking = f"no {markers.end!r}" if markers.start is None else f"neither {markers.start!r} nor {markers.end!r}"
        warnings.warn(
            f"length_of is 'thinking', but some completions have {lacking}, so their length is 0; let the chat "
            "template open the thinking, or set thinking_end",
            stacklevel=2,
        )
