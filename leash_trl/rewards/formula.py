r"""Reads the numbers and formulas of answers from LaTeX and plain text, computes their values, and compares two.

A rational value is a fraction, any other one a number of 100 digits. Two values are equal if they agree to 50 digits
and different if they disagree within 30, so 0.3333333 is not 1/3. A letter stands for a number: formulas with letters
are compared at several points, positive and negative ones.

Numbers may have thousands in groups of three after a comma, a blank, an apostrophe or `{,}` (also `1.234.567` and
`1.234,56`), an exponent (`1.5e6`), or a fraction (`1 1/2`; but `1 101/125` is 1101/125, by its three digits after
the blank). Two numbers in a row are not a number, nor is `1/2x`, which has two meanings. A text that cannot be read
raises [`Unreadable`].
"""

import functools
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import mpmath


MAX_LENGTH = 20_000  # characters
MAX_DEPTH = 40
MAX_BITS = 30_000  # of a fraction
MAX_EXPONENT = 2**20  # beyond it a power has no value
MAX_ANGLE = 2**1_000
MAX_APART = 150  # bits between two terms of a sum, so that the smaller one is not lost among 100 digits
DIGITS, EQUAL, DIFFERENT, NOISE = 100, 1e-50, 1e-30, 1e-40

# One context for all threads: the functions below read its precision and never change it. pi and ln 2 are computed
# here, with more digits than ever needed, because adding digits later would not be safe in threads.
MP = mpmath.MPContext()
MP.dps = DIGITS
mpmath.libmp.pi_fixed(4_000)
mpmath.libmp.ln2_fixed(4_000)
PI, E, IMAGINARY = +MP.pi, +MP.e, MP.mpc(0, 1)

Value = Any  # `Fraction`, or a real or complex number of `MP`; `NO_VALUE` where there is none
NO_VALUE = MP.nan

SCALES = tuple(map(Fraction, ("1.3", "0.4", "6", "37", "3000")))  # of the letters, so that most functions are defined
NUM_POINTS = 2 * len(SCALES)  # the first half with positive letters, the second with some negative ones
ENOUGH = {False: 2, True: 3}  # points that tell formulas with letters apart, or call them equal

GROUPED = r"\d{1,3}(?P<mark>[ ',])\d{3}(?:(?P=mark)\d{3})*(?!\d)(?:\.\d+)?"
GERMAN = r"\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}(?!\d)|\d{1,3}(?: \d{3})+,\d{1,2}(?!\d)"
MIXED = re.compile(r"(\d+)(?: ?\\frac *(?:\{ *(\d+) *\}|(\d)) *(?:\{ *(\d+) *\}|(\d))| (\d{1,2}) ?/ ?(\d+)(?![\d.]))")
NUMBER = rf"(?:{GERMAN}|{GROUPED}|\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{{1,4}}(?!\d))?"
TOKEN = re.compile(
    rf"\s*(?:(?P<number>{MIXED.pattern}|{NUMBER})|(?P<macro>\\[A-Za-z]+)|(?P<name>[A-Za-z]'*)|(?P<sign>\S))"
)
FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    **{name: getattr(MP, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp", "ln")},
    **{f"arc{name}": getattr(MP, f"a{name}") for name in ("sin", "cos", "tan")},
    **{"cot": lambda x: 1 / MP.tan(x), "sec": lambda x: 1 / MP.cos(x), "csc": lambda x: 1 / MP.sin(x)},
}
GREEK = frozenset(
    re.findall(
        r"\w+",
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta kappa lambda mu nu xi rho sigma tau phi "
        "varphi chi psi omega Gamma Delta Theta Lambda Phi Psi Omega ell",
    )
)
CALLED = frozenset("fghFGP")  # f(x) is no product
INTEGERS = frozenset("klmnN")
OPENING = {"(": ")", "{": "}", "[": "]", "|": "|"}


class Unreadable(ValueError):
    """The text has no value, or none that can be computed in time."""


def _real(value: Value) -> Value:
    """A value as a number of 100 digits."""
    return MP.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def _kept(value: Fraction) -> Value:
    """A fraction, if it is small enough to compute with."""
    return value if max(value.numerator.bit_length(), value.denominator.bit_length()) <= MAX_BITS else NO_VALUE


def _add(a: Value, b: Value) -> Value:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return _kept(a + b)
    a, b = _real(a), _real(b)
    would_drown = a and b and not abs(MP.mag(a) - MP.mag(b)) <= MAX_APART
    return NO_VALUE if would_drown else a + b


def _multiply(a: Value, b: Value) -> Value:
    return _kept(a * b) if isinstance(a, Fraction) and isinstance(b, Fraction) else _real(a) * _real(b)


def _inverse(value: Value) -> Value:
    return 1 / value if value else NO_VALUE


def _root(value: Value, degree: int) -> Value:
    """The real root where there is one, else that of the smallest angle."""
    if isinstance(value, Fraction) and value >= 0:
        roots = [_whole_root(part, degree) for part in (value.numerator, value.denominator)]
        if Fraction(roots[0] ** degree, roots[1] ** degree) == value:
            return Fraction(*roots)
    value = _real(value)
    if not value.imag and value.real < 0 and degree % 2:
        return -MP.root(-value, degree)
    return MP.sqrt(value) if degree == 2 else MP.root(value, degree)


def _whole_root(number: int, degree: int) -> int:
    return math.isqrt(number) if degree == 2 else round(number ** (1 / degree)) if number < 2**53 else 0


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(exponent, Fraction) and exponent.denominator <= 6 and abs(exponent) <= MAX_EXPONENT:
        if exponent.denominator > 1:
            base = _root(base, exponent.denominator)
        times = exponent.numerator
        if not base and times <= 0:
            return Fraction(1) if times == 0 else NO_VALUE
        if not isinstance(base, Fraction):
            return base**times
        if abs(times) * max(base.numerator.bit_length(), base.denominator.bit_length()) <= MAX_BITS:
            return base**times
        return NO_VALUE
    base, exponent = _real(base), _real(exponent)
    if base.imag or base.real <= 0 or not abs(exponent) * max(abs(MP.mag(base)), 1) <= MAX_EXPONENT:
        return NO_VALUE  # a branch cut, or too large
    return base**exponent


def _call(name: str, value: Value) -> Value:
    value = _real(value)
    largest = MAX_EXPONENT if name in ("exp", "sinh", "cosh", "tanh") else MAX_ANGLE
    if not abs(value) <= largest and name != "ln":
        return NO_VALUE
    if (name == "ln" and not (value.real > 0 and not value.imag)) or (name in ("arcsin", "arccos") and abs(value) > 1):
        return NO_VALUE  # a branch cut
    return FUNCTIONS[name](value)


def _factorial(value: Value) -> Value:
    is_defined = isinstance(value, Fraction) and value.denominator == 1 and 0 <= value <= 2_500
    return Fraction(math.factorial(int(value))) if is_defined else NO_VALUE


def _binomial(top: Value, bottom: Value) -> Value:
    are_whole = all(isinstance(part, Fraction) and part.denominator == 1 for part in (top, bottom))
    return (
        Fraction(math.comb(int(top), int(bottom)))
        if are_whole and 0 <= bottom <= 1_000 and 0 <= top <= 5_000
        else NO_VALUE
    )


@functools.lru_cache(maxsize=4096)
def _letter(name: str, point: int) -> Fraction:
    """The number for a letter at a point: the same in every formula."""
    draw = random.Random(f"{name} {point}").randint(500, 1500)
    sign = -1 if point >= len(SCALES) and draw % 4 else 1
    if name in INTEGERS:
        return Fraction(sign * (2 + 3 * (point % len(SCALES)) + draw % 3))
    return sign * Fraction(draw, 1000) * SCALES[point % len(SCALES)]


@dataclass(frozen=True)
class Formula:
    """A parsed formula.

    Args:
        at (`callable`):
            Its value at a point, by the point's number; at each point the letters are other numbers.
        names (`frozenset[str]`):
            Its letters.
    """

    at: Callable[[int], Value]
    names: frozenset[str]

    def times(self, factor: "Formula | Fraction") -> "Formula":
        """This formula times another one, or times a number."""
        if isinstance(factor, Fraction):
            return Formula(lambda point: _multiply(self.at(point), factor), self.names)
        return Formula(lambda point: _multiply(self.at(point), factor.at(point)), self.names | factor.names)

    def minus(self, other: "Formula") -> "Formula":
        """This formula less another one."""
        negative = other.times(Fraction(-1))
        return Formula(lambda point: _add(self.at(point), negative.at(point)), self.names | other.names)


@functools.lru_cache(maxsize=256)
def _tokens(text: str) -> tuple[tuple[str, str], ...]:
    """Kinds of signs and the signs."""
    return tuple(
        (str(match.lastgroup), str(match[match.lastgroup])) for match in TOKEN.finditer(text) if match.lastgroup
    )


class _Parser:
    """Recursive descent; every method returns the value of what it reads, at one point."""

    def __init__(self, text: str, point: int):
        self.tokens = [*_tokens(text)]
        self.point = point
        self.place = 0
        self.depth = 0
        self.degree: Value = Fraction(1)  # what a degree is worth: inside a function it is an angle, else a unit
        self.names: set[str] = set()

    def next(self, ahead: int = 0) -> tuple[str, str]:
        place = self.place + ahead
        return self.tokens[place] if place < len(self.tokens) else ("end", "")

    def take(self, *signs: str) -> bool:
        is_there = self.next()[1] in signs and self.next()[0] != "end"
        self.place += is_there
        return is_there

    def expect(self, sign: str) -> None:
        if not self.take(sign):
            raise Unreadable

    def deepen(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable

    def sum(self) -> Value:
        self.deepen()
        result: Value = None
        while result is None or self.next()[1] in ("+", "-"):
            sign = -1 if self.take("-") else 1
            if sign == 1:
                self.take("+")
            term = self.term()
            term = _multiply(Fraction(-1), term) if sign == -1 else term
            result = term if result is None else _add(result, term)
        self.depth -= 1
        return result

    def starts_factor(self) -> bool:
        kind, sign = self.next()
        return kind in ("name", "number", "macro") or sign in ("(", "[", "{")

    def term(self) -> Value:
        result = self.factor()
        has_slash = False
        while True:
            previous = self.tokens[self.place - 1]
            if self.take("*", r"\cdot", r"\times"):
                if self.take("-"):
                    result = _multiply(Fraction(-1), result)
                result = _multiply(result, self.factor())
            elif self.take("/"):
                has_slash = True
                result = _multiply(result, _inverse(self.factor()))
            elif self.starts_factor():
                if has_slash or self.next()[0] == "number":
                    raise Unreadable  # 1/2x, x2, 3 4
                if previous[1] in CALLED and self.next()[1] == "(":
                    raise Unreadable
                result = _multiply(result, self.factor())
            else:
                return result

    def factor(self) -> Value:
        base = self.primary()
        if self.take("!"):
            base = _factorial(base)
        if self.take("^"):
            if self.take(r"\circ"):
                return _multiply(base, self.degree)
            base = _power(base, self.exponent())
        if self.next()[1] in ("!", "^"):
            raise Unreadable  # 3!! is not (3!)!, and 2^3! has two meanings
        return base

    def exponent(self) -> Value:
        """The exponent after `^`; of powers in a row, the last one comes first."""
        self.deepen()
        sign = Fraction(-1 if self.take("-") else 1)
        exponent = self.primary()
        if self.take("^"):
            exponent = _power(exponent, self.exponent())
        self.depth -= 1
        return _multiply(sign, exponent)

    def argument(self) -> Value:
        """The argument of a command such as `\\frac`: a group, or a single digit or letter."""
        kind, sign = self.next()
        if kind == "number" and len(sign) > 1:
            if not sign.isdigit():
                raise Unreadable
            self.tokens[self.place] = ("number", sign[1:])
            return Fraction(sign[0])
        return self.primary()

    def primary(self) -> Value:
        kind, sign = self.next()
        self.place += 1
        if kind == "number":
            return read_number(sign)
        if kind == "name":
            return self.name(sign)
        if kind == "macro":
            return self.macro(sign[1:])
        if sign not in OPENING:
            raise Unreadable
        inside = self.sum()
        self.expect(OPENING[sign])
        return abs(inside) if sign == "|" else inside

    def name(self, sign: str) -> Value:
        if self.take("_"):
            is_group = self.take("{")
            kind, index = self.next()
            if kind == "end":
                raise Unreadable
            self.place += 1
            if is_group:
                self.expect("}")
            sign = f"{sign}_{index}"
        if sign in ("i", "e"):
            return IMAGINARY if sign == "i" else E
        self.names.add(sign)
        return _letter(sign, self.point)

    def macro(self, name: str) -> Value:
        if name == "pi":
            return PI
        if name == "frac":
            return _multiply(self.argument(), _inverse(self.argument()))
        if name == "binom":
            return _binomial(self.argument(), self.argument())
        if name == "sqrt":
            degree = 2
            if self.take("["):
                degree = int(self.next()[1]) if self.next()[1] in ("2", "3", "4", "5", "6") else 0
                self.place += 1
                self.expect("]")
            elif self.next()[0] == "number" and len(self.next()[1]) > 1:
                raise Unreadable  # 12 under the root, or 1 alone
            if not degree:
                raise Unreadable
            return _root(self.argument(), degree)
        if name in GREEK:
            return self.name(f"\\{name}")
        if name in FUNCTIONS or name == "log":
            return self.function(name)
        raise Unreadable

    def function(self, name: str) -> Value:
        base = power = None
        if name == "log":
            if not self.take("_"):
                raise Unreadable  # to base 10, 2 or e
            name, base = "ln", self.argument()
        if self.take("^"):
            if self.next()[1] in ("-", "{") and self.next(1)[1] == "-":
                raise Unreadable  # an inverse function
            power = self.argument()
        outside, self.degree = self.degree, PI / 180
        called = _call(name, self.operand())
        self.degree = outside
        if base is not None:
            called = _multiply(called, _inverse(_call("ln", base)))
        return called if power is None else _power(called, power)

    def operand(self) -> Value:
        """The argument of a function: a bracket, or the product that follows it, as in `\\sin 2x`."""
        if self.next()[1] in ("(", "{", "["):
            return self.primary()
        operand = self.factor()
        while self.next()[0] == "name" or self.next()[1] in (r"\pi", r"\theta", r"\alpha"):
            operand = _multiply(operand, self.factor())
        return operand


def read_number(text: str) -> Fraction:
    """The value of a number in any form that the head of this file names.

    Example:
        >>> read_number("1 234"), read_number("1.234,50"), read_number("1.5e-3")
        (Fraction(1234, 1), Fraction(2469, 2), Fraction(3, 2000))
    """
    if mixed := MIXED.fullmatch(text):
        whole, top, bottom = (read_number(part) for part in mixed.groups() if part)
        if top < bottom:
            return whole + top / bottom
        if mixed[6]:
            raise Unreadable
        return whole * top / bottom
    mantissa, _, exponent = text.lower().partition("e")
    if re.fullmatch(GERMAN, mantissa):
        mantissa = mantissa.replace(".", "").replace(" ", "").replace(",", ".")
    mantissa = re.sub("[ ',]", "", mantissa)
    if len(mantissa) > 4_000:
        raise Unreadable  # Python refuses to read much longer ones
    return Fraction(mantissa) * Fraction(10) ** int(exponent or 0)


def read_formula(text: str) -> Formula:
    r"""The formula that a text is.

    Raises:
        [`Unreadable`]: If it is not clearly a formula.

    Example:
        >>> read_formula(r"2\sqrt{3} - \frac12").names, read_formula("2x + y").names == {"x", "y"}
        (frozenset(), True)
    """
    if len(text) > MAX_LENGTH:
        raise Unreadable
    parser = _Parser(text, 0)
    value = parser.sum()
    if parser.place < len(parser.tokens):
        raise Unreadable
    at = functools.cache(lambda point: _Parser(text, point).sum()) if parser.names else lambda point: value
    return Formula(at, frozenset(parser.names))


def _same(a: Value, b: Value) -> bool | None:
    """Whether two values are equal; `None` if their digits do not decide."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    a, b = _real(a), _real(b)
    size, difference = max(abs(a), abs(b)), abs(a - b)
    if difference <= EQUAL * size:
        return True
    return False if size > NOISE and difference > DIFFERENT * size else None  # sin(pi) is 1e-100


def formulas_equal(one: Formula, other: Formula) -> bool | None:
    r"""Whether two formulas have one value, whatever their letters are; `None` if that is not certain.

    Example:
        >>> formulas_equal(read_formula("0.3333333"), read_formula(r"\frac13"))
        False
        >>> formulas_equal(read_formula("(x+1)^2"), read_formula("x^2 + 2x + 1"))
        True
        >>> formulas_equal(read_formula(r"\ln x^2"), read_formula(r"2\ln x")) is None
        True
    """
    names = one.names | other.names
    verdicts: list[bool] = []
    is_sure = True
    for point in range(NUM_POINTS if names else 1):
        if point == len(SCALES) and True not in verdicts and len(verdicts) >= ENOUGH[False]:
            return False  # they differ wherever all letters are positive
        a, b = one.at(point), other.at(point)
        are_defined = [bool(MP.isfinite(_real(value))) for value in (a, b)]
        if all(are_defined):
            verdicts += [] if (verdict := _same(a, b)) is None else [verdict]
        elif any(are_defined) and not names & INTEGERS:
            is_sure = False  # they are defined for different letters
    if len(set(verdicts)) != 1 or (names and len(verdicts) < ENOUGH[verdicts[0]]):
        return None
    return verdicts[0] if is_sure or not verdicts[0] else None


def value_of(formula: Formula) -> complex | None:
    """The value of a formula without letters, as a float; `None` if it has none."""
    value = None if formula.names else complex(_real(formula.at(0)))
    return value if value is not None and math.isfinite(abs(value)) else None


def proportional(one: Formula, other: Formula) -> bool:
    """Whether one formula is certainly the other one times a nonzero number."""
    points = range(NUM_POINTS if one.names | other.names else 1)
    pairs = [(_real(one.at(point)), _real(other.at(point))) for point in points]
    pairs = [pair for pair in pairs if all(map(MP.isfinite, pair))]
    if len(pairs) < ENOUGH[True] or any(abs(value) < NOISE for pair in pairs for value in pair):
        return False
    first, first_other = pairs[0]
    return all(_same(a * first_other, b * first) for a, b in pairs)
