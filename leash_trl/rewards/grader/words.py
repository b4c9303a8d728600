r"""Decides what the words of two answers say about the answers, since neither their values nor math-verify take words
into account.

1. Words that stand on both sides and differ contradict each other. If each answer has a word that the other answer
   lacks, the answers differ, whatever their numbers: "15" equals "15 boys", but "15 girls" does not. Articles,
   prepositions, number words, inflections, British spellings and abbreviations make no difference, nor do
   [`SYNONYMS`]. Proper names contradict only proper names: "Tom is 12" and "12 years old" may both hold. Two units
   that are known are left to [`~leash_trl.rewards.grader.units`], which converts them.
2. A number belongs to its words: "3 boys, 4 girls" equals "4 girls, 3 boys", but not "4 boys, 3 girls". The words
   between two numbers, as in "5 to 12", and the word "respectively" fix the order of the numbers.
"""

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from leash_trl.rewards.grader.commitment import JOINERS, MARKUP, NEGATION, answer_sentences, without_asides, word_runs
from leash_trl.rewards.grader.equality import are_equal, equal_in_any_order, equal_in_order
from leash_trl.rewards.grader.latex import normalized
from leash_trl.rewards.grader.parsing import LIST_SEPARATOR, split_at, without_group_commas
from leash_trl.rewards.grader.rational import Comparison, rationals_equal
from leash_trl.rewards.grader.units import (
    ABBREVIATED_UNITS,
    RATE_RESPELLINGS,
    UNIT_TABLE,
    read_unit,
)


# Words that do not tell one quantity from another. What they do to a number is the matter of `commitment`.
# fmt: off
FILLERS = [
    # articles and pronouns
    "a", "an", "the", "this", "that", "these", "those", "it", "its",
    "there", "they", "them", "he", "him", "she", "we", "us", "you",
    "his", "her", "their", "our", "my", "which", "who", "what", "all",
    "each", "every", "apiece", "both", "still",
    # prepositions, conjunctions and adverbs
    "of", "in", "on", "at", "by", "for", "from", "to", "per", "with",
    "between", "as", "into", "out", "than", "if", "then", "so", "thus",
    "hence", "therefore", "and", "or", "also", "only", "just",
    # verbs
    "is", "are", "was", "were", "be", "been", "has", "have", "had", "do",
    "does", "will", "can", "must", "would", "get", "got", "give", "gave",
    "need", "make", "made", "equal",
    # adjectives and adverbs
    "exactly", "about", "approximately", "different", "distinct", "such",
    "any", "other", "respectively", "correct", "final",
    # what any answer is, and powers of a unit
    "answer", "result", "solution", "value", "number", "amount", "total",
    "unit", "square", "squared", "sq", "cubic", "cubed", "percent", "pct",
    "percentage",
    # number words, and the endings of 1st and 5th
    "zero", "one", "two", "three", "four", "five", "six", "seven",
    "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
    "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
    "hundred", "thousand", "million", "billion", "trillion", "dozen",
    "doz",
    "st", "nd", "rd", "th",
]
# fmt: on
# Words of one meaning, which the first one stands for.
SYNONYMS = [
    # changes and comparisons
    ("increase", "rise", "growth", "raise", "higher"),
    ("decrease", "drop", "fall", "reduction", "reduce", "lower"),
    ("more", "extra", "additional"),
    ("less", "fewer"),
    ("profit", "gain"),
    ("left", "remain", "leftover"),
    ("maximum", "greatest", "largest", "highest"),
    ("minimum", "smallest", "least", "lowest"),
    ("average", "mean"),
    # dimensions
    ("tall", "high", "height"),
    ("wide", "width"),
    ("long", "length"),
    ("deep", "depth"),
    # time
    ("month", "mos"),
    ("old", "age"),
    ("after", "later"),
    ("before", "earlier"),
    # people
    ("person", "people"),
    ("child", "children", "kid"),
    ("man", "men"),
    ("woman", "women"),
    ("student", "pupil"),
    # counting
    ("probability", "chance"),
    ("way", "possibility", "arrangement", "permutation", "combination"),
    ("piece", "pc"),
    # directions
    ("counterclockwise", "anticlockwise"),
    # spellings
    ("gray", "grey"),
    # currencies
    ("euro", "€"),
    ("pound", "£"),
    ("yen", "¥"),
    # plurals
    ("foot", "feet"),
    ("goose", "geese"),
    ("tooth", "teeth"),
    ("mouse", "mice"),
    ("die", "dice"),
    ("ox", "oxen"),
    ("vertex", "vertices"),
    ("index", "indices"),
    ("matrix", "matrices"),
    ("appendix", "appendices"),
    ("axis", "axes"),
    ("radius", "radii"),
    # tenses
    ("sell", "sold"),
    ("spend", "spent"),
    ("buy", "bought"),
    ("pay", "paid"),
    ("eat", "ate", "eaten"),
    ("win", "won"),
    ("lose", "lost"),
]
# fmt: off
# Words that may begin a sentence without an article, as in "Area is 15", but are no names; nor are synonyms and units.
COMMON_WORDS = [
    # sizes
    "distance", "area", "volume", "perimeter", "circumference", "diameter",
    "base", "side", "angle", "slope", "weight", "mass", "time", "speed",
    "size",
    # money
    "cost", "price", "loss", "revenue", "income", "interest", "discount",
    "tax", "tip", "change", "savings",
    # statistics and directions
    "median", "mode", "range", "difference", "sum", "product", "quotient",
    "ratio", "right", "north", "south", "east", "west",
    # groups
    "boy", "girl", "adult", "teacher", "mother", "father", "brother",
    "sister", "everyone",
    # colors
    "red", "blue", "green", "yellow", "orange", "purple", "pink", "brown",
    "black", "white",
]
# fmt: on
# Pattern and replacement; they apply one after another.
RESPELLINGS = [
    (r"\b(?:in the morning|midnight)\b", "am"),
    (r"\b(?:in the (?:afternoon|evening)|noon)\b", "pm"),
    (r"\bo'clock\b|'s\b", ""),
    (r"\brpm\b", "revolutions per minute"),
    (r"\bwpm\b", "words per minute"),
    (r"\bbpm\b", "beats per minute"),
]
PHRASE_RESPELLINGS = RATE_RESPELLINGS + [
    (re.compile(pattern, re.IGNORECASE), replacement) for pattern, replacement in RESPELLINGS
]
# Pattern and replacement at the end of a stem; they apply one after another.
STEM_ENDINGS = [
    (re.compile(r"(?<=i)e[sd]$"), ""),  # puppies, which becomes puppi, as puppy does below
    (re.compile(r"(?<=\w{3})(?:ing|ed|es|e|(?<!s)s)$"), ""),  # girls, but neither "is" nor "class"
    (re.compile(r"(?<=\w{3})our$"), "or"),  # colour
    (re.compile(r"(?<=\w\w[tb])r$"), "er"),  # centr, fibr, the stems of "centre" and "fibre"
    (re.compile(r"(?<=\w{3})([iy])s$"), r"\1z"),  # organis, the stem of "organise"
    (re.compile(r"(?:ie|y)$"), "i"),  # as in pies and puppies
    (re.compile(r"v$"), "f"),  # leav, the stem of "leaves"
    (re.compile(r"(?<=\w\w)([^\W\daeiou])\1$"), r"\1"),  # stopp, the stem of "stopped"
]
MAX_ABBREVIATION_LETTERS = 3
MAX_CHARACTERS = 1_000  # longer texts are not read

# In a marked text, angle quotes enclose words, and double quotes known units, such as "cm".
DOTTED_LETTERS = re.compile(r"(?<![A-Za-z])([A-Za-z])\.([A-Za-z])(?:\.|(?![A-Za-z]))")  # a.m.
LETTER_RUN = re.compile(r"[^\W\d_]+")  # boys
WORD_OR_CURRENCY = re.compile(r"[^\W\d_]|[$€£¥]")
# What stands before a unit: nothing, or a number. No parser reads a unit elsewhere.
TEXT_BEFORE_UNIT = re.compile(r"(?:^|[\d})])\s*(?:square|sq|cubic)?$", re.IGNORECASE)
CURRENCY = re.compile("[€£¥]")
# A letter that names something, as in "Team A" and in degrees Celsius.
LETTER_AS_NAME = re.compile(r"(?:(?<=› )|(?<=\\circ)\s*\}?\s*)([A-Z])(?![\w(^_=+*/-])")
SHORT_WORD_IN_BRACKETS = re.compile(r"(?<=[\d})])\s*\(([A-Za-z]{3})\)")  # 5 (max); longer words are words anywhere
# The brackets of "5 (maximum)", after its word is marked.
WORDS_IN_BRACKETS = re.compile(r"\(((?:[^()\d]*[‹\"])[^()\d]*)\)")
WORD_OR_SIGN = re.compile(r"[^\W\d_]+_?|[$€£¥¢°]")  # `_marked_word` writes a letter that is a name as "A_"
PLURAL_ABBREVIATION = re.compile(r"[^aeiou]+s")  # pts, wks, pcs
NAME_MARK = "*"
SINGULAR_VERB = re.compile(r" (?:is|was|has|had|needs|gets|makes|gives|will|can|must)\b")  # after a subject
UNIT_IN_QUOTES = re.compile('"([^"]*)"')  # "cm"
MARKED_WORD_RUN = re.compile(r"((?:\s*‹[^›]*›)+\s*)")  # a run of words, such as "years older"
MARKED_WORD = re.compile("‹([^›]*)›")  # one word
MARKED_UNIT = re.compile(r'"[^"]*"|\$|\\circ')  # "cm", $, ^\circ


def _stem(word: str) -> str:
    """Returns a word in small letters and American spelling, without the suffix of its plural or tense."""
    word = word.lower()
    # "girls" becomes "girl", "colour" becomes "color", and "stopped" becomes "stopp" and then "stop".
    for pattern, replacement in STEM_ENDINGS:
        word = pattern.sub(replacement, word)
    return word


def _is_same_word(word: str, other: str) -> bool:
    """Returns whether two words are the same, or one of them, such as "yr", abbreviates the other."""
    if word == other:
        return True
    # `_marked_word` writes a letter that is a name as "A_".
    short, long = sorted((word.rstrip("_"), other.rstrip("_")), key=len)
    # "yrs" may be the plural of "yr".
    if PLURAL_ABBREVIATION.fullmatch(short):
        short = short.removesuffix("s")
    if len(short) > MAX_ABBREVIATION_LETTERS:
        return False
    # The letters of "yr" stand in "year" in the same order, from the first letter on.
    letters_in_order = ".*".join(map(re.escape, short))
    return re.match(letters_in_order, long) is not None


# The meaning of a word by its stem; a filler means nothing. An abbreviation such as "min" may mean a unit or another
# word, see `_is_same_word`.
MEANINGS: dict[str, str] = {}
for _dimension, _size, unit_names in UNIT_TABLE:
    unit_word = _stem(max(unit_names, key=len))
    other_names = [name for name in unit_names if not _is_same_word(name, unit_word)]
    plurals = [f"{name}s" for name in other_names if len(name) > 1]  # lbs
    MEANINGS |= dict.fromkeys(map(_stem, other_names + plurals), unit_word)
MEANINGS |= {_stem(word): _stem(word) for word in COMMON_WORDS}
for synonyms in SYNONYMS:
    MEANINGS |= dict.fromkeys(map(_stem, synonyms), _stem(synonyms[0]))
MEANINGS |= dict.fromkeys(map(_stem, FILLERS), "")


def _meaning(word: str) -> str:
    """Returns the word that stands for all of its synonyms; empty text if it tells no quantity from another."""
    stem = _stem(word)
    # Words without an entry mean themselves. Those in other alphabets are not compared, as they have no stem here.
    meaning_of_others = stem if stem.isascii() else ""
    # The meaning of "kids" is "child", and that of "the" is empty text.
    return MEANINGS.get(stem, meaning_of_others)


def _meanings(words: Iterable[str]) -> set[str]:
    """Returns the meanings of words; an abbreviated unit, such as "mph", has those of its units."""
    text = " ".join(ABBREVIATED_UNITS.get(word.lower(), word) for word in words)
    return {_meaning(word) for word in WORD_OR_SIGN.findall(text)} - {""}


@dataclass(frozen=True)
class Item:
    """An item of an answer's list: its formulas, with their known units, and the words that stand beside them.

    Args:
        meanings (`set[str]`): Meanings of the words, such as `tom` and `appl`.
        units (`set[str]`): Meanings of the words and signs of the units, such as `cm`.
        proper_names (`set[str]`): Those of the meanings that are proper names, such as `tom`.
        formulas (`list[str]`): Formulas in the order of the text.
        words_between (`list[str]`): Words between each formula and the next one, such as `to`.
    """

    meanings: set[str]
    units: set[str]
    proper_names: set[str]
    formulas: list[str]
    words_between: list[str]

    def contradicts(self, other: "Item") -> bool:
        """Returns whether each of two items has a word that the other one lacks.

        A proper name contradicts only proper names: "Tom is 12" and "12 years old" may both hold.
        """
        words = self.meanings  # such as {"tom", "appl"}
        other_words = other.meanings
        # Two units, such as km and m, may be equal after they are converted, so they do not contradict each other. If
        # only one answer has a unit, its unit counts as a word.
        if not (self.units and other.units):
            words = words | self.units
            other_words = other_words | other.units
        only_here = words - other_words
        only_there = other_words - words
        # A proper name may contradict another one, but no other word.
        if not (self.proper_names and other.proper_names):
            only_here -= self.proper_names
            only_there -= other.proper_names
        # Each side must lack a word of the other. An abbreviation on one side may stand for a word of the other one.
        return _any_is_missing(only_here, among=only_there) and _any_is_missing(only_there, among=only_here)


def _any_is_missing(words: set[str], among: set[str]) -> bool:
    """Returns whether any of the words has neither itself nor its abbreviation among other words."""
    return any(not any(_is_same_word(word, other) for other in among) for word in words)


def _marked(text: str) -> str:
    """Returns a normalized text with every word in angle quotes, and every known unit in double quotes.

    Example:
        >>> _marked("Tom has 12 apples"), _marked("option A"), _marked('15 "km"')
        ('‹Tom*› ‹has› 12 ‹apples›', '‹option› ‹A_› ', '15 "km"')
    """
    # a.m. becomes am.
    text = DOTTED_LETTERS.sub(r"\1\2", text)
    # 5 (max) becomes 5 ("max"), since a run of three letters such as max may be a product without quotes.
    text = SHORT_WORD_IN_BRACKETS.sub(r' ("\1")', text)
    # `normalized` puts the words of \text{...} in double quotes, so every second piece stood in quotes.
    pieces = text.split('"')
    for index, piece in enumerate(pieces):
        is_quoted = index % 2 == 1
        pieces[index] = _with_marked_quotation(piece) if is_quoted else _with_marked_words(piece)
    marked = " ".join("".join(pieces).split())
    # The sign of 5€ becomes a word. Angle quotes enclose each word, and double quotes each unit.
    marked = CURRENCY.sub(r" ‹\g<0>› ", marked)
    # A letter after a marked word, as in "option A", becomes a name, which ends with an underscore.
    marked = LETTER_AS_NAME.sub(r"‹\1_› ", marked)
    # A unit in brackets, as in 12 ("kg"), becomes a word without brackets.
    return WORDS_IN_BRACKETS.sub(lambda aside: UNIT_IN_QUOTES.sub(r"‹\1›", aside[1]), marked)


def _with_marked_quotation(text: str) -> str:
    """Marks what stood in quotes: km is a unit, and boys is a word."""
    return f' "{text.strip()}" ' if read_unit(text) else LETTER_RUN.sub(_marked_word, text)


def _with_marked_words(text: str) -> str:
    """Marks the words of a text that stood outside of quotes."""
    # From the last word on, because a mark moves only the words after it.
    for run in reversed(word_runs(text)):
        text = text[: run.start()] + _marked_word(run) + text[run.end() :]
    return text


def _marked_word(run: re.Match[str]) -> str:
    """Returns a word with its marks; a capital letter is a name, except for the article at the beginning."""
    word = run[0]
    before = run.string[: run.start()].rstrip()
    # "and" and "or" stay unmarked, because the list is split at them later.
    if word.lower() in JOINERS:
        return f" {word} "
    # A unit follows a number or begins the text. A word such as "percent" has no meaning, and is no unit here.
    if read_unit(word) and _meaning(word) and TEXT_BEFORE_UNIT.search(before):
        return f' "{word}" '
    # The A of "Team A" is a name, while a text may begin with the article A or with the pronoun I.
    if len(word) == 1 and word.isupper() and (before or word not in "AI"):
        word += "_"
    elif _is_proper_name(run):
        word += NAME_MARK
    return f" ‹{word}› "


def _is_proper_name(run: re.Match[str]) -> bool:
    """Returns whether a word with a capital letter stands inside a sentence, or begins it as the subject of a verb."""
    # A name is a capital letter before small ones, and no unit, no word with a synonym, and no word such as "area".
    word = run[0]
    is_capitalized = word[0].isupper() and word[1:].islower()
    if not is_capitalized or _stem(word) in MEANINGS:
        return False
    # Inside a sentence, a small letter stands before the word. "the number of Apples" has a plural, which is no name.
    is_inside = run.string[: run.start()].rstrip()[-1:].islower()
    if is_inside:
        return not word.endswith("s")
    # "Tom has 12 apples" begins with a name, and "Apples are 12" does not.
    return SINGULAR_VERB.match(run.string, run.end()) is not None


@functools.lru_cache(maxsize=4096)
def _read_items(text: str) -> list[Item]:
    """Returns the items with formulas of the list that a normalized text is, or its only item."""
    # Of "3 boys and 4 girls", the parts are "3 boys" and "4 girls", with both words in angle quotes.
    parts = split_at(_marked(without_group_commas(text)), LIST_SEPARATOR)
    items = [_read_item(part) for part in parts]
    return [item for item in items if item.formulas]


@functools.lru_cache(maxsize=4096)
def _as_one_item(text: str) -> Item:
    """Returns all words of an answer as one item, without its remarks, its reasons and what it denies."""
    before_denial = NEGATION.split(without_asides(answer_sentences(text)))[0]
    return _read_item(_marked(without_group_commas(before_denial)))


def _read_item(text: str) -> Item:
    """Returns an item of a marked text."""
    # Words stand in angle quotes, proper names with an asterisk, and units in double quotes. Of "Tom* has 12 apples",
    # the words are ["Tom*", "has", "apples"], and their meanings {"tom", "appl"}.
    words = MARKED_WORD.findall(text)
    units = [unit.strip('"').replace(r"\circ", "°") for unit in MARKED_UNIT.findall(text)]
    # The pattern has a group, so every second part consists of words, such as "to" of "5 to 12".
    parts = MARKED_WORD_RUN.split(text)
    words_before_parts = ["", *parts[1::2]]
    formulas = []
    words_before = []
    for words_before_part, part in zip(words_before_parts, parts[::2], strict=True):
        if re.search(r"\w", part):
            formulas.append(part.strip(" =:.,;"))
            words_before.append(words_before_part.strip().lower())
    names = [word for word in words if word.endswith(NAME_MARK)]
    return Item(_meanings(words), _meanings(units), _meanings(names), formulas, words_between=words_before[1:])


def words_verdict(answer: str, gold: str, compare: Comparison = rationals_equal) -> bool | None:
    r"""Returns `False` if the words of two answers contradict each other. If words stand beside each of several
    numbers, returns whether the numbers beside the same words are equal. Otherwise returns `None`.

    Example:
        >>> words_verdict("15 girls", "15 boys"), words_verdict("3 boys, 4 girls", "4 girls, 3 boys")
        (False, True)
        >>> words_verdict("So there are 15.", "15 boys")
    """
    # If one answer has no words, nothing contradicts the words of the other one: "15" equals "15 boys".
    if not (_has_readable_words(answer) and _has_readable_words(gold)):
        return None
    answer = _respelled(answer)
    gold = _respelled(gold)
    # First all words of each answer are compared, then those of each item of their lists.
    if _as_one_item(answer).contradicts(_as_one_item(gold)):
        return False
    return _bound_numbers_verdict(answer, gold, same=functools.partial(_same_item, compare=compare))


def _bound_numbers_verdict(answer: str, gold: str, same: Comparison) -> bool | None:
    """Returns whether numbers that words bind to a place or to a thing are equal; `None` for unbound numbers."""
    items = _read_items(answer)
    gold_items = _read_items(gold)
    if not items or len(items) != len(gold_items):
        return None
    if "respectively" in answer and "respectively" in gold:
        return equal_in_order(items, gold_items, same)
    # The word between the numbers of "5 to 12" fixes their order. A single number is unbound.
    if len(items) == 1:
        words_between = items[0].words_between
        is_order_fixed = words_between and words_between == gold_items[0].words_between
        return same(items[0], gold_items[0]) if is_order_fixed else None
    # "3 boys, 4 girls" binds each number to a word, while "3, 4" is left to the comparison of values.
    have_words = all(item.meanings or item.units for item in items + gold_items)
    return equal_in_any_order(items, gold_items, same) if have_words else None


def _has_readable_words(text: str) -> bool:
    """Returns whether a text has words to compare; the entries of a matrix are no quantities with words."""
    return len(text) <= MAX_CHARACTERS and r"\begin" not in text and WORD_OR_CURRENCY.search(text) is not None


def _respelled(text: str) -> str:
    """Returns a normalized text in which phrases of one meaning are written alike."""
    # "7:05 in the morning" becomes "7:05 am", and "60 wpm" becomes "60 words per minute".
    for pattern, replacement in PHRASE_RESPELLINGS:
        text = pattern.sub(replacement, text)
    return normalized(MARKUP.sub("", text))


def _same_item(item: Item, gold: Item, compare: Comparison) -> bool | None:
    """Returns whether two items have the same formulas, and words that do not contradict each other."""
    if item.contradicts(gold):
        return False
    return equal_in_order(item.formulas, gold.formulas, same=functools.partial(are_equal, compare=compare))
