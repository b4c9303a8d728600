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

import itertools
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from typing import Any

from leash_trl.rewards.grader.latex import normalized
from leash_trl.rewards.grader.parsing import UNREADABLE_COMMAND, ParsedAnswer, parse_answer
from leash_trl.rewards.grader.rational import Comparison, rational_value, rationals_equal
from leash_trl.rewards.grader.units import PERCENT, product_formula


ROUNDED = re.compile(r"-?\d*\.(\d{6,})")  # 0.3333333: a reference answer with so many decimals may be a rounded 1/3
# 3 h, 18 mph, 20 cm^2: a number, blanks, and the letters of a possible unit with their power
NUMBER_AND_UNIT = re.compile(
    r"(?P<number>.*[\d})])(?P<blanks>\s*)(?P<unit>(?:[a-wA-W]{2,3}|[ghlms])\.?(?:\s*\^\s*\{?[23]\}?)?)"
)
ARGUMENT_AT_END = re.compile(r"\([a-z]\)$")  # f(x)
BLANKS_AND_BRACES = re.compile(r"[\s{}]")
DECIMAL_COMMA = re.compile(r"[^,]*\d,\d[^,]*")  # 3,5
ARGUMENT_OR_INDEX = re.compile(r"[_(]")  # where the name of h(1) and x_1 ends
MAX_PAIRS = 1_000  # members of two lists that are compared with each other


def are_equal(answer: str, gold: str, compare: Comparison = rationals_equal) -> bool | None:
    r"""Returns whether an answer equals a reference answer, by the rule of this module; `None` if this is undecided.

    `compare` returns whether two formulas, or two equations, are equal, and `None` if this is undecided.

    Example:
        >>> are_equal("1 234", "1{,}234"), are_equal("2+3=12", "12"), are_equal(r"\sqrt{12}", r"2\sqrt{3}")
        (True, False, None)
    """
    parsed_answer = parse_answer(answer)
    parsed_gold = parse_answer(gold)
    if parsed_answer is None or parsed_gold is None:
        return _unread_signs_verdict(normalized(answer), normalized(gold))
    # An answer or a gold such as 3 h has two readings, and any pair may be equal. Otherwise the last verdict holds.
    readings = [parsed_answer, *_other_readings(answer, parsed_answer, parsed_gold)]
    gold_readings = [parsed_gold, *_readings_in_known_unit(gold, parsed_answer)]
    verdict: bool | None = None
    for reading, gold_reading in itertools.product(readings, gold_readings):
        verdict = _parsed_equal(reading, gold_reading, compare)
        if verdict is True:
            return True
    # A gold such as 0.3333333 may be a rounded 1/3. An answer with decimals of its own must have the gold's value.
    rounded_gold = ROUNDED.fullmatch(gold.strip())
    is_exact_number = "." not in answer and len(parsed_answer.items) == 1
    if verdict is False and rounded_gold and is_exact_number:
        return _is_rounded_to(rounded_gold, parsed_answer.items[0].formula)
    return verdict


def _is_rounded_to(decimal: re.Match[str], formula: str) -> bool | None:
    """Returns whether a decimal such as 0.3333333 is the rounded value of a formula; `None` if this is undecided."""
    value = rational_value(formula)
    decimals = decimal[1]  # such as "3333333"
    return None if value is None else round(value, len(decimals)) == Fraction(decimal[0])


def _other_readings(answer: str, parsed: ParsedAnswer, gold: ParsedAnswer) -> list[ParsedAnswer]:
    """Returns what else an answer may mean: a unit in 3 h and 18 mph, which are products as written, and 3.5 in 3,5,
    which is a list as written."""
    readings = [_reading_with_unit(answer, gold)]
    # "3,5" is a list of 3 and 5 as written, but may be 3.5 if the gold is a single value, and 1.234,5 is then 1234.5.
    if len(parsed.items) == 2 and len(gold.items) == 1 and DECIMAL_COMMA.fullmatch(answer):
        readings.append(parse_answer(answer.replace(".", "").replace(",", ".")))
    return [reading for reading in readings if reading is not None]


def _readings_in_known_unit(gold: str, answer: ParsedAnswer) -> list[ParsedAnswer]:
    """Returns the other reading of a gold such as 891 g, if its letters are a unit in the table of units; a gold such
    as 5 ab is a product, and an answer of 5 is wrong."""
    reading = _reading_with_unit(gold, answer)
    if reading is None or any(item.unit is None for item in reading.items):
        return []
    return [reading]


def _reading_with_unit(text: str, other: ParsedAnswer) -> ParsedAnswer | None:
    """Returns a number with a unit, such as 3 h, if the text may be one when it is compared with the other answer."""
    quantity = NUMBER_AND_UNIT.fullmatch(text)
    if quantity is None or not _may_have_unit(quantity, other):
        return None
    unit = quantity["unit"].replace(".", "")
    # The parser reads letters in quotes as words: 3 "h".
    return parse_answer(f'{quantity["number"]} "{unit}"')


def _may_have_unit(quantity: re.Match[str], other: ParsedAnswer) -> bool:
    """Returns whether the letters after a number, such as the h of "3 h", may be its unit, if it is compared with the
    other answer."""
    # Another answer with letters may be a formula of h.
    if not all(item.is_constant for item in other.items):
        return False
    # Without blanks, the h of "3h" is a factor, unless the other answer has a unit.
    return quantity["blanks"] != "" or any(item.unit for item in other.items)


def _all_true(verdicts: Sequence[bool | None]) -> bool | None:
    """Returns whether all verdicts are true; `None` if this is undecided."""
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _any_true(verdicts: Sequence[bool | None]) -> bool | None:
    """Returns whether any verdict is true; `None` if this is undecided."""
    if True in verdicts:
        return True
    return None if None in verdicts else False


def equal_in_order(members: Sequence[Any], gold_members: Sequence[Any], same: Comparison) -> bool | None:
    """Returns whether two sequences have the same members in the same order; `None` if this is undecided."""
    if len(members) != len(gold_members):
        return False
    pairs = zip(members, gold_members, strict=True)
    return _all_true([same(member, gold_member) for member, gold_member in pairs])


def equal_in_any_order(members: Sequence[Any], gold_members: Sequence[Any], same: Comparison) -> bool | None:
    """Returns whether each member of two sequences is a member of the other one, too; `None` if this is undecided."""
    # Empty sets are equal to each other only.
    if not members or not gold_members:
        return not members and not gold_members
    # Comparing all pairs of long lists would take too long here.
    if len(members) * len(gold_members) > MAX_PAIRS:
        return None
    # A row for each member, with a verdict for each member of the gold: [[False, True], [True, False]] for the answer
    # "1, 2" and the gold "2, 1".
    table = []
    for member in members:
        table.append([same(member, gold_member) for gold_member in gold_members])
    members_in_gold = [_any_true(row) for row in table]
    gold_in_members = [_any_true(column) for column in zip(*table, strict=True)]
    return _all_true(members_in_gold + gold_in_members)


def _unread_signs_verdict(answer: str, gold: str) -> bool | None:
    r"""Compares texts with a sign that no parser reads, such as \triangle, by their characters; `None` without
    such a sign."""
    if not UNREADABLE_COMMAND.search(answer + gold):
        return None
    return BLANKS_AND_BRACES.sub("", answer) == BLANKS_AND_BRACES.sub("", gold)


def _parsed_equal(answer: ParsedAnswer, gold: ParsedAnswer, compare: Comparison) -> bool | None:
    """Compares two parsed answers by their forms; the first rule that holds for both forms decides."""
    if answer.form != gold.form:
        return _equal_across_forms(answer, gold, compare)
    match answer.form:
        case "value":
            return _same_quantity(answer, gold, compare)
        case "tuple":
            return _same_tuple(answer, gold, compare)
        case "list" | "set":
            return _same_list(answer, gold, compare)
        case "time":
            return _same_time(answer, gold)
        # The keys hold the values, such as (42,) of 52_8, and (5, 1, 2) of "7, 11 (mod 5)".
        case "numeral" | "residues" | "permutation":
            return answer.key == gold.key
    # Sets of real numbers, such as x > 1, are compared in the worker process. No answer can be compared with a false
    # equation, such as 2 + 3 = 12.
    return None


def _equal_across_forms(answer: ParsedAnswer, gold: ParsedAnswer, compare: Comparison) -> bool | None:
    """Compares two parsed answers of different forms; the first rule that holds decides."""
    forms = {answer.form, gold.form}
    # A false equation, such as 2 + 3 = 12, is wrong as an answer, and no answer can be compared with it as a gold.
    if gold.form == "invalid":
        return None
    # Residues and permutations equal no other form, and a tuple equals no single value.
    if forms & {"invalid", "residues", "permutation"} or forms == {"tuple", "value"}:
        return False
    # The set of real numbers x > 1 may equal the interval (0, 1) or the set {0, 1}, which are parsed as a tuple and a
    # set, but no value and no list; a worker process compares them.
    if "reals" in forms:
        return None if forms & {"tuple", "set"} else False
    # 7:32 is a time of day, but the ratio 7/32 beside a ratio such as 14:64.
    if forms == {"time", "value"}:
        return _same_quantity(answer, gold, compare) if _may_be_ratios(answer, gold) else False
    # 52_8 and 42 have the same value in different forms, and (1, 2) may be a list in brackets, so math-verify decides.
    if forms & {"numeral", "tuple"}:
        return None
    # A single value is compared as a list of one item.
    return _same_list(answer, gold, compare)


def _same_time(answer: ParsedAnswer, gold: ParsedAnswer) -> bool:
    """Returns whether two times are the same; a half of the day that only one names does not matter."""
    # Such as (452, "p") of 7:32 p.m., and (452, "") of 7:32: minutes after midnight or noon, and half of the day.
    answer_minute, answer_half = answer.key
    gold_minute, gold_half = gold.key
    same_half = answer_half == gold_half or not answer_half or not gold_half
    return answer_minute == gold_minute and same_half


def _may_be_ratios(answer: ParsedAnswer, gold: ParsedAnswer) -> bool:
    """Returns whether a time, such as 7:32, and a value may be ratios: one of them is named so, both have formulas."""
    return ":" in answer.name + gold.name and bool(answer.formula and gold.formula)


def _same_tuple(answer: ParsedAnswer, gold: ParsedAnswer, compare: Comparison) -> bool | None:
    """Compares the members of two tuples in their order."""
    if _names_differ(answer.name, gold.name):
        return False
    # The keys are the opening brackets. (1, 2) may be a point or an interval, and [1, 2] another interval.
    if answer.key != gold.key:
        return None
    return equal_in_order(answer.items, gold.items, same=partial(_parsed_equal, compare=compare))


def _same_list(answer: ParsedAnswer, gold: ParsedAnswer, compare: Comparison) -> bool | None:
    """Compares lists, sets and single values: x=1, y=2 by the names of the members, all others in any order."""
    # By name, such as {"x": the answer 1, "y": the answer 2}; empty if an item has no name, or two share a name.
    values = _by_name(answer)
    gold_values = _by_name(gold)
    if values and values.keys() == gold_values.keys():
        return _all_true([_parsed_equal(values[name], gold_values[name], compare) for name in values])
    members = answer.items if answer.form in ("list", "set") else (answer,)
    gold_members = gold.items if gold.form in ("list", "set") else (gold,)
    return equal_in_any_order(members, gold_members, same=partial(_parsed_equal, compare=compare))


def _by_name(parsed: ParsedAnswer) -> dict[str, ParsedAnswer]:
    """Returns the items of an answer by name; empty unless every item has a name that no other item has."""
    items = {item.name: item for item in parsed.items}
    return items if len(items) == len(parsed.items) and "" not in items else {}


def _same_quantity(answer: ParsedAnswer, gold: ParsedAnswer, compare: Comparison) -> bool | None:
    """Compares two values; a unit that only one of them names does not matter, and 7 % is 7 or 0.07."""
    # The equation \cos x = 1 is not solved for a name, and is left to math-verify. If the gold has no name, the answer
    # 3*4 = 12 counts as 12.
    if not gold.is_solved or (gold.name and not answer.is_solved):
        return None
    if _names_differ(answer.name, gold.name):
        return False
    if answer.unit and gold.unit:
        if answer.unit.dimension != gold.unit.dimension:
            return False
        # Both values in the unit of size 1: 3 km and 3000 meters are both 3000 m.
        return compare(
            product_formula(answer.formula, answer.unit.size), product_formula(gold.formula, gold.unit.size)
        )
    return _any_true([compare(*formulas) for formulas in _readings_without_unit(answer, gold)])


def _readings_without_unit(answer: ParsedAnswer, gold: ParsedAnswer) -> list[tuple[str, str]]:
    """Returns the formulas of two values, of which one has no unit; any pair of formulas may be equal."""
    # 5 and 5 km are equal as written, while 7 % may also be written as the share 0.07.
    as_written = (answer.formula, gold.formula)
    share = Fraction(1, 100)
    if gold.unit == PERCENT:
        return [as_written, (answer.formula, product_formula(gold.formula, share))]
    if answer.unit != PERCENT:
        return [as_written]
    as_share = (product_formula(answer.formula, share), gold.formula)
    gold_value = rational_value(gold.formula)
    # A gold below 1 is a share: 0.07 is 7 %, not 0.07 %.
    is_share = gold_value is not None and abs(gold_value) < 1
    return [as_share] if is_share else [as_written, as_share]


def _names_differ(name: str, gold_name: str) -> bool:
    """Returns whether two names differ; `y` may be called `f(x)`, and an index or an argument may be left out."""
    # The name of a ratio is a colon, which is no name that could differ.
    if not name.strip(":") or not gold_name.strip(":"):
        return False
    # f(x) = 2x and y = 2x name the same function.
    if ARGUMENT_AT_END.search(name) or ARGUMENT_AT_END.search(gold_name):
        return False
    name = BLANKS_AND_BRACES.sub("", name).casefold()
    gold_name = BLANKS_AND_BRACES.sub("", gold_name).casefold()
    # The h of h(1), and the x of x_1; one answer may write h where the other writes h(1).
    short_name = ARGUMENT_OR_INDEX.split(name)[0]
    short_gold_name = ARGUMENT_OR_INDEX.split(gold_name)[0]
    return name != gold_name and name != short_gold_name and gold_name != short_name
