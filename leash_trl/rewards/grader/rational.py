r"""Reads the numbers of a formula, and computes the value of the formula if this value is a fraction.

Numbers may have groups of three digits after a comma, a blank, an apostrophe or `{,}` (also `1.234.567`), an exponent
(`1.5e6`), or a fraction (`1 1/2`; but `1 101/125` is 1101/125, because three digits follow the blank). Two numbers in
a row cannot be read, nor can `1/2x`, which has two meanings. A text that cannot be read raises [`Unreadable`].
"""

import ast
import functools
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any


# Returns whether two formulas, or two members of answers, are equal; `None` if this is undecided.
Comparison = Callable[[Any, Any], bool | None]

MAX_CHARACTERS = 2_000  # of a formula
MAX_BITS = 30_000  # bits of a power

# 1 234.5 and 1,234,567 with equal marks between the groups; 1.234.567 only with two points
GROUPED_DIGITS = r"\d{1,3}(?P<mark>[ ',])\d{3}(?:(?P=mark)\d{3})*(?!\d)(?:\.\d+)?|\d{1,3}(?:\.\d{3}){2,}(?!\d)"
EXPONENT = r"(?:[eE][+-]?\d{1,4}(?!\d))?"  # the e-3 of 1.5e-3
# 3\frac{1}{2} and 1 1/2
MIXED_NUMBER = re.compile(r"(\d+)(?: ?\\frac *\{ *(\d+) *\} *\{ *(\d+) *\}| (\d{1,2}) ?/ ?(\d+)(?![\d.]))")
# a mixed number, or digits with or without groups, decimals and an exponent: 12, 1,234.5, .5, 1.5e-3
NUMBER = re.compile(rf"(?:{MIXED_NUMBER.pattern}|(?:{GROUPED_DIGITS}|\d+(?:\.\d*)?|\.\d+){EXPONENT})(?!\.?\d)")
# Two numbers without a sign between them, as in 3 4, 2 \frac{1}{2} beside a mixed number, or x2; and 1/2x.
AMBIGUOUS_FORMULA = re.compile(
    r"\d *\)? +\(?(?:\d|\\frac\{\d)|[\d)] *\\frac\{\d|[A-Za-z)}]\d|/ *(?:\d+|[A-Za-z]|\([^()]*\)) *[A-Za-z(\\](?!cdot)"
)
SHORT_POWER = re.compile(r"\^(-?[\d.]+|\([^()]*\))")  # 2^10, 2^(x+1)
SHORT_INDEX = re.compile(r"_(\w)")  # x_1
ARITHMETIC = re.compile(r"[-+*/^\d\s(){}\[\]]+")  # a formula of whole numbers, signs and brackets: -(1+2)^3
IMPLIED_PRODUCT = re.compile(r"(?<=\))\s*(?=[(\d])|(?<=\d)\s*(?=\()")  # between the brackets of (2)(3) and in 2(3)
TO_ROUND_BRACKETS = str.maketrans("{}[]", "()()")
FRACTION = re.compile(r"\\frac *\{([^{}]*)\} *\{([^{}]*)\}")  # \frac{1}{2}, without a fraction inside


class Unreadable(ValueError):
    """Raised for a text without a value, or without a clear value."""


def read_number(text: str) -> Fraction:
    """Returns the value of a number in any form that the head of this module names.

    Example:
        >>> read_number("1 234"), read_number("1.5e-3")
        (Fraction(1234, 1), Fraction(3, 2000))
    """
    # 3\frac{1}{2} and 1 1/2 are matched by different groups, and those of the other form are `None`.
    if mixed := MIXED_NUMBER.fullmatch(text):
        whole, numerator, denominator = (read_number(part) for part in mixed.groups() if part)
        return whole + numerator / denominator
    mantissa, _, exponent = text.lower().partition("e")
    # The points of 1.234.567 separate groups of digits.
    if mantissa.count(".") > 1:
        mantissa = mantissa.replace(".", "")
    # So do the other marks of 1 234, 1'234 and 1,234.
    return Fraction(re.sub("[ ',]", "", mantissa)) * Fraction(10) ** int(exponent or 0)


def with_plain_numbers(text: str) -> str:
    r"""Returns a formula with all numbers written as whole numbers or as fractions of whole numbers.

    Raises:
        [`Unreadable`]: If numbers stand in a row, or a product follows a slash.

    Example:
        >>> with_plain_numbers("x + 1 234.5")
        'x + (\\frac{2469}{2})'
    """
    if len(text) > MAX_CHARACTERS:
        raise Unreadable
    # Braces keep an exponent and an index apart from the digits after them: x^2 becomes x^{2}.
    braced = SHORT_POWER.sub(r"^{\1}", text)
    braced = SHORT_INDEX.sub(r"_{\1}", braced)
    # Every number is written as a whole number or a fraction: 1,234 becomes 1234, and 0.5 becomes (\frac{1}{2}).
    plain = NUMBER.sub(lambda number: _as_formula(read_number(number[0])), braced)
    # Two numbers in a row, as in "3 4", or a product after a slash, as in 1/2x.
    if AMBIGUOUS_FORMULA.search(plain):
        raise Unreadable
    return plain


def _as_formula(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value)
    return rf"(\frac{{{value.numerator}}}{{{value.denominator}}})"


@functools.lru_cache(maxsize=4096)
def rational_value(formula: str) -> Fraction | None:
    r"""Returns the value of a formula of whole numbers, the four operations and powers; `None` for any other formula.

    Example:
        >>> rational_value(r"\frac{3}{4} - 2^{-2}"), rational_value(r"\sqrt{4}")
        (Fraction(1, 2), None)
    """
    # \frac{1}{2} becomes ((1)/(2)). Each pass replaces the innermost fractions, until there is none.
    text = formula
    num_replaced = 1
    while num_replaced:
        text, num_replaced = FRACTION.subn(r"((\1)/(\2))", text)
    # A letter or another command, such as x or \sqrt, is left, so the value is no fraction or not computed here.
    if not ARITHMETIC.fullmatch(text):
        return None
    # Python parses the formula, but does not evaluate it: 2^{-2}(3) becomes 2**(-2)*(3).
    python_expression = text.strip().replace("^", "**").translate(TO_ROUND_BRACKETS)
    python_expression = IMPLIED_PRODUCT.sub("*", python_expression)
    try:
        return _value(ast.parse(python_expression, mode="eval").body)
    except (SyntaxError, ArithmeticError, ValueError, MemoryError, RecursionError):
        return None


def _value(node: ast.expr) -> Fraction:
    """Returns the exact value of a parsed expression of whole numbers.

    Raises:
        [`Unreadable`]: If the expression has another operation, or too large a power.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if not isinstance(node, ast.BinOp) or type(node.op) not in OPERATIONS:
        raise Unreadable
    return OPERATIONS[type(node.op)](_value(node.left), _value(node.right))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    """Returns a power with a whole exponent, unless it would have too many bits to be computed at once."""
    num_bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    # The square root of 2 is no fraction, and 9^{9^9} would fill the memory.
    if exponent.denominator != 1 or abs(exponent) * num_bits > MAX_BITS:
        raise Unreadable
    return base ** int(exponent)


OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: _power,
}


def rationals_equal(left: str, right: str) -> bool | None:
    """Returns whether two formulas have the same value; `None` unless both values are fractions."""
    left_value = rational_value(left)
    right_value = rational_value(right)
    if left_value is None or right_value is None:
        return None
    return left_value == right_value
