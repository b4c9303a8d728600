"""Reads the letter that a multiple-choice answer names, and compares this letter with the reference answer."""

import re

from leash_trl.rewards.grader.commitment import ANY_LABEL, HEAD, flat, without_asides


LETTERS = "A-J"  # MMLU-Pro has up to ten options
CHOICE = re.compile(
    rf"(?:{HEAD.pattern.removeprefix('(?i)')})?"
    r"(?:I choose |(?:the )?(?:option|choice|letter|answer):?\s+|选项|选择|选|答案是|答案)?\s*"
    rf"[(\[]?\s*((?-i:[{LETTERS}]))(?:\s*[)\]])?(?![A-Za-z])",
    re.IGNORECASE,
)
# "A, B" and "A or B" name two choices, so no answer; "I, II" are statements, and "A: 3, B: 5" is a table.
SECOND = re.compile(
    rf"\W*(?:(?:and|or|maybe|perhaps|possibly)\b\W*)*[和或与及]?\W*(?:[{LETTERS}]|[IVX]+)(?:\W*(?:$|[^\w\s]|(?:and|or)\b)|\s+is\b)"
    r"|\W*(?:and|or)\b|\s*[和或与及、/]"
)
TEXT = re.compile(
    r"\s?[.,:)。，、：]|\s*[-—–]\s|\s*\((?!-?[\d.]+\s*,)|\s+\$?\d|\s+is\s+(?:the\s+)?(?:correct|right|best|true|answer)\b|\s*[^\x00-\x7f]"
)


def choice_letter(text: str) -> str | None:
    r"""Returns the letter that a multiple-choice answer names; `None` if the answer names no letter.

    A letter from A to J counts if it stands, on one line, alone, in brackets, after "option" or "the answer is", or
    before a punctuation mark and the text of its option. A letter at the head of a formula, as in `E = mc^2`, does not
    count. An answer that names a second choice names no letter. Remarks and reasons are ignored.

    Example:
        >>> choice_letter(r"\text{(C)}"), choice_letter("D. carbon"), choice_letter("A + B"), choice_letter("A, B")
        ('C', 'D', None, None)
    """
    said = without_asides(flat(text))
    match = CHOICE.match(said)
    if match is None or "\n" in text.strip():
        return None
    rest = said[match.end() :].rstrip(" .,*(")
    is_marked = match[0][-1] in ")]" or TEXT.match(rest)
    is_statement = match[1] != "I" and re.match(r"\W*[IVX]+\b(?! is)", rest)  # as in (B) I and II only
    is_one = is_statement or not (SECOND.match(rest) or ANY_LABEL.search(rest))
    return match[1] if not rest or (is_marked and is_one) else None


def choice_verdict(answer: str, gold: str) -> bool | None:
    """Returns whether an answer names the letter of the reference answer; `None` if the latter is not a letter.

    Example:
        >>> choice_verdict("(B) 42", "B"), choice_verdict("B or C", "B"), choice_verdict("B", "42")
        (True, False, None)
    """
    letter = choice_letter(gold)
    return choice_letter(answer.upper() if len(answer) == 1 else answer) == letter if letter else None
