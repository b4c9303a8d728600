r"""Decides whether two parsed answers are equal: lists, tuples, sets, intervals, equations, quantities.

A verdict here is final. These are equal: numbers of one value, formulas of one value for all their letters, lists and
sets with the same members, tuples with the same members in order, the same set of reals (`-2 \le x < 7`, `[-2, 7)`),
the same time of day, numerals of one value in their bases. A name ("x = 5", "5 = x") or a unit that one side leaves
out does not matter; units that both name are converted. An equation of numbers must be true, and states its value.
The verdict is `None` if one side cannot be read: then math-verify decides.
"""

import math
import re
from collections.abc import Sequence
from fractions import Fraction

from leash_trl.rewards.formula import formulas_equal, proportional, read_formula, value_of
from leash_trl.rewards.reading import NOTHING, SIMPLE_NAME, Cut, Reading, points, read
from leash_trl.rewards.units import quantities_equal, unit_of


ROUNDED = re.compile(r"-?\d*\.\d{6,}")  # a gold with as many decimals may be rounded
INDEX = re.compile(r"_(?:\w|\{[^{}]*\})$")
# 3 h, 18 mph: these are units if the gold has no letters
LETTER_UNIT = re.compile(r"(.*[\d})])(\s*)([a-wA-W]{1,3})\.?((?:\s*\^\s*\{?[23]\}?)?)")
DECIMAL_COMMA = re.compile(r"(?<=\d),(?=\d)")


def comparison(answer: str, gold: str) -> bool | None:
    r"""Whether an answer equals a gold, by the rule at the head of this file; `None` if one cannot be read.

    Args:
        answer (`str`), gold (`str`):
            Results of [`~leash_trl.rewards.wording.commitment`].

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
    if (
        verdict is not True
        and (match := LETTER_UNIT.fullmatch(answer))
        and all(item.is_closed for item in other.items)
    ):
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


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    return False if False in verdicts else None if None in verdicts else True


def _any(verdicts: Sequence[bool | None]) -> bool | None:
    return True if True in verdicts else None if None in verdicts else False


def _equal(one: Reading, gold: Reading) -> bool | None:
    kinds = {one.kind, gold.kind}
    if "nothing" in kinds:
        return None if gold.kind == "nothing" else False
    if "reals" in kinds:
        cuts, gold_cuts = _cuts(one), _cuts(gold)
        return len(cuts) == len(gold_cuts) > 0 and all(map(_same_cut, cuts, gold_cuts))
    if kinds == {"time"}:
        (minutes, is_sure), (gold_minutes, gold_is_sure) = one.key, gold.key
        return minutes == gold_minutes or (is_sure != gold_is_sure and (minutes - gold_minutes) % 720 == 0)
    if kinds == {"numeral"}:
        return one.key == gold.key
    if kinds == {"value"}:
        return _same_quantity(one, gold)
    if kinds & {"numeral", "time"}:
        return None if "numeral" in kinds or "ratio" in kinds else False
    return _same_ratio(one, gold) if "ratio" in kinds else _same_collection(one, gold)


def _cuts(reading: Reading) -> tuple[Cut, ...]:
    """Cuts of a set of reals, an interval or a set of numbers; none for anything else."""
    if reading.kind == "reals":
        return reading.key
    formulas = [item.formula for item in map(_only, reading.items)]
    numbers = [value.real for formula in formulas if formula and (value := value_of(formula)) is not None]
    if len(numbers) < len(formulas) or reading.kind not in ("tuple", "set"):
        return ()
    if reading.kind == "set":
        return points(numbers)
    is_open = reading.name == "("
    return ((numbers[0], int(is_open)), (numbers[1], int(not is_open))) if len(numbers) == 2 else ()


def _same_cut(one: Cut, other: Cut) -> bool:
    return one[1] == other[1] and math.isclose(one[0], other[0], rel_tol=1e-12, abs_tol=1e-300)


def _only(reading: Reading) -> Reading:
    return reading.items[0] if reading.kind == "list" and len(reading.items) == 1 else reading


def _same_ratio(one: Reading, gold: Reading) -> bool | None:
    ratios = []
    for reading in map(_only, (one, gold)):
        parts = reading.items if reading.kind == "ratio" else (reading, Reading("value", formula=read_formula("1")))
        ratios.append([part.formula for part in parts if part.formula])
    if len(ratios[0]) != len(ratios[1]) or len(ratios[0]) < 2:
        return False
    (first, *rest), (gold_first, *gold_rest) = ratios
    return _all([formulas_equal(first.times(b), a.times(gold_first)) for a, b in zip(rest, gold_rest, strict=True)])


def _same_collection(one: Reading, gold: Reading) -> bool | None:
    a, b = (reading.items if reading.kind in ("list", "set", "tuple") else (reading,) for reading in (one, gold))
    if one.kind == gold.kind == "tuple":
        return len(a) == len(b) and _all([*map(_equal, a, b)]) if one.name == gold.name else None
    if (one.kind, one.name, gold.kind) == ("set", "«", "tuple"):
        return False  # a set has no order
    if len(a) > 1 and len(a) == len(b):
        names, gold_names = _assigned(one), _assigned(gold)
        if names and names.keys() == gold_names.keys():
            return _all([_equal(names[name], gold_names[name]) for name in names])
        if "tuple" in (one.kind, gold.kind):
            return _all([*map(_equal, a, b)]) if names or gold_names else None
    if "tuple" in (one.kind, gold.kind):
        return False if "set" not in (one.kind, gold.kind) and 1 in (len(a), len(b)) else None
    return _same_members(a, b)


def _assigned(reading: Reading) -> dict[str, Reading]:
    """Values by name, if every item has its own name, and the names differ in more than an index."""
    names = [INDEX.sub("", item.name) for item in reading.items]
    return dict(zip(names, reading.items, strict=True)) if len(set(names)) == len(names) and all(names) else {}


def _fraction(reading: Reading) -> Fraction | None:
    """The value of a bare number; `None` for anything else."""
    formula = reading.formula
    if formula is None or formula.names or reading.unit or reading.equation:
        return None
    value = formula.at(0)
    return value if isinstance(value, Fraction) else None


def _same_members(a: Sequence[Reading], b: Sequence[Reading]) -> bool | None:
    if not a or not b:
        return not a and not b
    numbers, gold_numbers = ({_fraction(item) for item in items} for items in (a, b))
    if None not in numbers | gold_numbers:
        return numbers == gold_numbers
    if len(a) * len(b) > 1_000:
        return None
    table = [[_equal(one, other) for other in b] for one in a]
    return _all([_any(row) for row in table] + [_any(column) for column in zip(*table, strict=True)])


def _same_quantity(one: Reading, gold: Reading) -> bool | None:
    is_gold_solved = gold.equation is None or bool(SIMPLE_NAME.fullmatch(gold.name))
    is_solved = one.equation is None or bool(SIMPLE_NAME.fullmatch(one.name))
    if one.equation is not None and gold.equation is not None and not (is_solved and is_gold_solved):
        if proportional(one.equation, gold.equation):
            return True
        return False if is_gold_solved else None
    if one.formula is None or gold.formula is None or (not is_gold_solved and not one.name):
        return None
    return quantities_equal(one.formula, one.unit, gold.formula, gold.unit)
