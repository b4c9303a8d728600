"""Which tokens of a completion a target limits (`length_of`)."""

import warnings
from collections.abc import Sequence

from leash_trl.completions.facts import CompletionFacts
from leash_trl.completions.thinking import ThinkingMarkers


LENGTH_OF = ("completion", "thinking")


def check_length_of(length_of: str) -> None:
    """Raises `ValueError` if `length_of` is unknown."""
    if length_of not in LENGTH_OF:
        raise ValueError(f"length_of is {length_of!r}, but must be 'completion' or 'thinking'")


def controlled_lengths(facts: Sequence[CompletionFacts], length_of: str) -> list[int]:
    """Returns the length of each completion that the target limits, in tokens.

    Example:
        >>> controlled_lengths([CompletionFacts(num_tokens=9, num_thinking_tokens=6, is_truncated=False)], "thinking")
        [6]
    """
    if length_of == "thinking":
        return [completion.num_thinking_tokens for completion in facts]
    return [completion.num_tokens for completion in facts]


def answer_lengths(facts: Sequence[CompletionFacts], length_of: str) -> list[int] | None:
    """Returns the number of tokens that each completion has after its controlled thinking; `None` if whole completions
    are controlled."""
    if length_of == "thinking":
        return [completion.num_tokens - completion.num_thinking_tokens for completion in facts]
    return None


def warn_of_no_thinking(facts: Sequence[CompletionFacts], length_of: str, markers: ThinkingMarkers) -> None:
    """Warns if the thinking is controlled and some completions have none."""
    if length_of == "thinking" and not all(completion.num_thinking_tokens for completion in facts):
        warnings.warn(
            f"length_of is 'thinking', but some completions have neither {markers.start!r} nor {markers.end!r}, so "
            "their length is 0; let the chat template open the thinking, or set thinking_end",
            stacklevel=2,
        )
