r"""Finds the commitment of an answer with words: one number, one list, or nothing.

1. Remarks in brackets, reasons ("because ...") and later denials ("34, not 35") do not count.
2. If one number remains, this number is the answer, and the words after the number are its unit ("So there are 34
   girls"). A denied number ("not 34") or a bounded number ("34 or more", "between 3 and 4") is not an answer.
3. Of several numbers, only those after "answer is", or after the first verb, count. If only commas, "and" or "or" join
   the numbers, they form a list, which equals no single number. Other words between numbers make a hedge: no answer.
"""

import re
from typing import NamedTuple

from leash_trl.rewards.grader.latex import UPRIGHT
from leash_trl.rewards.grader.units import unit_key


WRAPPING_COMMAND = re.compile(rf"(?:{UPRIGHT}|\\(?:boxed|fbox)\s*)\{{([^{{}}]*)\}}")  # \text{girls}, \boxed{34}
# Markdown's emphasis and delimiters of formulas: **34**, _34_, *34*, `34`, $34$, \(34\)
MARKUP = re.compile(r"\*\*|`|(?<!\\)\$|\\[()\[\]]|(?<![\w}])_(?=[^_]+_$)|(?<=\w)_$|^\*(?=.*\*$)|(?<=.)\*$")
FULL_STOP = re.compile(r"(?<!\.)\.$")  # dots say that a list goes on
SPACING = re.compile(r"\\[,;: ]|\\q?quad(?![A-Za-z])|~")  # \, and \quad
LEADING_OPTION_LABEL = re.compile(r"^\s*(?:\([A-J]\)|[A-J][.)])\s*(?=\S)(?![^A-Za-z0-9]*$)")  # the (B) of "(B) 34"
ANY_OPTION_LABEL = re.compile(r"\([A-J]\)|(?<![A-Za-z\\])[A-J][.):](?=\s)")  # (B) and "B. " at any place
# So the final answer is: ...
LEAD_IN_PATTERN = (
    r"(?:(?:so|thus|hence|therefore),?\s+)?(?:it|this|(?:the )?(?:(?:final|correct|right) )*(?:answer|option))"
    r"\s+(?:is|must be)\s*:?\s+"
)
LEAD_IN = re.compile(LEAD_IN_PATTERN, re.IGNORECASE)
# wrong, impossible, not correct, not the answer
JUDGEMENT_PATTERN = (
    r"\b(?:wrong|incorrect|false|invalid|impossible|extraneous|rejected)\b"
    r"|\bnot\s+(?:the\s+)?(?:correct|right|true|valid|possible|answer)\b"
)
JUDGEMENT = re.compile(JUDGEMENT_PATTERN, re.IGNORECASE)
# A remark in words, such as "(because 3*5 = 15)" and "(16 is wrong)", but no alternative, as in "(or 16)", no formula,
# and no judgement on the answer, as in "(wrong)".
BRACKETED_REMARK = re.compile(
    r"\((?=[^()]*[^\W\d_]{2})(?![^()]*\\)(?!\s*(?:or|maybe|perhaps|possibly)\b)"
    rf"(?!(?-i:[^()\dA-J])*(?:{JUDGEMENT_PATTERN})[^()\d]*\))[^()]*\)",
    re.IGNORECASE,
)
REASON = re.compile(r"[,;.]?\s*\b(?:because|since|as|where|which|so that)\b.*", re.IGNORECASE | re.DOTALL)
# not, but never, rather than, ... in four languages
NEGATION = re.compile(
    r"[,;.]?\s*(?:\b(?:(?:and|but) )?(?:not|never|cannot|isn't|rather than|instead of|no|nicht|kein|pas|не)\b|不)",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"(?<=[\w)}\]])\.\s+(?=[A-Z<])")  # between "It is 34." and "The end"
ANSWER_IS = re.compile(r".*\banswer\s+(?:is|=)", re.IGNORECASE | re.DOTALL)  # We add them, so the answer is
VERB = re.compile(r"\b(?:is|are|was|were|be|equals?|has|have|gives?|get)\b", re.IGNORECASE)
# A run of two letters and more, such as "girls", "don't" and "cm^2", but no command and no index; or a letter that is
# neither Latin nor Greek, such as 和
WORD = re.compile(
    r"(?<![\\A-Za-z])(?<!_\{)(?<!_\{ )[^\W\d_][^\W\d_'.]*[^\W\d_]\.?(?:\s*\^\s*\{?[23]\}?)?"
    r"|[^\W\d_A-Za-z\u0370-\u03ff]"
)
POWER_AT_END = re.compile(r"[\s^{}\d]+$")  # the ^2 of cm^2
BASE_IN_WORDS = re.compile(r"\s*\(?\bbase[ -]?(\w+)\)?", re.IGNORECASE)  # the "(base 8)" of "52 (base 8)"
NUMBER = re.compile(r"\d|\\(?:pi|sqrt|infty)(?![A-Za-z])")  # 34, \sqrt{x}
JOINERS = frozenset(["and", "or", "和", "或"])
BOUND_WORDS = frozenset(
    ["between", "from", "least", "most", "more", "less", "fewer", "over", "under", "than", "up", "maybe", "or", "to"]
)
SHORT_WORDS = JOINERS | BOUND_WORDS | {"of", "out", "per", "sq", "no", "not"}
# Words that change the value of the number beside them; words before the number matter only after the last verb.
# half of 15, the square root of 15; 15 squared, 15 tenths; 15 minus one, 15 doubled
VALUE_CHANGING_WORDS = re.compile(
    r"\b(?:negative|minus|half|twice|double|triple|(?:root|square|cube|multiple)s? of|below|above|except)\b.*\d"
    r"|\d\W*(?:squared|cubed|factorial|hal(?:f|ves)|thirds?|(?:four|fif|six|seven|eigh|nin|ten|twelf|hundred)ths?)\b"
    r"|\d.*\b(?:plus|minus|below|above|doubled|tripled|halved|divided)\b",
    re.IGNORECASE | re.DOTALL,
)
# A word of four letters, or a short answer in words: "east", "Mo", "yes"; `xyz` and `AB` are products, not words.
UNAMBIGUOUS_WORD = re.compile(r"[^\W\d_]{4}|^(?:[A-Z][a-z]+|yes|no)$")
ARTICLE = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)
WORDS_ONLY = re.compile(r"[^\W\d_]+(?:[ '.-]+[^\W\d_]+)*")  # "no solution", "north-east"


def without_markup(text: str) -> str:
    r"""Returns a text without font commands, math delimiters and Markdown's emphasis.

    Example:
        >>> without_markup(r"**12**\text{ boys}")
        '12 boys'
    """
    # Each pass removes the innermost commands: \boxed{\text{34}} takes two.
    for _ in range(3):
        text = WRAPPING_COMMAND.sub(r" \1 ", text)
    text = SPACING.sub(" ", text.strip()).strip()
    text = MARKUP.sub("", text).replace("per cent", "percent")
    return FULL_STOP.sub("", " ".join(text.split()))


def is_word(letters: str) -> bool:
    """Returns whether a run of letters is a word, rather than a product such as `xy`."""
    # cm^2 becomes cm, and "sq." becomes "sq".
    letters = POWER_AT_END.sub("", letters).rstrip(".").lower()
    if len(letters) > 3 or not letters.isascii() or "." in letters:
        return True
    return letters in SHORT_WORDS or unit_key(letters) != ""


def word_runs(text: str) -> list[re.Match[str]]:
    """Returns the runs of letters in a text that are words."""
    # Beside a long word that is no unit, as in "5 big apples", short runs of letters such as "big" are words, too;
    # otherwise they may be products, such as the xy of 5xy.
    runs = list(WORD.finditer(text))
    is_prose = any(len(run[0]) > 3 and run[0].isalpha() and not unit_key(run[0]) for run in runs)
    return [run for run in runs if is_prose or is_word(run[0]) or VERB.fullmatch(run[0])]


def without_asides(text: str) -> str:
    """Returns a text without remarks in brackets and without reasons."""
    text = BRACKETED_REMARK.sub("", text)
    # A text that consists of a reason alone, such as "where x > 0", is kept.
    return REASON.sub("", text) or text


def unhedged_answer(text: str) -> str | None:
    r"""Returns the formula, list or word to which an answer commits, by this module's rule; `None` for a hedge.

    Example:
        >>> unhedged_answer(r"34 \text{ girls, not } 35"), unhedged_answer("x = 3")
        ('34 "girls"', 'x = 3')
        >>> unhedged_answer("12 boys and 34 girls")  # is `None`
    """
    # A matrix is kept as written, because its entries are no list.
    if r"\begin" in text:
        return text
    plain = without_markup(text)
    # "52 (base 8)" becomes 52_{8}.
    answer = BASE_IN_WORDS.sub(r"_{\1}", plain)
    # "(B) 34" becomes 34, but "(B) 34 or (C) 35" names a second option, and is a hedge.
    answer, num_labels = LEADING_OPTION_LABEL.subn("", answer)
    if num_labels and ANY_OPTION_LABEL.search(answer):
        return None
    # A formula without words keeps its font commands and delimiters, unless its base or label was changed.
    if not word_runs(answer):
        return text if answer == plain else answer
    return _commitment_of_prose(answer)


def _commitment_of_prose(text: str) -> str | None:
    """Returns the number, list or words to which an answer with words commits; `None` for a hedge."""
    # Only the sentence with the answer counts, without remarks in brackets and reasons, such as "because 3 > 2".
    answer = without_asides(answer_sentences(text))
    # Words without a number are the answer themselves: "The answer is east" becomes "east".
    if not NUMBER.search(answer):
        return LEAD_IN.sub("", answer)
    # "34 is wrong" commits to nothing.
    if JUDGEMENT.search(answer):
        return None
    # "34, not 35" commits to 34, and "not 34" to nothing.
    before_denial = NEGATION.split(answer)[0]
    return _only_number_or_list(before_denial)


def answer_sentences(text: str) -> str:
    """Returns the sentences that have a number; if any has "answer is", only the rest of the last such sentence."""
    # Of "It has 3 sides. So the answer is 34", the sentences are both, and the answers are [" 34"].
    sentences = [sentence for sentence in SENTENCE_END.split(text) if NUMBER.search(sentence)]
    answers = [ANSWER_IS.sub("", sentence) for sentence in sentences if ANSWER_IS.match(sentence)]
    counted_sentences = answers[-1:] or sentences
    # Without any sentence that counts, all of the text does.
    return ". ".join(counted_sentences) or text


class _Span(NamedTuple):
    """Where a part of a text begins and ends."""

    start: int
    end: int


def _number_spans(text: str) -> list[_Span]:
    """Returns each part between words that has a number."""
    # The parts before, between and after the words: "12 ", " ", " 34 " and "" of "12 boys and 34 girls".
    words = word_runs(text)
    starts = [0, *(word.end() for word in words)]
    ends = [*(word.start() for word in words), len(text)]
    parts = map(_Span, starts, ends)
    return [part for part in parts if NUMBER.search(text, part.start, part.end)]


def _only_number_or_list(text: str) -> str | None:
    """Returns the only number with its unit, or the only list, of a text or of its part after the first verb."""
    spans = _number_spans(text)
    # Of several numbers, only those after the first verb count: 7 of "3 and 4 together are 7".
    if len(spans) > 1 and not _is_list(text, spans):
        text = VERB.split(text, maxsplit=1)[-1]
        spans = _number_spans(text)
    if _is_list(text, spans):
        return text[spans[0].start :]
    # Several numbers with other words between them are a hedge.
    return _number_with_unit(text, spans[0]) if len(spans) == 1 else None


def _number_with_unit(text: str, number: _Span) -> str | None:
    """Returns the number of a text with its unit; `None` if the words around it change or only bound it."""
    start, end = number
    # "at least 34" and "between 3 and 4" give bounds, and "half of 15" changes the value. A changed number before the
    # last verb does not matter, as in "half of the boys are 15".
    after_last_verb = VERB.split(text[:end])[-1] + text[end:]
    if BOUND_WORDS & _lowercase_words(text) or VALUE_CHANGING_WORDS.search(after_last_verb):
        return None
    # A point is removed at the end only, because .5 begins with one.
    formula = text[start:end].rstrip(" ,;:=.").lstrip(" ,;:=")
    # Words after the number are its unit, as in 34 "girls", but "34 is" has a verb there.
    unit = text[end:].strip(" .")
    return f'{formula} "{unit}"' if unit and not VERB.match(unit) else formula


def _is_list(text: str, spans: list[_Span]) -> bool:
    """Returns whether a text has several numbers, at these spans, and no words but "and" or "or" between them."""
    # "or" also joins the members of a list, while the other bounds, as in "3 to 4", make no list. No other words may
    # stand between the first number and the last one.
    if len(spans) < 2 or (BOUND_WORDS - {"or"}) & _lowercase_words(text):
        return False
    return _lowercase_words(text[spans[0].end : spans[-1].start]) <= JOINERS


def _lowercase_words(text: str) -> set[str]:
    return {run[0].lower().rstrip(".") for run in word_runs(text)}


def are_equal_as_words(answer: str, gold: str) -> bool | None:
    r"""Returns whether two answers are the same words; `None` if the answers differ and are not both words.

    Example:
        >>> are_equal_as_words("Even", r"\text{even}"), are_equal_as_words("odd", "even")
        (True, False)
        >>> are_equal_as_words("x", "even")  # is `None`
    """
    # Both \text{even} and "the even" become even.
    answer_words = ARTICLE.sub("", without_markup(answer)).strip(' "')
    gold_words = ARTICLE.sub("", without_markup(gold)).strip(' "')
    if answer_words and answer_words == gold_words:
        return True
    # Only words can differ as words: a gold such as xy may be a product, and a single letter is a variable.
    is_gold_unambiguous = r"\text" in gold or UNAMBIGUOUS_WORD.search(gold_words)
    if not is_gold_unambiguous or len(answer_words) < 2:
        return None
    if not (WORDS_ONLY.fullmatch(answer_words) and WORDS_ONLY.fullmatch(gold_words)):
        return None
    # Capital letters matter in formulas, but not in words.
    return answer_words.casefold() == gold_words.casefold()
