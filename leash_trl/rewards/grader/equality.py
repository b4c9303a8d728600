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
from leash_trl.rewards.grader.units import FormulaComparison, Quantity, quantities_equal


ROUNDED = re.compile(r"-?\d*\.(\d{6,})")  # 0.3333333: a reference answer with so many decimals may be rounded
# 3 h, 18 mph, 20 cm^2: a number, blanks, letters and a power. The letters may be a unit.
LETTER_UNIT = re.compile(r"(.*[\d})])(\s*)([a-wA-W]{2,3}|[ghlms])\.?((?:\s*\^\s*\{?[23]\}?)?)")
FUNCTION = re.compile(r"\([a-z]\)$")  # f(x)
BETWEEN_PARTS = re.compile(rf"{UNREAD.pattern}|[,;]")  # the \ldots and commas of 2, 4, \ldots, 2m
OUTER_BRACES = re.compile(r"\s|^\s*\{|\}\s*$")  # blanks, and the braces of {ABC}
POINTS = re.compile("[A-Z]{2,}")  # ABC, as in a triangle, whose points have an order
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
        return _equal_between_signs(normalized(answer), normalized(gold), compare)
    verdict: bool | None = None
    for read in (_as_written, _with_letter_unit, _with_decimal_comma):
        reading = read(answer, parsed_answer, parsed_gold)
        if reading is not None:
            verdict = _parsed_equal(reading, parsed_gold, compare)
        if verdict is True:
            return True
    is_whole_number = "." not in answer and len(parsed_answer.items) == 1
    rounded = ROUNDED.fullmatch(gold.strip())
    if verdict is False and rounded and is_whole_number:
        return _equal_when_rounded(parsed_answer.items[0], rounded)
    return verdict


def _as_written(answer: str, parsed: ParsedAnswer, gold: ParsedAnswer) -> ParsedAnswer:
    return parsed


def _with_letter_unit(answer: str, parsed: ParsedAnswer, gold: ParsedAnswer) -> ParsedAnswer | None:
    """Returns the reading in which the last letters, as in 3 h and 18 mph, are a unit and no factors; `None` if the
    letters touch the number and the reference answer has no unit, or if the reference answer has letters itself."""
    match = LETTER_UNIT.fullmatch(answer)
    if match is None or not all(item.is_closed for item in gold.items):
        return None
    number, blanks, letters, power = match.groups()
    if not blanks and not any(item.unit for item in gold.items):
        return None
    return parse(f'{number} "{letters}{power}"') or parsed


def _with_decimal_comma(answer: str, parsed: ParsedAnswer, gold: ParsedAnswer) -> ParsedAnswer | None:
    """Returns the reading of 3,5 as 3.5; `None` unless this makes one number of two, where one is expected."""
    if len(parsed.items) != 2 or len(gold.items) != 1 or not DECIMAL_COMMA.fullmatch(answer):
        return None
    return parse(answer.replace(".", "").replace(",", ".")) or parsed


def _equal_when_rounded(answer: ParsedAnswer, rounded_gold: re.Match[str]) -> bool | None:
    """Returns whether the exact value of an answer without decimals, such as 1/3, rounds to a reference answer."""
    value = rational(answer.formula)
    if value is None:
        return None  # math-verify rounds
    decimals = rounded_gold[1]
    error = abs(value - Fraction(rounded_gold[0]))
    return error * 10 ** len(decimals) <= Fraction(1, 2)


def all_equal(verdicts: Sequence[bool | None]) -> bool | None:
    """Returns whether all verdicts are true; `None` if this is undecided."""
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _any_equal(verdicts: Sequence[bool | None]) -> bool | None:
    if True in verdicts:
        return True
    return None if None in verdicts else False


def _equal_between_signs(answer: str, gold: str, compare: FormulaComparison) -> bool | None:
    """Compares texts with signs that no parser reads: the signs must be the same, and the parts between them equal."""
    answer_signs = UNREAD.findall(answer)
    gold_signs = UNREAD.findall(gold)
    if not answer_signs and not gold_signs:
        return None
    if answer_signs != gold_signs:
        return False
    answer_parts = [part for part in BETWEEN_PARTS.split(answer) if part.strip()]
    gold_parts = [part for part in BETWEEN_PARTS.split(gold) if part.strip()]
    if len(answer_parts) != len(gold_parts):
        return False
    pairs = zip(answer_parts, gold_parts, strict=True)
    return all_equal([_same_part(answer_part, gold_part, compare) for answer_part, gold_part in pairs])


def _same_part(answer_part: str, gold_part: str, compare: FormulaComparison) -> bool | None:
    """Compares two parts between signs, by their texts if they are points, else by their values."""
    answer_text = OUTER_BRACES.sub("", answer_part)
    gold_text = OUTER_BRACES.sub("", gold_part)
    if answer_text == gold_text:
        return True
    if POINTS.fullmatch(answer_text):
        return False
    return are_equal(answer_part, gold_part, compare)


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
    return _same_collection(answer, gold, compare)


def _same_time(answer: ParsedAnswer, gold: ParsedAnswer) -> bool:
    """Returns whether two times are the same; a half of the day that only one names does not matter."""
    answer_minute, answer_half = answer.key
    gold_minute, gold_half = gold.key
    same_half = answer_half == gold_half or not answer_half or not gold_half
    return answer_minute == gold_minute and same_half


def _may_be_ratios(answer: ParsedAnswer, gold: ParsedAnswer) -> bool:
    """Returns whether a time, such as 7:32, and a value may be ratios: one of them is named so, both have formulas."""
    return ":" in answer.name + gold.name and bool(answer.formula and gold.formula)


def _same_collection(answer: ParsedAnswer, gold: ParsedAnswer, compare: FormulaComparison) -> bool | None:
    """Compares tuples in order, and lists and sets by name if all members have different names, else by members."""
    if answer.form == gold.form == "tuple":
        if _names_differ(answer.name, gold.name):
            return False
        if answer.key != gold.key:  # (1, 2) and [1, 2]
            return None
        if len(answer.items) != len(gold.items):
            return False
        pairs = zip(answer.items, gold.items, strict=True)
        return all_equal([_parsed_equal(member, gold_member, compare) for member, gold_member in pairs])
    if "tuple" in (answer.form, gold.form):
        return None
    members_by_name = _by_name(answer)
    gold_by_name = _by_name(gold)
    if members_by_name and members_by_name.keys() == gold_by_name.keys():
        return all_equal([_parsed_equal(members_by_name[name], gold_by_name[name], compare) for name in gold_by_name])
    return _same_members(_members(answer), _members(gold), compare)


def _members(parsed: ParsedAnswer) -> Sequence[ParsedAnswer]:
    return parsed.items if parsed.form in ("list", "set", "tuple") else (parsed,)


def _by_name(parsed: ParsedAnswer) -> dict[str, ParsedAnswer]:
    """Returns the items of an answer by name; empty unless every item has a name that no other item has."""
    items = {item.name: item for item in parsed.items}
    return items if len(items) == len(parsed.items) and "" not in items else {}


def _same_members(
    members: Sequence[ParsedAnswer], gold_members: Sequence[ParsedAnswer], compare: FormulaComparison
) -> bool | None:
    if not members or not gold_members:
        return not members and not gold_members
    if len(members) * len(gold_members) > MAX_PAIRS:
        return None
    table = []
    for member in members:
        table.append([_parsed_equal(member, gold_member, compare) for gold_member in gold_members])
    return members_match(table)


def members_match(table: Sequence[Sequence[bool | None]]) -> bool | None:
    """Returns whether each row and each column of a table of verdicts has a true one; `None` if this is undecided."""
    of_rows = [_any_equal(row) for row in table]
    of_columns = [_any_equal(column) for column in zip(*table, strict=True)]
    return all_equal(of_rows + of_columns)


def _same_quantity(answer: ParsedAnswer, gold: ParsedAnswer, compare: FormulaComparison) -> bool | None:
    if not gold.is_solved or (gold.name and not answer.is_solved):
        return None
    if _names_differ(answer.name, gold.name):
        return False
    return quantities_equal(Quantity(answer.formula, answer.unit), Quantity(gold.formula, gold.unit), compare)


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
