r"""The one reader of numbers and formulas: LaTeX, plain text and every usual typography in, exact values out.

A value is a sum of fractions times square roots, powers of pi and i. Such values are equal where all their fractions
are, so a verdict on two of them is final: 0.3333333 is not 1/3. What needs logarithms, other roots or sines is a
float: it tells values apart, and calls them equal only at twelve digits and where neither side has decimals. A letter
stands for a number; formulas with letters are compared at several points, which tells them apart where both are
defined and differ at every one, and calls them equal only where the signs of their letters do not matter.

Numbers: thousands in groups of three after a comma, a blank, an apostrophe or `{,}` (`1.234.567` and `1.234,56` too);
`1.5e6`; mixed numbers such as `1 1/2`; `1.5 million`. Two numbers in a row are none, nor is `1/2x`, which has two
meanings. What cannot be read raises [`Unreadable`].
"""

import cmath
import contextlib
import functools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction


MAX_LENGTH = 20_000  # characters
MAX_DEPTH = 40
MAX_BITS = 30_000
MAX_FACTORED = 10**10
CLEARLY_DIFFERENT = 1e-6  # relative; math-verify rounds to six decimals
ENOUGH = {False: 2, True: 3}  # points that tell formulas with letters apart, or call them equal
SCALES = tuple(
    map(Fraction, ("1.3", "0.4", "6", "2.3", "37", "0.04", "300"))
)  # of the letters' values, so that most functions are defined at some

# (square-free radicand, whether times i, power of pi, power of e) -> factor
Exact = dict[tuple[int, bool, int, Fraction | int], Fraction]
Value = Exact | complex

GROUPED = r"\d{1,3}(?P<mark>[ ',])\d{3}(?:(?P=mark)\d{3})*(?!\d)(?:\.\d+)?"
GERMAN = r"\d{1,3}(?:\.\d{3})+,\d+|\d{1,3}(?:\.\d{3}){2,}(?!\d)|\d{1,3}(?: \d{3})+,\d{1,2}(?!\d)"
MIXED = re.compile(r"(\d+)(?: ?\\frac *(?:\{ *(\d+) *\}|(\d)) *(?:\{ *(\d+) *\}|(\d))| (\d{1,2}) ?/ ?(\d+)(?![\d.]))")
NUMBER = rf"(?:{GERMAN}|{GROUPED}|\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{{1,4}}(?!\d))?"
TOKEN = re.compile(
    rf"\s*(?:(?P<number>{MIXED.pattern}|{NUMBER})|(?P<macro>\\[A-Za-z]+)|(?P<name>[A-Za-z]'*)|(?P<sign>\S))"
)
FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    **{name: getattr(cmath, name) for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp")},
    **{f"arc{name}": getattr(cmath, f"a{name}") for name in ("sin", "cos", "tan")},
    **{"cot": lambda x: 1 / cmath.tan(x), "sec": lambda x: 1 / cmath.cos(x), "csc": lambda x: 1 / cmath.sin(x)},
    **{"ln": cmath.log, "log": cmath.log},
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
    """A text that has no value, or none that can be told in time."""


RATIONAL = (1, False, 0, 0)
E: Exact = {(1, False, 0, Fraction(1)): Fraction(1)}


def _rational(number: Fraction | int) -> Exact:
    return {RATIONAL: Fraction(number)} if number else {}


@functools.lru_cache(maxsize=4096)
def _square_free(number: int) -> tuple[int, int]:
    """The largest root whose square divides a number, and what remains of the number."""
    if math.isqrt(number) ** 2 == number:
        return math.isqrt(number), 1
    if number > MAX_FACTORED:
        raise Unreadable
    root, rest, factor = 1, number, 2
    while factor * factor <= rest:
        while rest % (factor * factor) == 0:
            root, rest = root * factor, rest // (factor * factor)
        factor += 1
    return root, rest


def _float(value: Value) -> complex:
    if not isinstance(value, dict):
        return value
    return sum(
        (
            float(factor) * math.sqrt(root) * math.pi**pi * math.exp(e) * (1j if is_imaginary else 1)
            for (root, is_imaginary, pi, e), factor in value.items()
        ),
        start=0j,
    )


def _as_rational(value: Value) -> Fraction | None:
    if not isinstance(value, dict) or set(value) - {RATIONAL}:
        return None
    return value.get(RATIONAL, Fraction(0))


def _add(a: Value, b: Value) -> Value:
    if not isinstance(a, dict) or not isinstance(b, dict):
        return _float(a) + _float(b)
    total = {key: a.get(key, Fraction(0)) + b.get(key, Fraction(0)) for key in (*a, *b)}
    return {key: factor for key, factor in total.items() if factor}


def _multiply(a: Value, b: Value) -> Value:
    if not isinstance(a, dict) or not isinstance(b, dict):
        return _float(a) * _float(b)
    if a.keys() == b.keys() == {RATIONAL}:
        return _checked({RATIONAL: a[RATIONAL] * b[RATIONAL]})
    product: Exact = {}
    for (root, i, pi, e), factor in a.items():
        for (other_root, other_i, other_pi, other_e), other in b.items():
            shared = math.gcd(root, other_root)
            key = (root * other_root // shared**2, i != other_i, pi + other_pi, e + other_e)
            product[key] = product.get(key, Fraction(0)) + factor * other * shared * (-1 if i and other_i else 1)
    return _checked({key: factor for key, factor in product.items() if factor})


def _checked(value: Exact) -> Exact:
    """The value; raises [`Unreadable`] if it has grown too large."""
    if len(value) > 64 or any(factor.numerator.bit_length() > MAX_BITS for factor in value.values()):
        raise Unreadable
    return value


def _inverse(value: Value) -> Value:
    """One over a value; a sum of roots is multiplied by its conjugates until one term is left."""
    if not isinstance(value, dict):
        return 1 / value
    factor: Value = _rational(1)
    for generator in (0, *(prime for prime in (2, 3, 5, 7, 11, 13, 17, 19, 23) if len(value) > 1)):
        conjugate = {
            key: -part if (key[1] if generator == 0 else key[0] % generator == 0) else part
            for key, part in value.items()
        }
        if conjugate != value and len(value) > 1:
            factor, value = _multiply(factor, conjugate), _multiply(value, conjugate)
            assert isinstance(value, dict)
    if not value:
        raise ZeroDivisionError
    if len(value) > 1:
        return 1 / _float(value) * _float(factor)
    ((root, is_imaginary, pi, e), part), *_ = value.items()
    single: Exact = {(root, is_imaginary, -pi, -e): (-1 if is_imaginary else 1) / (part * root)}
    return _multiply(factor, single)


def _root(value: Value, degree: int, is_real: bool = True) -> Value:
    """The root, exact where it is rational or a square root of a rational number; real, unless told otherwise."""
    number = _as_rational(value)
    if number is not None and number < 0 and is_real and degree % 2 == 0:
        raise Unreadable  # a branch cut
    if number is None or (number < 0 and degree != 2):
        value = _float(value)
        if value.imag or (value.real < 0 and degree % 2 == 0):
            raise Unreadable  # a branch cut
        return math.copysign(abs(value.real) ** (1 / degree), value.real)
    if degree == 2:
        try:
            root, rest = _square_free(abs(number.numerator) * number.denominator)
        except Unreadable:
            return cmath.sqrt(number) if number < 0 else math.sqrt(number)
        return {(rest, number < 0, 0, 0): Fraction(root, number.denominator)} if number else {}
    roots = [round(part ** (1 / degree)) for part in (number.numerator, number.denominator)]
    if Fraction(roots[0] ** degree, roots[1] ** degree) == number:
        return _rational(Fraction(*roots))
    return complex(float(number) ** (1 / degree))


def _power(base: Value, exponent: Value) -> Value:
    number = _as_rational(exponent)
    if number is not None and isinstance(base, dict) and len(base) == 1:
        ((key, factor),) = base.items()
        if key == (1, False, 0, key[3]) and factor == 1 and key[3]:
            return {(1, False, 0, key[3] * number): Fraction(1)}
    if isinstance(base, dict) and number is not None and abs(number) <= MAX_BITS and number.denominator <= 6:
        if number.denominator > 1:
            base = _root(base, number.denominator)
            if not isinstance(base, dict):
                return base**number.numerator
        times = abs(number.numerator)
        bits = max((part.numerator.bit_length() + part.denominator.bit_length() for part in base.values()), default=0)
        if times * bits <= MAX_BITS:
            base = _inverse(base) if number < 0 else base
            result: Value = _rational(1)
            for bit in bin(times)[2:] if times else "":
                result = _multiply(result, result)
                result = _multiply(result, base) if bit == "1" else result
            return result
    number_float = _float(base)
    if (number is None or number.denominator > 1) and (number_float.imag or number_float.real <= 0):
        raise Unreadable  # a branch cut
    return number_float ** _float(exponent)


def _call(name: str, value: Value) -> Value:
    if name == "exp":
        return _power(E, value)
    argument = _float(value)
    if name in ("ln", "log") and (argument.imag or argument.real <= 0):
        raise Unreadable  # a branch cut
    if name in ("arcsin", "arccos") and (argument.imag or abs(argument.real) > 1):
        raise Unreadable
    return FUNCTIONS[name](argument)


def _factorial(value: Value) -> Value:
    number = _as_rational(value)
    if number is None or number.denominator > 1 or not 0 <= number <= 2_500:
        raise Unreadable
    return _rational(math.factorial(int(number)))


def _binomial(top: Value, bottom: Value) -> Value:
    above, below = _as_rational(top), _as_rational(bottom)
    if above is None or below is None or max(above.denominator, below.denominator) > 1 or not 0 <= below <= 1_000:
        raise Unreadable
    if not 0 <= above <= 5_000:
        raise Unreadable
    return _rational(math.comb(int(above), int(below)))


def _absolute(value: Value) -> Value:
    if isinstance(value, dict) and not any(key[1] for key in value):
        return value if _float(value).real >= 0 else _multiply(value, _rational(-1))
    return complex(abs(_float(value)))


Letters = Mapping[str, Fraction]
Evaluate = Callable[[Letters], Value]


@dataclass(frozen=True)
class Formula:
    """A formula that has been read.

    Args:
        evaluate (`callable`):
            Its value for values of its letters; raises [`Unreadable`], `ArithmeticError` or `ValueError` where it has
            none.
        names (`frozenset[str]`):
            Its letters.
        is_whole (`bool`, *optional*, defaults to `True`):
            Whether it holds no decimals: then a value that agrees to twelve digits is equal, though it be a float.
        is_entire (`bool`, *optional*, defaults to `True`):
            Whether it holds no root, logarithm or absolute value of letters. These tell signs apart, and the points
            that are tried are positive.
    """

    evaluate: Evaluate
    names: frozenset[str]
    is_whole: bool = True
    is_entire: bool = True

    @functools.cached_property
    def exact_value(self) -> frozenset[tuple[object, Fraction]] | None:
        """The value in a form that only equal values share; `None` where there is none that is exact."""
        value = None if self.names else _value_at(self, {})
        return frozenset(value.items()) if isinstance(value, dict) else None

    def times(self, factor: Fraction) -> "Formula":
        """This formula times a number."""
        return self._joined(Formula(_constant(factor), frozenset()), _multiply)

    def by(self, other: "Formula") -> "Formula":
        """This formula times another one."""
        return self._joined(other, _multiply)

    def minus(self, other: "Formula") -> "Formula":
        """This formula less another one."""
        return self._joined(other, lambda a, b: _add(a, _multiply(b, _rational(-1))))

    def _joined(self, other: "Formula", function: Callable[[Value, Value], Value]) -> "Formula":
        return Formula(
            _apply(function, self.evaluate, other.evaluate),
            self.names | other.names,
            self.is_whole and other.is_whole,
            self.is_entire and other.is_entire,
        )


class _Parser:
    """Recursive descent; every method returns a function of the letters' values."""

    def __init__(self, text: str):
        self.tokens = [(match.lastgroup, match[match.lastgroup]) for match in TOKEN.finditer(text) if match.lastgroup]
        self.tokens = [(str(kind), str(sign)) for kind, sign in self.tokens]
        self.place = 0
        self.depth = 0
        self.degree = _constant(1)  # what a degree is worth: inside a function it is an angle, else a unit
        self.names: set[str] = set()
        self.is_whole = all(kind != "number" or sign.isdigit() or "." not in sign for kind, sign in self.tokens)
        self.is_entire = True

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

    def sum(self) -> Evaluate:
        self.deepen()
        terms: list[tuple[int, Evaluate]] = []
        while not terms or self.next()[1] in ("+", "-"):
            sign = -1 if self.take("-") else 1
            if sign == 1:
                self.take("+")
            terms.append((sign, self.term()))
        self.depth -= 1
        if len(terms) == 1 and terms[0][0] == 1:
            return terms[0][1]

        def total(letters: Letters) -> Value:
            result: Value = {}
            for sign, term in terms:
                value = term(letters)
                result = _add(result, value if sign == 1 else _multiply(value, _rational(-1)))
            return result

        return total

    def starts_factor(self) -> bool:
        kind, sign = self.next()
        if kind == "macro":
            name = sign[1:]
            return name in FUNCTIONS or name in GREEK or name in ("frac", "sqrt", "pi", "binom", "lfloor", "mathbb")
        return kind in ("name", "number") or sign in ("(", "[", "{")

    def term(self) -> Evaluate:
        factors: list[tuple[bool, Evaluate]] = [(False, self.factor())]
        has_slash = False
        while True:
            previous = self.tokens[self.place - 1]
            if self.take("*", r"\cdot", r"\times"):
                if self.take("-"):
                    factors.append((False, _constant(-1)))
                factors.append((False, self.factor()))
            elif self.take("/"):
                has_slash = True
                factors.append((True, self.factor()))
            elif self.starts_factor():
                if has_slash or self.next()[0] == "number":
                    raise Unreadable  # 1/2x, x2, 3 4
                if previous[1] in CALLED and self.next()[1] == "(":
                    raise Unreadable
                factors.append((False, self.factor()))
            else:
                break
        if len(factors) == 1:
            return factors[0][1]

        def product(letters: Letters) -> Value:
            result: Value = _rational(1)
            for is_divisor, factor in factors:
                value = factor(letters)
                result = _multiply(result, _inverse(value) if is_divisor else value)
            return result

        return product

    def factor(self) -> Evaluate:
        had_names = len(self.names)
        base = self.primary()
        has_letters = len(self.names) > had_names or self.tokens[self.place - 1][1] in (*self.names, ")", "}", "]")
        if self.take("!"):
            base = _apply(_factorial, base)
        if self.take("^"):
            if self.take(r"\circ"):
                return _apply(_multiply, base, self.degree)
            start = self.place
            base = _apply(_power, base, self.exponent())
            exponent = self.tokens[start : self.place]
            if has_letters and any(kind == "name" or sign in ("/", r"\frac") for kind, sign in exponent):
                self.is_entire = False
        if self.next()[1] in ("!", "^"):
            raise Unreadable  # 3!! is not (3!)!, and 2^3! has two meanings
        return base

    def exponent(self) -> Evaluate:
        """What stands after `^`; of powers in a row, the last is taken first."""
        self.deepen()
        sign = -1 if self.take("-") else 1
        exponent = self.primary()
        if self.take("^"):
            exponent = _apply(_power, exponent, self.exponent())
        self.depth -= 1
        return exponent if sign == 1 else _apply(_multiply, _constant(-1), exponent)

    def deepen(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable

    def argument(self) -> Evaluate:
        """What a command such as `\\frac` is given: a group, or a single digit or letter."""
        kind, sign = self.next()
        if kind == "number" and len(sign) > 1:
            if not sign.isdigit():
                raise Unreadable
            self.tokens[self.place] = ("number", sign[1:])
            return _constant(int(sign[0]))
        return self.primary()

    def group(self, closing: str) -> Evaluate:
        inside = self.sum()
        self.expect(closing)
        return inside

    def primary(self) -> Evaluate:
        kind, sign = self.next()
        self.place += 1
        if kind == "number":
            return _constant(read_number(sign))
        if kind == "name":
            return self.name(sign)
        if kind == "macro":
            return self.macro(sign[1:])
        if sign in OPENING:
            if sign == "|":
                return _apply(_absolute, self.guarded(lambda: self.group("|"))[0])
            return self.group(OPENING[sign])
        raise Unreadable

    def guarded(self, read: Callable[[], Evaluate]) -> tuple[Evaluate, bool]:
        """What a method reads, and whether letters stand in it; then values of one sign do not tell all."""
        outside, self.names = self.names, set()
        inside = read()
        has_letters, self.names = bool(self.names), self.names | outside
        self.is_entire &= not has_letters
        return inside, has_letters

    def name(self, sign: str) -> Evaluate:
        if self.take("_"):
            kind, index = self.next()
            if kind == "end":
                raise Unreadable
            self.place += 1
            if index == "{":
                _, index = self.next()
                self.place += 1
                self.expect("}")
            sign = f"{sign}_{index}"
        if sign == "i":
            return lambda letters: {(1, True, 0, 0): Fraction(1)}
        if sign == "e":
            return lambda letters: E
        self.names.add(sign)
        return lambda letters: _rational(letters[sign])

    def macro(self, name: str) -> Evaluate:
        if name == "pi":
            return lambda letters: {(1, False, 1, 0): Fraction(1)}
        if name == "frac":
            top, bottom = self.argument(), self.argument()
            return _apply(lambda a, b: _multiply(a, _inverse(b)), top, bottom)
        if name == "binom":
            return _apply(_binomial, self.argument(), self.argument())
        if name == "sqrt":
            degree = 2
            if self.take("["):
                kind, sign = self.next()
                self.place += 1
                if kind != "number" or sign not in ("2", "3", "4", "5", "6"):
                    raise Unreadable
                degree = int(sign)
                self.expect("]")
            elif self.next()[0] == "number" and len(self.next()[1]) > 1:
                raise Unreadable  # 12 under the root, or 1 alone
            radicand, has_letters = self.guarded(self.argument)
            return _apply(lambda value: _root(value, degree, is_real=has_letters), radicand)
        if name in GREEK:
            return self.name(f"\\{name}")
        if name in FUNCTIONS:
            return self.function(name)
        raise Unreadable

    def function(self, name: str) -> Evaluate:
        base = power = None
        if name == "log":
            base = self.argument() if self.take("_") else None
            if base is None:
                raise Unreadable  # to base 10, 2 or e
        if self.take("^"):
            if self.next()[1] in ("-", "{") and self.next(1)[1] == "-":
                raise Unreadable  # an inverse function
            power = self.argument()
        is_entire = name in ("sin", "cos", "sinh", "cosh", "exp")
        outside, self.degree = self.degree, lambda letters: {(1, False, 1, 0): Fraction(1, 180)}
        operand = self.operand() if is_entire else self.guarded(self.operand)[0]
        self.degree = outside
        called = _apply(lambda value: _call(name, value), operand)
        if base is not None:
            called = _apply(lambda a, b: _multiply(a, _inverse(_call("ln", b))), called, base)
        return called if power is None else _apply(_power, called, power)

    def operand(self) -> Evaluate:
        """What a function is applied to: a bracket, or the product that follows it, as in `\\sin 2x`."""
        if self.next()[1] in ("(", "{", "["):
            return self.primary()
        operand = self.factor()
        while self.next()[0] == "name" or self.next()[1] in (r"\pi", r"\theta", r"\alpha"):
            operand = _apply(_multiply, operand, self.factor())
        return operand


def _constant(number: Fraction | int) -> Evaluate:
    value = _rational(number)
    return lambda letters: value


def _apply(function: Callable[..., Value], *operands: Evaluate) -> Evaluate:
    return lambda letters: function(*(operand(letters) for operand in operands))


def read_number(text: str) -> Fraction:
    """Value of a number in any of the typographies that the head of this file names.

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
        [`Unreadable`]: If it is none, or not clearly one.

    Example:
        >>> read_formula(r"2\sqrt{3} - \frac12").names, read_formula("2x + y").names == {"x", "y"}
        (frozenset(), True)
    """
    if len(text) > MAX_LENGTH:
        raise Unreadable
    parser = _Parser(text)
    formula = parser.sum()
    if parser.place < len(parser.tokens):
        raise Unreadable
    return Formula(formula, frozenset(parser.names), parser.is_whole, parser.is_entire)


def _points(names: frozenset[str]) -> Iterator[dict[str, Fraction]]:
    """Values of letters: the same for the same letter, whichever formula it stands in."""
    for number, scale in enumerate(SCALES if names else SCALES[:1]):
        draws = {name: random.Random(f"{name} {number}").randint(500, 1500) for name in names}
        yield {
            name: Fraction(2 + 3 * number + draw % 3) if name in INTEGERS else Fraction(draw, 1000) * scale
            for name, draw in draws.items()
        }


def _value_at(formula: Formula, point: Letters) -> Value | None:
    try:
        value = formula.evaluate(point)
    except (ArithmeticError, ValueError):
        return None
    return value if isinstance(value, dict) or cmath.isfinite(value) else None


def _finite(value: Value) -> complex | None:
    """A value as a float; `None` where it is too large for one."""
    with contextlib.suppress(OverflowError):
        number = _float(value)
        return number if cmath.isfinite(number) else None
    return None


def formulas_equal(one: Formula, other: Formula) -> bool | None:
    r"""Whether two formulas have one value, whatever their letters are; `None` where that is not certain.

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
    common_zeros = 0
    is_exact = agree = True
    is_entire = one.is_entire and other.is_entire
    for point in _points(names):
        if is_entire and verdicts == [False] * ENOUGH[False]:
            return False
        a, b = _value_at(one, point), _value_at(other, point)
        if a is None or b is None:
            continue
        if isinstance(a, dict) and isinstance(b, dict):
            common_zeros += not a and not b
            if a or b or not names:
                verdicts.append(a == b)
            continue
        x, y = _finite(a), _finite(b)
        if x is None or y is None:
            continue
        is_exact, agree = False, agree and cmath.isclose(x, y, rel_tol=1e-12)
        size = max(abs(x), abs(y))
        if size > 1e-9 and abs(x - y) > CLEARLY_DIFFERENT * size:  # sin(pi) is 1e-16 in floats
            verdicts.append(False)
        elif not names or (1e-3 < abs(x) < 1e3 and cmath.isclose(x, y, rel_tol=1e-13)):
            # a float that is larger or smaller may hide a difference
            verdicts.append(True)
    can_be_equal = (is_exact or (agree and one.is_whole and other.is_whole)) and (not names or is_entire)
    if not verdicts and common_zeros >= ENOUGH[True]:
        return True if can_be_equal else None
    if len(set(verdicts)) != 1 or (names and len(verdicts) < ENOUGH[verdicts[0]]):
        return None
    return (True if can_be_equal else None) if verdicts[0] else False


def value_of(formula: Formula) -> complex | None:
    """The value of a formula without letters, as a float; `None` where it has none."""
    value = None if formula.names else _value_at(formula, {})
    return None if value is None else _finite(value)


def proportional(one: Formula, other: Formula) -> bool:
    """Whether one formula is certainly the other one times a number that is not zero."""
    names = one.names | other.names
    pairs = [(_value_at(one, point), _value_at(other, point)) for point in _points(names)]
    exact = [(a, b) for a, b in pairs if isinstance(a, dict) and isinstance(b, dict)]
    is_sure = len(exact) >= 3 and one.is_entire and other.is_entire
    if not is_sure or not all(a and b for a, b in exact):
        return False
    first, first_other = exact[0]
    return all(_multiply(a, first_other) == _multiply(b, first) for a, b in exact)
