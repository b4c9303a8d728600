"""Reads the letters that a multiple-choice answer names, and compares them with the gold."""

import re

from leash_trl.rewards.wording import ANY_LABEL, NEGATION, REASON, REMARK, flat


LETTERS = "A-J"  # MMLU-Pro has up to ten options
ONE = rf"(?:\(\s*([{LETTERS}])\s*\)|\[([{LETTERS}])\]|([{LETTERS}])\)?(?![A-Za-z]))"
HEAD = re.compile(
    r"(?i)[\s*]*(?:(?:so|thus|hence|therefore)\b,?\s*)?"
    r"(?:(?:(?:the|my)\s+)?(?:(?:final|correct|right|best)\s+)*(?:answer|option|choice|letter)\s*(?:is|must be|:)\s*"
    r"|(?:it|this)\s+(?:is|must be)\s+|I\s+(?:choose|pick|select|think|say)\s+)?"
    r"(?:(?:the\s+)?(?:option|choice|letter)\s+)?(?:选项|选择|选|答案是|答案)?\s*"
)
# "A, B" and "A or B" are two choices, so no answer; "I, II" are statements, and "A: 3, B: 5" is a table
SECOND = re.compile(
    rf"\W*(?:(?:and|or|maybe|perhaps|possibly)\b\W*)*[和或与及]?\W*(?:[{LETTERS}]|[IVX]+)(?:\W*(?:$|[^\w\s]|(?:and|or)\b)|\s+is\b)"
    r"|\W*(?:and|or)\b|\s*[和或与及、/]"
)
TEXT = re.compile(
    r"\s?[.,:)。，、：]|\s*[-—–]\s|\s*\(|\s+\$?\d|\s+is\s+(?:the\s+)?(?:correct|right|best|true|answer)\b|\s*[^\x00-\x7f]"
)
SMALL = re.compile(r"\(?[a-j]\)?")
SEVERAL = re.compile(rf"\(?([{LETTERS}])\)?(?:\s*(?:,|;|&|\band\b|和|,\s*and\b)\s*\(?([{LETTERS}])\)?)+")


def choice_letter(text: str) -> str | None:
    r"""The letter that a multiple-choice answer names, `None` if it names none.

    Letters from A to J count alone, in brackets, after "option" or "the answer is", or before a mark and their
    option's text, on one line. A letter at the head of a formula, as in `E = mc^2`, does not count. An answer that
    names a second choice names none. Denied choices ("B, not A") and reasons are ignored.

    Example:
        >>> choice_letter(r"\text{(C)}"), choice_letter("D. carbon"), choice_letter("A + B"), choice_letter("A, B")
        ('C', 'D', None, None)
    """
    if "\n" in text.strip():
        return None
    text = flat(text)
    head = HEAD.match(text)
    match = re.compile(ONE).match(text, head.end() if head else 0)
    if match is None:
        return None
    letter, rest = next(filter(None, match.groups())), text[match.end() :]
    rest = REMARK.sub(lambda remark: "" if re.search("[a-z]{2}", remark[0]) else remark[0], rest)  # (III) is no remark
    for cut in (REASON, NEGATION):
        if (found := cut.search(rest)) and (cut is REASON or not re.match(r"\W*\w+\W+is\b", rest)):
            rest = rest[: found.start()]
    rest = rest.rstrip(" .,*(")
    if not rest:
        return letter
    is_marked = match[0][-1] in ")]" or TEXT.match(rest)
    if letter != "I" and re.match(r"\W*[IVX]+\b(?! is)", rest):
        return letter if is_marked else None  # (B) I and II only
    return letter if is_marked and not SECOND.match(rest) and not ANY_LABEL.search(rest) else None


def choice_letters(text: str) -> frozenset[str]:
    """The letters that an answer names: one, or several that commas or "and" join; empty if it names none.

    Example:
        >>> sorted(choice_letters("A and (C)")), choice_letters("A or C"), choice_letters("x")
        (['A', 'C'], frozenset(), frozenset())
    """
    if letter := choice_letter(text):
        return frozenset(letter)
    text = flat(text)
    return frozenset(re.findall(rf"[{LETTERS}]", text)) if SEVERAL.fullmatch(text) else frozenset()


def choice_verdict(answer: str, gold: str) -> bool | None:
    """Whether an answer names the letter or letters of the gold; `None` if the gold is not a letter.

    Example:
        >>> choice_verdict("(B) 42", "B"), choice_verdict("B or C", "B"), choice_verdict("B", "42")
        (True, False, None)
    """
    letters = choice_letters(gold)
    answer = answer.upper() if SMALL.fullmatch(answer) else answer
    return choice_letters(answer) == letters if letters else None
