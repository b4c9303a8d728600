"""Where the thinking of a completion begins and ends: `ThinkingMarkers` in text, `ThinkingTokens` in tokens."""

import warnings
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class ThinkingMarkers:
    """The texts that begin and end the thinking, such as `<think>` and `</think>`.

    Args:
        end (`str`): Text that ends the thinking. The thinking begins with the same text without its slash. If the text
            has no slash, only an end shows that there was thinking.
        begins_in_thinking (`bool`): Whether completions begin inside the thinking, since the chat template writes its
            beginning into the prompt, as that of R1-Distill does.
    """

    end: str = "</think>"
    begins_in_thinking: bool = False

    @property
    def start(self) -> str | None:
        """Text that begins the thinking, or `None` if no text does."""
        without_slash = self.end.replace("/", "", 1)
        # An end such as "###" has no slash, and nothing remains of the end "/".
        has_start = without_slash not in ("", self.end)
        return without_slash if has_start else None

    def for_prompt(self, prompt: str) -> "ThinkingMarkers":
        """Returns the same markers for completions of this prompt, which is text after the chat template.

        Example:
            >>> ThinkingMarkers().for_prompt("What is 1 + 1?<|Assistant|><think>\\n").begins_in_thinking
            True
        """
        return replace(self, begins_in_thinking=self.is_opened_by(prompt))

    def is_opened_by(self, prompt: str) -> bool:
        """Returns whether a prompt, after the chat template, ends with the start of thinking, so that its completion
        begins inside the thinking."""
        return self.start is not None and prompt.rstrip().endswith(self.start)

    def is_ended_by(self, prompt: str) -> bool:
        """Returns whether a prompt, after the chat template, has the end of thinking, so that its completion does not
        think.

        Example:
            >>> ThinkingMarkers().is_ended_by("What is 1 + 1?<|Assistant|><think>\\n\\n</think>\\n\\n")
            True
        """
        return self.end in prompt

    def visible_text(self, completion: str) -> str:
        """Returns the text after the last end of thinking, or all text if there is no thinking; empty text if the
        thinking does not end.

        Example:
            >>> ThinkingMarkers().visible_text("It is 3, wait.</think>The answer is 4.")
            'The answer is 4.'
            >>> ThinkingMarkers().visible_text("<think>It is 3, wait")
            ''
            >>> ThinkingMarkers(end="[/THINK]", begins_in_thinking=True).visible_text("It is 3, wait")
            ''
        """
        # Without an end of thinking, `end` is empty and `after` is the whole completion.
        _, end, after = completion.rpartition(self.end)
        is_inside_thinking = self.begins_in_thinking and not end
        begins_anew = self.start is not None and self.start in after
        return "" if is_inside_thinking or begins_anew else after


DEFAULT_MARKERS = ThinkingMarkers()


def markers_of_completions(
    markers: ThinkingMarkers | Sequence[ThinkingMarkers], num_completions: int
) -> Sequence[ThinkingMarkers]:
    """Returns the markers of each completion: the given ones, which may be common to all."""
    return [markers] * num_completions if isinstance(markers, ThinkingMarkers) else markers


def check_thinking_end(thinking_end: str) -> None:
    """Raises `ValueError` if the text that ends the thinking is blank, since blank text may stand anywhere."""
    if not thinking_end.strip():
        raise ValueError(f"thinking_end is {thinking_end!r}, but must be the text that ends thinking, say '</think>'")


@dataclass(frozen=True)
class ThinkingTokens:
    """The markers of thinking in the tokens of a tokenizer.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        markers ([`ThinkingMarkers`]): The texts.
    """

    tokenizer: "PreTrainedTokenizerBase"
    markers: ThinkingMarkers

    def thinking_length(self, completion_ids: Sequence[int], begins_in_thinking: bool) -> int:
        """Returns the number of tokens of a completion up to and including the last end of thinking.

        All tokens count if the thinking, begun in the completion or in its prompt, has not ended. The result is 0 if
        there is no thinking.

        Args:
            completion_ids (`Sequence[int]`): Tokens of the completion.
            begins_in_thinking (`bool`): Whether the completion begins inside the thinking, which its prompt has
                opened.
        """
        # `num_to_end` is 0 if the completion has no end of thinking; the rest is then the whole completion.
        num_to_end = self._num_tokens_to_last(self.markers.end, completion_ids)
        rest_ids = completion_ids[num_to_end:]
        begins_anew = self.markers.start is not None and self._num_tokens_to_last(self.markers.start, rest_ids) > 0
        is_inside_thinking = begins_in_thinking and num_to_end == 0
        if begins_anew or is_inside_thinking:
            return len(completion_ids)
        return num_to_end

    def _num_tokens_to_last(self, marker: str, ids: Sequence[int]) -> int:
        """Returns the number of tokens up to and including the last marker; 0 if there is none."""
        marker_ids = self.tokenizer.encode(marker, add_special_tokens=False)
        if len(marker_ids) == 1:
            positions = [position for position, token in enumerate(ids, start=1) if token == marker_ids[0]]
            return positions[-1] if positions else 0

        # A marker of several tokens can be split differently beside other text, so it is searched for in decoded text.
        def num_markers(num_tokens: int) -> int:
            return self.tokenizer.decode(ids[:num_tokens]).count(marker)

        # The last token of a marker may also hold text behind it. So the result is the smallest number of tokens whose
        # text shows as many markers as all tokens do; it is 0 if these show none.
        return bisect_left(range(len(ids)), num_markers(len(ids)), key=num_markers)


def warn_of_hidden_markers(tokenizer: "PreTrainedTokenizerBase", markers: ThinkingMarkers) -> None:
    """Warns if the tokenizer leaves a marker out of the texts that rewards get, because it is a special token: a guess
    inside unfinished thinking is then graded as an answer."""
    for marker in (markers.start, markers.end):
        if marker is not None and _is_hidden(tokenizer, marker):
            warnings.warn(
                f"thinking_end is {markers.end!r}, but {marker!r} is a special token, which texts do not show, so "
                "rewards cannot tell thinking from answers; set special to false for it in the tokenizer's files",
                stacklevel=2,
            )
            return


def _is_hidden(tokenizer: "PreTrainedTokenizerBase", marker: str) -> bool:
    """Returns whether decoding without special tokens, as TRL does it for reward functions, leaves out a marker."""
    ids = tokenizer.encode(marker, add_special_tokens=False)
    # A marker that decoding never restores, such as one that is encoded as an unknown token, is not hidden by that.
    is_restored = marker in tokenizer.decode(ids)
    return is_restored and marker not in tokenizer.decode(ids, skip_special_tokens=True)
