"""Parses an answer: a quantity with its unit, an equation, a list, tuple or set, or a set of real numbers."""

import functools
import itertools
import re
from dataclasses import dataclass, replace

from leash_trl.rewards.grader.latex import normalized
from leash_trl.rewards.grader.rational import Unreadable, rational, with_plain_numbers
from leash_trl.rewards.grader.units import UNITS, Unit, read_unit, times, unit_of


NUMERAL = re.compile(r"[({]?\s*([0-9A-Fa-f]+)\s*[)}]?\s*_\s*\{?\s*\"?\s*\(?\s*(\w+)\s*\)?\s*\"?\s*\}?")
BASES = {"two": "2", "three": "3", "five": "5", "eight": "8", "ten": "10", "sixteen": "16"}
TIME = re.compile(r"(\d{1,2}):([0-5]\d)\s*\"?\s*([ap])?\.?\s*(?:m\.?)?\s*\"?", re.IGNORECASE)
WORDS = re.compile(
    r'"[^"]*"|(?<![\\A-Za-z])[A-Za-z]{2,}\.?|[^\W\d_A-Za-z\u0370-\u03ff]+|%|\^\s*\{?\s*\\circ\s*\}?|[$€£¥¢°]'
)
ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")  # functions of an angle, in which degrees are not a unit
MONEY = re.compile(r"\s*([+-]?)\s*(?:US)?([$€£¥])\s*")
SIMPLE_NAME = re.compile(r"[A-Za-z]'*(?:_(?:\w|\{[^{}]*\}))?(?:\(-?(?:[A-Za-z]|\d+)\))?")
POINT = re.compile(r"([A-Z]'?(?:_(?:\w|\{\w+\}))?)\s*(\([^()]*,.*\))")
CYCLE = re.compile(r"\(\s*(\d{1,2}(?: \d{1,2})+)\s*\)")
MODULUS = re.compile(r"(.*?)[\s,(]*(?:\\[pb]?mod|mod(?:ulo)?)(?![A-Za-z])[\s({]*(\d+)[\s)}]*")
CONGRUENCE = re.compile(r"[^=]*=\s*(?=[^=]*$)")
LINEAR = re.compile(r"-?[\d.]+\*?[a-z](?:[+-][\d.]+)?|-?[a-z][+-][\d.]+")
GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")

OPEN, CLOSE = "([{«", ")]}»"
LIST_MARK = re.compile(
    r"\s*(?:[,;]\s*(?:(?:and|or)\b)?|(?<![A-Za-z\\])(?:and|or|und|oder|et|ou|или)(?![A-Za-z])|[和或])\s*"
)
EQUALS, COMMA, RATIO = re.compile(r"\s*[=≈]\s*"), re.compile("[,;]"), re.compile(":")
REALS = re.compile(r"[<>≤≥≠]|\\(?:cup|cap|setminus|backslash|infty|mathbb)|«[^«»]*[|:]")
HALF_OPEN = re.compile(r"(?!\(.*\)$|\[.*\]$)[(\[\]][^()\[\]]*[,;][^()\[\]]*[)\]\[]")
KNOWN = re.compile(
    r"\\(?:frac|sqrt|binom|pi|log|ln|exp|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|circ|[lr](?:floor|ceil))(?![A-Za-z])"
)
# Commands that this module or math-verify reads, or that change only how a text looks.
READ = """
    frac cfrac over binom dbinom tbinom choose sqrt pi log ln lg exp circ degree sin cos tan cot sec csc sinh cosh tanh
    arcsin arccos arctan arccot arcsec arccsc arsinh arcosh artanh arcsinh arccosh arctanh lfloor rfloor lceil rceil
    floor ceil pm mp cdot times div in notin cup cap setminus backslash infty emptyset mathbb le ge lt gt lor land vee
    wedge forall sum prod int oint lim limits nolimits max min sup inf gcd lcm det begin end hline prime not mapsto
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon
    phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega ell Re Im partial
    therefore Rightarrow Longrightarrow implies iff rightarrow longrightarrow boxed fbox text textbf textit mathrm
    mathbf mathit mathcal mathsf mathop bold boldsymbol pmb operatorname bf it rm sf tt em overline underline bar hat
    widehat vec tilde dot overrightarrow underbrace middle vert Vert lvert rvert lVert rVert quad qquad hspace vspace
    displaystyle textstyle scriptstyle tiny small normalsize large Large LARGE huge Huge color textcolor phantom
"""
UNREAD = re.compile(rf"\\(?!(?:{'|'.join(READ.split())})(?![A-Za-z]))[A-Za-z]+")
LETTER = re.compile(r"(?<![\\A-Za-z])(?![ei](?![A-Za-z]))[A-Za-z]")


@dataclass(frozen=True)
class ParsedAnswer:
    """A parsed answer.

    The kind is `value`, `list`, `set`, `tuple`, `time`, `numeral`, `residues` (classes of numbers modulo one number),
    `permutation`, `reals` (a set of real numbers, not parsed further), or `nothing`, which equals no answer.
    """

    kind: str
    items: tuple["ParsedAnswer", ...] = ()  # members of a list, set or tuple
    formula: str = ""  # formula of a value, with plain numbers
    unit: Unit | None = None  # unit of a value
    name: str = ""  # name of a value or a tuple, as in "x = 5"
    is_solved: bool = True  # false if an equation of formulas states the value
    key: tuple[
        object, ...
    ] = ()  # value of a numeral, residues, cycles; minute and half of the day; bracket of a tuple

    @property
    def is_closed(self) -> bool:
        """Returns whether the answer consists of formulas without letters."""
        return all(item.formula and not LETTER.search(item.formula) for item in self.items or (self,))


NOTHING = ParsedAnswer("nothing")


def split_at(text: str, mark: re.Pattern[str]) -> list[str]:
    """Returns the parts of a text, split at the marks outside all brackets."""
    depth, start, place, parts = 0, 0, 0, []
    while place < len(text):
        if not depth and (match := mark.match(text, place)) and match[0]:
            parts.append(text[start:place])
            start = place = match.end()
            continue
        depth += (text[place] in OPEN) - (text[place] in CLOSE)
        place += 1
    return [*parts, text[start:]]


def inside_brackets(text: str, brackets: str) -> bool:
    """Returns whether one pair of the given brackets encloses the complete text."""
    depths = [*itertools.accumulate((sign in OPEN) - (sign in CLOSE) for sign in text.strip())]
    return 0 in depths and depths.index(0) == len(depths) - 1 and text.strip()[0] + text.strip()[-1] == brackets


@functools.lru_cache(maxsize=4096)
def parse(text: str) -> ParsedAnswer | None:
    """Returns the parsed answer of a text; `None` if the text cannot be read."""
    try:
        return _parse(normalized(text))
    except (ArithmeticError, RecursionError, ValueError):
        return None


def _parse(text: str) -> ParsedAnswer:
    numeral, clock = NUMERAL.fullmatch(text), TIME.fullmatch(text)
    base = BASES.get(numeral[2].lower(), numeral[2]) if numeral else ""
    if numeral and base.isdigit() and 2 <= int(base) <= 36:
        return ParsedAnswer("numeral", key=(int(numeral[1], int(base)),))
    if clock and int(clock[1]) < 24:
        hour = int(clock[1])
        half = (clock[3] or "").lower()
        ratio = f"({hour})/({clock[2]})" if not clock[3] and clock[2] > "09" else ""  # 7:32 may be a ratio
        return ParsedAnswer("time", formula=ratio, key=(60 * (hour % 12) + int(clock[2]), half))
    if modulus := MODULUS.fullmatch(text.replace('"', " ")):
        return ParsedAnswer("residues", key=_residues(modulus[1], int(modulus[2])))
    if cycles := CYCLE.findall(text) if not CYCLE.sub("", text).strip() else []:
        return ParsedAnswer("permutation", key=tuple(sorted(map(_cycle, cycles))))
    return ParsedAnswer("reals") if REALS.search(text) or HALF_OPEN.fullmatch(text) else _several(text)


def _residues(text: str, modulus: int) -> tuple[int, ...]:
    r"""Returns a modulus and the residues of a text such as `x = 7, 11`, from 0 to the modulus."""
    parts = split_at(CONGRUENCE.sub("", text.strip()), LIST_MARK)
    values = [rational(with_plain_numbers(part)) for part in parts]
    residues = {int(value % modulus) for value in values if value is not None and value.denominator == 1}
    if any(value is None or value.denominator > 1 for value in values):
        raise Unreadable
    return (modulus, *sorted(residues))


def _cycle(text: str) -> tuple[int, ...]:
    """Returns the numbers of a cycle such as `3 1 2`, from the smallest on."""
    numbers = [*map(int, text.split())]
    start = numbers.index(min(numbers))
    return (*numbers[start:], *numbers[:start])


def _several(text: str) -> ParsedAnswer:
    """Parses a list, a tuple, a set, or a single item."""
    text = text.strip()
    if text in ("«»", r"\emptyset"):
        return ParsedAnswer("set")
    inner = text[1:-1]
    if inside_brackets(text, "«»"):
        return replace(_list(inner), kind="set")
    if (inside_brackets(text, "()") or inside_brackets(text, "[]")) and len(parts := split_at(inner, COMMA)) > 1:
        return ParsedAnswer("tuple", tuple(map(_several, parts)), key=(text[0],))
    return _list(GROUPED.sub(lambda match: match[0].replace(",", "'"), text))


def _list(text: str) -> ParsedAnswer:
    parts = [part.strip() for part in split_at(text, LIST_MARK) if part.strip()]
    if not parts:
        raise Unreadable
    items = [_several(part) if len(parts) > 1 and part[0] in OPEN else _item(part) for part in parts]
    if len(items) == 1 and items[0].kind != "value":
        return items[0]
    return ParsedAnswer("list", _bound(tuple(items)))


def _bound(items: tuple[ParsedAnswer, ...]) -> tuple[ParsedAnswer, ...]:
    """Returns a tuple for each solution if items such as `x=1, y=2 or x=2, y=1` repeat their names, else the items."""
    names = [item.name for item in items]
    size = len({*names})
    solutions = [items[start : start + size] for start in range(0, len(items), size)]
    if "" in names or not 1 < size < len(items) or any({item.name for item in part} != {*names} for part in solutions):
        return items
    in_order = [sorted(part, key=lambda item: item.name) for part in solutions]
    return tuple(ParsedAnswer("tuple", tuple(part), key=("(",)) for part in in_order)


def _item(text: str) -> ParsedAnswer:
    """Parses a quantity, a ratio, an equation, or a tuple with its name."""
    sides = [side.strip() for side in split_at(text, EQUALS)]
    if len(sides) == 1:
        point = POINT.fullmatch(text)
        return replace(_several(point[2]), name=point[1]) if point else _quantity_or_ratio(text)
    if inside_brackets(sides[-1], "()") and "," in sides[-1]:
        name = sides[0] if SIMPLE_NAME.fullmatch(sides[0]) else ""  # not in (x, y) = (1, 2)
        return replace(_several(sides[-1]), name=name)
    return _equation(sides, is_exact="≈" not in text)


def _equation(sides: list[str], is_exact: bool) -> ParsedAnswer:
    r"""Returns the value that an equation such as `\cos x = 1` states for its other side; `NOTHING` if false."""
    readings = [_readable(side) for side in sides]
    closed = [one for one in readings if one and one.is_closed]
    values = {rational(one.formula) for one in closed if not one.unit} - {None}
    if is_exact and len(values) > 1:
        return NOTHING
    left, right = (re.sub(r"\s", "", side) for side in (sides[0], sides[-1]))
    if readings[-1] and SIMPLE_NAME.fullmatch(left):
        return replace(readings[-1], name=left)
    if not closed:
        raise Unreadable
    name = right if closed[0] is readings[0] else left
    is_solved = not all(one and one.formula and not one.unit for one in readings)
    return NOTHING if LINEAR.fullmatch(name) else replace(closed[0], name=name, is_solved=is_solved)  # as in 2x = 10


def _readable(text: str) -> ParsedAnswer | None:
    try:
        return _quantity_or_ratio(text)
    except (Unreadable, ArithmeticError):
        return None


def _quantity_or_ratio(text: str) -> ParsedAnswer:
    """Parses a quantity or a ratio; the ratio of two quantities becomes their quotient, a longer one several."""
    first, *rest = [_quantity(part) for part in split_at(text, RATIO)]
    ratios = [replace(part, formula=f"({first.formula})/({part.formula})", name=":") for part in rest]
    return ParsedAnswer("tuple", tuple(ratios), key=(":",)) if len(ratios) > 1 else [first, *ratios][-1]


def _quantity(text: str) -> ParsedAnswer:
    """Parses a formula with its unit, which stands after the formula or, for money, before the formula."""
    text, unit = text.strip(), ""
    if money := MONEY.match(text):
        text, unit = money[1] + text[money.end() :], money[2]
    for match in WORDS.finditer(text):
        word = match[0].strip('" ')
        is_product = len(word) <= 3 and match[0].isascii() and match[0].isalpha() and not unit_of(word)
        if not is_product and not ("circ" in word and ANGLE.search(text)):
            if re.search(r"\d", re.sub(r"\^\s*\{?\d\}?", "", text[match.start() :])):
                raise Unreadable  # there is a number after the words
            text, unit = text[: match.start()], f"{unit} {text[match.start() :]}"
            break
    head, _, rest = unit.replace('"', " ").strip().partition(" ")
    text = text.rstrip(" .,;")
    if not text or "\\" in KNOWN.sub("", text):
        raise Unreadable
    formula = with_plain_numbers(text)
    if (counted := UNITS.get(unit_of(head))) and counted[0] == "times":
        return ParsedAnswer("value", formula=times(formula, counted[1]), unit=read_unit(rest))
    unit_alone = None if head == "in" else read_unit(head)  # 5 hours later, but not 5 in total
    return ParsedAnswer("value", formula=formula, unit=read_unit(f"{head} {rest}") or unit_alone)
