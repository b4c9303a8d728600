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
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from leash_trl.rewards.grader.latex import normalized
from leash_trl.rewards.grader.parsing import UNREAD, ParsedAnswer, parse
from leash_trl.rewards.grader.rational import rational, rationals_equal
from leash_trl.rewards.grader.units import PERCENT, FormulaComparison, times


Comparison = Callable[[Any, Any], bool | None]  # returns whether two members are equal

ROUNDED = re.compile(r"-?\d*\.(\d{6,})")  # 0.3333333: a reference answer with so many decimals may be a rounded 1/3
# 3 h, 18 mph, 20 cm^2: a number, blanks, and the letters of a possible unit with their power
LETTER_UNIT = re.compile(
    r"(?P<number>.*[\d})])(?P<blanks>\s*)(?P<unit>(?:[a-wA-W]{2,3}|[ghlms])\.?(?:\s*\^\s*\{?[23]\}?)?)"
)
FUNCTION = re.compile(r"\([a-z]\)$")  # f(x)
LAYOUT = re.compile(r"[\s{}]")
DECIMAL_COMMA = re.compile(r"[^,]*\d,\d[^,]*")  # 3,5
ARGUMENT_OR_INDEX = re.compile(r"[_(]")  # where the name of h(1) and x_1 ends
MAX_PAIRS = 1_000  # members of two lists that are compared with each other


def are_equal(answer: str, gold: str, compare: FormulaComparison = rationals_equal) -> bool | None:
    r"""Returns whether an answer equals a reference answer, by the rule of this module; `None` if this is undecided.

    `compare` returns whether two formulas, or two equations, are equal, and `None` if this is undecided.

    Example:
        >>> are_equal("1 234", "1{,}234"), are_equal("2+3=12", "12"), are_equal(r"\sqrt{12}", r"2\sqrt{3}")
        (True, False, None)
    """
    parsed_answer = parse(answer)
    parsed_gold = parse(gold)
    if parsed_answer is None or parsed_gold is None:
        return _same_signs(normalized(answer), normalized(gold))
    verdict: bool | None = None
    for reading in (parsed_answer, *_other_readings(answer, parsed_answer, parsed_gold)):
        verdict = _parsed_equal(reading, parsed_gold, compare)
        if verdict is True:
            return True
    rounded_gold = ROUNDED.fullmatch(gold.strip())
    if verdict is False and rounded_gold and "." not in answer and len(parsed_answer.items) == 1:
        value = rational(parsed_answer.items[0].formula)
        num_decimals = len(rounded_gold[1])
        return None if value is None else round(value, num_decimals) == Fraction(rounded_gold[0])
    return verdict


def _other_readings(answer: str, parsed: ParsedAnswer, gold: ParsedAnswer) -> list[ParsedAnswer]:
    """Returns what else an answer may mean: a unit in 3 h and 18 mph, which are products as written, and 3.5 in 3,5,
    which is a list as written."""
    texts = []
    match = LETTER_UNIT.fullmatch(answer)
    # letters are factors in 3h without a blank, unless the gold has a unit, and wherever the gold has letters itself
    gold_has_unit = any(item.unit for item in gold.items)
    gold_has_letters = not all(item.is_closed for item in gold.items)
    if match and not gold_has_letters and (match["blanks"] or gold_has_unit):
        unit = match["unit"].replace(".", "")
        texts.append(f'{match["number"]} "{unit}"')
    if len(parsed.items) == 2 and len(gold.items) == 1 and DECIMAL_COMMA.fullmatch(answer):
        texts.append(answer.replace(".", "").replace(",", "."))
    readings = [parse(text) for text in texts]
    return [reading for reading in readings if reading is not None]


def _all_equal(verdicts: Sequence[bool | None]) -> bool | None:
    """Returns whether all verdicts are true; `None` if this is undecided."""
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _any_equal(verdicts: Sequence[bool | None]) -> bool | None:
    if True in verdicts:
        return True
    return None if None in verdicts else False


def equal_in_order(members: Sequence[Any], gold_members: Sequence[Any], same: Comparison) -> bool | None:
    """Returns whether two sequences have the same members in the same order; `None` if this is undecided."""
    if len(members) != len(gold_members):
        return False
    pairs = zip(members, gold_members, strict=True)
    return _all_equal([same(member, gold_member) for member, gold_member in pairs])


def equal_in_any_order(members: Sequence[Any], gold_members: Sequence[Any], same: Comparison) -> bool | None:
    """Returns whether each member of two sequences is a member of the other one, too; `None` if this is undecided."""
    if not members or not gold_members:
        return not members and not gold_members
    if len(members) * len(gold_members) > MAX_PAIRS:
        return None
    table = []  # a row for each member, a column for each member of the gold
    for member in members:
        table.append([same(member, gold_member) for gold_member in gold_members])
    of_rows = [_any_equal(row) for row in table]
    of_columns = [_any_equal(column) for column in zip(*table, strict=True)]
    return _all_equal(of_rows + of_columns)


def _same_signs(answer: str, gold: str) -> bool | None:
    r"""Compares texts with a sign that no parser reads, such as \triangle, by their characters; `None` without
    such a sign."""
    if not UNREAD.search(answer + gold):
        return None
    return LAYOUT.sub("", answer) == LAYOUT.sub("", gold)


def _parsed_equal(answer: ParsedAnswer, gold: ParsedAnswer, compare: FormulaComparison) -> bool | None:
    """Compares two parsed answers by their forms; the first rule that holds for both forms decides."""
    forms = {answer.form, gold.form}
    if "nothing" in forms:
        return None if gold.form == "nothing" else False
    if "reals" in forms:  # (0, 1) and {0, 1} may be written for a set of real numbers
        return None if forms <= {"reals", "tuple", "set"} else False
    if forms == {"time"}:
        return _same_time(answer, gold)
    if forms in ({"numeral"}, {"residues"}, {"permutation"}):
        return answer.key == gold.key
    if forms & {"residues", "permutation"} or forms == {"tuple", "value"}:
        return False
    if forms == {"time", "value"} and not _may_be_ratios(answer, gold):
        return False
    if "value" in forms and forms <= {"value", "time"}:
        return _same_quantity(answer, gold, compare)
    if "numeral" in forms:
        return None
    if forms == {"tuple"}:
        return _same_tuple(answer, gold, compare)
    return None if "tuple" in forms else _same_list(answer, gold, compare)


def _same_time(answer: ParsedAnswer, gold: ParsedAnswer) -> bool:
    """Returns whether two times are the same; a half of the day that only one names does not matter."""
    answer_minute, answer_half = answer.key
    gold_minute, gold_half = gold.key
    same_half = answer_half == gold_half or not answer_half or not gold_half
    return answer_minute == gold_minute and same_half


def _may_be_ratios(answer: ParsedAnswer, gold: ParsedAnswer) -> bool:
    """Returns whether a time, such as 7:32, and a value may be ratios: one of them is named so, both have formulas."""
    return ":" in answer.name + gold.name and bool(answer.formula and gold.formula)


def _same_tuple(answer: ParsedAnswer, gold: ParsedAnswer, compare: FormulaComparison) -> bool | None:
    """Compares the members of two tuples in their order."""
    if _names_differ(answer.name, gold.name):
        return False
    if answer.key != gold.key:  # (1, 2) and [1, 2]
        return None
    return equal_in_order(answer.items, gold.items, same=partial(_parsed_equal, compare=compare))


def _same_list(answer: ParsedAnswer, gold: ParsedAnswer, compare: FormulaComparison) -> bool | None:
    """Compares lists, sets and single values: x=1, y=2 by the names of the members, all others in any order."""
    values = _by_name(answer)
    gold_values = _by_name(gold)
    same = partial(_parsed_equal, compare=compare)
    if values and values.keys() == gold_values.keys():
        return equal_in_order([values[name] for name in gold_values], list(gold_values.values()), same)
    members = answer.items if answer.form in ("list", "set") else (answer,)
    gold_members = gold.items if gold.form in ("list", "set") else (gold,)
    return equal_in_any_order(members, gold_members, same)


def _by_name(parsed: ParsedAnswer) -> dict[str, ParsedAnswer]:
    """Returns the items of an answer by name; empty unless every item has a name that no other item has."""
    items = {item.name: item for item in parsed.items}
    return items if len(items) == len(parsed.items) and "" not in items else {}


def _same_quantity(answer: ParsedAnswer, gold: ParsedAnswer, compare: FormulaComparison) -> bool | None:
    """Compares two values; a unit that only one of them names does not matter, and 7 % is 7 or 0.07."""
    if not gold.is_solved or (gold.name and not answer.is_solved):
        return None
    if _names_differ(answer.name, gold.name):
        return False
    if answer.unit and gold.unit:
        if answer.unit.dimension != gold.unit.dimension:
            return False
        return compare(times(answer.formula, answer.unit.size), times(gold.formula, gold.unit.size))
    as_written = compare(answer.formula, gold.formula)
    percent = Fraction(1, 100)
    if answer.unit and answer.unit.dimension == PERCENT:
        as_share = compare(times(answer.formula, percent), gold.formula)
        gold_value = rational(gold.formula)
        if gold_value is not None and abs(gold_value) < 1:
            return as_share  # 0.07 is 7 %, not 0.07 %
    elif gold.unit and gold.unit.dimension == PERCENT:
        as_share = compare(answer.formula, times(gold.formula, percent))
    else:
        return as_written
    return _any_equal([as_written, as_share])


def _names_differ(name: str, gold_name: str) -> bool:
    """Returns whether two names differ; `y` may be called `f(x)`, and an index or an argument may be left out."""
    if not name.strip(":") or not gold_name.strip(":"):  # a colon stands for a ratio
        return False
    if FUNCTION.search(name) or FUNCTION.search(gold_name):
        return False
    name = re.sub(r"[\s{}]", "", name).casefold()
    gold_name = re.sub(r"[\s{}]", "", gold_name).casefold()
    short_name = ARGUMENT_OR_INDEX.split(name)[0]
    short_gold_name = ARGUMENT_OR_INDEX.split(gold_name)[0]
    return name != gold_name and name != short_gold_name and gold_name != short_name
