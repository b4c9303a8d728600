r"""Whether two answers say the same, as far as reading tells: lists, tuples, sets, intervals, equations, quantities.

A verdict here is final. Equal are: numbers of one value, formulas of one value for all their letters, lists and sets
with the same members, tuples with the same members in order, the same set of reals (`-2 \le x < 7`, `[-2, 7)`), the
same time of day, numerals of one value in their bases. A name ("x = 5", "5 = x") or a unit that one side leaves out
does not matter; units that both name are converted. An equation of numbers must be true, and says its value.
`None` where one side cannot be read: then math-verify decides.
"""

import functools
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from leash_trl.rewards.formula import (
    Formula,
    Unreadable,
    formulas_equal,
    proportional,
    read_formula,
    value_of,
)
from leash_trl.rewards.typography import UNITS, unit_of


ROUNDED = re.compile(r"-?\d*\.\d{6,}")  # a gold with as many decimals may be rounded

IGNORED = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|bf|rm|it|limits|mathstrut)(?![A-Za-z])"
    r"|\\(?:text)?color\s*\{\w+\}|(?<=\d)\\!|\\!"
)
FONT = re.compile(r"\\(?:math(?:rm|bf|sf|it)|boldsymbol|operatorname)\s*\{\s*(\w)\s*\}|\\text\s*\{\s*([ie])\s*\}")
UPRIGHT_UNIT = re.compile(r"(?<=[\d}])((?:\\[,;: ]|~|\s)*)\\mathrm\s*\{\s*([A-Za-z])\s*\}(?<!\{[ie]\})")
TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|sf|it)|mbox|operatorname|underline|emph)\s*\{([^{}]*)\}"
)
SPACE = re.compile(r"\\[,;: ]|\\q?quad(?![A-Za-z])|~|\s+")
SPELLINGS = [
    (re.compile(rf"\\(?:{names})(?![A-Za-z])"), sign)
    for names, sign in {
        "leqslant|leq|le": "≤", "geqslant|geq|ge": "≥", "neq|ne": "≠", "lt": "<", "gt": ">", "times|cdot|ast": "*",
        "div": "/", "lor": "or", "land": "and", "langle": "(", "rangle": ")", "colon": ":", "approx": "≈", "to": "=",
        "mid|vert": "|", "varnothing": r"\\emptyset", "degree": r"^\\circ", "equiv": "=",
    }.items()
]  # fmt: skip
GROUP_MARK = re.compile(r"(?<=\d)(?:,\\!\s*|\{,\}|\{,\\!\})(?=\d{3}(?!\d))")
DECIMAL_MARK = re.compile(r"(?<=\d)\{,\}(?=\d)")
GERMAN_NUMBER = re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3})+,\d+(?![\d.,])")
GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
OVER = re.compile(r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}")
TEN_POWER = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)")
COLON = re.compile(r"\{:\}|\\!:\\!|\s*:\s*")
NUMERAL = re.compile(r"[({]?\s*([0-9A-Fa-f]+)\s*[)}]?\s*_\s*\{?\s*\"?\s*\(?\s*(\w+)\s*\)?\s*\"?\s*\}?")
BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
BASES |= {"twelve": 12, "sixteen": 16}
TIME = re.compile(r"(\d{1,2}):([0-5]\d)\s*\"?\s*([ap])?\.?\s*(?:m\.?)?\s*\"?", re.IGNORECASE)
WORDS = re.compile(
    r'"[^"]*"|(?<![\\A-Za-z])[A-Za-z]{2,}\.?|[^\W\d_A-Za-z\u0370-\u03ff]+|%|\^\s*\{?\s*\\circ\s*\}?|[$€£¥¢°]|(?<=[0-9])\'(?![0-9])'
)
ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")  # of an angle, so that degrees are no unit
MONEY = re.compile(r"\s*([+-]?)\s*(?:US)?([$€£¥])\s*")
SIMPLE_NAME = re.compile(r"[A-Za-z]'?(?:_(?:\w|\{[^{}]*\}))?(?:\([A-Za-z]\))?")
LINEAR = re.compile(r"-?[\d.]+\*?[a-z](?:[+-][\d.]+)?|-?[a-z][+-][\d.]+")
INDEX = re.compile(r"_(?:\w|\{[^{}]*\})$")
MEMBER = re.compile(r"[A-Za-z]\s*\\in\s*(.*)", re.DOTALL)
BUILDER = re.compile(r"«\s*[A-Za-z](?:\s*\\in\s*\\mathbb\{R\})?\s*[|:]([^«»]*)»")
OPEN, CLOSE = "([{«", ")]}»"


@dataclass(frozen=True)
class Reading:
    """An answer that has been read: a quantity, several readings, a set of reals, or a sign without a value.

    Args:
        kind (`str`):
            `value`, `list`, `set`, `tuple`, `reals`, `ratio`, `time`, `numeral`, or `nothing`, which equals nothing.
        items (`tuple[Reading, ...]`):
            The members of a list, set, tuple or ratio.
        formula (`Formula`, *optional*), unit (`str`), name (`str`):
            Of a value.
        equation (`Formula`, *optional*):
            Left side minus right side, where a value was stated as an equation.
        cuts (`tuple`):
            Of a set of reals: where it begins and ends in turn, each a number and whether the cut is after it. Of a
            numeral: its value and base. Of a time: its minute, and whether it is clear which half of the day is
            meant.
    """

    kind: str
    items: tuple["Reading", ...] = ()
    formula: Formula | None = None
    unit: str = ""
    name: str = ""
    equation: Formula | None = None
    cuts: tuple = ()


NOTHING = Reading("nothing")


def _plain(text: str) -> str:
    """A text in one spelling: words in quotes, braces of sets as guillemets, no spacing commands."""
    text = GERMAN_NUMBER.sub(lambda match: match[0].replace(".", "").replace(",", "."), GROUP_MARK.sub("'", text))
    text = IGNORED.sub("", DECIMAL_MARK.sub(".", text)).replace(r"\{", "«").replace(r"\}", "»")
    text = FONT.sub(r"\1\2", UPRIGHT_UNIT.sub(r'\1 "\2" ', text).replace(r"\%", "%").replace(r"\$", "$"))
    text = TEXT.sub(
        lambda match: f' "{match[1].strip()}" ' if re.search(r"[^\W\d_]", match[1]) else f" {match[1]} ", text
    )
    text = re.sub(r'"\s*(?:,\s*)?(and|or)\s*"', r" \1 ", text)
    text = SPACE.sub(" ", OVER.sub(r"\\frac{\1}{\2}", text))
    for pattern, sign in SPELLINGS:
        text = pattern.sub(sign, text)
    text = text.replace("<=", "≤").replace(">=", "≥").replace("!=", "≠").replace(":=", "=").replace("==", "=")
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", TEN_POWER.sub("*", text))
    text = re.sub(r"\\frac\s*(\d)\s*(?=[\d{])", r"\\frac{\1}", text)
    text = re.sub(r"(\\frac\s*\{[^{}]*\}\s*)(\d)", r"\1{\2}", text)
    return (
        re.sub(" +", " ", COLON.sub(":", text))
        .replace(" ^", "^")
        .replace(r"^{\circ}", r"^\circ")
        .rstrip(" .,;")
        .lstrip()
    )


def _split(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Parts of a text, cut at matches that no bracket encloses."""
    depth, start, place, parts = 0, 0, 0, []
    while place < len(text):
        if not depth and (match := pattern.match(text, place)) and match[0]:
            parts.append(text[start:place])
            start = place = match.end()
            continue
        depth += (text[place] in OPEN) - (text[place] in CLOSE)
        place += 1
    return [*parts, text[start:]]


LIST_MARK = re.compile(
    r"\s*(?:[,;]\s*(?:(?:and|or)\b)?|(?<![A-Za-z\\])(?:and|or|und|oder|et|ou)(?![A-Za-z])|[和或])\s*"
)
OR_MARK = re.compile(r"\s*,?\s*(?<![A-Za-z\\])or(?![A-Za-z])\s*")
AND_MARK = re.compile(r"\s*,?\s*(?<![A-Za-z\\])and(?![A-Za-z])\s*")
UNION, MINUS, MEET = (
    re.compile(r"\s*\\cup\s*"),
    re.compile(r"\s*\\(?:setminus|backslash)\s*"),
    re.compile(r"\s*\\cap\s*"),
)
ORDER, EQUALS, RATIO = re.compile(r"\s*[<>≤≥≠]\s*"), re.compile(r"\s*[=≈]\s*"), re.compile(":")


@functools.lru_cache(maxsize=4096)
def read(text: str) -> Reading | None:
    """The reading of an answer, `None` if it cannot be read."""
    try:
        return _read(_plain(text))
    except (ArithmeticError, RecursionError, ValueError):
        return None


def _read(text: str) -> Reading:
    if text[:1] in ("<", ">", "≤", "≥", "≠"):
        return NOTHING
    if match := NUMERAL.fullmatch(text):
        base = BASES.get(match[2].lower()) or (int(match[2]) if match[2].isdigit() else 0)
        if 2 <= base <= 36:
            return Reading("numeral", cuts=(int(match[1], base), base))
    if (match := TIME.fullmatch(text)) and int(match[1]) < 24:
        hour = int(match[1]) % 12 + 12 * (match[3].lower() == "p") if match[3] else int(match[1])
        return Reading("time", cuts=(60 * hour + int(match[2]), bool(match[3]) or not 0 < hour <= 12))
    if (reals := _reals(text)) is not None:
        return Reading("reals", cuts=reals) if reals else NOTHING
    if match := MEMBER.fullmatch(text):
        text = match[1]
    return _several(text)


def _several(text: str, depth: int = 0) -> Reading:
    text = text.strip()
    if depth > 4:
        raise Unreadable
    sides = _split(text, EQUALS)
    if len(sides) == 2 and _inside(sides[0], "()") and "," in sides[0]:
        names = [part.strip() for part in sides[0].strip()[1:-1].split(",")]
        reading = _several(sides[1], depth + 1)
        if reading.kind == "tuple" and len(names) == len(reading.items):
            named = (replace(item, name=name) for item, name in zip(reading.items, names, strict=True))
            return replace(reading, items=tuple(named))
        return reading
    if text in ("«»", r"\emptyset"):
        return Reading("set")
    inner = text[1:-1]
    if _inside(text, "«»") or (_inside(text, "{}") and len(_split(inner, LIST_MARK)) > 1):
        return replace(_list(inner, depth), kind="set", name=text[0])
    for brackets in ("()", "[]"):
        if _inside(text, brackets):
            parts = _split(inner, re.compile("[,;]"))
            if re.search(r"\d,\d{3}(?!\d)", inner):
                raise Unreadable  # (1,000) may be one or two numbers
            if len(parts) > 1:
                return Reading("tuple", tuple(_several(part, depth + 1) for part in parts), name=brackets)
    return _list(GROUPED.sub(lambda match: match[0].replace(",", "'"), text), depth)


def _inside(text: str, brackets: str) -> bool:
    """Whether one pair of brackets holds all of a text."""
    text = text.strip()
    if len(text) < 2 or text[0] != brackets[0] or text[-1] != brackets[1]:
        return False
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign in OPEN) - (sign in CLOSE)
        if depth == 0:
            return place == len(text) - 1
    return False


def _list(text: str, depth: int) -> Reading:
    parts = [part for part in _split(text, LIST_MARK) if part.strip()]
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
    sides = _split(text, EQUALS)
    if len(sides) == 1:
        return _quantity_or_ratio(text)
    if not sides[0].strip():
        return _item(text.strip(" =≈"), depth)
    if any(_inside(side, "()") and "," in side for side in sides[1:]):
        return _several(sides[-1], depth + 1)
    readings = [_try(_quantity_or_ratio, side) for side in sides]
    closed = [one for one in readings if one and _is_closed(one)]
    if "≈" not in text and any(_equal(closed[0], other) is False for other in closed[1:]):
        return NOTHING
    if len(sides) > 2 or len(closed) == len(sides):
        value = closed[0] if closed else readings[-1]
        if value is None:
            raise Unreadable
        return replace(value, name=sides[0].strip() if readings[0] is not value else "")
    left, right = (re.sub(r"\s", "", side) for side in sides)
    for name, other in ((left, readings[1]), (right, readings[0])):
        if SIMPLE_NAME.fullmatch(name) and name not in ("e", "i") and other:
            return replace(other, name=name, equation=_difference(readings[0], readings[1]))
    if closed and LINEAR.fullmatch(right if closed[0] is readings[0] else left):
        return NOTHING  # 2x = 10 has not been solved
    if closed:
        name = right if closed[0] is readings[0] else left
        return replace(closed[0], name=name, equation=_difference(readings[0], readings[1]))
    equation = _difference(readings[0], readings[1])
    if equation is None:
        raise Unreadable
    return Reading("value", formula=None, name="=", equation=equation)


def _is_closed(reading: Reading) -> bool:
    return all(item.formula and not item.formula.names for item in reading.items or (reading,))


def _difference(one: Reading | None, other: Reading | None) -> Formula | None:
    if one is None or other is None or one.formula is None or other.formula is None or one.unit or other.unit:
        return None
    return one.formula.minus(other.formula)


def _try(function: Callable[[str], Reading], text: str) -> Reading | None:
    try:
        return function(text)
    except (Unreadable, ArithmeticError):
        return None


def _quantity_or_ratio(text: str) -> Reading:
    parts = _split(text, RATIO)
    if len(parts) > 1:
        return Reading("ratio", tuple(_quantity(part) for part in parts))
    return _quantity(text)


def _quantity(text: str) -> Reading:
    """A formula with its unit, which stands after it, or before it if it is money."""
    text, unit = text.strip(), ""
    if money := MONEY.match(text):
        text, unit = money[1] + text[money.end() :], money[2]
    for match in WORDS.finditer(text):
        word = match[0].strip('" ')
        if match.start() == 0:
            if SCALE_FREE.fullmatch(match[0]):
                raise Unreadable
            continue
        if "circ" in match[0] and ANGLE.search(text):
            continue
        is_product = match[0].isascii() and match[0].isalpha() and len(word) <= 3 and not unit_of(word)
        if not is_product:
            if re.search(r"\d", re.sub(r"\^\s*\{?\d\}?", "", text[match.start() :])):
                raise Unreadable  # a number after words
            text, unit = text[: match.start()], unit or text[match.start() :]
            break
    unit = unit.replace('"', " ").strip()
    head, _, rest = unit.partition(" ")
    factor = Fraction(1)
    if UNITS.get(head.lower(), ("",))[0] == "times":
        factor, unit = UNITS[head.lower()][1], rest.strip()
    formula = read_formula(text.rstrip(" .,;"))
    return Reading("value", formula=formula if factor == 1 else formula.times(factor), unit=_unit_name(unit))


SCALE_FREE = re.compile(r'"[^"]*"|[A-Za-z]{4,}')


def _unit_name(unit: str) -> str:
    """A unit in one spelling, such as `in 2` for square inches; empty where it is not known."""
    unit = unit.replace("per cent", "percent").replace(".", " ")
    unit = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|°", " degree ", unit.lower())
    power = next((match[1] for match in re.finditer(r"\^\s*\{?\s*([23])", unit)), "1")
    power = "2" if re.search(r"\bsq(uare)?\b", unit) else "3" if "cubic" in unit else power
    unit = re.sub(r"\^\s*\{?\s*\d\s*\}?|\b(?:square|sq|cubic)\b", " ", unit).strip()
    return f"{unit_of(unit)} {power}" if unit_of(unit) else ""


def _bound(text: str) -> float:
    text = text.strip()
    if match := re.fullmatch(r"([+-]?)\s*\\infty", text):
        return -math.inf if match[1] == "-" else math.inf
    reading = _quantity(text)
    value = value_of(reading.formula) if reading.formula and not reading.formula.names else None
    if value is None or value.imag:
        raise Unreadable
    return value.real


Cut = tuple[float, int]


def _combine(a: tuple[Cut, ...], b: tuple[Cut, ...], keep: Callable[[bool, bool], bool]) -> tuple[Cut, ...]:
    """Cuts of the points for which `keep` of being in `a` and being in `b` holds."""
    result: list[Cut] = []
    for cut in sorted({(-math.inf, 0), *a, *b, (math.inf, 1)}):
        is_in = keep(*(sum(other <= cut for other in cuts) % 2 == 1 for cuts in (a, b))) and cut < (math.inf, 1)
        if is_in != len(result) % 2:
            result.append(cut)
    return tuple(result)


EVERYTHING: tuple[Cut, ...] = ((-math.inf, 0), (math.inf, 1))


def _reals(text: str) -> tuple[Cut, ...] | None:
    """Cuts of a set of reals; `None` if the text is none, or may be a tuple or a set of numbers."""
    if match := BUILDER.fullmatch(text):
        return _reals(match[1].strip())
    if match := MEMBER.fullmatch(text):
        return _reals(match[1])
    if len(_split(text, ORDER)) > 1:
        return _inequalities(text)
    for mark, keep in ((UNION, operator.or_), (MEET, operator.and_), (MINUS, lambda a, b: a and not b)):
        parts = _split(text, mark)
        if len(parts) > 1:
            return functools.reduce(lambda a, b: _combine(a, b, keep), [_piece(part) for part in parts])
    if text == r"\mathbb{R}":
        return EVERYTHING
    is_plain = _inside(text, "()") or _inside(text, "[]")
    if not is_plain and "=" not in text and re.fullmatch(r"[(\[\]][^()\[\]]*[,;].*[)\]\[]", text, re.DOTALL):
        return _piece(text)
    return _piece(text) if is_plain and r"\infty" in text and "," in text else None


def _piece(text: str) -> tuple[Cut, ...]:
    text = text.strip()
    if text == r"\mathbb{R}":
        return EVERYTHING
    if text in (r"\emptyset", "«»"):
        return ()
    if _inside(text, "«»"):
        points = sorted(_bound(part) for part in _split(text[1:-1], LIST_MARK))
        return tuple(cut for point in dict.fromkeys(points) for cut in ((point, 0), (point, 1)))
    if len(text) < 2 or text[0] not in "([]" or text[-1] not in ")][":
        raise Unreadable
    ends = _split(text[1:-1], re.compile("[,;]"))
    if len(ends) != 2:
        raise Unreadable
    start, end = (_bound(part) for part in ends)
    first = (start, 0 if text[0] == "[" or start == -math.inf else 1)
    last = (end, 1 if text[-1] == "]" or end == math.inf else 0)
    return (first, last) if first < last else ()


def _inequalities(text: str) -> tuple[Cut, ...]:
    if len(parts := _split(text, OR_MARK)) > 1:
        return functools.reduce(lambda a, b: _combine(a, b, operator.or_), [_inequalities(part) for part in parts])
    if len(parts := _split(text, AND_MARK)) > 1:
        return functools.reduce(lambda a, b: _combine(a, b, operator.and_), [_inequalities(part) for part in parts])
    sides = [side.strip() for side in _split(text, ORDER)]
    signs = re.findall("[<>≤≥≠]", text)
    subjects = [index for index, side in enumerate(sides) if SIMPLE_NAME.fullmatch(side)]
    if len(subjects) != 1 or len(signs) != len(sides) - 1 or "," in text:
        raise Unreadable
    result = EVERYTHING
    for index, side in enumerate(sides):
        if index == subjects[0]:
            continue
        if math.isinf(bound := _bound(side)):
            continue
        sign = signs[min(index, subjects[0])]
        is_left = index < subjects[0]
        if abs(index - subjects[0]) > 1:
            raise Unreadable
        sign = sign.translate(str.maketrans("<>≤≥", "><≥≤")) if is_left else sign
        rays: dict[str, tuple[Cut, ...]] = {
            "<": ((-math.inf, 0), (bound, 0)),
            "≤": ((-math.inf, 0), (bound, 1)),
            ">": ((bound, 1), (math.inf, 1)),
            "≥": ((bound, 0), (math.inf, 1)),
            "≠": ((-math.inf, 0), (bound, 0), (bound, 1), (math.inf, 1)),
        }
        result = _combine(result, rays[sign], operator.and_)
    return result


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    return False if False in verdicts else None if None in verdicts else True


def _any(verdicts: Sequence[bool | None]) -> bool | None:
    return True if True in verdicts else None if None in verdicts else False


def _fraction(reading: Reading) -> Fraction | None:
    """The value of a bare number, `None` where it is something else."""
    formula = reading.formula
    if formula is None or formula.names or reading.unit or reading.equation:
        return None
    value = formula.at(0)
    return value if isinstance(value, Fraction) else None


def _same_members(a: Sequence[Reading], b: Sequence[Reading]) -> bool | None:
    keys, other_keys = ({_fraction(item) for item in items} for items in (a, b))
    if None not in keys | other_keys:
        return keys == other_keys
    if len(a) * len(b) > 1_000:
        return None
    if not a or not b:
        return False  # only one of them: both have a key otherwise
    table = [[_equal(one, other) for other in b] for one in a]
    return _all([_any(row) for row in table] + [_any(column) for column in zip(*table, strict=True)])


def _index_free(name: str) -> str:
    return INDEX.sub("", name)


def _assigned(reading: Reading) -> dict[str, Reading]:
    """Values by name, where every item has a name of its own that more than an index tells apart."""
    names = [_index_free(item.name) for item in reading.items]
    return dict(zip(names, reading.items, strict=True)) if len(set(names)) == len(names) and all(names) else {}


def _equal(one: Reading, gold: Reading) -> bool | None:
    kinds = {one.kind, gold.kind}
    if "nothing" in kinds:
        return None if gold.kind == "nothing" else False
    if one.kind == gold.kind:
        if one.kind == "reals":
            return len(one.cuts) == len(gold.cuts) and all(map(_same_cut, one.cuts, gold.cuts))
        if one.kind == "time":
            (minutes, is_sure), (gold_minutes, gold_is_sure) = one.cuts, gold.cuts
            return minutes == gold_minutes or (is_sure != gold_is_sure and (minutes - gold_minutes) % 720 == 0)
        if one.kind == "numeral":
            return one.cuts[0] == gold.cuts[0]
        if one.kind == "value":
            return _same_quantity(one, gold)
    if kinds & {"numeral", "time"}:
        return None if "numeral" in kinds or "ratio" in kinds else False
    if "reals" in kinds:
        other = one if gold.kind == "reals" else gold
        return _as_reals(one, gold) if other.kind in ("tuple", "set") else False
    if "ratio" in kinds:
        return _same_ratio(one, gold)
    return _same_collection(one, gold)


def _same_cut(one: Cut, other: Cut) -> bool:
    if math.inf in (abs(one[0]), abs(other[0])):
        return one == other
    return one[1] == other[1] and math.isclose(one[0], other[0], rel_tol=1e-12, abs_tol=1e-300)


def _as_reals(one: Reading, gold: Reading) -> bool | None:
    cuts = []
    for reading in (one, gold):
        if reading.kind == "reals":
            cuts.append(reading.cuts)
            continue
        values = [value_of(item.formula) if item.formula else None for item in map(_only, reading.items)]
        if None in values or (reading.kind == "tuple" and len(values) != 2):
            return False
        numbers = [value.real for value in values if value is not None]
        if reading.kind == "tuple":
            is_open = reading.name == "()"
            cuts.append(((numbers[0], int(is_open)), (numbers[1], int(not is_open))))
        else:
            cuts.append(tuple(cut for number in sorted(numbers) for cut in ((number, 0), (number, 1))))
    return len(cuts[0]) == len(cuts[1]) and all(map(_same_cut, *cuts))


def _only(reading: Reading) -> Reading:
    return reading.items[0] if reading.kind == "list" and len(reading.items) == 1 else reading


def _same_ratio(one: Reading, gold: Reading) -> bool | None:
    ratios = []
    for reading in (one, gold):
        reading = _only(reading)
        if reading.kind == "ratio" and reading.items[0].formula and reading.items[-1].formula:
            ratios.append([item.formula for item in reading.items if item.formula])
        elif reading.kind == "value" and reading.formula:
            ratios.append([reading.formula, read_formula("1")])
        else:
            return False
    if len(ratios[0]) != len(ratios[1]):
        return False
    (first, *rest), (gold_first, *gold_rest) = ratios
    return _all([formulas_equal(first.times(b), a.times(gold_first)) for a, b in zip(rest, gold_rest, strict=True)])


def _same_collection(one: Reading, gold: Reading) -> bool | None:
    a, b = (reading.items if reading.kind in ("list", "set", "tuple") else (reading,) for reading in (one, gold))
    if one.kind == gold.kind == "tuple":
        if one.name != gold.name:
            return None
        return len(a) == len(b) and _all([*map(_equal, a, b)])
    if (one.kind, one.name, gold.kind) == ("set", "«", "tuple"):
        return False  # a set has no order
    if len(a) > 1 and len(a) == len(b):
        names, gold_names = _assigned(one), _assigned(gold)
        if names and names.keys() == gold_names.keys():
            return _all([_equal(names[name], gold_names[name]) for name in names])
        if "tuple" in (one.kind, gold.kind):
            is_named = bool(names or gold_names)
            return _all([*map(_equal, a, b)]) if is_named else None
    if "tuple" in (one.kind, gold.kind):
        if "set" in (one.kind, gold.kind):
            return None
        return False if 1 in (len(a), len(b)) else None
    return _same_members(a, b)


def _same_quantity(one: Reading, gold: Reading) -> bool | None:
    is_unsolved = one.equation is not None and not SIMPLE_NAME.fullmatch(one.name)
    if (
        one.equation is not None
        and gold.equation is not None
        and (is_unsolved or not SIMPLE_NAME.fullmatch(gold.name))
    ):
        if proportional(one.equation, gold.equation):
            return True
        return False if SIMPLE_NAME.fullmatch(gold.name) else None
    if one.formula is None or gold.formula is None:
        return None
    if gold.equation is not None and not SIMPLE_NAME.fullmatch(gold.name) and not one.name:
        return None
    units = [UNITS[reading.unit.split()[0]] if reading.unit else None for reading in (one, gold)]
    if units[0] and units[1] and one.unit != gold.unit:
        (dimension, factor), (gold_dimension, gold_factor) = units[0], units[1]
        power, gold_power = (int(reading.unit.split()[1]) for reading in (one, gold))
        if dimension != gold_dimension or power != gold_power:
            return False
        return formulas_equal(one.formula.times(factor**power), gold.formula.times(gold_factor**power))
    verdict = formulas_equal(one.formula, gold.formula)
    shares = [reading.formula.times(Fraction(1, 100)) for reading in (one, gold) if reading.formula]
    if units[0] and units[0][0] == "percent" and units[1] is None:
        value = value_of(gold.formula)
        share = formulas_equal(shares[0], gold.formula)
        return share if value is not None and abs(value) < 1 else _any([verdict, share])  # 0.07 is 7 %, not 0.07 %
    if units[1] and units[1][0] == "percent" and units[0] is None:
        return _any([verdict, formulas_equal(one.formula, shares[1])])
    return verdict


LETTER_UNIT = re.compile(
    r"(.*[\d})])(\s*)([a-wA-W]{1,3})\.?((?:\s*\^\s*\{?[23]\}?)?)"
)  # 3 h, 18 mph: units where the gold has no letters
DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")


def comparison(answer: str, gold: str) -> bool | None:
    r"""Whether an answer equals a gold, by the rule at the head of this file; `None` if reading does not tell.

    Args:
        answer (`str`), gold (`str`):
            What [`~leash_trl.rewards.commitment.commitment`] makes of them.

    Example:
        >>> comparison("1 234", "1{,}234"), comparison(r"-2 \le x < 7", "[-2, 7)"), comparison("2+3=12", "12")
        (True, True, False)
        >>> comparison(r"\ln x^2", r"2\ln x") is None
        True
    """
    try:
        return _comparison(answer, gold)
    except (ArithmeticError, RecursionError, ValueError):
        return None  # no answer may end a training run


def _comparison(answer: str, gold: str) -> bool | None:
    one, other = read(answer), read(gold)
    if one is None or other is None:
        return False if one is NOTHING and other is not None else None
    verdict = _equal(one, other)
    if verdict is not True and (match := LETTER_UNIT.fullmatch(answer)) and all(map(_is_closed, other.items)):
        has_unit = any(item.unit for item in other.items)
        if has_unit or (match[2] and (len(match[3]) > 1 or unit_of(match[3]))):
            verdict = _equal(read(f'{match[1]} "{match[3]}{match[4]}"') or one, other)
    if verdict is not True and len(one.items) == 2 and len(DECIMAL_COMMA.findall(answer)) == answer.count(",") == 1:
        decimal = read(DECIMAL_COMMA.sub(".", answer))
        if len(other.items) == 1 and decimal:
            return _equal(decimal, other)
    if verdict is False and ROUNDED.fullmatch(gold.strip()) and "." not in answer and len(one.items) == 1:
        value = value_of(one.items[0].formula) if one.items[0].formula else None
        decimals = len(gold.strip().partition(".")[2])
        return value is not None and not value.imag and abs(value.real - float(gold)) <= 0.5001 * 10.0**-decimals
    return verdict
