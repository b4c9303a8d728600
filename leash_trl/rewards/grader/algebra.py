"""Compares formulas and sets of real numbers in the worker process, and leaves all other answers to math-verify.

Two formulas are equal if their values to 50 digits differ by at most 1e-30 of the larger value, so 0.3333333 is not
1/3. Letters stand for several numbers in turn, positive and negative, preferably with real values of the formulas.
"""

import contextlib
import functools
import re
from typing import Any

import sympy
from math_verify import parse, verify

from leash_trl.rewards.grader.answer import boxed_answer
from leash_trl.rewards.grader.equality import are_equal
from leash_trl.rewards.grader.latex import normalized
from leash_trl.rewards.grader.parsing import COMMA, LIST_MARK, SIMPLE_NAME, UNREAD, inside_brackets, split_at
from leash_trl.rewards.grader.rational import Unreadable, with_plain_numbers
from leash_trl.rewards.grader.units import Same
from leash_trl.rewards.grader.words import words_verdict


DIGITS, DIFFERENT = 50, 1e-30
SCALES = ("13/10", "37", "-2/7")  # factors of the letters' numbers, at which most functions are defined
CONSTANTS = {"i": sympy.I, "e": sympy.E}
NAME = re.compile(r"\\[A-Za-z]+|([A-Za-z])('*)(?:_\{(\w+)\})?")
ANGLE = re.compile(r"(\d+|\([^()]*\))\^\\circ")

ORDER = re.compile(r"\s*([<>≤≥≠])\s*")
MEMBER = re.compile(r"[A-Za-z]\s*\\in\s*(.*)|«\s*[A-Za-z](?:\s*\\in\s*\\mathbb\{R\})?\s*[|:]([^«»]*)»", re.DOTALL)
SET_OPERATIONS = {
    r"or|\\cup": sympy.Union,
    r"and|\\cap": sympy.Intersection,
    r"\\(?:setminus|backslash)": sympy.Complement,
}
RELATIONS = {"≤": "<=", "≥": ">=", "≠": "!="}


@functools.lru_cache(maxsize=512)
def values(expression: str) -> tuple[object, ...]:
    """Returns the results of math-verify's parser for an answer."""
    # math-verify's own time limits are off: they need the main thread's signals and do not work for every input.
    return tuple(parse(expression, parsing_timeout=None))


def _found(expression: str) -> str | None:
    """Returns the text of an answer: the content of its box, else the text that math-verify takes for the answer."""
    if (answer := boxed_answer(expression)) is not None:
        return answer.text
    found = [value for value in values(expression) if isinstance(value, str)]
    return found[-1] if found else None


@functools.lru_cache(maxsize=512)
def _formula(text: str) -> sympy.Expr | None:
    text = NAME.sub(_symbol, ANGLE.sub(r"(\\frac{\\pi*\1}{180})", text))
    found = values(f"\\boxed{{{text}}}")
    if not found or not isinstance(found[0], sympy.Expr) or found[0].has(sympy.zoo, sympy.nan):
        return None
    letters = {letter: CONSTANTS[letter.name] for letter in found[0].free_symbols if letter.name in CONSTANTS}
    return sympy.real_root(found[0].subs(letters))  # the cube root of -8 is -2, not a complex number


def _symbol(match: re.Match[str]) -> str:
    """Returns a name safe from math-verify, which reads `X` and `x'` as `x`, a last `m` as a unit, `{m}` as a word."""
    if not match[1] or match[0] in CONSTANTS:
        return match[0]
    if re.fullmatch("[a-z]", match[0]):
        # An index, as below, would also work, but is five times slower.
        return match[0] if match.string.strip() == match[0] else f"{{{match[0]}}}"
    return f"x_{{{''.join(str(ord(sign)) for sign in match[0])}}}"


def _at(formula: sympy.Expr, letters: list[sympy.Symbol], point: int) -> sympy.Expr | None:
    """Returns a formula's value at a point, where each letter has its own number; `None` if there is no value."""
    scale = sympy.Rational(SCALES[point])
    numbers = {letter: scale * (1 + sympy.Rational(1, 7 + 3 * place)) for place, letter in enumerate(letters)}
    value = formula.xreplace(numbers).evalf(DIGITS)
    return value if value.is_number and value.is_finite and not value.has(sympy.nan) else None


def formulas_equal(one: str, other: str) -> bool | None:
    r"""Returns whether two formulas are equal, by the rule at the head of this module; `None` if this is undecided.

    Example:
        >>> formulas_equal(r"\sqrt{12}", r"2\sqrt{3}"), formulas_equal("0.3333333", r"\frac{1}{3}")
        (True, False)
        >>> formulas_equal("x=1", "x=1")  # not a formula
    """
    a, b = (None if "=" in text else _formula(text) for text in (one, other))
    if a is None or b is None:
        return None
    letters = sorted(a.free_symbols | b.free_symbols, key=str)
    if not letters and (difference := (a - b).doit()).is_Rational:
        return bool(difference == 0)  # 2^1000000 and 2^1000000 + 1 agree to 50 digits
    points = range(len(SCALES) if letters else 1)
    both = [(_at(a, letters, point), _at(b, letters, point)) for point in points]
    pairs: list[tuple[Any, Any]] = [(x, y) for x, y in both if x is not None and y is not None]
    pairs = [(x, y) for x, y in pairs if x.is_real and y.is_real] or pairs
    verdicts = {bool(abs(x - y) <= DIFFERENT * max(abs(x), abs(y))) for x, y in pairs}
    return verdicts.pop() if len(verdicts) == 1 else None


def _number(text: str) -> sympy.Expr:
    value = _formula(with_plain_numbers(text))
    if value is None or not value.is_extended_real or value.free_symbols:
        raise Unreadable
    return value.doit()


def _real_set(text: str) -> sympy.Set:
    """Reads a set of real numbers: an interval, a finite set, a combination of sets, or solutions of inequalities."""
    text = text.strip()
    if match := MEMBER.fullmatch(text):
        return _real_set(match[1] or match[2])
    for mark, combine in SET_OPERATIONS.items():
        parts = split_at(text, re.compile(rf"\s*,?\s*(?<![A-Za-z\\])(?:{mark})(?![A-Za-z])\s*"))
        if len(parts) > 1:
            return combine(*map(_real_set, parts))
    if len(split_at(text, ORDER)) > 1:
        return _solutions(ORDER.split(text))
    if inside_brackets(text, "«»"):
        return sympy.FiniteSet(*map(_number, split_at(text[1:-1], LIST_MARK)))
    ends = split_at(text[1:-1], COMMA)
    if len(ends) != 2 or text[0] not in "([]" or text[-1] not in ")][":
        raise Unreadable
    return sympy.Interval(*map(_number, ends), text[0] != "[", text[-1] != "]")


def _solutions(parts: list[str]) -> sympy.Set:
    """Returns the numbers that satisfy inequalities, given as alternating sides and signs, such as `1 < x ≤ 2`."""
    if sum(bool(SIMPLE_NAME.fullmatch(side)) for side in parts[::2]) != 1:
        raise Unreadable
    sides = [sympy.Symbol("x", real=True) if SIMPLE_NAME.fullmatch(side) else _number(side) for side in parts[::2]]
    signs = [RELATIONS.get(sign, sign) for sign in parts[1::2]]
    return sympy.And(*map(sympy.Rel, sides, sides[1:], signs)).as_set()


def _same_reals(one: str, other: str) -> bool:
    a, b = _real_set(normalized(one)), _real_set(normalized(other))
    return a == b or bool(a.symmetric_difference(b).is_empty)


def are_equivalent(answer: str, gold: str) -> bool | None:
    r"""Returns whether an answer equals a reference answer; `None` if math-verify cannot read the reference answer.

    [`~leash_trl.rewards.grader.equality.are_equal`] with [`formulas_equal`] decides first, then sets, then
    math-verify. Both are expressions of [`~leash_trl.rewards.grader.answer.Answer`], such as `\boxed{34}`.
    """
    one, other = _found(answer), _found(gold)
    rules: list[Same] = [
        functools.partial(words_verdict, same=formulas_equal),
        functools.partial(are_equal, same=formulas_equal),
        _same_reals,
    ]
    for compare in rules:
        with contextlib.suppress(ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError):
            if one and other and (verdict := compare(one, other)) is not None:
                return verdict
    if UNREAD.search(normalized(f"{one} {other}")):
        return False  # math-verify would drop this sign
    expected, found = values(gold.replace('"', " ")), values(answer.replace('"', " "))
    return bool(verify([*expected], [*found], timeout_seconds=None)) if expected else None
