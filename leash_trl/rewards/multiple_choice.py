"""Letters of multiple-choice answers."""

import re


LETTERS = "A-J"  # MMLU-Pro has up to ten options
WRAPPER = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
ALONE = re.compile(rf"[\s*]*\(?([{LETTERS}])\)?[\s*.]*")
# "A, B" and "A or B" are two choices and none, "I, II" are statements, and "A: 3, B: 5" is a table
NO_SECOND = rf"(?!\W*(?:(?:and|or)\b\W*|[和或与及]\W*)?(?:[{LETTERS}]|[IVX]+)\W*(?:$|[^\w\s]|and\b|or\b))"
WITH_TEXT = re.compile(rf"[\s*]*(?:\(([{LETTERS}])\)|([{LETTERS}])[.,)。，、]){NO_SECOND}[\s*]*\S.*")
BEFORE_OTHER_SCRIPT = re.compile(rf"[\s*]*([{LETTERS}])(?![和或与及、，/])[^\x00-\x7f].*")


def choice_letter(text: str) -> str | None:
    r"""The letter that a multiple-choice answer names, `None` if it names none.

    Letters from A to J stand alone, in round brackets, or before a mark and their option's text, on one line. A letter
    at the head of a formula, as in `E = mc^2`, is none, nor is the first of several.

    Example:
        >>> choice_letter(r"\text{(C)}"), choice_letter("D. carbon"), choice_letter("A + B"), choice_letter("A, B")
        ('C', 'D', None, None)
    """
    text = WRAPPER.sub(r"\1", text)
    match = ALONE.fullmatch(text) or WITH_TEXT.fullmatch(text) or BEFORE_OTHER_SCRIPT.fullmatch(text)
    return next(filter(None, match.groups())) if match else None
