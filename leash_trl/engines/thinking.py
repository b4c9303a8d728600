"""Finds the thinking of a completion in its tokens."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from transformers import PreTrainedTokenizerBase


class ThinkingMarkers:
    """The tokens that begin and end thinking, such as those of `<think>` and `</think>`. It can be pickled.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]): The model's tokenizer.
        end (`str`): What ends thinking. Thinking begins with the same without its slash; where `end` has none, only
            an end shows that there was thinking.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end: str = "</think>"):
        self.end, self.start = end, end.replace("/", "", 1)
        self.pieces = {marker: _pieces(tokenizer, marker) for marker in (self.start, self.end)}

    def thinking_length(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> int:
        """Number of tokens of a completion up to and with the last end of thinking.

        All of them where thinking is open at the end of the completion, whether it or its prompt began it; 0 where
        there is no thinking.
        """
        ended = self._place(self.end, completion_ids)
        is_open = self.start != self.end and self._place(self.start, completion_ids) > ended
        if ended == 0 and not is_open:
            is_open = self._place(self.start, prompt_ids) > self._place(self.end, prompt_ids)
        return len(completion_ids) if is_open else ended

    def _place(self, marker: str, ids: Sequence[int]) -> int:
        """How many tokens there are up to and with the last marker; 0 if there is none."""
        pieces = self.pieces[marker]
        texts = [pieces.get(index, "\0") for index in ids]
        place = "".join(texts).rfind(marker)
        if place < 0:
            return 0
        return bisect_left([*accumulate(map(len, texts))], place + len(marker)) + 1


def _pieces(tokenizer: PreTrainedTokenizerBase, marker: str) -> dict[int, str]:
    """The text of each token that can be a part of a marker: one token where the vocabulary has the marker itself."""
    ids = tokenizer.encode(marker, add_special_tokens=False)
    if len(ids) == 1:
        return {ids[0]: marker}
    starts = tuple(marker[:size] for size in range(1, len(marker)))
    ends = tuple(marker[size:] for size in range(1, len(marker)))
    texts = {index: tokenizer.decode([index]) for index in tokenizer.get_vocab().values()}
    return {
        index: text
        for index, text in texts.items()
        if text and (text in marker or marker in text or text.endswith(starts) or text.startswith(ends))
    }
