r"""Reads the numbers of a formula, and computes the value of the formula if this value is a fraction.

Numbers may have groups of three digits after a comma, a blank, an apostrophe or `{,}` (also `1.234.567`), an exponent
(`1.5e6`), or a fraction (`1 1/2`; but `1 101/125` is 1101/125, because three digits follow the blank). Two numbers in
a row cannot be read, nor can `1/2x`, which has two meanings. A text that cannot be read raises [`Unreadable`].
"""

import ast
import functools
import operator
import re
from fractions import Fraction


MAX_LENGTH = 2_000  # characters of a formula
MAX_BITS = 30_000  # bits of a power

GROUPED = r"\d{1,3}(?P<mark>[ ',])\d{3}(?:(?P=mark)\d{3})*(?!\d)(?:\.\d+)?|\d{1,3}(?:\.\d{3}){2,}(?!\d)"
MIXED = re.compile(r"(\d+)(?: ?\\frac *\{ *(\d+) *\} *\{ *(\d+) *\}| (\d{1,2}) ?/ ?(\d+)(?![\d.]))")
NUMBER = re.compile(rf"(?:{MIXED.pattern}|(?:{GROUPED}|\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{{1,4}}(?!\d))?)(?!\.?\d)")
WHOLE = re.compile(r"([+-]?) ?(\d{1,4000})\.?")
IN_A_ROW = re.compile(
    r"\d *\)? +\(?(?:\d|\\frac\{\d)|[\d)] *\\frac\{\d|[A-Za-z)}]\d|/ *(?:\d+|[A-Za-z]|\([^()]*\)) *[A-Za-z(\\](?!cdot)"
)
RATIONAL = re.compile(r"[-+*/^\d\s(){}\[\]]+")
PRODUCT = re.compile(r"(?<=\))\s*(?=[(\d])|(?<=\d)\s*(?=\()")
ROUND = str.maketrans("{}[]", "()()")
FRACTION = re.compile(r"\\frac *\{([^{}]*)\} *\{([^{}]*)\}")


class Unreadable(ValueError):
    """Raised for a text without a value, or without a clear value."""


def read_number(text: str) -> Fraction:
    """Returns the value of a number in any form that the head of this module names.

    Example:
        >>> read_number("1 234"), read_number("1.5e-3")
        (Fraction(1234, 1), Fraction(3, 2000))
    """
    if mixed := MIXED.fullmatch(text):
        whole, top, bottom = (read_number(part) for part in mixed.groups() if part)
        return whole + top / bottom
    mantissa, _, exponent = text.lower().partition("e")
    mantissa = mantissa.replace(".", "") if mantissa.count(".") > 1 else mantissa
    return Fraction(re.sub("[ ',]", "", mantissa)) * Fraction(10) ** int(exponent or 0)


def with_plain_numbers(text: str) -> str:
    r"""Returns a formula with all numbers written as whole numbers or as fractions of whole numbers.

    Raises:
        [`Unreadable`]: If numbers stand in a row, or a product follows a slash.

    Example:
        >>> with_plain_numbers("x + 1 234.5")
        'x + (\\frac{2469}{2})'
    """
    if whole := WHOLE.fullmatch(text):
        return f"{whole[1]}{int(whole[2])}"
    if len(text) > MAX_LENGTH:
        raise Unreadable
    indexed = re.sub(r"_(\w)", r"_{\1}", re.sub(r"\^(-?[\d.]+|\([^()]*\))", r"^{\1}", text))
    found = NUMBER.sub(lambda match: _written(read_number(match[0])), indexed)
    if IN_A_ROW.search(found):
        raise Unreadable
    return found


def _written(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else rf"(\frac{{{value.numerator}}}{{{value.denominator}}})"


@functools.lru_cache(maxsize=4096)
def rational(formula: str) -> Fraction | None:
    r"""Returns the value of a formula of whole numbers, the four operations and powers; `None` for any other formula.

    Example:
        >>> rational(r"\frac{3}{4} - 2^{-2}"), rational(r"\sqrt{4}")
        (Fraction(1, 2), None)
    """
    if WHOLE.fullmatch(formula):
        return Fraction(formula.replace(" ", ""))
    text, count = formula, 1
    while count:
        text, count = FRACTION.subn(r"((\1)/(\2))", text)
    if not RATIONAL.fullmatch(text):
        return None
    text = PRODUCT.sub("*", text.strip().replace("^", "**").translate(ROUND))
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ArithmeticError, ValueError, MemoryError, RecursionError):
        return None


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand) if isinstance(node.op, ast.USub) else _value(node.operand)
    if not isinstance(node, ast.BinOp) or type(node.op) not in OPERATIONS:
        raise Unreadable
    return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or abs(exponent) * size > MAX_BITS:
        raise Unreadable
    return base ** int(exponent)


OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
OPERATIONS[ast.Pow] = _power


def rationals_equal(one: str, other: str) -> bool | None:
    """Returns whether two formulas have the same value; `None` unless both values are fractions."""
    a, b = rational(one), rational(other)
    return None if a is None or b is None else a == b
