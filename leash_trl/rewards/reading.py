r"""Parses an answer: a number or formula with its unit, an equation, a list, tuple or set, or a set of reals."""

import functools
import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from leash_trl.rewards.formula import Formula, Unreadable, read_formula, value_of
from leash_trl.rewards.typography import plain
from leash_trl.rewards.units import UNITS, Unit, quantities_equal, read_unit, unit_of


Cut = tuple[float, int]

NUMERAL = re.compile(r"[({]?\s*([0-9A-Fa-f]+)\s*[)}]?\s*_\s*\{?\s*\"?\s*\(?\s*(\w+)\s*\)?\s*\"?\s*\}?")
BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
BASES |= {"twelve": 12, "sixteen": 16}
TIME = re.compile(r"(\d{1,2}):([0-5]\d)\s*\"?\s*([ap])?\.?\s*(?:m\.?)?\s*\"?", re.IGNORECASE)
WORDS = re.compile(
    r'"[^"]*"|(?<![\\A-Za-z])[A-Za-z]{2,}\.?|[^\W\d_A-Za-z\u0370-\u03ff]+|%|\^\s*\{?\s*\\circ\s*\}?|[$€£¥¢°]'
    r"|(?<=[0-9])'(?![0-9])"
)
FIRST_WORD = re.compile(r'"[^"]*"|[A-Za-z]{4,}')
ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")  # of an angle, so that degrees are no unit
MONEY = re.compile(r"\s*([+-]?)\s*(?:US)?([$€£¥])\s*")
SIMPLE_NAME = re.compile(r"[A-Za-z]'?(?:_(?:\w|\{[^{}]*\}))?(?:\([A-Za-z]\))?")
LINEAR = re.compile(r"-?[\d.]+\*?[a-z](?:[+-][\d.]+)?|-?[a-z][+-][\d.]+")
GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")

OPEN, CLOSE = "([{«", ")]}»"
LIST_MARK = re.compile(
    r"\s*(?:[,;]\s*(?:(?:and|or)\b)?|(?<![A-Za-z\\])(?:and|or|und|oder|et|ou)(?![A-Za-z])|[和或])\s*"
)
OR_MARK, AND_MARK = (re.compile(rf"\s*,?\s*(?<![A-Za-z\\]){word}(?![A-Za-z])\s*") for word in ("or", "and"))
ORDER, EQUALS, RATIO = re.compile(r"\s*[<>≤≥≠]\s*"), re.compile(r"\s*[=≈]\s*"), re.compile(":")
COMMA = re.compile("[,;]")
SET_OPERATIONS: tuple[tuple[re.Pattern[str], Callable[[bool, bool], bool]], ...] = (
    (re.compile(r"\s*\\cup\s*"), operator.or_),
    (re.compile(r"\s*\\cap\s*"), operator.and_),
    (re.compile(r"\s*\\(?:setminus|backslash)\s*"), operator.gt),
)
MEMBER = re.compile(r"[A-Za-z]\s*\\in\s*(.*)", re.DOTALL)
BUILDER = re.compile(r"«\s*[A-Za-z](?:\s*\\in\s*\\mathbb\{R\})?\s*[|:]([^«»]*)»")
INTERVAL = re.compile(r"[(\[\]][^()\[\]]*[,;].*[)\]\[]", re.DOTALL)
EVERYTHING: tuple[Cut, ...] = ((-math.inf, 0), (math.inf, 1))
RAYS: dict[str, Callable[[float], tuple[Cut, ...]]] = {
    "<": lambda bound: ((-math.inf, 0), (bound, 0)),
    "≤": lambda bound: ((-math.inf, 0), (bound, 1)),
    ">": lambda bound: ((bound, 1), (math.inf, 1)),
    "≥": lambda bound: ((bound, 0), (math.inf, 1)),
    "≠": lambda bound: ((-math.inf, 0), (bound, 0), (bound, 1), (math.inf, 1)),
}
MIRRORED = str.maketrans("<>≤≥", "><≥≤")


@dataclass(frozen=True)
class Reading:
    """A parsed answer.

    Args:
        kind (`str`):
            `value`, `list`, `set`, `tuple`, `reals`, `ratio`, `time`, `numeral`, or `nothing`, which equals nothing.
        items (`tuple[Reading, ...]`):
            The members of a list, set, tuple or ratio.
        formula (`Formula`, *optional*):
            Of a value.
        unit (`Unit`, *optional*):
            Of a value, as [`~leash_trl.rewards.units.read_unit`] returns it.
        name (`str`):
            Of a value: its name, as in "x = 5". Of a tuple or set: its brackets.
        equation (`Formula`, *optional*):
            Left side minus right side, where a value was stated as an equation.
        key (`tuple`):
            Of a set of reals: its beginnings and ends in turn, each a number and whether the cut is after it. Of a
            numeral: its value. Of a time: its minute, and whether the half of the day is clear.
    """

    kind: str
    items: tuple["Reading", ...] = ()
    formula: Formula | None = None
    unit: Unit | None = None
    name: str = ""
    equation: Formula | None = None
    key: tuple[Any, ...] = ()

    @property
    def is_closed(self) -> bool:
        """Whether it consists of formulas without letters."""
        return all(item.formula and not item.formula.names for item in self.items or (self,))


NOTHING = Reading("nothing")


def split(text: str, mark: re.Pattern[str]) -> list[str]:
    """Parts of a text, cut at marks outside all brackets."""
    depth, start, place, parts = 0, 0, 0, []
    while place < len(text):
        if not depth and (match := mark.match(text, place)) and match[0]:
            parts.append(text[start:place])
            start = place = match.end()
            continue
        depth += (text[place] in OPEN) - (text[place] in CLOSE)
        place += 1
    return [*parts, text[start:]]


def _inside(text: str, brackets: str) -> bool:
    """Whether one pair of brackets encloses the complete text."""
    text = text.strip()
    if len(text) < 2 or text[0] != brackets[0] or text[-1] != brackets[1]:
        return False
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign in OPEN) - (sign in CLOSE)
        if depth == 0:
            return place == len(text) - 1
    return False


@functools.lru_cache(maxsize=4096)
def read(text: str) -> Reading | None:
    """The reading of an answer, `None` if it cannot be read."""
    try:
        return _read(plain(text))
    except (ArithmeticError, RecursionError, ValueError):
        return None


def _read(text: str) -> Reading:
    if text[:1] in ("<", ">", "≤", "≥", "≠"):
        return NOTHING
    if match := NUMERAL.fullmatch(text):
        base = BASES.get(match[2].lower()) or (int(match[2]) if match[2].isdigit() else 0)
        if 2 <= base <= 36:
            return Reading("numeral", key=(int(match[1], base),))
    if (match := TIME.fullmatch(text)) and int(match[1]) < 24:
        hour = int(match[1]) % 12 + 12 * (match[3].lower() == "p") if match[3] else int(match[1])
        return Reading("time", key=(60 * hour + int(match[2]), bool(match[3]) or not 0 < hour <= 12))
    if (cuts := _reals(text)) is not None:
        return Reading("reals", key=cuts) if cuts else NOTHING
    return _several(match[1] if (match := MEMBER.fullmatch(text)) else text)


def _several(text: str, depth: int = 0) -> Reading:
    """A list, tuple or set, or one item."""
    text = text.strip()
    if depth > 4:
        raise Unreadable
    sides = split(text, EQUALS)
    if len(sides) == 2 and _inside(sides[0], "()") and "," in sides[0]:  # (x, y) = (1, 2)
        names = [part.strip() for part in sides[0].strip()[1:-1].split(",")]
        reading = _several(sides[1], depth + 1)
        if reading.kind == "tuple" and len(names) == len(reading.items):
            named = (replace(item, name=name) for item, name in zip(reading.items, names, strict=True))
            return replace(reading, items=tuple(named))
        return reading
    if text in ("«»", r"\emptyset"):
        return Reading("set")
    inner = text[1:-1]
    if _inside(text, "«»") or (_inside(text, "{}") and len(split(inner, LIST_MARK)) > 1):
        return replace(_list(inner, depth), kind="set", name=text[0])
    if _inside(text, "()") or _inside(text, "[]"):
        if re.search(r"\d,\d{3}(?!\d)", inner):
            raise Unreadable  # (1,000) may be one or two numbers
        parts = split(inner, COMMA)
        if len(parts) > 1:
            return Reading("tuple", tuple(_several(part, depth + 1) for part in parts), name=text[0])
    return _list(GROUPED.sub(lambda match: match[0].replace(",", "'"), text), depth)


def _list(text: str, depth: int) -> Reading:
    parts = [part for part in split(text, LIST_MARK) if part.strip()]
    items: list[Reading] = []
    for part in parts:
        if len(parts) > 1 and part.strip()[:1] in "([«{" and _several(part, depth + 1).kind != "list":
            items.append(_several(part, depth + 1))
        elif r"\pm" in part or r"\mp" in part:
            for sign, opposite in ("+-", "-+"):
                items.append(_item(part.replace(r"\pm", sign).replace(r"\mp", opposite), depth))
        else:
            items.append(_item(part, depth))
    if not items:
        raise Unreadable
    if any(item.kind == "nothing" for item in items):
        return NOTHING
    return items[0] if len(items) == 1 and items[0].kind != "value" else Reading("list", tuple(items))


def _item(text: str, depth: int) -> Reading:
    """A quantity, a ratio, or an equation and the value it states."""
    text = text.strip()
    sides = split(text, EQUALS)
    if len(sides) == 1:
        return _quantity_or_ratio(text)
    if not sides[0].strip():
        return _item(text.strip(" =≈"), depth)
    if any(_inside(side, "()") and "," in side for side in sides[1:]):
        return _several(sides[-1], depth + 1)
    readings = [_readable(side) for side in sides]
    closed = [one for one in readings if one and one.is_closed]
    if "≈" not in text and _contradict(closed):
        return NOTHING
    if len(sides) > 2 or len(closed) == len(sides):
        value = closed[0] if closed else readings[-1]
        if value is None:
            raise Unreadable
        return replace(value, name=sides[0].strip() if readings[0] is not value else "")
    left, right = (re.sub(r"\s", "", side) for side in sides)
    difference = _difference(*readings)
    for name, other in ((left, readings[1]), (right, readings[0])):
        if SIMPLE_NAME.fullmatch(name) and name not in ("e", "i") and other:
            return replace(other, name=name, equation=difference)
    if closed:
        name = right if closed[0] is readings[0] else left
        return NOTHING if LINEAR.fullmatch(name) else replace(closed[0], name=name, equation=difference)  # 2x = 10
    if difference is None:
        raise Unreadable
    return Reading("value", name="=", equation=difference)


def _contradict(sides: list[Reading]) -> bool:
    """Whether the sides of an equation of numbers certainly differ."""
    quantities = [(side.formula, side.unit) for side in sides if side.formula]
    return any(quantities_equal(*quantities[0], *other) is False for other in quantities[1:])


def _difference(one: Reading | None, other: Reading | None) -> Formula | None:
    if one is None or other is None or one.formula is None or other.formula is None or one.unit or other.unit:
        return None
    return one.formula.minus(other.formula)


def _readable(text: str) -> Reading | None:
    try:
        return _quantity_or_ratio(text)
    except (Unreadable, ArithmeticError):
        return None


def _quantity_or_ratio(text: str) -> Reading:
    parts = split(text, RATIO)
    return Reading("ratio", tuple(map(_quantity, parts))) if len(parts) > 1 else _quantity(text)


def _quantity(text: str) -> Reading:
    """A formula with its unit, which comes after it, or before it for money."""
    text, unit = text.strip(), ""
    if money := MONEY.match(text):
        text, unit = money[1] + text[money.end() :], money[2]
    for match in WORDS.finditer(text):
        word = match[0].strip('" ')
        is_product = len(word) <= 3 and match[0].isascii() and match[0].isalpha() and not unit_of(word)
        if match.start() == 0:
            if FIRST_WORD.fullmatch(match[0]):
                raise Unreadable
        elif not is_product and not ("circ" in word and ANGLE.search(text)):
            if re.search(r"\d", re.sub(r"\^\s*\{?\d\}?", "", text[match.start() :])):
                raise Unreadable  # a number after words
            text, unit = text[: match.start()], unit or text[match.start() :]
            break
    head, _, rest = unit.replace('"', " ").strip().partition(" ")
    formula = read_formula(text.rstrip(" .,;"))
    if UNITS.get(head.lower(), ("",))[0] == "times":
        return Reading("value", formula=formula.times(UNITS[head.lower()][1]), unit=read_unit(rest.strip()))
    return Reading("value", formula=formula, unit=read_unit(f"{head} {rest}"))


def _bound(text: str) -> float:
    text = text.strip()
    if match := re.fullmatch(r"([+-]?)\s*\\infty", text):
        return -math.inf if match[1] == "-" else math.inf
    formula = _quantity(text).formula
    value = value_of(formula) if formula else None
    if value is None or value.imag:
        raise Unreadable
    return value.real


def _combine(a: tuple[Cut, ...], b: tuple[Cut, ...], keep: Callable[[bool, bool], bool]) -> tuple[Cut, ...]:
    """Cuts of the points for which `keep` of being in `a` and being in `b` holds."""
    result: list[Cut] = []
    for cut in sorted({(-math.inf, 0), *a, *b, (math.inf, 1)}):
        is_in = keep(*(sum(other <= cut for other in cuts) % 2 == 1 for cuts in (a, b))) and cut < (math.inf, 1)
        if is_in != len(result) % 2:
            result.append(cut)
    return tuple(result)


def points(numbers: list[float]) -> tuple[Cut, ...]:
    """Cuts of a set of numbers."""
    return tuple((number, after) for number in sorted(set(numbers)) for after in (0, 1))


def _reals(text: str) -> tuple[Cut, ...] | None:
    """Cuts of a set of reals; `None` if the text is not one, or may be a tuple or a set of numbers."""
    if match := BUILDER.fullmatch(text) or MEMBER.fullmatch(text):
        return _reals(match[1].strip())
    if len(split(text, ORDER)) > 1:
        return _inequalities(text)
    for mark, keep in SET_OPERATIONS:
        parts = split(text, mark)
        if len(parts) > 1:
            return functools.reduce(lambda a, b: _combine(a, b, keep), map(_piece, parts))
    if text == r"\mathbb{R}":
        return EVERYTHING
    if _inside(text, "()") or _inside(text, "[]"):
        return _piece(text) if r"\infty" in text and "," in text else None
    return _piece(text) if "=" not in text and INTERVAL.fullmatch(text) else None


def _piece(text: str) -> tuple[Cut, ...]:
    """Cuts of an interval, or of a set of numbers."""
    text = text.strip()
    if text == r"\mathbb{R}":
        return EVERYTHING
    if text in (r"\emptyset", "«»"):
        return ()
    if _inside(text, "«»"):
        return points([_bound(part) for part in split(text[1:-1], LIST_MARK)])
    ends = split(text[1:-1], COMMA)
    if len(ends) != 2 or text[0] not in "([]" or text[-1] not in ")][":
        raise Unreadable
    start, end = map(_bound, ends)
    first = (start, 0 if text[0] == "[" or start == -math.inf else 1)
    last = (end, 1 if text[-1] == "]" or end == math.inf else 0)
    return (first, last) if first < last else ()


def _inequalities(text: str) -> tuple[Cut, ...]:
    """Cuts of the solutions of inequalities in one letter, such as `1 < x ≤ 2 or x > 5`."""
    for mark, keep in ((OR_MARK, operator.or_), (AND_MARK, operator.and_)):
        if len(parts := split(text, mark)) > 1:
            return functools.reduce(lambda a, b: _combine(a, b, keep), map(_inequalities, parts))
    sides = [side.strip() for side in split(text, ORDER)]
    signs = re.findall("[<>≤≥≠]", text)
    subjects = [index for index, side in enumerate(sides) if SIMPLE_NAME.fullmatch(side)]
    if len(subjects) != 1 or len(signs) != len(sides) - 1 or "," in text:
        raise Unreadable
    result, subject = EVERYTHING, subjects[0]
    for index, side in enumerate(sides):
        if index == subject or math.isinf(bound := _bound(side)):
            continue
        if abs(index - subject) > 1:
            raise Unreadable
        sign = signs[index].translate(MIRRORED) if index < subject else signs[subject]
        result = _combine(result, RAYS[sign](bound), operator.and_)
    return result
