r"""Finds the commitment of an answer with words: one number, one list, or nothing.

1. Remarks in brackets, reasons ("because ...") and later denials ("34, not 35") do not count.
2. If one number remains, this number is the answer, and the words after the number are its unit ("So there are 34
   girls"). A denied number ("not 34") or a bounded number ("34 or more", "between 3 and 4") is not an answer.
3. Of several numbers, only those after "answer is", or after the first verb, count. If only commas, "and" or "or" join
   the numbers, they form a list, which equals no single number. Other words between numbers make a hedge: no answer.
"""

import re

from leash_trl.rewards.grader.latex import UPRIGHT
from leash_trl.rewards.grader.units import unit_of


WRAPPER = re.compile(rf"(?:{UPRIGHT}|\\(?:boxed|fbox)\s*)\{{([^{{}}]*)\}}")
MARKUP = re.compile(r"\*\*|`|(?<!\\)\$|\\[()\[\]]|(?<![\w}])_(?=[^_]+_$)|(?<=\w)_$|^\*(?=.*\*$)|(?<=.)\*$")
FULL_STOP = re.compile(r"(?<!\.)\.$")  # dots say that a list goes on
SPACING = re.compile(r"\\[,;: ]|\\q?quad(?![A-Za-z])|~")
LABEL = re.compile(r"^\s*(?:\([A-J]\)|[A-J][.)])\s*(?=\S)(?![^A-Za-z0-9]*$)")
ANY_LABEL = re.compile(r"\([A-J]\)|(?<![A-Za-z\\])[A-J][.):](?=\s)")
HEAD = re.compile(
    r"(?i)(?:(?:so|thus|hence|therefore),?\s+)?(?:it|this|(?:the )?(?:(?:final|correct|right) )*(?:answer|option))"
    r"\s+(?:is|must be)\s*:?\s+"
)
JUDGED = re.compile(
    r"(?i)\b(?:wrong|incorrect|false|invalid|impossible|extraneous|rejected)\b"
    r"|\bnot\s+(?:the\s+)?(?:correct|right|true|valid|possible|answer)\b"
)
REMARK = re.compile(
    r"(?i)\((?=[^()]*[^\W\d_]{2})(?![^()]*\\)(?!\s*(?:or|maybe|perhaps|possibly)\b)"
    rf"(?!(?-i:[^()\dA-J])*(?:{JUDGED.pattern.removeprefix('(?i)')})[^()\d]*\))[^()]*\)"
)
REASON = re.compile(r"(?i)[,;.]?\s*\b(?:because|since|as|where|which|so that)\b.*", re.DOTALL)
NEGATION = re.compile(
    r"(?i)[,;.]?\s*(?:\b(?:(?:and|but) )?(?:not|never|cannot|isn't|rather than|instead of|no|nicht|kein|pas|не)\b|不)"
)
SENTENCE = re.compile(r"(?<=[\w)}\]])\.\s+(?=[A-Z<])")
ANSWER_IS = re.compile(r".*\banswer\s+(?:is|=)", re.IGNORECASE | re.DOTALL)
VERB = re.compile(r"\b(?:is|are|was|were|be|equals?|has|have|gives?|get)\b", re.IGNORECASE)
WORD = re.compile(
    r"(?<![\\A-Za-z])(?<!_\{)(?<!_\{ )[^\W\d_][^\W\d_'.]*[^\W\d_]\.?(?:\s*\^\s*\{?[23]\}?)?"
    r"|[^\W\d_A-Za-z\u0370-\u03ff]"
)
BASE = re.compile(r"\s*\(?\bbase[ -]?(\w+)\)?", re.IGNORECASE)
NUMBER = re.compile(r"\d|\\(?:pi|sqrt|infty)(?![A-Za-z])")
JOINERS = frozenset(["and", "or", "和", "或"])
BOUNDS = frozenset(re.findall(r"\w+", "between from least most more less fewer over under than up maybe or to"))
# Words that change the value of the number beside them; words before the number matter only after the last verb.
CHANGED = re.compile(
    r"(?is)\b(?:negative|minus|half|twice|double|triple|(?:root|square|cube|multiple)s? of|below|above|except)\b.*\d"
    r"|\d\W*(?:squared|cubed|factorial|hal(?:f|ves)|thirds?|(?:four|fif|six|seven|eigh|nin|ten|twelf|hundred)ths?)\b"
    r"|\d.*\b(?:plus|minus|below|above|doubled|tripled|halved|divided)\b"
)


def flat(text: str) -> str:
    r"""Returns a text without font commands, math delimiters and Markdown's emphasis.

    Example:
        >>> flat(r"**12**\text{ boys}")
        '12 boys'
    """
    for _ in range(3):
        text = WRAPPER.sub(r" \1 ", text)
    text = MARKUP.sub("", SPACING.sub(" ", text.strip()).strip())
    return FULL_STOP.sub("", " ".join(text.replace("per cent", "percent").split()))


def is_word(run: str) -> bool:
    """Returns whether a run of letters is a word, rather than a product such as `xy`."""
    run = re.sub(r"[\s^{}\d]+$", "", run).rstrip(".").lower()
    is_known = run in JOINERS | BOUNDS | {"of", "out", "per", "sq", "no", "not"} or unit_of(run)
    return bool(len(run) > 3 or not run.isascii() or "." in run or is_known)


def word_runs(text: str) -> list[re.Match[str]]:
    """Returns the runs of letters in a text that are words."""
    runs = [*WORD.finditer(text)]
    is_prose = any(len(run[0]) > 3 and run[0].isalpha() and not unit_of(run[0]) for run in runs)
    return [run for run in runs if is_prose or is_word(run[0]) or VERB.fullmatch(run[0])]


def without_asides(said: str) -> str:
    """Returns a text without remarks in brackets and without reasons."""
    said = REMARK.sub("", said)
    return REASON.sub("", said) or said


def commitment(text: str) -> str | None:
    r"""Returns the formula, list or word to which an answer commits, by this module's rule; `None` for a hedge.

    Example:
        >>> commitment(r"34 \text{ girls, not } 35"), commitment("12 boys and 34 girls"), commitment("x = 3")
        ('34 "girls"', None, 'x = 3')
    """
    if r"\begin" in text:  # a matrix is kept as written
        return text
    said = BASE.sub(r"_{\1}", flat(text))
    said, labels = LABEL.subn("", said)
    if labels and ANY_LABEL.search(said):
        return None
    if not word_runs(said):
        return text if said == flat(text) else said
    said = without_asides(statement(said))
    if not NUMBER.search(said):
        return HEAD.sub("", said)
    said = NEGATION.split(said)[0] if not JUDGED.search(said) else ""
    return _only_number(said) if NUMBER.search(said) else None


def statement(said: str) -> str:
    """Returns the sentences that have a number; if any has "answer is", only the rest of the last such sentence."""
    sentences = [sentence for sentence in SENTENCE.split(said) if NUMBER.search(sentence)]
    answers = [ANSWER_IS.sub("", sentence) for sentence in sentences if ANSWER_IS.match(sentence)]
    return ". ".join(answers[-1:] or sentences) or said


def _formulas(said: str) -> list[tuple[int, int]]:
    """Returns the start and the end of each part between words that has a number."""
    words = word_runs(said)
    starts, ends = [0, *(word.end() for word in words)], [*(word.start() for word in words), len(said)]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if NUMBER.search(said, start, end)]


def _only_number(said: str) -> str | None:
    """Returns the only number with its unit, or the only list, of a text or of its part after the first verb."""
    formulas = _formulas(said)
    if len(formulas) > 1 and not _is_list(said, formulas):
        verb = VERB.search(said)
        said = said[verb.end() :] if verb else said
        formulas = _formulas(said)
    if _is_list(said, formulas):
        return said[formulas[0][0] :]
    if len(formulas) != 1:
        return None
    start, end = formulas[0]
    if BOUNDS & _spoken(said) or CHANGED.search(VERB.split(said[:end])[-1] + said[end:]):
        return None
    formula, unit = said[start:end].rstrip(" ,;:=.").lstrip(" ,;:="), said[end:].strip(" .")
    return f'{formula} "{unit}"' if unit and not VERB.match(unit) else formula


def _is_list(said: str, formulas: list[tuple[int, int]]) -> bool:
    """Returns whether a text has several formulas and no words but "and" or "or" between them."""
    if len(formulas) < 2 or (BOUNDS - {"or"}) & _spoken(said):
        return False
    return _spoken(said[formulas[0][1] : formulas[-1][0]]) <= JOINERS


def _spoken(said: str) -> set[str]:
    return {word[0].lower().rstrip(".") for word in word_runs(said)}


TEXT_GOLD = re.compile(r"[^\W\d_]{4}|^(?:[A-Z][a-z]+|yes|no)$")  # `xyz` and `AB` are products, not words
ARTICLE = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)


def same_words(answer: str, gold: str) -> bool | None:
    r"""Returns whether two answers are the same words; `None` if the answers differ and are not both words.

    Example:
        >>> same_words("Even", r"\text{even}"), same_words("odd", "even"), same_words("x", "even")
        (True, False, None)
    """
    said, expected = (ARTICLE.sub("", flat(text)).strip(' "') for text in (answer, gold))
    if said and said == expected:
        return True
    one, other = said.casefold(), expected.casefold()
    is_text = (r"\text" in gold or TEXT_GOLD.search(expected)) and len(one) > 1 and not NUMBER.search(answer + gold)
    is_words = is_text and all(re.fullmatch(r"[^\W\d_]+(?:[ '.-]+[^\W\d_]+)*", text) for text in (one, other))
    return one == other if is_words else None
