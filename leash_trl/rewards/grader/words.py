r"""Decides what the words of two answers say about them; neither their values nor math-verify carries words.

1. Words that stand on both sides and differ contradict each other. If each answer has a word that the other answer
   lacks, the answers differ, whatever their numbers: "15" equals "15 boys", but "15 girls" does not. Articles,
   prepositions, inflections and abbreviations make no difference, nor do [`SYNONYMS`]. Two units that are known are
   left to [`~leash_trl.rewards.grader.units`], which converts them.
2. A number belongs to its words: "3 boys, 4 girls" equals "4 girls, 3 boys", but not "4 boys, 3 girls". The words
   between two numbers, as in "5 to 12", and the word "respectively" fix the order of the numbers.
"""

import functools
import re
from dataclasses import dataclass

from leash_trl.rewards.grader.commitment import JOINERS, MARKUP, NEGATION, statement, without_asides, word_runs
from leash_trl.rewards.grader.equality import are_equal, equal_in_any_order, equal_in_order
from leash_trl.rewards.grader.latex import normalized
from leash_trl.rewards.grader.parsing import LIST_MARK, split_at, without_group_commas
from leash_trl.rewards.grader.rational import rationals_equal
from leash_trl.rewards.grader.units import ABBREVIATED_UNITS, UNIT_TABLE, FormulaComparison, read_unit


# Words that do not tell one quantity from another. What they do to a number is the matter of `commitment`.
# fmt: off
FILLERS = [
    # articles and pronouns
    "a", "an", "the", "this", "that", "it", "there", "them", "he", "she",
    "we", "his", "her", "their", "all", "each", "every",
    # prepositions and conjunctions
    "of", "in", "on", "at", "by", "for", "from", "to", "per", "with", "so",
    # verbs
    "is", "are", "was", "were", "has", "have", "had", "do", "will", "can",
    "get", "give", "need", "make",
    # what any answer is, and powers of a unit
    "about", "exactly", "answer", "result", "value", "number", "total",
    "square", "sq", "cubic",
]
# fmt: on
# Words of one meaning, which the first one stands for.
SYNONYMS = [
    ("increase", "rise", "raise", "higher", "growth"),
    ("decrease", "drop", "fall", "reduction", "lower"),
    ("more", "extra", "additional"),
    ("less", "fewer"),
    ("left", "remain"),
    ("maximum", "greatest", "largest", "highest"),
    ("minimum", "smallest", "least", "lowest"),
    ("average", "mean"),
    ("tall", "high", "height"),
    ("wide", "width"),
    ("long", "length"),
    ("old", "age"),
    ("after", "later"),
    ("before", "earlier"),
    ("person", "people"),
    ("child", "children", "kid"),
    ("man", "men"),
    ("woman", "women"),
    ("student", "pupil"),
    ("way", "arrangement", "permutation", "combination"),
    ("euro", "€"),
    ("pound", "£"),
    ("yen", "¥"),
]
PLURAL = re.compile(r"(?<=\w\w)(?<!s)s$")  # boys, pts
SUFFIX = re.compile(r"(?<=\w{3})(?:ing|ed|e)$")  # increased, and what remains of "boxes"
MIN_SHARED = 4  # first letters of two forms of a word
MAX_ENDING = 2  # letters after them: wolv and wolf are the stems of "wolves" and "wolf"
MAX_ABBREVIATION = 3  # letters
MAX_LENGTH = 1_000  # characters; longer texts are not read

# In a marked text, angle quotes enclose words, and double quotes known units, such as "cm".
DOTTED = re.compile(r"(?<![A-Za-z])([A-Za-z])\.([A-Za-z])(?:\.|(?![A-Za-z]))")  # a.m.
LETTERS = re.compile(r"[^\W\d_]+")  # boys
WORD_OR_CURRENCY = re.compile(r"[^\W\d_]|[$€£¥]")
BEFORE_UNIT = re.compile(r"(?:^|[\d})])\s*(?:square|sq|cubic)?$", re.IGNORECASE)  # elsewhere no parser reads a unit
CURRENCY = re.compile("[€£¥]")
BRACKETED_WORDS = re.compile(r'\(\s*"?([A-Za-z ]{3,}?)"?\s*\)')  # 5 (max)
WORD_OR_SIGN = re.compile(r"[^\W\d_]+_?|[$€£¥¢°]")  # `_mark` writes a letter that is a name as "A_"
MARKED_WORDS = re.compile(r"((?:\s*‹[^›]*›)+\s*)")  # a run of words, such as "years older"
MARKED_WORD = re.compile("‹([^›]*)›")  # one word
MARKED_UNIT = re.compile(r'"[^"]*"|\$|\\circ')  # "cm", $, ^\circ


def _stem(word: str) -> str:
    """Returns a word in small letters, without the suffix of its plural or tense."""
    singular = PLURAL.sub("", word.lower())
    return SUFFIX.sub("", singular)


def _is_same(stem: str, other: str) -> bool:
    """Returns whether two stems are of one word, or one of them, such as "yr", abbreviates the other."""
    short, long = sorted((stem.rstrip("_"), other.rstrip("_")), key=len)
    num_shared = max(MIN_SHARED, len(long) - MAX_ENDING)
    if stem == other or short[:num_shared] == long[:num_shared]:
        return True
    if len(short) > MAX_ABBREVIATION or len(short) == len(long) or short[0] != long[0]:
        return False
    letters_in_order = ".*".join(short)
    return re.search(letters_in_order, long) is not None


# By stem; a filler means nothing. An abbreviation such as "min" may mean a unit or another word, see `_is_same`.
MEANINGS: dict[str, str] = {}
for dimension, _size, unit_names in UNIT_TABLE:
    unit_word = "" if dimension == "times" else _stem(max(unit_names, key=len))
    other_names = [name for name in unit_names if not unit_word or not _is_same(name, unit_word)]
    MEANINGS |= dict.fromkeys(map(_stem, other_names), unit_word)
for synonyms in SYNONYMS:
    MEANINGS |= dict.fromkeys(map(_stem, synonyms), _stem(synonyms[0]))
MEANINGS |= dict.fromkeys(map(_stem, FILLERS), "")


def _meanings(text: str) -> set[str]:
    """Returns the meanings of the words of a text that tell one quantity from another; words of other alphabets do
    not, and an abbreviated unit, such as "mph", has those of its units."""
    text = ABBREVIATED_UNITS.get(text.lower(), text)
    stems = map(_stem, WORD_OR_SIGN.findall(text))
    meanings = {MEANINGS.get(stem, stem) for stem in stems}
    return {meaning for meaning in meanings if meaning and meaning.isascii()}


@dataclass(frozen=True)
class Item:
    """An item of an answer's list: its formulas, with their known units, and the words that stand beside them.

    Args:
        names (`set[str]`): Meanings of the words.
        units (`set[str]`): Meanings of the words and signs of the units.
        formulas (`list[str]`): Formulas in the order of the text.
        between (`list[str]`): Words between each formula and the next one, such as `to`.
    """

    names: set[str]
    units: set[str]
    formulas: list[str]
    between: list[str]

    def contradicts(self, other: "Item") -> bool:
        """Returns whether each of two items has a word that the other one lacks."""
        words = self.names
        other_words = other.names
        if not (self.units and other.units):  # else their values decide
            words = words | self.units
            other_words = other_words | other.units
        only_here = words - other_words
        only_there = other_words - words
        return _lacks_some(only_there, of=only_here) and _lacks_some(only_here, of=only_there)


def _lacks_some(words: set[str], of: set[str]) -> bool:
    """Returns whether words lack one of other words, in all its forms and abbreviations."""
    return any(not any(_is_same(expected, word) for word in words) for expected in of)


def _marked(text: str) -> str:
    """Returns a normalized text with every word in angle quotes, and every known unit in double quotes.

    Example:
        >>> _marked("There are 12 apples"), _marked('"option A"'), _marked('15 "km"')
        ('‹There› ‹are› 12 ‹apples›', '‹option› ‹A_›', '15 "km"')
    """
    text = DOTTED.sub(r"\1\2", text)  # a.m. -> am
    text = BRACKETED_WORDS.sub(r' "\1" ', text)  # 5 (max) -> 5 "max"
    # `normalized` puts the words of \text{...} in double quotes, so every second piece stood in quotes
    pieces = text.split('"')
    for index, piece in enumerate(pieces):
        is_quoted = index % 2 == 1
        if is_quoted and read_unit(piece):
            pieces[index] = f' "{piece.strip()}" '
            continue
        runs = list(LETTERS.finditer(piece)) if is_quoted else word_runs(piece)
        for run in reversed(runs):  # from the last one, so that the places of the others stay
            piece = piece[: run.start()] + _mark(run) + piece[run.end() :]
        pieces[index] = piece
    marked = " ".join("".join(pieces).split())
    return CURRENCY.sub(r" ‹\g<0>› ", marked)  # a sign is a word: 5€


def _mark(run: re.Match[str]) -> str:
    """Returns a word with its marks; a capital letter is a name, except for the article at the beginning."""
    word = run[0]
    before = run.string[: run.start()].rstrip()
    if word.lower() in JOINERS:
        return f" {word} "
    if read_unit(word) and BEFORE_UNIT.search(before):
        return f' "{word}" '
    if len(word) == 1 and word.isupper() and (before or word not in "AI"):
        word += "_"
    return f" ‹{word}› "


@functools.lru_cache(maxsize=4096)
def _items(text: str) -> list[Item]:
    """Returns the items with formulas of the list that a normalized text is, or its only item."""
    parts = split_at(_marked(without_group_commas(text)), LIST_MARK)
    items = [_item(part) for part in parts]
    return [item for item in items if item.formulas]


@functools.lru_cache(maxsize=4096)
def _claim(text: str) -> Item:
    """Returns all words of an answer as one item, without its remarks, its reasons and what it denies."""
    before_denial = NEGATION.split(without_asides(statement(text)))[0]
    return _item(_marked(without_group_commas(before_denial)))


def _item(text: str) -> Item:
    """Returns an item of a marked text."""
    names: set[str] = set()
    for word in MARKED_WORD.findall(text):
        names |= _meanings(word)
    units: set[str] = set()
    for unit in MARKED_UNIT.findall(text):
        units |= _meanings(unit.strip('"').replace(r"\circ", "°"))
    formulas: list[str] = []
    between: list[str] = []
    words = ""
    # The pattern has a group, so every second part consists of words.
    for index, part in enumerate(MARKED_WORDS.split(text)):
        formula = part.strip(" =:.,;")
        if index % 2:
            words = " ".join(MARKED_WORD.findall(part)).lower()
        elif re.search(r"\w", formula):
            if formulas:
                between.append(words)
            formulas.append(formula)
    return Item(names, units, formulas, between)


def words_verdict(answer: str, gold: str, compare: FormulaComparison = rationals_equal) -> bool | None:
    r"""Returns `False` if the words of two answers contradict each other, whether the numbers are equal that words
    name one by one, and `None` for all other answers.

    Example:
        >>> words_verdict("15 girls", "15 boys"), words_verdict("3 boys, 4 girls", "4 girls, 3 boys")
        (False, True)
        >>> words_verdict("So there are 15.", "15 boys")
    """
    if max(len(answer), len(gold)) > MAX_LENGTH or r"\begin" in answer + gold:
        return None
    if not (WORD_OR_CURRENCY.search(answer) and WORD_OR_CURRENCY.search(gold)):
        return None
    answer = normalized(MARKUP.sub("", answer))
    gold = normalized(MARKUP.sub("", gold))
    if _claim(answer).contradicts(_claim(gold)):
        return False
    items = _items(answer)
    gold_items = _items(gold)
    if not items or len(items) != len(gold_items):
        return None
    same = functools.partial(_same_item, compare=compare)
    has_same_order = len(items) == 1 and items[0].between and items[0].between == gold_items[0].between  # 5 to 12
    if has_same_order or ("respectively" in answer and "respectively" in gold):
        return equal_in_order(items, gold_items, same)
    are_named = [bool(item.names or item.units) for item in items + gold_items]
    if len(items) < 2 or not all(are_named):
        return None
    return equal_in_any_order(items, gold_items, same)


def _same_item(item: Item, gold: Item, compare: FormulaComparison) -> bool | None:
    if item.contradicts(gold):
        return False
    return equal_in_order(item.formulas, gold.formulas, same=functools.partial(are_equal, compare=compare))
