"""Parses an answer: a quantity with its unit, an equation, a list, tuple or set, or a set of real numbers."""

import functools
import itertools
import re
from dataclasses import dataclass, replace
from typing import Literal

from leash_trl.rewards.grader.latex import normalized
from leash_trl.rewards.grader.rational import Unreadable, rational_value, with_plain_numbers
from leash_trl.rewards.grader.units import UNITS, Unit, product_formula, read_unit, unit_key


# 52_8, (1A)_{16}, 101_{two}
NUMERAL_WITH_BASE = re.compile(r"[({]?\s*([0-9A-Fa-f]+)\s*[)}]?\s*_\s*\{?\s*\"?\s*\(?\s*(\w+)\s*\)?\s*\"?\s*\}?")
# fmt: off
BASES = {
    "two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9",
    "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16",
}
# fmt: on
TIME = re.compile(r"(\d{1,2}):([0-5]\d)\s*\"?\s*([ap])?\.?\s*(?:m\.?)?\s*\"?", re.IGNORECASE)  # 12:30, 7:05 p.m.
# Words in quotes or without, such as "girls" and cm, letters of other alphabets, and the signs of units: %, ^\circ, $.
WORD_OR_UNIT_SIGN = re.compile(
    r'"[^"]*"|(?<![\\A-Za-z])[A-Za-z]{2,}\.?|[^\W\d_A-Za-z\u0370-\u03ff]+|%|\^\s*\{?\s*\\circ\s*\}?|[$€£¥¢°]'
)
UNIT_POWER = re.compile(r"\^\s*\{?\d\}?")  # the ^2 of cm^2
# Functions of an angle, in which degrees are not a unit.
ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
MONEY = re.compile(r"^\s*([+-]?)\s*(?:US)?([$€£¥])\s*")  # the beginning of -$5 and US$5
SIMPLE_NAME = re.compile(r"[A-Za-z]'*(?:_(?:\w|\{[^{}]*\}))?(?:\(-?(?:[A-Za-z]|\d+)\))?")  # x, y', a_{12}, f(x), h(2)
NAMED_POINT = re.compile(r"([A-Z]'?(?:_(?:\w|\{\w+\}))?)\s*(\([^()]*,.*\))")  # K(4,9)
CYCLE = re.compile(r"\(\s*(\d{1,2}(?: \d{1,2})+)\s*\)")  # (1 3 2)
# x = 3 (mod 11), 3 \pmod{11}, 3 modulo 11
CONGRUENCE = re.compile(r"(.*?)[\s,(]*(?:\\[pb]?mod|mod(?:ulo)?)(?![A-Za-z])[\s({]*(\d+)[\s)}]*")
LEFT_SIDES = re.compile(r"[^=]*=\s*(?=[^=]*$)")  # the "x =" of x = 3, 4
LINEAR_EXPRESSION = re.compile(r"-?[\d.]+\*?[a-z](?:[+-][\d.]+)?|-?[a-z][+-][\d.]+")  # 2x, 2x+3, x-3
GROUPED_BY_COMMAS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")  # 1,234,567

OPENING_BRACKETS = "([{«"
CLOSING_BRACKETS = ")]}»"
# A comma, a semicolon, or "and" and "or" in five languages: the marks of "2, 3, and 5", "2 or 3" and 2和3.
LIST_SEPARATOR = re.compile(
    r"\s*(?:[,;]\s*(?:(?:and|or)\b)?|(?<![A-Za-z\\])(?:and|or|und|oder|et|ou|или)(?![A-Za-z])|[和或])\s*"
)
EQUALS_SIGN = re.compile(r"\s*[=≈]\s*")
COMMA_OR_SEMICOLON = re.compile("[,;]")
RATIO_COLON = re.compile(":")
# Signs of a set of real numbers: x < 3, [0, 1] \cup [2, 3], \mathbb{R}, {x | x = 1}
REAL_SET_SIGN = re.compile(r"[<>≤≥≠]|\\(?:cup|cap|setminus|backslash|infty|mathbb)|«[^«»]*[|:]")
# [0, 1) and ]0, 1], but neither (0, 1) nor [0, 1], which may be points
HALF_OPEN_INTERVAL = re.compile(r"(?!\(.*\)$|\[.*\]$)[(\[\]][^()\[\]]*[,;][^()\[\]]*[)\]\[]")
# Commands that a formula may have.
FORMULA_COMMAND = re.compile(
    r"\\(?:frac|sqrt|binom|pi|log|ln|exp|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|circ|[lr](?:floor|ceil))(?![A-Za-z])"
)
# Commands that this module or math-verify reads, or that change only how a text looks, as a pattern.
READABLE_COMMANDS = (
    # fractions, roots, functions
    "frac|cfrac|over|binom|dbinom|tbinom|choose|sqrt|pi|log|ln|lg|exp|circ|degree|sin|cos|tan|cot|sec|csc|sinh"
    "|cosh|tanh|arcsin|arccos|arctan|arccot|arcsec|arccsc|arsinh|arcosh|artanh|arcsinh|arccosh|arctanh|lfloor"
    "|rfloor|lceil|rceil|floor|ceil"
    # operations, sets, logic
    "|pm|mp|cdot|times|div|in|notin|cup|cap|setminus|backslash|infty|emptyset|mathbb|le|ge|lt|gt|lor|land|vee"
    "|wedge"
    # sums, limits and their like
    "|forall|sum|prod|int|oint|lim|limits|nolimits|max|min|sup|inf|gcd|lcm|det|begin|end|hline|prime|not|mapsto"
    # letters
    "|alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau"
    "|upsilon|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega|ell|Re|Im|partial"
    # arrows and conclusions
    "|therefore|Rightarrow|Longrightarrow|implies|iff|rightarrow|longrightarrow"
    # boxes, fonts, accents, fences, spacing, sizes, colors
    "|boxed|fbox|text|textbf|textit|mathrm|mathbf|mathit|mathcal|mathsf|mathop|bold|boldsymbol|pmb|operatorname"
    "|bf|it|rm|sf|tt|em|overline|underline|bar|hat|widehat|vec|tilde|dot|overrightarrow|underbrace|middle|vert"
    "|Vert|lvert|rvert|lVert|rVert|quad|qquad|hspace|vspace|displaystyle|textstyle|scriptstyle|tiny|small"
    "|normalsize|large|Large|LARGE|huge|Huge|color|textcolor|phantom"
)
# Other commands: \ldots, \triangle, \perp.
UNREADABLE_COMMAND = re.compile(rf"(?<!\\)\\(?!(?:{READABLE_COMMANDS})(?![A-Za-z]))[A-Za-z]+")
VARIABLE = re.compile(r"(?<![\\A-Za-z])(?![ei](?![A-Za-z]))[A-Za-z]")  # x, but neither e nor i, which are numbers


@dataclass(frozen=True)
class ParsedAnswer:
    """A parsed answer.

    Args:
        form (`str`): `value`, `list`, `set`, `tuple`, `time`, `numeral`, `residues` (classes of numbers modulo one
            number), `permutation`, `reals` (a set of real numbers, not parsed further), or `invalid`, which equals no
            answer, such as 2 + 3 = 12.
        items (`tuple[ParsedAnswer, ...]`): Members of a list, set or tuple.
        formula (`str`): Formula of a value, with plain numbers.
        unit (`Unit` or `None`): Unit of a value.
        name (`str`): Name of a value or a tuple, as in "x = 5"; `:` for a ratio.
        is_solved (`bool`): `False` if an equation of formulas states the value.
        key (`tuple`): `(value,)` of a numeral, the modulus and the residues, the cycles of a permutation, the minute
            and half of the day (`a`, `p` or empty text) of a time, or `(bracket,)` of a tuple.
    """

    form: Literal["value", "list", "set", "tuple", "time", "numeral", "residues", "permutation", "reals", "invalid"]
    items: tuple["ParsedAnswer", ...] = ()
    formula: str = ""
    unit: Unit | None = None
    name: str = ""
    is_solved: bool = True
    key: tuple[object, ...] = ()

    @property
    def is_constant(self) -> bool:
        """Returns whether the answer consists of formulas without letters."""
        # A single value has no items.
        return all(item.formula and not VARIABLE.search(item.formula) for item in self.items or (self,))


INVALID_EQUATION = ParsedAnswer("invalid")  # such as 2+3 = 12, which is false, and 2x = 10, which is not solved


def _depth_change(sign: str) -> int:
    """Returns 1 at an opening bracket, -1 at a closing one, and 0 elsewhere."""
    return (sign in OPENING_BRACKETS) - (sign in CLOSING_BRACKETS)


def split_at(text: str, mark: re.Pattern[str]) -> list[str]:
    """Returns the parts of a text, split at the marks outside all brackets."""
    parts = []
    part_start = position = depth = 0  # the depth counts the brackets that are open at the position
    while position < len(text):
        match = mark.match(text, position) if depth == 0 else None
        # A mark that matches the empty text would be found at the same position for ever.
        if match and match[0]:
            parts.append(text[part_start:position])
            part_start = position = match.end()
        else:
            depth += _depth_change(text[position])
            position += 1
    parts.append(text[part_start:])
    return parts


def has_outer_brackets(text: str, brackets: str) -> bool:
    """Returns whether one pair of the given brackets encloses the complete text."""
    text = text.strip()
    # The depths of "(1)(2)" are [1, 1, 0, 1, 1, 0]; those of a text in one pair of brackets are 0 at its end only.
    depths = list(itertools.accumulate(map(_depth_change, text)))
    is_closed_at_end_only = 0 in depths and depths.index(0) == len(depths) - 1
    return is_closed_at_end_only and text[0] + text[-1] == brackets


def without_group_commas(text: str) -> str:
    """Returns a text whose numbers have apostrophes between groups of digits, since commas separate a list."""
    return GROUPED_BY_COMMAS.sub(lambda number: number[0].replace(",", "'"), text)


@functools.lru_cache(maxsize=4096)
def parse_answer(text: str) -> ParsedAnswer | None:
    """Returns the parsed answer of a text; `None` if the text cannot be read."""
    try:
        return _parse_normalized(normalized(text))
    except (ArithmeticError, RecursionError, ValueError):
        return None


def _parse_normalized(text: str) -> ParsedAnswer:
    """Returns the parsed answer of a normalized text, by the first form that fits."""
    for read in (_read_numeral, _read_time, _read_residues, _read_permutation):
        answer = read(text)
        if answer is not None:
            return answer
    if REAL_SET_SIGN.search(text) or HALF_OPEN_INTERVAL.fullmatch(text):
        return ParsedAnswer("reals")
    return _collection_or_value(text)


def _read_numeral(text: str) -> ParsedAnswer | None:
    """Returns a numeral in its base, such as `52_8`."""
    match = NUMERAL_WITH_BASE.fullmatch(text)
    if match is None:
        return None
    # Such as "52" and "8" of 52_8, or "101" and "two" of 101_{two}.
    digits, base = match.groups()
    base = BASES.get(base.lower(), base)
    # Other bases, and indices such as the n of a_n, make no numeral.
    if not base.isdigit() or not 2 <= int(base) <= 36:
        return None
    return ParsedAnswer("numeral", key=(int(digits, int(base)),))


def _read_time(text: str) -> ParsedAnswer | None:
    """Returns a time of day; with a formula if it may be a ratio, such as 7:32."""
    match = TIME.fullmatch(text)
    if match is None or int(match[1]) >= 24:
        return None
    hour = int(match[1])
    minutes = match[2]
    half_of_day = (match[3] or "").lower()  # "a" of a.m., "p" of p.m., or empty text
    # 7:32 may be a ratio, but 7:05 may not.
    may_be_ratio = not half_of_day and not minutes.startswith("0")
    ratio = f"({hour})/({minutes})" if may_be_ratio else ""
    # The minute counts from midnight or noon, so 19:32 and 7:32 p.m. have the same one.
    return ParsedAnswer("time", formula=ratio, key=(60 * (hour % 12) + int(minutes), half_of_day))


def _read_residues(text: str) -> ParsedAnswer | None:
    r"""Returns the residues of a congruence such as `x = 7, 11 (mod 5)`, each from 0 to the modulus."""
    # Of "x = 7, 11 (mod 5)", the groups are "x = 7, 11" and "5". A \text{mod} is in quotes here.
    match = CONGRUENCE.fullmatch(text.replace('"', " "))
    if match is None:
        return None
    modulus = int(match[2])
    # Without "x =", the residues 7 and 11 remain, which are 2 and 1 modulo 5.
    residues = set()
    for part in split_at(LEFT_SIDES.sub("", match[1].strip()), LIST_SEPARATOR):
        value = rational_value(with_plain_numbers(part))
        if value is None or value.denominator > 1:
            raise Unreadable
        residues.add(int(value % modulus))
    return ParsedAnswer("residues", key=(modulus, *sorted(residues)))


def _read_permutation(text: str) -> ParsedAnswer | None:
    """Returns a permutation in cycles, such as `(1 3 2)(4 5)`."""
    # The numbers in each pair of brackets, such as ["1 3 2", "4 5"]; nothing else may stand in the text.
    cycles = CYCLE.findall(text)
    if not cycles or CYCLE.sub("", text).strip():
        return None
    return ParsedAnswer("permutation", key=tuple(sorted(map(_first_rotation, cycles))))


def _first_rotation(cycle: str) -> list[str]:
    """Returns the numbers of a cycle in the order that sorts first: 1, 2, 3 of `3 1 2`."""
    numbers = cycle.split()
    return min(numbers[start:] + numbers[:start] for start in range(len(numbers)))


def _collection_or_value(text: str) -> ParsedAnswer:
    """Parses a list, a tuple, a set, or a single item."""
    text = text.strip()
    # A normalized text has « and » for the braces of a set, unlike those of LaTeX's arguments.
    if text in ("«»", r"\emptyset"):
        return ParsedAnswer("set")
    inner = text[1:-1]
    if has_outer_brackets(text, "«»"):
        return replace(_list(inner), form="set")
    if has_outer_brackets(text, "()") or has_outer_brackets(text, "[]"):
        # Without a comma, as in (x+1), the brackets belong to a formula.
        parts = split_at(inner, COMMA_OR_SEMICOLON)
        if len(parts) > 1:
            return ParsedAnswer("tuple", tuple(map(_collection_or_value, parts)), key=(text[0],))
    return _list(without_group_commas(text))


def _list(text: str) -> ParsedAnswer:
    """Parses a list, such as `2, 3 and 5`; a single value becomes a list of one item."""
    parts = [part.strip() for part in split_at(text, LIST_SEPARATOR) if part.strip()]
    if not parts:
        raise Unreadable
    items = []
    for part in parts:
        # The parts of "(1, 2), (3, 4)" are tuples. A single part was no collection, or would not be parsed here.
        is_collection = len(parts) > 1 and part[0] in OPENING_BRACKETS
        items.append(_collection_or_value(part) if is_collection else _item(part))
    # A point such as K(4,9), a ratio such as 1:2:3, or a false equation is no list.
    if len(items) == 1 and items[0].form != "value":
        return items[0]
    return ParsedAnswer("list", _grouped_by_solution(tuple(items)))


def _grouped_by_solution(items: tuple[ParsedAnswer, ...]) -> tuple[ParsedAnswer, ...]:
    """Returns a tuple for each solution if items such as `x=1, y=2 or x=2, y=1` repeat their names, else the items."""
    # Of "x=1, y=2 or x=2, y=1", the names are {"x", "y"}, so the items are taken two at a time.
    names = {item.name for item in items}
    size = len(names)
    # Items without a name, or with names that do not repeat, form one list.
    if "" in names or not 1 < size < len(items):
        return items
    solutions = []
    for start in range(0, len(items), size):
        solution = items[start : start + size]
        if {item.name for item in solution} != names:
            return items
        # In the order of the names, so that "y=2, x=1" becomes the same tuple as "x=1, y=2".
        by_name = sorted(solution, key=lambda item: item.name)
        solutions.append(ParsedAnswer("tuple", tuple(by_name), key=("(",)))
    return tuple(solutions)


def _item(text: str) -> ParsedAnswer:
    """Parses a quantity, a ratio, an equation, or a tuple with its name."""
    sides = [side.strip() for side in split_at(text, EQUALS_SIGN)]
    if len(sides) == 1:
        # K(4,9) is the tuple (4, 9) with the name K.
        if point := NAMED_POINT.fullmatch(text):
            name, coordinates = point.groups()
            return replace(_collection_or_value(coordinates), name=name)
        return _quantity_or_ratio(text)
    # P = (1, 2) has the name P, while the left side of (x, y) = (1, 2) is no name.
    if has_outer_brackets(sides[-1], "()") and "," in sides[-1]:
        name = sides[0] if SIMPLE_NAME.fullmatch(sides[0]) else ""
        return replace(_collection_or_value(sides[-1]), name=name)
    return _value_of_equation(sides, is_exact="≈" not in text)


def _value_of_equation(sides: list[str], is_exact: bool) -> ParsedAnswer:
    r"""Returns the value that an equation such as `\cos x = 1` states for its other side; `INVALID_EQUATION` if
    the equation is false, or is not solved for a letter."""
    readings = [_quantity_or_none(side) for side in sides]  # `None` for a side that cannot be read
    # Sides without letters, which have values: 2+3 and 12 of 2+3 = 12, which is false.
    constants = [reading for reading in readings if reading and reading.is_constant]
    if is_exact and _values_differ(constants):
        return INVALID_EQUATION
    left, *_, right = [re.sub(r"\s", "", side) for side in sides]
    # x = 5 and f(x) = 2x state the right side for a name.
    if readings[-1] and SIMPLE_NAME.fullmatch(left):
        return replace(readings[-1], name=left)
    if not constants:
        raise Unreadable
    # The first side with a value states it for the side at the other end, as 5 = x and \cos x = 1 do.
    name = right if constants[0] is readings[0] else left
    # 2x = 10 is not solved for x, so it is no answer.
    if LINEAR_EXPRESSION.fullmatch(name):
        return INVALID_EQUATION
    # An equation between formulas, such as \cos x = 1, is not solved for its name.
    are_formulas = all(reading and reading.formula and not reading.unit for reading in readings)
    return replace(constants[0], name=name, is_solved=not are_formulas)


def _values_differ(constants: list[ParsedAnswer]) -> bool:
    """Returns whether two of several formulas without letters have different values."""
    # A formula such as \sqrt{2} has the value `None`, since it is no fraction.
    values = {rational_value(reading.formula) for reading in constants if not reading.unit}
    return len(values - {None}) > 1


def _quantity_or_none(text: str) -> ParsedAnswer | None:
    """Returns a quantity or a ratio; `None` if the text cannot be read."""
    try:
        return _quantity_or_ratio(text)
    except (Unreadable, ArithmeticError):
        return None


def _quantity_or_ratio(text: str) -> ParsedAnswer:
    """Parses a quantity or a ratio; the ratio of two quantities becomes their quotient, and a longer ratio becomes
    several quotients."""
    first, *others = [_quantity(part) for part in split_at(text, RATIO_COLON)]
    if not others:
        return first
    # 1:2 becomes (1)/(2), and 1:2:3 becomes a tuple of (1)/(2) and (1)/(3).
    ratios = [replace(part, formula=f"({first.formula})/({part.formula})", name=":") for part in others]
    if len(ratios) == 1:
        return ratios[0]
    return ParsedAnswer("tuple", tuple(ratios), key=(":",))


def _quantity(text: str) -> ParsedAnswer:
    """Parses a formula with its unit, which stands after the formula or, for money, before the formula."""
    # -$5 million becomes -5 million, which is split into "-5 " and "million".
    number, words = _split_before_words(MONEY.sub(r"\1", text).strip())
    number = number.rstrip(" .,;")
    # The only commands of a quantity are those of formulas, such as \frac and \sqrt.
    if not number or "\\" in FORMULA_COMMAND.sub("", number):
        raise Unreadable
    formula = with_plain_numbers(number)
    words = words.replace('"', " ").strip()
    first_word, _, other_words = words.partition(" ")
    # 3 million dollars and $3 million become (3)*(\frac{1000000}{1}) with the unit of the rest.
    multiplier = UNITS.get(unit_key(first_word))
    if multiplier and multiplier.dimension == "times":
        formula = product_formula(formula, multiplier.size)
        words = other_words
    money = MONEY.match(text)
    currency = money[2] if money else ""
    return ParsedAnswer("value", formula=formula, unit=_unit_of(f"{currency} {words}"))


def _unit_of(words: str) -> Unit | None:
    """Returns the unit that words after a number name: hours in "hours later"; `None` if they name none."""
    if unit := read_unit(words):
        return unit
    first_word = words.strip().partition(" ")[0]
    # The "in" of "5 in total" does not stand for inches.
    return None if first_word == "in" else read_unit(first_word)


def _split_before_words(text: str) -> tuple[str, str]:
    r"""Returns a formula and the words after it, which its unit begins; no text without words.

    Raises:
        [`Unreadable`]: If a number stands after the words.
    """
    starts = [run.start() for run in WORD_OR_UNIT_SIGN.finditer(text) if not _belongs_to_formula(run)]
    if not starts:
        return text, ""
    words = text[starts[0] :]
    # The 2 of cm^2 is no number after the words, while "3 boys 4 girls" has two numbers.
    if re.search(r"\d", UNIT_POWER.sub("", words)):
        raise Unreadable
    return text[: starts[0]], words


def _belongs_to_formula(run: re.Match[str]) -> bool:
    r"""Returns whether letters are a product, as in 3ab, or degrees of an angle function, as in \sin 30^\circ."""
    letters = run[0]
    if "circ" in letters:
        return ANGLE_FUNCTION.search(run.string) is not None
    return len(letters) <= 3 and letters.isascii() and letters.isalpha() and not unit_key(letters)
