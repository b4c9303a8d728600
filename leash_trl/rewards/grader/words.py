r"""Decides what the words of two answers say about them; neither their values nor math-verify carries words.

1. Words that stand on both sides and differ contradict each other. If each answer has a word that the other answer
   lacks, the answers differ, whatever their numbers: "15" equals "15 boys", but "15 girls" does not. Articles,
   prepositions, number words, inflections and abbreviations make no difference, nor do [`SYNONYMS`]. Two units that
   are known are left to [`~leash_trl.rewards.grader.units`], which converts them.
2. A number belongs to its words: "3 boys, 4 girls" equals "4 girls, 3 boys", but not "4 boys, 3 girls". The words
   between two numbers, as in "5 to 12", and the word "respectively" fix the order of the numbers.
"""

import functools
import re
from dataclasses import dataclass

from leash_trl.rewards.grader.commitment import JOINERS, MARKUP, NEGATION, statement, without_asides, word_runs
from leash_trl.rewards.grader.equality import all_equal, are_equal, members_match
from leash_trl.rewards.grader.latex import normalized
from leash_trl.rewards.grader.parsing import GROUPED, LIST_MARK, split_at
from leash_trl.rewards.grader.rational import rationals_equal
from leash_trl.rewards.grader.units import Same, read_unit, unit_of


# Words that do not tell one quantity from another. What they do to a number is the matter of `commitment`.
FILLERS = """
    a an the this that these those it its there they he she we you his her their our my which who what all each both
    of in on at by for from to per with between as into out than if then so thus hence therefore and or also only just
    is are was were be been has have had do does will can must would get got give need make equal
    exactly about approximately different distinct such any other respectively correct final
    answer result solution value number amount total unit square squared sq cubic cubed percent pct percentage
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand million billion trillion
    dozen st nd rd th
"""
# Words of one meaning.
SYNONYMS = [
    ("increase", "rise", "growth"),
    ("decrease", "drop", "fall", "reduction"),
    ("profit", "gain"),
    ("left", "remain"),
    ("maximum", "greatest", "largest", "highest"),
    ("minimum", "smallest", "least", "lowest"),
    ("person", "people"),
    ("child", "children"),
    ("man", "men"),
    ("woman", "women"),
    ("probability", "chance"),
    ("way", "possibility", "arrangement"),
    ("counterclockwise", "anticlockwise"),
    ("euro", "€"),
    ("pound", "£"),
    ("yen", "¥"),
]
SUFFIXES = ("ing", "ed", "es", "s", "e")
MAX_ABBREVIATION = 3  # letters

MAX_LENGTH = 1_000  # characters; longer texts are not read
DOTTED = re.compile(r"(?<![A-Za-z])([A-Za-z])\.([A-Za-z])(?:\.|(?![A-Za-z]))")  # a.m.
LETTERS = re.compile(r"[^\W\d_]+")
WORDED = re.compile(r"[^\W\d_]|[$€£¥]")
BEFORE_UNIT = re.compile(r"(?:^|[\d})])\s*(?:square|sq|cubic)?$", re.IGNORECASE)  # elsewhere no parser reads a unit
CURRENCY = re.compile("[€£¥]")
# A letter that names something, as in "Team A" and in degrees Celsius.
LETTER_NAME = re.compile(r"(?:(?<=› )|(?<=\\circ)\s*\}?\s*)([A-Z])(?![\w(^_=+*/-])")
SHORT_ASIDE = re.compile(r"(?<=[\d})])\s*\(([A-Za-z]{3})\)")  # longer words are words anywhere
ASIDE = re.compile(r"\(((?:[^()\d]*[‹\"])[^()\d]*)\)")  # 5 (maximum)
MARKS = re.compile(r"((?:\s*‹[^›]*›)+\s*)")
MARKED_WORD = re.compile("‹([^›]*)›")
MARKED_UNIT = re.compile(r'"([^"]*)"|(\$|\\circ)')


def _stem(word: str) -> str:
    """Returns a word in small letters, without the suffix of its plural or tense."""
    word = word.lower()
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith("ss"):
        return word
    return next((word[: -len(end)] for end in SUFFIXES if word.endswith(end) and len(word) - len(end) > 2), word)


MEANINGS = {_stem(word): _stem(words[0]) for words in SYNONYMS for word in words}
MEANINGS |= {_stem(word): "" for word in FILLERS.split()}


def _meaning(word: str) -> str:
    """Returns the word that stands for all of its synonyms; empty text if it tells no quantity from another."""
    stem = _stem(word)
    return MEANINGS.get(stem, stem if stem.isascii() else "")


@dataclass(frozen=True)
class Item:
    """An item of an answer's list: its formulas, with their known units, and the words that stand beside them."""

    names: frozenset[str]  # meanings of the words
    units: frozenset[str]
    formulas: tuple[str, ...]
    between: tuple[str, ...]  # words between the formulas

    def contradicts(self, other: "Item") -> bool:
        """Returns whether each of two items has a word that the other one lacks."""
        names, other_names = self.names, other.names
        if not (self.units and other.units):  # else their values decide
            names, other_names = names | self.units, other_names | other.units
        left, other_left = names - other_names, other_names - names
        return _has_more(left, other_left) and _has_more(other_left, left)


def _has_more(names: frozenset[str], others: frozenset[str]) -> bool:
    return not all(any(_is_same(name, other) for other in others) for name in names)


def _is_same(name: str, other: str) -> bool:
    """Returns whether two words are the same, or one of them, such as "yr", abbreviates the other."""
    short, long = sorted((name.rstrip("_"), other.rstrip("_")), key=len)
    if name == other or len(short) > MAX_ABBREVIATION or len(short) == len(long) or short[0] != long[0]:
        return name == other
    return re.search(".*".join(map(re.escape, short)), long) is not None


def _marked(text: str) -> str:
    """Returns a normalized text with every word in angle quotes, and every known unit in double quotes."""
    marked = []
    text = SHORT_ASIDE.sub(r' ("\1")', DOTTED.sub(r"\1\2", text))
    for number, piece in enumerate(text.split('"')):
        if number % 2 == 0:  # outside the double quotes of `normalized`
            for run in reversed(word_runs(piece)):
                piece = piece[: run.start()] + _mark(run) + piece[run.end() :]
        elif read_unit(piece):
            piece = f' "{piece.strip()}" '
        else:
            piece = LETTERS.sub(_mark, piece)
        marked.append(piece)
    spaced = " ".join("".join(marked).split())
    named = LETTER_NAME.sub(r" ‹\1_› ", CURRENCY.sub(r" ‹\g<0>› ", spaced))
    return ASIDE.sub(lambda aside: re.sub('"([^"]*)"', r"‹\1›", aside[1]), named)


def _mark(run: re.Match[str]) -> str:
    """Returns a word with its marks; a capital letter is a name, except for the article at the beginning."""
    word, before = run[0], run.string[: run.start()].rstrip()
    if word.lower() in JOINERS:
        return f" {word} "
    if read_unit(word) and _meaning(word) and BEFORE_UNIT.search(before):
        return f' "{word}" '
    is_name = len(word) == 1 and word.isupper() and (before or word not in "AI")
    return f" ‹{word}_› " if is_name else f" ‹{word}› "


@functools.lru_cache(maxsize=4096)
def _items(text: str) -> tuple[Item, ...]:
    """Returns the items of the list that a normalized text is, or its only item."""
    grouped = GROUPED.sub(lambda number: number[0].replace(",", "'"), text)
    return tuple(_item(part) for part in split_at(_marked(grouped), LIST_MARK) if part.strip())


def _item(text: str) -> Item:
    words = MARKED_WORD.findall(text)
    units = {unit_of(name) or name for found in MARKED_UNIT.findall(text) for name in found if name}
    formulas: list[str] = []
    between: list[str] = []
    spoken = ""
    for number, part in enumerate(MARKS.split(text)):
        formula = part.strip(" =:.,;")
        if number % 2:
            spoken = " ".join(MARKED_WORD.findall(part)).lower()
        elif re.search(r"\w", formula):
            between += [spoken] if formulas else []
            formulas.append(formula)
    return Item(frozenset(filter(None, map(_meaning, words))), frozenset(units), tuple(formulas), tuple(between))


@functools.lru_cache(maxsize=4096)
def _claim(text: str) -> Item:
    """Returns all words of an answer as one item, without its remarks, its reasons and what it denies."""
    items = _items(NEGATION.split(without_asides(statement(text)))[0])
    names = frozenset().union(*(item.names for item in items))
    units = frozenset().union(*(item.units for item in items))
    return Item(names, units, (), ())


def words_verdict(answer: str, gold: str, same: Same = rationals_equal) -> bool | None:
    r"""Returns `False` if the words of two answers contradict each other, whether the numbers are equal that words
    name one by one, and `None` for all other answers.

    Example:
        >>> words_verdict("15 girls", "15 boys"), words_verdict("3 boys, 4 girls", "4 girls, 3 boys")
        (False, True)
        >>> words_verdict("So there are 15.", "15 boys")
    """
    if max(len(answer), len(gold)) > MAX_LENGTH or r"\begin" in answer + gold:
        return None
    if not (WORDED.search(answer) and WORDED.search(gold)):
        return None
    one, other = (normalized(MARKUP.sub("", text)) for text in (answer, gold))
    if _claim(one).contradicts(_claim(other)):
        return False
    a, b = ([item for item in _items(text) if item.formulas] for text in (one, other))
    if len(a) != len(b):
        return None
    is_ordered = "respectively" in one and "respectively" in other
    if len(a) > 1 and all(item.names or item.units for item in a + b) and not is_ordered:
        return members_match([[_same_item(item, expected, same) for expected in b] for item in a])
    if is_ordered or (len(a) == 1 and a[0].between and a[0].between == b[0].between):
        return all_equal([_same_item(item, expected, same) for item, expected in zip(a, b, strict=True)])
    return None


def _same_item(one: Item, gold: Item, same: Same) -> bool | None:
    if one.contradicts(gold) or len(one.formulas) != len(gold.formulas):
        return False
    return all_equal([are_equal(*pair, same) for pair in zip(one.formulas, gold.formulas, strict=True)])
