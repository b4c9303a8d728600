"""Finds the thinking of a completion in its tokens."""

import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class ThinkingMarkers:
    """The texts that begin and end the thinking, such as `<think>` and `</think>`, in the tokens of one tokenizer.

    Args:
        start (`str`), end (`str`): The two texts; if they are the same, only an end shows that there was thinking.
        pieces (`Mapping[int, str]`): Text of each token that can be part of one of the two texts.
    """

    start: str
    end: str
    pieces: Mapping[int, str]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, end: str = "</think>") -> "ThinkingMarkers":
        """Returns the markers with this end, whose start is the same text without its slash."""
        start = end.replace("/", "", 1) or end
        return cls(start, end, {**_pieces(tokenizer, start), **_pieces(tokenizer, end)})

    def is_opened_by(self, prompt: str) -> bool:
        """Returns whether a prompt, after the chat template, ends with the start, so that its completion begins inside
        thinking."""
        return self.start != self.end and prompt.rstrip().endswith(self.start)

    def thinking_lengths(self, completions: Sequence[Sequence[int]], opened: Sequence[bool]) -> list[int]:
        """Returns the [`thinking_length`] of several completions, and warns if some have no thinking."""
        lengths = [*map(self.thinking_length, completions, opened)]
        if not all(lengths):
            warnings.warn(
                f"length_of is 'thinking', but some completions have neither {self.start!r} nor {self.end!r}, so "
                "their length is 0; let the chat template open the thinking, or set thinking_end",
                stacklevel=2,
            )
        return lengths

    def thinking_length(self, completion_ids: Sequence[int], is_opened: bool) -> int:
        """Returns the number of tokens of a completion up to and including the last end of thinking.

        All tokens count if the thinking, begun in the completion or in its prompt (`is_opened`), has not ended. The
        result is 0 if there is no thinking.
        """
        texts = [self.pieces.get(index, "\0") for index in completion_ids]
        text, ends = "".join(texts), [*accumulate(map(len, texts))]
        place = text.rfind(self.end)
        if (self.start != self.end and text.rfind(self.start) > place) or (is_opened and place < 0):
            return len(completion_ids)
        return bisect_left(ends, place + len(self.end)) + 1 if place >= 0 else 0


def _pieces(tokenizer: PreTrainedTokenizerBase, marker: str) -> dict[int, str]:
    """Returns the texts of the tokens that can be part of a marker; if the vocabulary has the marker itself, of this
    token only."""
    ids = tokenizer.encode(marker, add_special_tokens=False)
    if len(ids) == 1:  # which an unknown word may be too
        return {ids[0]: marker} if tokenizer.decode(ids).strip() == marker else {}
    starts = tuple(marker[:size] for size in range(1, len(marker)))
    ends = tuple(marker[size:] for size in range(1, len(marker)))
    texts = _texts_after(tokenizer, ids[:1])
    if marker not in "".join(texts[index] for index in ids):  # as for tokenizers whose tokens hold no blanks
        texts = _texts_after(tokenizer, [])
    return {
        index: text
        for index, text in texts.items()
        if text and (text in marker or marker in text or text.endswith(starts) or text.startswith(ends))
    }


def _texts_after(tokenizer: PreTrainedTokenizerBase, before: list[int]) -> dict[int, str]:
    """Returns the text of each token of a vocabulary after other tokens: some tokenizers drop the blank with which a
    text begins, so that the token of " think" alone has the text "think"."""
    start = len(tokenizer.decode(before))
    return {index: tokenizer.decode([*before, index])[start:] for index in tokenizer.get_vocab().values()}
