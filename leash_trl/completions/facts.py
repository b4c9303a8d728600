"""What is known of a completion from its tokens, by one rule for training, reward functions and evaluation."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from leash_trl.completions.thinking import ThinkingMarkers, ThinkingTokens


class CompletionFacts(NamedTuple):
    """Sizes of a completion in tokens.

    Args:
        num_tokens (`int`): Tokens that the model generated, with EOS, without padding and without the output of tools.
        num_thinking_tokens (`int`): Those up to and including the last end of thinking, or all if the thinking does
            not end; 0 if there is no thinking, or if it was not to be counted.
        is_truncated (`bool`): Whether the completion does not end with an end token.
    """

    num_tokens: int
    num_thinking_tokens: int
    is_truncated: bool


def completion_facts(
    completion_ids: Sequence[int],
    end_ids: Collection[int],
    *,
    tool_mask: Sequence[int] | None = None,
    thinking: ThinkingTokens | None = None,
    begins_in_thinking: bool = False,
) -> CompletionFacts:
    """Returns the facts of one completion.

    Args:
        completion_ids (`Sequence[int]`): Tokens of the completion without padding, as the trainer received them.
        end_ids (`Collection[int]`): Tokens that end a completion.
        tool_mask (`Sequence[int]`): 1 for tokens that the model generated, 0 for the output of tools, as in TRL; by
            default the model generated all of them.
        thinking ([`ThinkingTokens`]): The markers of thinking, if its tokens are to be counted, else `None`.
        begins_in_thinking (`bool`): Whether the completion begins inside the thinking, which its prompt has opened.

    Example:
        >>> completion_facts([5, 6, 7, 2], end_ids={2}, tool_mask=[1, 0, 0, 1])
        CompletionFacts(num_tokens=2, num_thinking_tokens=0, is_truncated=False)
    """
    # With tools, a completion also holds their output, which the model has not written.
    written_ids = completion_ids
    if tool_mask is not None:
        written_ids = [token for token, is_written in zip(completion_ids, tool_mask, strict=True) if is_written]
    num_thinking_tokens = 0
    if thinking is not None:
        num_thinking_tokens = thinking.thinking_length(written_ids, begins_in_thinking)
    # A completion that stops at the generation limit has some other token at its end, and an empty one has none.
    has_ended = len(completion_ids) > 0 and completion_ids[-1] in end_ids
    return CompletionFacts(len(written_ids), num_thinking_tokens, is_truncated=not has_ended)


def facts_of_completions(
    completion_ids: Sequence[Sequence[int]],
    end_ids: Collection[int],
    markers: Sequence[ThinkingMarkers],
    *,
    tool_masks: Sequence[Sequence[int]] | None = None,
    thinking: ThinkingTokens | None = None,
) -> list[CompletionFacts]:
    """Returns the [`completion_facts`] of each of several completions; `markers` say whether each begins in its
    thinking."""
    all_facts = []
    for row, token_ids in enumerate(completion_ids):
        facts = completion_facts(
            token_ids,
            end_ids,
            tool_mask=tool_masks[row] if tool_masks else None,  # there are none without tools
            thinking=thinking,
            begins_in_thinking=markers[row].begins_in_thinking,
        )
        all_facts.append(facts)
    return all_facts
