"""Where the thinking of a completion begins and ends: `ThinkingMarkers` in text, `ThinkingTokens` in tokens."""

import warnings
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


NO_MARKER = "\0"  # stands for a token that is part of no marker


@dataclass(frozen=True)
class ThinkingMarkers:
    """The texts that begin and end the thinking, such as `<think>` and `</think>`.

    Args:
        end (`str`): Text that ends the thinking. The thinking begins with the same text without its slash. If the text
            has no slash, only an end shows that there was thinking.
        is_opened (`bool`): Whether the chat template writes the beginning into the prompt, as that of R1-Distill does,
            so that completions begin inside the thinking.
    """

    end: str = "</think>"
    is_opened: bool = False

    @property
    def start(self) -> str | None:
        """Text that begins the thinking, or `None` if no text does."""
        without_slash = self.end.replace("/", "", 1)
        has_start = without_slash not in ("", self.end)
        return without_slash if has_start else None

    def after_prompt(self, prompt: str) -> "ThinkingMarkers":
        """Returns the same markers for completions of this prompt, which is text after the chat template.

        Example:
            >>> ThinkingMarkers().after_prompt("What is 1 + 1?<|Assistant|><think>\\n").is_opened
            True
        """
        return replace(self, is_opened=self.is_opened_by(prompt))

    def is_opened_by(self, prompt: str) -> bool:
        """Returns whether a prompt, after the chat template, ends with the start, so that its completion begins inside
        the thinking."""
        return self.start is not None and prompt.rstrip().endswith(self.start)

    def is_closed_by(self, prompt: str) -> bool:
        """Returns whether a prompt, after the chat template, ends with thinking that is empty, so that its completion
        has none.

        Example:
            >>> ThinkingMarkers().is_closed_by("What is 1 + 1?<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n")
            True
        """
        before_end = prompt.rstrip().removesuffix(self.end)
        return before_end != prompt.rstrip() and self.is_opened_by(before_end)

    def visible_text(self, completion: str) -> str:
        """Returns the text after the last end of thinking, or all text if there is no thinking; empty text if the
        thinking does not end.

        Example:
            >>> ThinkingMarkers().visible_text("It is 3, wait.</think>The answer is 4.")
            'The answer is 4.'
            >>> ThinkingMarkers().visible_text("<think>It is 3, wait")
            ''
            >>> ThinkingMarkers(end="[/THINK]", is_opened=True).visible_text("It is 3, wait")
            ''
        """
        _, end, after = completion.rpartition(self.end)
        has_ended = bool(end) or not self.is_opened
        begins_anew = self.start is not None and self.start in after
        return after if has_ended and not begins_anew else ""


DEFAULT_MARKERS = ThinkingMarkers()


def check_thinking_end(thinking_end: str) -> None:
    """Raises `ValueError` if the text that ends the thinking is blank, which is everywhere."""
    if not thinking_end.strip():
        raise ValueError(f"thinking_end is {thinking_end!r}, but must be the text that ends thinking, say '</think>'")


@dataclass(frozen=True)
class ThinkingTokens:
    """The markers of thinking in the tokens of one tokenizer. It can be sent to other processes without the tokenizer.

    Args:
        markers ([`ThinkingMarkers`]): The texts.
        pieces (`Mapping[int, str]`): Text of each token that can be part of one of the two texts.
    """

    markers: ThinkingMarkers
    pieces: Mapping[int, str]

    @classmethod
    def of(cls, tokenizer: "PreTrainedTokenizerBase", markers: ThinkingMarkers) -> "ThinkingTokens":
        """Returns the markers in the tokens of this tokenizer."""
        pieces = _pieces(tokenizer, markers.end)
        if markers.start is not None:
            pieces |= _pieces(tokenizer, markers.start)
        return cls(markers, pieces)

    def thinking_length(self, completion_ids: Sequence[int], is_opened: bool) -> int:
        """Returns the number of tokens of a completion up to and including the last end of thinking.

        All tokens count if the thinking, begun in the completion or in its prompt, has not ended. The result is 0 if
        there is no thinking.

        Args:
            completion_ids (`Sequence[int]`): Tokens of the completion.
            is_opened (`bool`): Whether the prompt ends inside the thinking.
        """
        texts = [self.pieces.get(index, NO_MARKER) for index in completion_ids]
        text = "".join(texts)
        last_end = text.rfind(self.markers.end)
        has_ended = last_end >= 0
        begins_anew = self.markers.start is not None and text.rfind(self.markers.start) > last_end
        if begins_anew or (is_opened and not has_ended):
            return len(completion_ids)
        if not has_ended:
            return 0
        # the token in which the last character of the marker lies may hold more than the marker
        num_characters = [*accumulate(len(text) for text in texts)]
        return bisect_left(num_characters, last_end + len(self.markers.end)) + 1


def _pieces(tokenizer: "PreTrainedTokenizerBase", marker: str) -> dict[int, str]:
    """Returns the texts of the tokens that can be part of a marker; if the vocabulary has the marker itself, of this
    token only."""
    ids = tokenizer.encode(marker, add_special_tokens=False)
    if len(ids) == 1:
        is_marker = tokenizer.decode(ids).strip() == marker  # an unknown word is one token too
        return {ids[0]: marker} if is_marker else {}
    texts = _texts_after(tokenizer, ids[:1])
    decoded = "".join(texts[index] for index in ids)
    if marker not in decoded:  # tokens that hold no blanks are decoded with a blank between them
        texts = _texts_after(tokenizer, [])
    starts = tuple(marker[:size] for size in range(1, len(marker)))
    ends = tuple(marker[size:] for size in range(1, len(marker)))
    pieces = {}
    for index, text in texts.items():
        is_inside = text in marker
        reaches_in = marker in text or text.endswith(starts) or text.startswith(ends)
        if text and (is_inside or reaches_in):
            pieces[index] = text
    return pieces


def _texts_after(tokenizer: "PreTrainedTokenizerBase", earlier_ids: list[int]) -> dict[int, str]:
    """Returns the text of each token of a vocabulary after earlier tokens: some tokenizers drop the blank with which a
    text begins, so that the token of " think" alone has the text "think"."""
    start = len(tokenizer.decode(earlier_ids))
    return {index: tokenizer.decode([*earlier_ids, index])[start:] for index in tokenizer.get_vocab().values()}


def warn_of_hidden_markers(tokenizer: "PreTrainedTokenizerBase", markers: ThinkingMarkers) -> None:
    """Warns if the tokenizer leaves a marker out of the texts that rewards get, because it is a special token: a guess
    inside unfinished thinking is then graded as an answer."""
    for marker in (markers.start, markers.end):
        if marker is None:
            continue
        ids = tokenizer.encode(marker, add_special_tokens=False)
        is_written = marker in tokenizer.decode(ids)
        if is_written and marker not in tokenizer.decode(ids, skip_special_tokens=True):
            warnings.warn(
                f"thinking_end is {markers.end!r}, but {marker!r} is a special token, which texts do not show, so "
                "rewards cannot tell thinking from answers; set special to false for it in the tokenizer's files",
                stacklevel=2,
            )
            return
