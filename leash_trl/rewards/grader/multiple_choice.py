"""Reads the letter that a multiple-choice answer names, and compares this letter with the reference answer."""

import re

from leash_trl.rewards.grader.commitment import ANY_OPTION_LABEL, LEAD_IN_PATTERN, without_asides, without_markup


CHOICE_LETTERS = "A-J"  # MMLU-Pro has up to ten options
# The beginning of an answer with its letter: C, (C), option C, "So the answer is C", 答案是C
CHOICE = re.compile(
    rf"(?:{LEAD_IN_PATTERN})?"
    r"(?:I choose |(?:the )?(?:option|choice|letter|answer):?\s+|选项|选择|选|答案是|答案)?\s*"
    rf"[(\[]?\s*((?-i:[{CHOICE_LETTERS}]))(?:\s*[)\]])?(?![A-Za-z])",
    re.IGNORECASE,
)
# "A, B" and "A or B" name two choices, so no answer; "I, II" are statements, and "A: 3, B: 5" is a table.
SECOND_CHOICE = re.compile(
    rf"\W*(?:(?:and|or|maybe|perhaps|possibly)\b\W*)*[和或与及]?\W*(?:[{CHOICE_LETTERS}]|[IVX]+)(?:\W*(?:$|[^\w\s]|(?:and|or)\b)|\s+is\b)"
    r"|\W*(?:and|or)\b|\s*[和或与及、/]"
)
# The rest of "(B) I and II only", which are statements and no choices, but not of "(B) I is correct".
ROMAN_STATEMENTS = re.compile(r"\W*[IVX]+\b(?! is)")
# What may stand between a letter and the text of its option: "C. carbon", "C - carbon", "C (carbon)", "C 5",
# "C is correct", C碳
OPTION_SEPARATOR = re.compile(
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
    # An answer of several lines is a table or a text.
    if "\n" in text.strip():
        return None
    answer = without_asides(without_markup(text))
    # In "So the answer is (C) carbon", the match is "So the answer is (C)", its group is C, and the rest is " carbon".
    choice = CHOICE.match(answer)
    if choice is None:
        return None
    rest = answer[choice.end() :].rstrip(" .,*(")
    return choice[1] if not rest or _is_text_of_option(rest, choice) else None


def _is_text_of_option(rest: str, choice: re.Match[str]) -> bool:
    """Returns whether what follows a letter is the text of its option, rather than a formula or a second choice."""
    # In "C. carbon", a mark separates the letter from the text of its option. Without brackets or such a mark, the
    # letter begins a formula, as in "E = mc^2", or a sentence.
    is_in_brackets = choice[0][-1] in ")]"
    if not is_in_brackets and not OPTION_SEPARATOR.match(rest):
        return False
    # Roman numerals after the letter stand for statements, as in "(B) I and II only", and are no further choices. In
    # "I, II", however, the first I is a statement itself.
    if choice[1] != "I" and ROMAN_STATEMENTS.match(rest):
        return True
    # "B or C" is a hedge.
    names_second_choice = SECOND_CHOICE.match(rest) or ANY_OPTION_LABEL.search(rest)
    return not names_second_choice


def choice_verdict(answer: str, gold: str) -> bool | None:
    """Returns whether an answer names the letter of the reference answer; `None` if the latter is not a letter.

    Example:
        >>> choice_verdict("(B) 42", "B"), choice_verdict("B or C", "B"), choice_verdict("B", "42")
        (True, False, None)
    """
    letter = choice_letter(gold)
    if letter is None:
        return None
    # A lone b names the choice B, while a small letter beside other signs is a variable.
    if len(answer) == 1:
        answer = answer.upper()
    return choice_letter(answer) == letter
