r"""Decides whether two parsed answers are equal: lists, tuples, sets, equations and quantities.

A verdict of this module is final. These answers are equal: numbers of the same value, lists and sets with the same
members, tuples with the same members in the same order, the same time of day, equal ratios, and numerals of the same
value in their bases, the same residues of one modulus, and the same permutation in cycles. A name ("x = 5", "5 = x")
or a unit that one answer leaves out does not matter; names that both answers have must be the same, and units that
both name are converted. Names that repeat ("x=1, y=2 or x=2, y=1") bind their values, as in (1, 2), (2, 1). An
equation of numbers must be true, and states its value. The verdict is `None` if an answer cannot be read, or if the
verdict depends on formulas without a rational value; the worker process then compares the answers with
[`~leash_trl.rewards.grader.algebra.formulas_equal`].
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from leash_trl.rewards.grader.latex import normalized
from leash_trl.rewards.grader.parsing import UNREAD, ParsedAnswer, parse
from leash_trl.rewards.grader.rational import rational, rationals_equal
from leash_trl.rewards.grader.units import Same, quantities_equal


ROUNDED = re.compile(r"-?\d*\.(\d{6,})")  # a reference answer with so many decimals may be rounded
# The letters of 3 h and 18 mph are units if the reference answer has no letters.
LETTER_UNIT = re.compile(r"(.*[\d})])(\s*)([a-wA-W]{2,3}|[ghlms])\.?((?:\s*\^\s*\{?[23]\}?)?)")
FUNCTION = re.compile(r"\([a-z]\)$")  # f(x)
BETWEEN = re.compile(rf"{UNREAD.pattern}|[,;]")
POINTS = re.compile("[A-Z]{2,}")  # as in a triangle, whose points have an order
DECIMAL_COMMA = re.compile(r"[^,]*\d,\d[^,]*")


def are_equal(answer: str, gold: str, same: Same = rationals_equal) -> bool | None:
    r"""Returns whether an answer equals a reference answer, by the rule of this module; `None` if this is undecided.

    `same` returns whether two formulas, or two equations, are equal, and `None` if this is undecided.

    Example:
        >>> are_equal("1 234", "1{,}234"), are_equal("2+3=12", "12"), are_equal(r"\sqrt{12}", r"2\sqrt{3}")
        (True, False, None)
    """
    one, other = parse(answer), parse(gold)
    if one is None or other is None:
        return _equal_between_signs(normalized(answer), normalized(gold), same)
    verdict = _equal(one, other, same)
    if verdict is True:
        return True
    is_unit = (match := LETTER_UNIT.fullmatch(answer)) and (match[2] or any(item.unit for item in other.items))
    if match and is_unit and all(item.is_closed for item in other.items):
        verdict = _equal(parse(f'{match[1]} "{match[3]}{match[4]}"') or one, other, same)
    if verdict is not True and (len(one.items), len(other.items)) == (2, 1) and DECIMAL_COMMA.fullmatch(answer):
        return _equal(parse(answer.replace(".", "").replace(",", ".")) or one, other, same)
    if verdict is False and (rounded := ROUNDED.fullmatch(gold.strip())) and "." not in answer and len(one.items) == 1:
        value = rational(one.items[0].formula)  # without a value, math-verify rounds
        return None if value is None else abs(value - Fraction(rounded[0])) * 10 ** len(rounded[1]) <= Fraction(1, 2)
    return verdict


def all_equal(verdicts: Sequence[bool | None]) -> bool | None:
    """Returns whether all verdicts are true; `None` if this is undecided."""
    return False if False in verdicts else None if None in verdicts else True


def _equal_between_signs(answer: str, gold: str, same: Same) -> bool | None:
    """Compares texts with signs that no parser reads: the signs must be the same, and the parts between them equal."""
    signs, gold_signs = UNREAD.findall(answer), UNREAD.findall(gold)
    if not signs and not gold_signs:
        return None
    if signs != gold_signs:
        return False
    parts, gold_parts = ([part for part in BETWEEN.split(text) if part.strip()] for text in (answer, gold))
    if len(parts) != len(gold_parts):
        return False
    return all_equal([_same_part(part, gold_part, same) for part, gold_part in zip(parts, gold_parts, strict=True)])


def _same_part(part: str, gold_part: str, same: Same) -> bool | None:
    """Compares two parts between signs, by their texts if they are points, else by their values."""
    text, gold_text = (re.sub(r"\s|^\s*\{|\}\s*$", "", one) for one in (part, gold_part))
    if text == gold_text or POINTS.fullmatch(text):
        return text == gold_text
    return are_equal(part, gold_part, same)


def _any(verdicts: Sequence[bool | None]) -> bool | None:
    return True if True in verdicts else None if None in verdicts else False


def _equal(one: ParsedAnswer, gold: ParsedAnswer, same: Same) -> bool | None:
    kinds = {one.kind, gold.kind}
    if "nothing" in kinds:
        return None if gold.kind == "nothing" else False
    if "reals" in kinds:
        return None if kinds <= {"reals", "tuple", "set"} else False
    if kinds == {"time"}:
        (minute, half), (gold_minute, gold_half) = one.key, gold.key
        return minute == gold_minute and (half == gold_half or not half or not gold_half)
    if kinds in ({"numeral"}, {"residues"}, {"permutation"}):
        return one.key == gold.key
    if kinds & {"residues", "permutation"} or kinds == {"tuple", "value"}:
        return False
    if kinds == {"time", "value"} and not (":" in one.name + gold.name and one.formula and gold.formula):
        return False
    if "value" in kinds <= {"value", "time"}:
        return _same_quantity(one, gold, same)
    if "numeral" in kinds:
        return None
    return _same_collection(one, gold, same)


def _same_collection(one: ParsedAnswer, gold: ParsedAnswer, same: Same) -> bool | None:
    a, b = (reading.items if reading.kind in ("list", "set", "tuple") else (reading,) for reading in (one, gold))
    if one.kind == gold.kind == "tuple":
        if _names_differ(one.name, gold.name):
            return False
        if one.key != gold.key:
            return None
        return len(a) == len(b) and all_equal([_equal(*pair, same) for pair in zip(a, b, strict=True)])
    if "tuple" in (one.kind, gold.kind):
        return None
    names, gold_names = _assigned(one), _assigned(gold)
    if names and names.keys() == gold_names.keys():
        return all_equal([_equal(names[name], gold_names[name], same) for name in names])
    return _same_members(a, b, same)


def _assigned(reading: ParsedAnswer) -> dict[str, ParsedAnswer]:
    """Returns the items of an answer by name; empty unless every item has a name of its own."""
    names = [item.name for item in reading.items]
    return dict(zip(names, reading.items, strict=True)) if len(set(names)) == len(names) and all(names) else {}


def _same_members(a: Sequence[ParsedAnswer], b: Sequence[ParsedAnswer], same: Same) -> bool | None:
    if not a or not b:
        return not a and not b
    if len(a) * len(b) > 1_000:
        return None
    return members_match([[_equal(one, other, same) for other in b] for one in a])


def members_match(table: Sequence[Sequence[bool | None]]) -> bool | None:
    """Returns whether each row and each column of a table of verdicts has a true one; `None` if this is undecided."""
    return all_equal([_any(row) for row in table] + [_any(column) for column in zip(*table, strict=True)])


def _same_quantity(one: ParsedAnswer, gold: ParsedAnswer, same: Same) -> bool | None:
    if not gold.is_solved or (gold.name and not one.is_solved):
        return None
    if _names_differ(one.name, gold.name):
        return False
    return quantities_equal(one.formula, one.unit, gold.formula, gold.unit, same)


def _names_differ(name: str, gold_name: str) -> bool:
    """Returns whether two names differ; `y` may be called `f(x)`, and an index or an argument may be left out."""
    if not (name.strip(":") and gold_name.strip(":")) or FUNCTION.search(name) or FUNCTION.search(gold_name):
        return False
    a, b = (re.sub(r"[\s{}]", "", text).casefold() for text in (name, gold_name))
    return b not in (a, re.split(r"[_(]", a)[0]) and a != re.split(r"[_(]", b)[0]
