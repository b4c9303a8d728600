r"""Finds the answer in the text of a completion, by one rule.

The answer must follow the thinking; a completion that never ends its thinking has no answer.

1. The answer is the last `\boxed{}` or `\fbox{}`. Boxes that only commas, "and" or "or" separate form one answer, so a
   hedge such as `\boxed{1} or \boxed{2}` equals neither 1 nor 2. If the last box never closes, the completion was cut
   off and has no answer.
2. Without a box, the answer is the last `Answer: ...`, DAPO's form, to the end of the first line that is not empty.
3. With `lenient` only, the answer is the last `<answer>` tag, else any answer that math-verify finds in the text, such
   as a trailing number.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from leash_trl.completions.thinking import DEFAULT_MARKERS, ThinkingMarkers
from leash_trl.rewards.grader.latex import with_latex_commands


ANSWER_MARK = re.compile(r"\banswer[ \t*]*[:：]", re.IGNORECASE)  # Answer: and **Answer**:
# The mark and its answer, which may begin on a later line, to the end of this line: "Answer: $34$".
ANSWER_LINE = re.compile(rf"{ANSWER_MARK.pattern}[\s*]*(\S.*)$", re.IGNORECASE | re.MULTILINE)
TAGGED_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)  # <answer>34</answer>
ANSWER_TAG = re.compile("</?answer>")
BOX_START = re.compile(r"\\(?:boxed|fbox)\s*\{")  # \boxed{
BRACELESS_BOX = re.compile(r"\\(?:boxed|fbox)\s*(-?\d+(?:\.\d+)?|[A-J](?![A-Za-z]))")  # \boxed 34, \boxed C
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # escaped braces are printed, as in \{1, 2\}, and do not count
# Punctuation, blanks, names such as "y =", "and" and "or", as in \boxed{1} and $y = \boxed{2}$.
BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;.&]|[A-Za-z](?:_\w|_\{\w+\})?\s*=|\\[()\[\],;]|\\q?quad|\\text\{|\}|\band\b|\bor\b)*"
)
MATH_DELIMITERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
OPENING_MATH_DELIMITER = re.compile(r"(?<!\\)\$|\\[(\[]")  # $, but not the \$ of money, \( and \[


@dataclass(frozen=True)
class Answer:
    """Text of an answer, without its box and its dollar signs."""

    text: str
    # `False` if no box, mark or tag tells where the answer stands; `text` is then the whole completion.
    is_marked: bool = True
    text_to_search: str = ""  # of an unmarked answer, the original text, in which math-verify searches the answer

    @property
    def math_verify_input(self) -> str:
        r"""Returns the input for math-verify, such as `\boxed{34}`: math-verify reads a bare `2\sqrt{3}` as 2."""
        # A text with delimiters, such as "the largest $n$ is $34$", tells math-verify itself where its formulas stand.
        is_formula = self.is_marked and not OPENING_MATH_DELIMITER.search(self.text)
        if is_formula:
            return f"\\boxed{{{self.text}}}"
        return self.text_to_search or self.text


class Box(NamedTuple):
    r"""Where a `\boxed{}` stands in a text: at `text[start : content_end + 1]`, with its content in braces."""

    start: int
    content_start: int
    content_end: int


def completion_text(completion: str | list[dict]) -> str:
    """Returns the model's text of a completion in either of TRL's formats, without the output of tools."""
    if isinstance(completion, str):
        return completion
    # Messages, such as {"role": "assistant", "content": "It is 7."}; a tool's output has the role "tool".
    texts = []
    for message in completion:
        if message["role"] == "assistant":
            # The content is `None` if the message only calls tools, and a list if it has blocks such as
            # {"type": "text", "text": "It is 7."}; an image is a block without a text.
            content = message.get("content") or ""
            blocks = [{"text": content}] if isinstance(content, str) else content
            texts.append("".join(block.get("text") or "" for block in blocks))
    return "\n".join(texts)


def find_boxes(text: str) -> list[Box]:
    """Returns each complete box without inner boxes, with balanced braces."""
    # Index of each box's backslash, by the index of its opening brace: {6: 0} for "\boxed{1}".
    starts = {match.end() - 1: match.start() for match in BOX_START.finditer(text)}
    first_brace = min(starts, default=len(text))
    open_braces: list[int] = []  # indices in the text, the innermost brace last
    complete_boxes: list[Box] = []
    # The pattern also matches escaped characters, such as \{, which are printed and open or close nothing.
    for brace in BRACE.finditer(text, first_brace):
        if brace[0] == "{":
            open_braces.append(brace.start())
        elif brace[0] == "}" and open_braces:
            opened = open_braces.pop()
            # A box that begins before the latest complete one contains it.
            if opened in starts and (not complete_boxes or complete_boxes[-1].start < starts[opened]):
                complete_boxes.append(Box(start=starts[opened], content_start=opened + 1, content_end=brace.start()))
    return complete_boxes


def boxed_answer(text: str) -> Answer | None:
    r"""Returns the last complete `\boxed{}` or `\fbox{}` of a text, with the boxes joined to it; `None` without a box.

    Example:
        >>> boxed_answer(r"so \boxed{1}, no, \boxed{\frac{1}{2}}").text
        '\\frac{1}{2}'
        >>> boxed_answer(r"\boxed{1} or \boxed{2}").text
        '1, 2'
    """
    # \boxed 34 becomes \boxed{34}.
    text = BRACELESS_BOX.sub(r"\\boxed{\1}", text)
    # Boxes that only a comma, "and" or the like separates belong together. They are collected from the last one on,
    # until other text stands between two boxes.
    joined: list[Box] = []
    for box in reversed(find_boxes(text)):
        if joined and not BETWEEN_BOXES.fullmatch(text, box.content_end + 1, joined[-1].start):
            break
        joined.append(box)
    contents = [_without_outer_delimiters(text[box.content_start : box.content_end]) for box in reversed(joined)]
    return Answer(", ".join(contents)) if any(contents) else None


def _is_cut_off(text: str) -> bool:
    """Returns whether the last box never closes, as in a completion that reached its token limit."""
    starts = [match.start() for match in BOX_START.finditer(text)]
    return bool(starts) and starts[-1] not in [box.start for box in find_boxes(text)]


def _without_outer_delimiters(text: str) -> str:
    """Returns a text with its signs as LaTeX commands, without its outer math delimiters and its full stop."""
    text = with_latex_commands(text).strip()
    # Two dots and more are no full stop: "1, 2, ..." says that a list goes on.
    if not text.endswith(".."):
        text = text.removesuffix(".").rstrip()
    for opening, closing in MATH_DELIMITERS:
        inside = text[len(opening) : -len(closing)]
        # $34$ becomes 34, but "$3$ and $4$" keeps its delimiters, which enclose two formulas.
        if text == f"{opening}{inside}{closing}" and opening not in inside and closing not in inside:
            return inside.strip()
    return text


def stated_answer(text: str) -> Answer | None:
    r"""Reads an answer that stands alone or in a sentence, such as `34`, `$2\sqrt{3}$` or `the largest $n$ is 34`."""
    bare = _without_outer_delimiters(text)
    return Answer(bare) if bare else None


def find_answer(
    completion: str, lenient: bool = False, thinking_markers: ThinkingMarkers = DEFAULT_MARKERS
) -> Answer | None:
    r"""Returns the answer to which a completion commits, by the rule at the head of this module; `None` without an
    answer.

    Example:
        >>> find_answer("<think>hm</think>So it is\nAnswer: $34$").text
        '34'
    """
    # The text after the thinking; it is empty if the completion never ends its thinking.
    text = thinking_markers.visible_text(completion)
    # A completion that reached its token limit inside its last box has no answer.
    if _is_cut_off(text):
        return None
    if (answer := boxed_answer(text)) is not None:
        return answer
    # What follows "Answer:" on each line with this mark, such as ["$34$"]; a line may repeat the mark.
    if lines := ANSWER_LINE.findall(text):
        after_last_mark = ANSWER_MARK.split(lines[-1])[-1]
        # Bold type leaves asterisks at the ends, as in "**Answer: 34**".
        return stated_answer(ANSWER_TAG.sub("", after_last_mark).strip("* \t\r"))
    if not lenient:
        return None
    # The contents of the <answer> tags.
    if tagged := TAGGED_ANSWER.findall(text):
        return stated_answer(tagged[-1])
    # The answer may stand anywhere in this text, which math-verify searches.
    bare = _without_outer_delimiters(text)
    return Answer(bare, is_marked=False, text_to_search=text) if bare else None


def gold_answer(solution: str) -> Answer | None:
    """Returns the reference answer of a solution: its last box, else all of its text; `None` if the text is empty."""
    return boxed_answer(solution) or stated_answer(solution)
