"""math-verify's verdict, in the worker process: what [`~leash_trl.rewards.comparison`] asks about formulas, and more.

Two formulas are equal if they agree to 50 digits, where a letter stands for a number: formulas with letters are
compared at several points, positive and negative ones. So 0.3333333 is not 1/3. Two equations are equal if the
differences of their sides are proportional.
"""

import functools
import re

import sympy
from math_verify import parse, verify

from leash_trl.rewards.answer import boxed_answer
from leash_trl.rewards.comparison import comparison


DIGITS, DIFFERENT = 50, 1e-30
SCALES = ("13/10", "2/5", "6", "37", "-13/10", "-6", "-37/3")  # of the letters, so that most functions are defined
CONSTANTS = {"i": sympy.I, "e": sympy.E}


@functools.lru_cache(maxsize=512)
def _values(expression: str) -> tuple[object, ...]:
    # Without math-verify's own time limits, which need the main thread's signals and do not work for every input.
    return tuple(parse(expression, parsing_timeout=None))


def _gold_values(expression: str) -> tuple[object, ...]:
    """In a box where nothing else is found: math-verify then takes words, such as "no solution", for an expression."""
    return _values(expression) or _values(f"\\boxed{{{expression}}}")


def _formula(text: str) -> sympy.Expr | None:
    text = re.sub(r"([A-Za-z])('+)", lambda match: f"{match[1]}_{{{'P' * len(match[2])}}}", text)
    text = re.sub(r"(\d+|\([^()]*\))\^\\circ", r"(\\frac{\\pi*\1}{180})", text)
    found = _values(f"\\boxed{{{text}}}")
    if not found or not isinstance(found[0], sympy.Expr) or found[0].has(sympy.zoo, sympy.nan):
        return None
    letters = {letter: CONSTANTS[letter.name] for letter in found[0].free_symbols if letter.name in CONSTANTS}
    return found[0].subs(letters)


def _at(formula: sympy.Expr, letters: list[sympy.Symbol], point: int) -> sympy.Expr | None:
    """The value where the letters are other numbers at each point; `None` if it has none."""
    scale = sympy.Rational(SCALES[point])
    numbers = {letter: scale * (1 + sympy.Rational(1, 7 + 3 * place)) for place, letter in enumerate(letters)}
    value = formula.subs(numbers).evalf(DIGITS)
    return value if value.is_number and value.is_finite and not value.has(sympy.nan) else None


def same(one: str, other: str) -> bool | None:
    r"""Whether two formulas or two equations are equal, by the rule at the head of this file; `None` if that is open.

    Example:
        >>> same(r"\sqrt{12}", r"2\sqrt{3}"), same("x+y=1", "2-2y=2x"), same("0.3333333", r"\frac{1}{3}")
        (True, True, False)
    """
    is_equation = "=" in one
    sides = [_formula(side) for text in (one, other) for side in text.split("=")]
    if None in sides or len(sides) != (4 if is_equation else 2):
        return None
    a, b = (sides[0] - sides[1], sides[2] - sides[3]) if is_equation else sides
    letters = sorted(a.free_symbols | b.free_symbols, key=str)
    verdicts, ratio = [], None
    for point in range(len(SCALES) if letters else 1):
        values = [_at(formula, letters, point) for formula in (a, b)]
        if None in values:
            continue
        x, y = values
        if is_equation:
            ratio = ratio or x / y
            y *= ratio
        verdicts.append(bool(abs(x - y) <= DIFFERENT * max(abs(x), abs(y))))
    return verdicts[0] if len(set(verdicts)) == 1 and len(verdicts) > is_equation else None


def is_readable(expression: str) -> bool:
    """Whether math-verify finds anything in a gold answer."""
    return bool(_gold_values(expression))


def _is_undefined(values: tuple[object, ...]) -> bool:
    """Whether a value divides by zero: math-verify takes 12:00 for such a value, equal to 3:00."""
    return any(isinstance(value, sympy.Basic) and value.has(sympy.zoo, sympy.nan) for value in values)


def are_equivalent(answer: str, gold: str) -> bool | None:
    r"""Whether an answer equals a gold: by [`~leash_trl.rewards.comparison`] with [`same`], else by math-verify.

    Args:
        answer (`str`), gold (`str`):
            Expressions of [`~leash_trl.rewards.answer.Answer`], such as `\boxed{34}`.

    Returns:
        `bool` or `None`: `None` if math-verify finds nothing in the gold. Undefined values, such as `\frac{1}{0}`,
        equal nothing.
    """
    one, other = boxed_answer(answer), boxed_answer(gold)
    if one and other and (verdict := comparison(one.text, other.text, same)) is not None:
        return verdict
    gold_values, answer_values = (
        find(text.replace('"', " ")) for find, text in ((_gold_values, gold), (_values, answer))
    )
    if not gold_values:
        return None
    if _is_undefined(gold_values) or _is_undefined(answer_values):
        return False
    return bool(verify(list(gold_values), list(answer_values), timeout_seconds=None))
