"""What a target limits: tokens, tool calls, turns, or what a function of the user's counts."""

from decimal import Decimal

import numpy as np
import pytest
import torch

from leash_trl.completions.costs import Cost, check_right_answers, costs_of, find_cost, unit_of, warn_of_no_thinking
from leash_trl.completions.facts import CompletionFacts
from leash_trl.completions.thinking import ThinkingMarkers
from leash_trl.errors import TrainingError


FACTS = [
    CompletionFacts(num_tokens=9, num_thinking_tokens=6, is_truncated=False),
    CompletionFacts(num_tokens=4, num_thinking_tokens=0, is_truncated=True),
]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}


def num_characters(completions, **columns):
    return [len(text) for text in completions]


def is_one_line(caught, *contents):
    message = str(caught.value)
    return "\n" not in message and all(content in message for content in contents)


def test_tool_calls_and_turns_of_conversations():
    two_calls_at_once = [
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "name": "add", "content": "3"},
        {"role": "tool", "name": "add", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
    ]
    no_call = [{"role": "assistant", "content": "It is 3."}]
    arguments = {"completions": [two_calls_at_once, no_call]}
    assert costs_of(Cost("tool_calls"), FACTS, arguments, decode=str) == [2, 0]
    assert costs_of(Cost("turns"), FACTS, arguments, decode=str) == [2, 1]


def test_checks_cannot_be_told_from_the_output_of_tools():
    messages = [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "3"}]
    arguments = {"completion_ids": ["a", "b"], "completions": [messages, messages], "solution": ["3", "3"]}
    with pytest.raises(TrainingError) as caught:
        costs_of(Cost("checking"), FACTS, arguments, decode=str)
    assert is_one_line(caught, "checking")


@pytest.mark.parametrize("solution", [torch.tensor(7), np.int64(7), np.float64(7), Decimal("7.0"), 7, "7"])
def test_right_answers_may_be_numbers_of_any_format_of_the_data_set(solution):
    arguments = {"completion_ids": ["a7bc"], "completions": ["a 7 b c"], "solution": [solution]}
    assert costs_of(Cost("checking"), FACTS[:1], arguments, decode=" ".join) == [2]


@pytest.mark.parametrize("solution", [None, float("nan"), ["7"], b"7", torch.tensor([7, 8])])
def test_what_is_no_right_answer_is_refused_instead_of_never_found(solution):
    with pytest.raises(TrainingError) as caught:
        check_right_answers(["7", solution])
    assert is_one_line(caught, "checking", "solution", repr(solution))


@pytest.mark.parametrize("returned", [[1.0, float("nan")], [1.0, -0.5], [1.0, float("inf")], [1.0]])
def test_what_a_function_must_not_return(returned):
    with pytest.raises(TrainingError) as caught:
        costs_of(Cost("mine.cost", lambda **arguments: returned), FACTS, {}, decode=str)
    assert is_one_line(caught, "mine.cost")


def test_a_function_is_found_again_by_the_name_that_it_gets():
    cost = find_cost(num_characters)
    assert cost.name == f"{__name__}.num_characters"
    assert find_cost(cost.name) == cost
    assert unit_of(cost.name) == "num_characters"
    assert not cost.counts_tokens


def test_functions_that_a_resumed_run_could_not_find_are_refused():
    with pytest.raises(ValueError, match="length_of") as caught:
        find_cost(lambda completions, **columns: [0] * len(completions))
    assert is_one_line(caught, "length_of")


@pytest.mark.parametrize("length_of", ["token", "no_such_module.cost"])
def test_what_is_no_cost(length_of):
    with pytest.raises(ValueError, match="length_of") as caught:
        find_cost(length_of)
    assert is_one_line(caught, "length_of", length_of)


@pytest.mark.parametrize(("end", "named"), [("[/THINK]", ["'[THINK]'", "'[/THINK]'"]), ("###", ["'###'"])])
def test_completions_without_thinking_are_warned_of_where_it_is_controlled(end, named, recwarn):
    warn_of_no_thinking([6, 0], ThinkingMarkers(end))
    warn_of_no_thinking([6, 1], ThinkingMarkers())
    (line,) = [str(warning.message) for warning in recwarn]
    assert "length_of" in line
    assert all(text in line for text in named)
    assert "None" not in line  # an end without a slash has no start
    assert "\n" not in line
