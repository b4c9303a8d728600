"""The tokens of a completion that follow its first correct result (`length_of: checking`)."""

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from decimal import Decimal

from leash_trl.errors import TrainingError


# a number as it stands in a text, such as "7", "-7", "1,234", "0.5" or ".5", but not a part of a word, of a date or of
# a version
NUMBER = re.compile(
    r"""
    (?P<sign>(?<![\w)])-|)      # in 9-7, or (3+6)-7, the sign is a subtraction
    (?<![\w.])                  # no letter, digit or point before it
    (?P<digits>
        \d{1,3}(?:(?:,|\{,\}|\\,)\d{3})+(?:\.\d+)?    # with commas between thousands, also those of LaTeX
      | \d+(?:\.\d+)?
      | \.\d+
    )
    (?![\w]|[.,]\d)             # no letter or digit after it, not even behind a point or a comma
    """,
    re.VERBOSE,
)
# For a text that begins or ends with a digit, such as "5 km": no other part of this number may stand before or behind
# the text.
NO_NUMBER_BEFORE = r"(?<!\.)(?<!\d,)(?<!(?<![\w)])-)"
NO_NUMBER_BEHIND = r"(?![.,]\d)"
TO_ASCII_MINUS = str.maketrans("\N{MINUS SIGN}", "-")  # models write both
MAX_ANSWER_WORDS = 5  # of an answer that is a text
EXPRESSION_CHARACTER = re.compile(r"[\\^_{}=+*/<>|]")  # characters of LaTeX, formulas, fractions and code


def checking_length(completion_ids: Sequence[int], right_answer: str, decode: Callable[[Sequence[int]], str]) -> int:
    """Returns the number of tokens of a completion, with EOS, after the first place where the correct answer stands; 0
    if the answer stands nowhere.

    What follows the first correct result is a check, a repetition, or the final statement of the answer. A check that
    repairs a wrong result comes before the first correct one, so it costs nothing.

    Source: [DECS](https://huggingface.co/papers/2509.25827), where the tokens up to the first correct result are the
    necessary reasoning, and [2601.02972](https://huggingface.co/papers/2601.02972).

    Differs: both find that place by a model; here, it is where the value itself stands in the text. A value that
    stands there by chance, such as an intermediate result that equals the answer, counts as well. More tokens then
    follow than the model could leave out.

    Args:
        completion_ids (`Sequence[int]`): Tokens of the completion without padding and without the output of tools.
        right_answer (`str`): The correct answer: a number, such as `-1,234.5`, which is found where a number of the
            same value stands; or a text of up to five words, which is found as whole words, in upper or lower case.
        decode (`Callable`): Turns tokens into text, as `tokenizer.decode` does.

    Raises:
        `TrainingError`: If the correct answer is neither, see [`check_right_answer`].

    Example:
        >>> words = ["3 ", "+ 4 ", "= 7", ". Check: ", "7 - 4 = 3", "."]
        >>> decode = lambda ids: "".join(words[index] for index in ids)
        >>> checking_length(range(6), "7", decode), checking_length(range(6), "8", decode)
        (3, 0)
    """
    num_characters = end_of_first_occurrence(decode(completion_ids), right_answer)
    if num_characters is None:
        return 0

    def num_decoded(num_tokens: int) -> int:
        return len(decode(completion_ids[:num_tokens]))

    # A position in the text says nothing about tokens, so bisection finds the fewest tokens whose text reaches this
    # position.
    num_needed = bisect_left(range(len(completion_ids)), num_characters, key=num_decoded)
    return len(completion_ids) - num_needed


def end_of_first_occurrence(text: str, right_answer: str) -> int | None:
    """Returns the index of the character behind the first place where the correct answer stands; `None` if there is no
    such place.

    Raises:
        `TrainingError`: If the correct answer is not one that [`check_right_answer`] accepts.
    """
    check_right_answer(right_answer)
    text = text.translate(TO_ASCII_MINUS)
    answer = _text_to_find(right_answer)
    number = NUMBER.fullmatch(answer)
    place = _first_words(text, answer) if number is None else _first_number(text, number)
    return None if place is None else place.end()


def _first_number(text: str, number: re.Match[str]) -> re.Match[str] | None:
    """Returns the first number of a text that has the same value, such as "1,234.0" for 1234."""
    for candidate in NUMBER.finditer(text):
        if _number_value(candidate) == _number_value(number):
            return candidate
    return None


def _first_words(text: str, words: str) -> re.Match[str] | None:
    """Returns the first place of a text where these words stand, in upper or lower case."""
    # A digit at either end of the words must not belong to a longer number of the text: "5 km" does not stand in
    # "1.5 km", and "about 5" does not stand in "about 5.2".
    before = NO_NUMBER_BEFORE if words[0].isdigit() else ""
    behind = NO_NUMBER_BEHIND if words[-1].isdigit() else ""
    pattern = re.escape(words).replace("%", r"\\?%")  # LaTeX writes "50\%"
    return re.search(rf"(?<!\w){before}{pattern}(?!\w){behind}", text, re.IGNORECASE)


def _number_value(number: re.Match[str]) -> Decimal:
    """Returns the value of a number that [`NUMBER`] matched, such as 1234.5 for `1,234.5`."""
    digits = re.sub(r"[^\d.]", "", number["digits"])  # without what stands between thousands
    return Decimal(number["sign"] + digits)


def check_right_answer(right_answer: str) -> None:
    """Raises `TrainingError` unless a correct answer of the data set can be looked for in a text: it must be a number,
    or a text of one to five words that is neither a single letter nor an expression such as `1/2`."""
    answer = _text_to_find(right_answer)
    if NUMBER.fullmatch(answer) is not None:
        return
    num_words = len(answer.split())
    # The choice "A" is also a word of many sentences, so finding it would not mean that the answer was reached.
    is_letter = len(answer) == 1
    # The same formula can be written in many ways, such as "\frac{1}{2}" and "1/2".
    is_expression = EXPRESSION_CHARACTER.search(answer) is not None
    if is_letter or is_expression or not 1 <= num_words <= MAX_ANSWER_WORDS:
        raise TrainingError(
            f"length_of is 'checking', but the correct answer {right_answer[:100]!r} is neither a number nor a text "
            f"of 1 to {MAX_ANSWER_WORDS} words, no formula and no lone letter; leave out such rows, or set "
            "length_of to 'completion'"
        )


def _text_to_find(right_answer: str) -> str:
    """Returns the correct answer as it stands in a completion, such as `-7` for `$-7$` of a data set."""
    return right_answer.translate(TO_ASCII_MINUS).strip().strip("$").strip()  # in LaTeX, $ stands around a formula
