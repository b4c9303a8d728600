"""Compares formulas and sets of real numbers in the worker process, and leaves all other answers to math-verify.

Two formulas are equal if their values to 50 digits differ by at most 1e-30 of the larger value, so 0.3333333 is not
1/3. In place of letters, several numbers are tried, positive and negative; if formulas have real values at any of
them, only those are compared.
"""

import contextlib
import functools
import itertools
import re
from typing import Any

import sympy
from math_verify import parse, verify

from leash_trl.rewards.grader.answer import boxed_answer
from leash_trl.rewards.grader.equality import are_equal
from leash_trl.rewards.grader.latex import normalized
from leash_trl.rewards.grader.parsing import (
    COMMA_OR_SEMICOLON,
    LIST_SEPARATOR,
    SIMPLE_NAME,
    UNREADABLE_COMMAND,
    has_outer_brackets,
    split_at,
)
from leash_trl.rewards.grader.rational import Comparison, Unreadable, with_plain_numbers
from leash_trl.rewards.grader.words import words_verdict


NUM_DIGITS = 50
MAX_RELATIVE_ERROR = 1e-30
TRIAL_NUMBERS = ("13/10", "37", "-2/7")  # letters get values near these numbers, where most functions are defined
CONSTANTS = {"i": sympy.I, "e": sympy.E}
# A command such as \pi, or a letter: X, x', x_{1}
COMMAND_OR_LETTER = re.compile(r"\\[A-Za-z]+|([A-Za-z])('*)(?:_\{(\w+)\})?")
SMALL_LETTER = re.compile("[a-z]")
DEGREES = re.compile(r"(\d+|\([^()]*\))\^\\circ")  # 30^\circ, (x+30)^\circ

ORDER_SIGN = re.compile(r"\s*([<>≤≥≠])\s*")  # the signs of 1 < x ≤ 2
# x \in (0, 1), {x | x > 1}, {x \in \mathbb{R} : x > 1}; `normalized` writes the braces of a set as «»
SET_MEMBERSHIP = re.compile(
    r"[A-Za-z]\s*\\in\s*(?P<set>.*)|«\s*[A-Za-z](?:\s*\\in\s*\\mathbb\{R\})?\s*[|:](?P<condition>[^«»]*)»",
    re.DOTALL,
)


def _operator_pattern(operations: str) -> re.Pattern[str]:
    return re.compile(rf"\s*,?\s*(?<![A-Za-z\\])(?:{operations})(?![A-Za-z])\s*")


# The loosest operation comes first.
SET_OPERATORS = [
    (_operator_pattern(r"or|\\cup"), sympy.Union),
    (_operator_pattern(r"and|\\cap"), sympy.Intersection),
    (_operator_pattern(r"\\(?:setminus|backslash)"), sympy.Complement),
]
SYMPY_RELATIONS = {"≤": "<=", "≥": ">=", "≠": "!="}  # sympy's names of relations


@functools.lru_cache(maxsize=512)
def parse_with_math_verify(expression: str) -> tuple[object, ...]:
    """Returns the results of math-verify's parser for an answer: sympy's objects, then the text that was read."""
    # math-verify's own time limits are off: they need the main thread's signals and do not work for every input.
    return tuple(parse(expression, parsing_timeout=None))


def _answer_text(expression: str) -> str | None:
    """Returns the text of an answer: the content of its box, else the text that math-verify takes for the answer."""
    boxed = boxed_answer(expression)
    if boxed is not None:
        return boxed.text
    # math-verify returns sympy's object and its text, such as (2*x, "2x"), and nothing if it reads nothing.
    texts = [value for value in parse_with_math_verify(expression) if isinstance(value, str)]
    return texts[-1] if texts else None


@functools.lru_cache(maxsize=512)
def _read_formula(text: str) -> sympy.Expr | None:
    """Returns a formula as sympy's expression; `None` if the text is no formula, or has no value."""
    # An equation has no value to compute.
    if "=" in text:
        return None
    # 30^\circ becomes (\frac{\pi*30}{180}), because sympy's functions take radians.
    in_radians = DEGREES.sub(r"(\\frac{\\pi*\1}{180})", text)
    # math-verify misreads some names, such as X, which it takes for x.
    with_safe_names = COMMAND_OR_LETTER.sub(_safe_name, in_radians)
    # Such as (2*x, "2x"); the first reading of an equation or a set is no `sympy.Expr`.
    readings = parse_with_math_verify(f"\\boxed{{{with_safe_names}}}")
    if not readings or not isinstance(readings[0], sympy.Expr):
        return None
    expression = readings[0]
    # `zoo` is the result of 1/0, and `nan` that of 0/0.
    if expression.has(sympy.zoo, sympy.nan):
        return None
    # math-verify may read i and e as variables.
    constants = {letter: CONSTANTS[letter.name] for letter in expression.free_symbols if letter.name in CONSTANTS}
    # The cube root of -8 is -2 here, while sympy's principal root is a complex number.
    return sympy.real_root(expression.subs(constants))


def _safe_name(match: re.Match[str]) -> str:
    """Returns a name safe from math-verify, which reads `X` and `x'` as `x`, a last `m` as a unit, `{m}` as a word."""
    name = match[0]
    is_command = match[1] is None
    if is_command or name in CONSTANTS:
        return name
    if SMALL_LETTER.fullmatch(name):
        # Braces keep math-verify from reading the m of 3m as a unit, but a lone {m} is read as a word. An index, as
        # below, would also work, but is five times slower.
        is_whole_formula = match.string.strip() == name
        return name if is_whole_formula else f"{{{name}}}"
    # Capital letters and letters with an index or a prime become x with the characters' codes as its index: X becomes
    # x_{88}, which math-verify keeps apart from x.
    index = "".join(str(ord(character)) for character in name)
    return f"x_{{{index}}}"


def _value_near(formula: sympy.Expr, letters: list[sympy.Symbol], number: sympy.Rational) -> sympy.Expr | None:
    """Returns a formula's value where each letter has a value near `number`; `None` if there is no value."""
    # The letters get different values, such as 37 * 8/7 and 37 * 11/10, at which x - y is not 0.
    values_of_letters = {}
    for index, letter in enumerate(letters):
        values_of_letters[letter] = number * (1 + sympy.Rational(1, 7 + 3 * index))
    # `is_number` is false if sympy could not compute the formula, and `is_finite` is `None` if sympy does not know.
    value = formula.xreplace(values_of_letters).evalf(NUM_DIGITS)
    return value if value.is_number and value.is_finite and not value.has(sympy.nan) else None


def formulas_equal(left: str, right: str) -> bool | None:
    r"""Returns whether two formulas are equal, by the rule at the head of this module; `None` if this is undecided.

    Example:
        >>> formulas_equal(r"\sqrt{12}", r"2\sqrt{3}"), formulas_equal("0.3333333", r"\frac{1}{3}")
        (True, False)
        >>> formulas_equal("x=1", "x=1")  # not a formula
    """
    left_formula = _read_formula(left)
    right_formula = _read_formula(right)
    if left_formula is None or right_formula is None:
        return None
    letters = sorted(left_formula.free_symbols | right_formula.free_symbols, key=str)
    if not letters:
        # Fractions are compared exactly, because 2^1000000 and 2^1000000 + 1 agree to 50 digits.
        difference = (left_formula - right_formula).doit()
        if difference.is_Rational:
            return bool(difference == 0)
    pairs = _pairs_of_values(left_formula, right_formula, letters)
    verdicts = {_are_close(*pair) for pair in pairs}
    # Formulas that agree at some points only are undecided, such as \sqrt{x^2} and x, which agree where x > 0.
    return verdicts.pop() if len(verdicts) == 1 else None


def _pairs_of_values(left: sympy.Expr, right: sympy.Expr, letters: list[sympy.Symbol]) -> list[tuple[Any, Any]]:
    """Returns the values of two formulas at each point where both have one; only real values, if any pair is real."""
    pairs = []
    # A formula without letters has the same value near every number, so that one of them is enough.
    numbers = TRIAL_NUMBERS if letters else TRIAL_NUMBERS[:1]
    for number in numbers:
        left_value = _value_near(left, letters, sympy.Rational(number))
        right_value = _value_near(right, letters, sympy.Rational(number))
        if left_value is not None and right_value is not None:
            pairs.append((left_value, right_value))
    # Where a root or a logarithm is complex, its value depends on a convention, so real values, if any, count alone.
    real_pairs = [pair for pair in pairs if all(value.is_real for value in pair)]
    return real_pairs or pairs


def _are_close(left: Any, right: Any) -> bool:
    return bool(abs(left - right) <= MAX_RELATIVE_ERROR * max(abs(left), abs(right)))


def _read_real_number(text: str) -> sympy.Expr:
    """Returns the value of a formula without letters, which is real or infinite, as an end of an interval may be."""
    value = _read_formula(with_plain_numbers(text))
    if value is None or not value.is_extended_real or value.free_symbols:
        raise Unreadable
    return value.doit()


def _read_real_set(text: str) -> sympy.Set:
    """Reads a set of real numbers: an interval, a finite set, a combination of sets, or solutions of inequalities."""
    text = text.strip()
    membership = SET_MEMBERSHIP.fullmatch(text)
    if membership:  # x \in [0, 1), or «x | 0 < x < 1», where «» are the braces of a set
        return _read_real_set(membership["set"] or membership["condition"])
    # Such as (the pattern of "or" and \cup, `sympy.Union`). The loosest operation splits the text first.
    for operator, combine in SET_OPERATORS:
        operands = split_at(text, operator)
        if len(operands) > 1:  # [0, 1] \cup [2, 3]
            return combine(*map(_read_real_set, operands))
    if ORDER_SIGN.search(text):  # 0 < x \le 1
        return _solutions_of_inequalities(text)
    if has_outer_brackets(text, "«»"):  # «1, 2, 3»
        return sympy.FiniteSet(*map(_read_real_number, split_at(text[1:-1], LIST_SEPARATOR)))
    return _read_interval(text)


def _read_interval(text: str) -> sympy.Interval:
    """Reads an interval such as `[0, 1)` or `[0, 1[`."""
    # In [0, 1[ and ]0, 1], a bracket that points away from the numbers leaves its end out, as a round one does.
    ends = split_at(text[1:-1], COMMA_OR_SEMICOLON)
    if len(ends) != 2 or text[0] not in "([]" or text[-1] not in ")][":
        raise Unreadable
    start, end = map(_read_real_number, ends)
    return sympy.Interval(start, end, left_open=text[0] != "[", right_open=text[-1] != "]")


def _solutions_of_inequalities(text: str) -> sympy.Set:
    """Returns the numbers that satisfy inequalities of one letter, such as `1 < x ≤ 2`."""
    # The pattern has a group, so every second part is a sign: ["1", "<", "x", "≤", "2"].
    sides_and_signs = ORDER_SIGN.split(text)
    # All letters are called x here, so that y > 1 states the same set as x > 1.
    letter = sympy.Symbol("x", real=True)
    sides = [letter if SIMPLE_NAME.fullmatch(side) else _read_real_number(side) for side in sides_and_signs[::2]]
    if sides.count(letter) != 1:
        raise Unreadable
    # One relation for each sign, 1 < x and x ≤ 2, where sympy calls ≤ "<=".
    relations = []
    for (left, right), sign in zip(itertools.pairwise(sides), sides_and_signs[1::2], strict=True):
        relations.append(sympy.Rel(left, right, SYMPY_RELATIONS.get(sign, sign)))
    return sympy.And(*relations).as_set()


def _are_same_real_sets(answer: str, gold: str) -> bool:
    """Returns whether two texts state the same set of real numbers.

    Raises:
        [`Unreadable`]: If one of the texts states no such set.
    """
    answer_set = _read_real_set(normalized(answer))
    gold_set = _read_real_set(normalized(gold))
    # Equal sets may be written differently, as (0, 1) and the union of (0, 1/2] and (1/2, 1).
    return answer_set == gold_set or bool(answer_set.symmetric_difference(gold_set).is_empty)


def are_equivalent(answer: str, gold: str) -> bool | None:
    r"""Returns whether an answer equals a reference answer; `None` if math-verify cannot read the reference answer.

    The words decide first, then [`~leash_trl.rewards.grader.equality.are_equal`] with [`formulas_equal`], then sets of
    real numbers, then math-verify. Both arguments are inputs for math-verify, such as `\boxed{34}`.
    """
    answer_text = _answer_text(answer)
    gold_text = _answer_text(gold)
    if answer_text and gold_text:
        verdict = _verdict_by_rules(answer_text, gold_text)
        if verdict is not None:
            return verdict
    # math-verify would drop a command that it does not know, such as \triangle, and find different answers equal.
    if UNREADABLE_COMMAND.search(normalized(f"{answer_text} {gold_text}")):
        return False
    # Quotes are this package's marks of words, which math-verify does not know.
    gold_values = parse_with_math_verify(gold.replace('"', " "))
    answer_values = parse_with_math_verify(answer.replace('"', " "))
    if not gold_values:
        return None
    return bool(verify(list(gold_values), list(answer_values), timeout_seconds=None))


def _verdict_by_rules(answer: str, gold: str) -> bool | None:
    """Returns the verdict of the first rule that reads both answers; `None` if none does."""
    rules: list[Comparison] = [
        functools.partial(words_verdict, compare=formulas_equal),
        functools.partial(are_equal, compare=formulas_equal),
        _are_same_real_sets,
    ]
    for compare in rules:
        # A rule raises `Unreadable`, which is a `ValueError`, and sympy raises errors of many types for what it cannot
        # compute; the next rule then decides.
        with contextlib.suppress(ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError):
            verdict = compare(answer, gold)
            if verdict is not None:
                return verdict
    return None
