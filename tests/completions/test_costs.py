"""What a target limits: whole completions, or their thinking."""

import warnings

import pytest

from leash_trl.completions.costs import answer_lengths, controlled_lengths, warn_of_no_thinking
from leash_trl.completions.facts import CompletionFacts
from leash_trl.completions.thinking import ThinkingMarkers


FACTS = [
    CompletionFacts(num_tokens=9, num_thinking_tokens=6, is_truncated=False),
    CompletionFacts(num_tokens=4, num_thinking_tokens=0, is_truncated=True),
]


def test_the_whole_completion_has_a_length_and_no_answer_of_its_own():
    assert controlled_lengths(FACTS, "completion") == [9, 4]
    assert answer_lengths(FACTS, "completion") is None


def test_the_thinking_and_the_answer_after_it_are_the_whole():
    assert controlled_lengths(FACTS, "thinking") == [6, 0]
    assert answer_lengths(FACTS, "thinking") == [3, 4]


def test_completions_without_thinking_are_warned_of_where_it_is_controlled():
    with pytest.warns(UserWarning, match=r"length_of.*'\[/THINK\]'") as caught:
        warn_of_no_thinking(FACTS, "thinking", ThinkingMarkers("[/THINK]"))
    assert "\n" not in str(caught[0].message)


def test_no_warning_where_all_think_or_the_whole_is_controlled():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_no_thinking(FACTS[:1], "thinking", ThinkingMarkers())
        warn_of_no_thinking(FACTS, "completion", ThinkingMarkers())
