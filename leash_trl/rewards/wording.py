r"""Finds what an answer with words in it commits to: one number, one list, or nothing.

1. A remark in brackets, a reason ("because ...") and a later denial ("34, not 35") do not count.
2. If one number remains, it is the answer, and the words after it are its unit ("So there are 34 girls"). A denied
   number ("not 34"), or one that is only bounded ("34 or more", "between 3 and 4"), is not an answer.
3. Of several numbers, those after "answer is", or after the first verb, count. If only commas, "and" or "or" join
   them, they are a list, which equals no single number. Other words between them make a hedge: no answer.
"""

import re

from leash_trl.rewards.units import unit_of


WRAPPER = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|normal)?|math(?:rm|bf|sf|it|tt)|mbox|textnormal|operatorname|boldsymbol|underline|emph"
    r"|boxed|fbox)\s*\{([^{}]*)\}"
)
MARKUP = re.compile(r"\*\*|`|(?<!\\)\$|\\[()\[\]]|(?<![\w}])_(?=[^_]+_$)|(?<=\w)_$|^\*(?=.*\*$)|(?<=.)\*$")
SPACING = re.compile(r"\\[,;: ]|\\q?quad(?![A-Za-z])|~")
LABEL = re.compile(r"\s*(?:\(([A-J])\)|([A-J])[.)])\s*(?=\S)(?![^A-Za-z0-9]*$)")
ANY_LABEL = re.compile(r"\([A-J]\)|(?<![A-Za-z\\])[A-J][.):](?=\s)")
BASE = re.compile(r"\s*\(?\bbase[ -]?(\w+)\)?", re.IGNORECASE)
REMARK = re.compile(r"(?i)\((?=[^()]*[^\W\d_]{2})(?![^()]*\\)(?!\s*(?:or|maybe|perhaps|possibly)\b)[^()]*\)")
ALTERNATIVE_REMARK = re.compile(r"\(((?:or|maybe|perhaps|possibly)\b[^()]*)\)", re.IGNORECASE)
NEGATION = re.compile(
    r"(?i)[,;.]?\s*\b(?:(?:and|but)\s+)?(?:not|never|cannot|isn't|rather than|instead of|nicht|kein|pas|no|non|не)\b"
    r"|[,;]?\s*[不没非]"
)
SENTENCE = re.compile(r"(?<=[\w)}\]])\.\s+(?=[A-Z<])")
REASON = re.compile(r"[,;.]?\s*\b(?:because|since|as|where|which|so that|weil|car|porque)\b", re.IGNORECASE)
ANSWER_IS = re.compile(r".*\banswer\s+(?:is|=)", re.IGNORECASE | re.DOTALL)
VERB = re.compile(r"\b(?:is|are|was|were|be|equals?|has|have|gives?|get)\b", re.IGNORECASE)
WORD = re.compile(
    r"(?<![\\A-Za-z])(?<!_\{)(?<!_\{ )[^\W\d_][^\W\d_'.]*[^\W\d_]\.?(?:\s*\^\s*\{?[23]\}?)?"
    r"|[^\W\d_A-Za-z\u0370-\u03ff]"
)
NUMBER = re.compile(r"\d|\\(?:pi|sqrt|infty)(?![A-Za-z])")
JOINERS = frozenset(["and", "or", "und", "oder", "et", "ou", "y", "o", "e", "и", "или", "和", "或", "和", "及", "与"])
BOUNDED = "between from least most more less fewer over under than up maybe or to zwischen entre между tra"
BOUNDS = frozenset(re.findall(r"\w+", BOUNDED))
LIST_GOES_ON = re.compile(r"[,;]\s*(?:\.\.|…|\\[lc]?dots)")
GOES_ON = re.compile(r"[,;\d]\s*(?:\.\.|…|\\[lc]?dots)")
# Words beside a number that compute with it, or count in parts; before it they matter from the last verb on
CHANGED = re.compile(
    r"(?is)\b(?:negative|minus|half|twice|double|triple|(?:root|square|cube|multiple)s? of|below|above|except)\b.*\d"
    r"|\d\W*(?:squared|cubed|factorial|hal(?:f|ves)|thirds?|(?:four|fif|six|seven|eigh|nin|ten|twelf|hundred)ths?)\b"
    r"|\d.*\b(?:plus|minus|below|above|doubled|tripled|halved|divided)\b"
)
JUDGED = re.compile(
    r"(?i)\b(?:wrong|incorrect|false|invalid|impossible|extraneous|rejected)\b"
    r"|\bnot\s+(?:the\s+)?(?:correct|right|true|valid|possible|answer)\b"
)
PRONOUNS = re.compile(
    r"(?i)\s*(?:(?:so|thus|hence|therefore),?\s+)?(?:it|this|that|the (?:final )?(?:correct )?answer)\s+"
    r"(?:is|must be)\s*:?\s+"
)


def flat(text: str) -> str:
    r"""A text without font commands, math delimiters and Markdown's emphasis.

    Example:
        >>> flat(r"**12**\text{ boys}")
        '12 boys'
    """
    for _ in range(3):
        text = WRAPPER.sub(r" \1 ", text)
    text = MARKUP.sub("", SPACING.sub(" ", text.strip()).strip())
    return " ".join(text.replace("per cent", "percent").split()).rstrip(" .").lstrip()


def is_word(run: str) -> bool:
    """Whether letters in a row are a word, and not a product such as `xy`."""
    run = re.sub(r"[\s^{}\d]+$", "", run).rstrip(".").lower()
    is_known = run in JOINERS | BOUNDS | {"of", "out", "sq"} or unit_of(run) or NEGATION.fullmatch(run)
    return bool(len(run) > 3 or not run.isascii() or "." in run or is_known)


def _words(text: str) -> list[re.Match[str]]:
    runs = [*WORD.finditer(text)]
    is_prose = any(len(run[0]) > 3 and run[0].isalpha() and not unit_of(run[0]) for run in runs)
    return [run for run in runs if is_prose or is_word(run[0]) or VERB.fullmatch(run[0])]


def commitment(text: str) -> str | None:
    r"""The formula, list or word that an answer commits to, by the rule at the head of this file; `None` for a hedge.

    Example:
        >>> commitment(r"34 \text{ girls, not } 35"), commitment("12 boys and 34 girls"), commitment("x = 3")
        ('34 "girls"', None, 'x = 3')
    """
    if r"\begin" in text:
        return text
    if LIST_GOES_ON.search(text):
        return text
    if GOES_ON.search(text):
        return None
    said = BASE.sub(r"_{\1}", flat(text))
    if label := LABEL.match(said):
        said = said[label.end() :]
        if ANY_LABEL.search(said):
            return None
    if not _words(said):
        return text if said == flat(text) else said
    sentences = [part for part in SENTENCE.split(said) if NUMBER.search(part)] or [said]
    said = ". ".join([part for part in sentences if ANSWER_IS.match(part)][-1:] or sentences)
    said = ALTERNATIVE_REMARK.sub(r" \1 ", said)
    said = REMARK.sub(lambda it: it[0] if JUDGED.search(it[0]) and not NUMBER.search(it[0]) else "", said)
    said = REASON.split(said, maxsplit=1)[0] or said
    if JUDGED.search(said) and NUMBER.search(said):
        return None
    if (denied := NEGATION.search(said)) and NUMBER.search(said):
        said = said[: denied.start()]
        if not NUMBER.search(said):
            return None
    return _stated(said)


def _stated(said: str, is_rest: bool = False) -> str | None:
    words = _words(said)
    ends = [0, *(word.end() for word in words)]
    starts = [*(word.start() for word in words), len(said)]
    segments = [said[end:start] for end, start in zip(ends, starts, strict=True)]
    numbered = [index for index, segment in enumerate(segments) if NUMBER.search(segment)]
    spoken = [word[0].lower().rstrip(".") for word in words]
    if not numbered:
        return PRONOUNS.sub("", said)
    if len(numbered) > 1:
        if set(spoken[numbered[0] : numbered[-1]]) <= JOINERS and not (BOUNDS - {"or"}) & set(spoken):
            return said[ends[numbered[0]] :]
        start = ANSWER_IS.match(said) or VERB.search(said)
        if start is None or is_rest or not NUMBER.search(said, start.end()):
            return None
        return _stated(said[start.end() :], is_rest=True)
    place = numbered[0]
    if BOUNDS & set(spoken) or CHANGED.search(VERB.split(said[: starts[place]])[-1] + said[starts[place] :]):
        return None
    formula = segments[place].rstrip(" ,;:=.").lstrip(" ,;:=")
    unit = said[starts[place] :]
    return f'{formula} "{unit.strip(" .")}"' if unit and not VERB.match(unit) else formula


SETS_OF_WORDS = {"integer": "Z", "real": "R", "natural": "N"}
RANGE = re.compile(
    r"\s*(?:[,;(]|\b(?:for|where|with)\b|\\forall)(?=.*(?:all|any|each|every|integer|real|natural|\\in))"
    r"[,;(\s]*(?:for|where|with|\\forall)?\s*(?:(?:all|any|each|every)\s+)?"
    r"(?:(integer|real|natural)s?\s+(?:numbers?\s+)?)?(?P<letter>[A-Za-z])"
    r"(?:\s*\\in\s*\\mathbb\s*\{?([A-Z])\}?|\s+is\s+an?\s+(integer|real|natural)(?:\s+number)?)?\)?$"
)
COUNTER = re.compile(r"(?<![\\A-Za-z])[k-n](?![A-Za-z])")
PERIOD = re.compile(r"\\pi(?![A-Za-z])|\\circ")


def _without_range(text: str) -> tuple[str, str, str]:
    r"""A statement, its letter for any integer, and the set that its letter ranges over; empty if it has none.

    The letter is named by the range, as in `3k, k \in \mathbb{Z}`, or it is the only one of k, l, m, n in a formula
    with a period, as in `\frac{\pi}{2} + k\pi`.
    """
    said = flat(text)
    found = RANGE.search(said)
    if found and re.search(rf"(?<![\\A-Za-z]){found['letter']}(?![A-Za-z])", said[: found.start()]):
        kind = found[1] or found[3] or found[4] or ""
        domain = SETS_OF_WORDS.get(kind, kind)
        text, letter = said[: found.start()], found["letter"] if domain == "Z" else ""
    else:
        domain, letter = "", ""
    counters = set(COUNTER.findall(text))
    if not letter and PERIOD.search(text) and len(counters) == 1:
        letter = counters.pop()
    return text, letter, domain


def alike(answer: str, gold: str) -> tuple[str, str] | None:
    r"""Two statements without the ranges of their letters, where a letter for any integer has the gold's name.

    `None` if their letters range over different sets, so that they differ.

    Example:
        >>> alike(r"k\pi", r"n\pi"), alike(r"2t \text{ for all } t", "2t"), alike("2k", "2n")
        (('n\\pi', 'n\\pi'), ('2t', '2t'), ('2k', '2n'))
    """
    said, letter, domain = _without_range(answer)
    expected, gold_letter, gold_domain = _without_range(gold)
    if domain and gold_domain and domain != gold_domain:
        return None
    if letter and gold_letter and gold_letter not in COUNTER.findall(said):
        said = re.sub(rf"(?<![\\A-Za-z]){letter}(?![A-Za-z])", gold_letter, said)
    return said, expected


TEXT_GOLD = re.compile(r"[^\W\d_]{4}|^(?:[A-Z][a-z]+|yes|no)$")  # xyz and AB are products
NO_SOLUTION = re.compile(
    r"(?i)(?:there (?:is|are) )?no (?:real )?solutions?(?: exists?)?|(?:the )?empty set|\\emptyset|\\varnothing"
    r"|\\(?:left\\)?\{ ?\\(?:right\\)?\}"
)
ARTICLE = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)


def words_verdict(answer: str, gold: str) -> bool | None:
    r"""Whether two answers are the same words; `None` unless both are words.

    Example:
        >>> words_verdict("Even", r"\text{even}"), words_verdict("odd", "even"), words_verdict("x", "even")
        (True, False, None)
    """
    said, expected = (ARTICLE.sub("", flat(text)).strip(' ."') for text in (answer, gold))
    if said and (said == expected or (NO_SOLUTION.fullmatch(said) and NO_SOLUTION.fullmatch(expected))):
        return True
    one, other = said.casefold(), expected.casefold()
    is_text = (r"\text" in gold or TEXT_GOLD.search(expected)) and len(one) > 1 and not NUMBER.search(answer + gold)
    is_words = is_text and all(re.fullmatch(r"[^\W\d_]+(?:[ '.-]+[^\W\d_]+)*", text) for text in (one, other))
    return one == other if is_words else None
