r"""Values of simple closed forms, so that most comparisons of numbers need no computer algebra.

A closed form is a number, a fraction, a product with a square root, pi or i, or a sum of such terms; or a bracket or
list of closed forms. What is not clearly one of these is left to math-verify, whose verdicts these are meant to equal.
"""

import math
import re
from dataclasses import dataclass
from fractions import Fraction


# math-verify rounds to six decimals; beyond this relative difference it calls two numbers different too
CLEARLY_DIFFERENT = 1e-4
MAX_LENGTH = 100_000  # characters; a second of work

NUMBER = r"\d{1,9}\.\d{1,6}|\d{1,15}"  # within the digits of math-verify's floats
PRODUCT = rf"(?:{NUMBER})?\s*(?:\\sqrt\s*(?:\{{\s*\d{{1,15}}\s*\}}|\d))?\s*(?:\\pi(?![A-Za-z]))?"
SIGNED = re.compile(r"\s*([+-]?)\s*")
BRACED = rf"\{{\s*(-?{PRODUCT})\s*\}}\s*\{{\s*({PRODUCT})\s*\}}"
FRACTION = re.compile(rf"\\[dt]?frac\s*(?:{BRACED}|(\d)\s*(\d))(?:\s*\\pi(?![A-Za-z]))?")
SLASH = re.compile(r"(\d{1,15})\s*/\s*(\d{1,15})(?![\d.])")
FACTORS = re.compile(rf"({NUMBER})?\s*(?:\\sqrt\s*(?:\{{\s*(\d{{1,15}})\s*\}}|(\d)))?\s*(\\pi(?![A-Za-z]))?")
IMAGINARY = re.compile(r"\s*i(?![A-Za-z])")
INFINITY = re.compile(r"\s*([+-]?)\s*\\infty\s*")
ALONE = re.compile(r"\s*[+-]?\s*[\d.]+")
DEGREES = re.compile(r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*$")
BRACKET = re.compile(r"\s*(?:\\left)?\s*([(\[])(.*?)(?:\\right)?\s*([)\]])\s*", re.DOTALL)
DIGITS_COMMA = re.compile(r"\d,\d")
THOUSANDS = re.compile(r"\d,\d{3}(?!\d)")


@dataclass(frozen=True)
class ClosedForm:
    """One number, or several.

    Args:
        values (`tuple[complex, ...]`):
            The numbers, in order.
        rationals (`tuple[Fraction, ...]`, *optional*):
            The same, exactly; `None` where one is not rational by its form.
        brackets (`str`):
            `""` for a number, `","` for a list, or the two brackets.
    """

    values: tuple[complex, ...]
    rationals: tuple[Fraction, ...] | None
    brackets: str = ""


def _product(text: str) -> tuple[complex, Fraction | None] | None:
    """Value of number times root times pi, the exact one where rational; `None` where nothing stands."""
    match = FACTORS.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        return None
    number, root, pi = Fraction(match[1] or 1), match[2] or match[3], match[4]
    value = float(number) * math.sqrt(int(root or 1)) * (math.pi if pi else 1.0)
    return value, None if root or pi else number


def _quotient(top: str, bottom: str, has_pi: bool) -> tuple[complex, Fraction | None] | None:
    above, below = _product(top.removeprefix("-")), _product(bottom)
    if above is None or below is None or below[0] == 0:
        return None
    sign = -1 if top.startswith("-") else 1
    exact = None if above[1] is None or below[1] is None or has_pi else sign * above[1] / below[1]
    return sign * above[0] / below[0] * (math.pi if has_pi else 1.0), exact


def _term(text: str, position: int) -> tuple[complex, Fraction | None, int] | None:
    """Value of the term at a position, and where it ends."""
    if match := FRACTION.match(text, position):
        top, bottom = (match[1], match[2]) if match[2] is not None else (match[3], match[4])
        parts = _quotient(top, bottom, match[0].endswith(r"\pi"))
    elif match := SLASH.match(text, position):
        parts = _quotient(match[1], match[2], False)
    elif (match := FACTORS.match(text, position)) and match[0].strip():
        parts = _product(match[0])
    elif IMAGINARY.match(text, position):
        match, parts = None, (1.0, Fraction(1))
    else:
        return None
    end = match.end() if match else position
    if parts is None:
        return None
    if imaginary := IMAGINARY.match(text, end):
        return parts[0] * 1j, None, imaginary.end()
    return *parts, end


def _number(text: str) -> tuple[complex, Fraction | None] | None:
    """Value of a sum of terms, or of an infinite end of an interval."""
    if infinity := INFINITY.fullmatch(text):
        return -math.inf if infinity[1] == "-" else math.inf, None
    text = DEGREES.sub("", text).rstrip()
    total: complex = 0.0
    exact: Fraction | None = Fraction(0)
    position = 0
    while position < len(text) or position == 0:
        sign = SIGNED.match(text, position)
        if sign is None or (position and not sign[1]):
            return None
        term = _term(text, sign.end())
        if term is None:
            return None
        factor = -1 if sign[1] == "-" else 1
        total += factor * term[0]
        exact = None if exact is None or term[1] is None else exact + factor * term[1]
        position = term[2]
    if "." in text and not ALONE.fullmatch(text):
        exact = None  # math-verify calculates these in floats
    return total, exact


def closed_form(text: str) -> ClosedForm | None:
    r"""Value of a closed form; `None` for all else, such as mixed numbers, percentages and divisions by zero.

    Args:
        text (`str`):
            LaTeX, such as `-\frac{3\sqrt{2}}{4}` or `(1, 2+\pi)`, or plain text, such as `3/4`.

    Example:
        >>> closed_form(r"-\frac{3}{4}").rationals, closed_form("(1, 0.75)").brackets, closed_form(r"1\frac{1}{2}")
        ((Fraction(-3, 4),), '()', None)
    """
    text = " ".join(text.split())  # the patterns would try every way to share a long blank between their parts
    if len(text) > MAX_LENGTH:
        return None
    bracket = BRACKET.fullmatch(text)
    if (THOUSANDS if bracket else DIGITS_COMMA).search(text):
        return None  # 1,000 is one number, and 1,5 may be
    parts = (bracket[2] if bracket else text).split(",")
    numbers = [_number(part) for part in parts]
    is_half_open = bracket is not None and bracket[1] + bracket[3] not in ("()", "[]")
    if (
        None in numbers
        or (not bracket and r"\infty" in text)
        or (bracket and len(parts) == 1)
        or (is_half_open and len(parts) != 2)
    ):
        return None
    values, exacts = zip(*numbers, strict=True)
    brackets = f"{bracket[1]}{bracket[3]}" if bracket else ("," if len(parts) > 1 else "")
    return ClosedForm(values, None if None in exacts else exacts, brackets)


def _differ(a: complex, b: complex) -> bool:
    if math.inf in (abs(a), abs(b)):
        return a != b
    return abs(a - b) > CLEARLY_DIFFERENT * max(1.0, abs(a), abs(b))


def closed_forms_equal(one: str, other: str) -> bool | None:
    r"""Whether two closed forms are equal; `None` if one is no closed form, or they differ by next to nothing.

    Rational ones are compared exactly, others only told apart. A list without brackets has no order, so two lists are
    left to math-verify.

    Example:
        >>> closed_forms_equal("0.5", "1/2"), closed_forms_equal(r"2\sqrt{3}", r"3\sqrt{2}")
        (True, False)
        >>> closed_forms_equal("0.3333333", "1/3") is None  # math-verify rounds
        True
    """
    a, b = closed_form(one), closed_form(other)
    if a is None or b is None:
        return None
    if len(a.values) != len(b.values) and 1 in (len(a.values), len(b.values)):
        several = max(a, b, key=lambda form: len(form.values)).values
        return False if all(_differ(several[0], value) for value in several[1:]) else None
    if a.brackets != b.brackets or a.brackets == ",":
        return None
    if "]" in a.brackets or "[" in a.brackets:
        ends = [form.values[:2] for form in (a, b)]
        if any(end.real <= start.real for start, end in ends):
            return None  # intervals that hold nothing are equal
    if len(a.values) != len(b.values) or any(map(_differ, a.values, b.values)):
        return False
    return True if a.rationals is not None and a.rationals == b.rationals else None
