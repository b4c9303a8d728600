"""Numbers and formulas, as they are read: against Fraction, by hand, and against evaluation."""

import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from leash_trl.rewards.answer import stated_answer
from leash_trl.rewards.comparison import comparison
from leash_trl.rewards.formula import Unreadable, formulas_equal, read_formula, value_of
from leash_trl.rewards.grading import quick_verdict
from leash_trl.rewards.typography import latex


def equal(one: str, other: str) -> bool | None:
    return formulas_equal(read_formula(latex(one)), read_formula(latex(other)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", 7),
        ("+ 0.25", 0.25),
        (".5", 0.5),
        ("3/4", 0.75),
        (r"\frac{3}{4}", 0.75),
        (r"\frac34", 0.75),
        ("1½", 1.5),
        ("1 1/2", 1.5),
        (r"3\frac{1}{2}", 3.5),
        (r"2 \cdot \frac{1}{2}", 1),
        (r"3.1\frac{1}{2}", 1.55),
        (r"0.1\overline{6}", 1 / 6),
        ("1 234.5", 1234.5),
        ("1.234.567", 1234567),
        ("1.5e-3", 0.0015),
        ("6.02×10²³", 6.02e23),
        ("2√3", 2 * 3**0.5),
        ("2 * sqrt(3)", 2 * 3**0.5),
        (r"\sqrt[3]{-8}", -2),
        (r"\frac{\pi}{\sqrt{2}}", 3.141592653589793 / 2**0.5),
        ("1 - 2i", 1 - 2j),
        ("-2^2", -4),
        ("2^{-3}", 0.125),
        ("5!", 120),
        (r"\binom{5}{2}", 10),
        (r"\log_2 8", 3),
        ("e^0", 1),
        ("|-3|", 3),
    ],
)
def test_values_by_hand(text, value):
    assert value_of(read_formula(latex(text))) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        *("", "-", "1 +", "3 4", "1/2x", "x2", "f(x)", "1,5", "1..2", "(1", r"\sqrt12", r"\foo", "=", r"\log 3"),
        *("9" * 5_000, "1" * 30_000, "(" * 100 + "1" + ")" * 100, r"\frac{1}", "x_{1", "1e99999"),
    ],
)
def test_what_has_no_clear_value_is_not_read(text):
    with pytest.raises(Unreadable):
        read_formula(text)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0.3333333", "1/3", False),
        ("6.63e-34", "6.62e-34", False),
        (r"\frac{1}{\sqrt3-1}", r"\frac{\sqrt3+1}{2}", True),
        (r"\frac{1}{1+\sqrt2+\sqrt3}", r"\frac{2+\sqrt2-\sqrt6}{4}", True),
        ("(3+4i)(3-4i)", "25", True),
        ("x²+2x+1", "(x+1)^2", True),
        ("x²+2x+1", "(x-1)^2", False),
        ("e^{2x}", "(e^x)^2", True),
        (r"\frac{2^{n+1}}{2}", "2^n", True),
        ("n(n+1)/2", r"\binom{n+1}{2}", True),
        # not told apart: equal only in floats, at some points only, or nowhere defined
        (r"\sin^2 x + \cos^2 x", "1", True),
        (r"\ln 4", r"2\ln 2", True),
        (r"\ln 4", r"2\ln 3", False),
        (r"\sin x", r"\cos x", False),
        (r"\sin \pi", "0", None),
        ("|x|", "x", None),
        (r"\sqrt{x^2}", "x", None),
        (r"\ln x^2", r"2\ln x", None),
        ("|x - 5|", "x - 5", None),
        (r"\sqrt{x-5}\sqrt{x-6}", r"\sqrt{(x-5)(x-6)}", None),
        (r"\sqrt{-x}", r"\sqrt{-2x}", False),
        (r"\frac{1}{0}", "1", None),
        ("2^{1000000}", "2^{1000000}+1", None),
        (r"10^{60}+\pi", "10^{60}+e", None),
        ("9^{9^{9^9}}", "9^{9^{9^8}}", None),
        (r"\sqrt{5+2\sqrt6}", r"\sqrt2+\sqrt3", True),
        (r"\sqrt[3]{2}", "2^{1/3}", True),
        (r"\sqrt[3]{2}", "1.259921049894873", False),
        (r"\sqrt{x}\sqrt{y}", r"\sqrt{xy}", None),
        (r"|x|\cdot|y|", "|xy|", True),
        ("|x-1000|", "1000-x", None),
    ],
)
def test_formulas_are_compared_exactly_or_not_at_all(one, other, expected):
    assert equal(one, other) is expected
    assert equal(other, one) is expected


def test_threads_do_not_disturb_each_other():
    def verdicts(number):
        texts = (rf"\sin({number}x)", rf"e^{{{number}x}}\ln({number}+x^2)", rf"\sqrt{{{number}}}^x\pi")
        return [equal(text, text.replace("x", "(x+1-1)")) for text in texts for _ in range(5)]

    with ThreadPoolExecutor(4) as threads:
        assert all(all(found) for found in threads.map(verdicts, range(2, 22)))


whole = st.integers(0, 10**12)


@st.composite
def grouped(draw, number: int) -> str:
    """A whole number in one of its typographies."""
    mark = draw(st.sampled_from(["", ",", " ", "{,}", r"\,", r"\ ", r"\;", r",\!", "'", "~", "\u202f", "\u00a0"]))
    text = f"{number:,}".replace(",", mark)
    return draw(st.sampled_from(["", "0", "+", r"\$"])) + text if mark == "" else text


@st.composite
def written(draw, value: Fraction) -> str:
    """A rational number as a model could write it."""
    sign = draw(st.sampled_from(["-", "−", "–"])) if value < 0 else ""
    size = abs(value)
    factor = draw(st.integers(1, 9))
    top, bottom = size.numerator * factor, size.denominator * factor
    forms = [
        rf"\frac{{{top}}}{{{bottom}}}",
        f"{top}/{bottom}",
        rf"\dfrac{{{top}}}{{{bottom}}}",
        rf"\frac{{{top}}}{{{bottom}}} \text{{ cm}}",
    ]
    if size.denominator == 1:
        forms += [draw(grouped(int(size))).lstrip("+"), f"{size}.0", f"{size} apples"]
    elif size > 1:
        rest = size - int(size)
        forms += [f"{int(size)} {rest}"] if rest.numerator < 100 else []  # three digits after a blank are thousands
        forms += [rf"{int(size)}\frac{{{rest.numerator}}}{{{rest.denominator}}}"]
    if 10**6 % size.denominator == 0:
        digits = int(size * 10**6)
        decimal = f"{digits // 10**6}.{digits % 10**6:06d}"
        forms += [decimal, rf"{decimal} \times 10^{{0}}", f"{digits}e-6", rf"{digits} \cdot 10^{{-6}}"]
    return sign + draw(st.sampled_from(forms))


def test_three_digits_after_a_blank_are_thousands_also_before_a_fraction_bar():
    assert quick_verdict(stated_answer("1 101/125"), stated_answer("1101/125")) is True
    assert quick_verdict(stated_answer("1 99/125"), stated_answer("224/125")) is True


rationals = st.builds(Fraction, st.integers(-(10**6), 10**6), st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 40, 125]))


@settings(deadline=None)
@given(st.data(), whole)
def test_a_whole_number_is_read_in_every_typography(data, number):
    assert comparison(latex(data.draw(grouped(number))), str(number)) is True


@settings(deadline=None)
@given(st.data(), rationals, rationals)
def test_renderings_are_equal_where_their_values_are(data, value, other):
    one, same, different = (data.draw(written(number)) for number in (value, value, other))
    assert quick_verdict(stated_answer(one), stated_answer(same)) is True, (one, same)
    assert quick_verdict(stated_answer(one), stated_answer(different)) is (value == other), (one, different)


@settings(deadline=None)
@given(rationals, st.integers(1, 5), st.sampled_from([2, 3, 5, 6, 7]), rationals)
def test_roots_are_equal_where_their_squares_are(factor, square, root, other):
    assume(factor and other)
    text, same = f"{factor}\\sqrt{{{square**2 * root}}}", f"\\sqrt{{{root}}} \\cdot {factor * square}"
    assert comparison(f"({factor})\\sqrt{{{square**2 * root}}}", f"({factor * square})\\sqrt{{{root}}}") is True, (
        text,
        same,
    )
    assert comparison(f"({other})\\sqrt{{{root}}}", f"({factor})\\sqrt{{{root}}}") is (factor == other)


terms = st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=5)


@settings(deadline=None)
@given(terms, st.integers(1, 9))
def test_a_polynomial_equals_itself_in_another_order_and_no_other(polynomial, shift):
    def text(terms):
        return " + ".join(f"({a}) x^{{{b}}} y^{c}" for a, b, c in terms)

    assert equal(text(polynomial), text(polynomial[::-1])) is True
    assert equal(text(polynomial), f"{text(polynomial)} + {shift}") is False
    assert equal(text(polynomial), f"{text(polynomial)} + {shift} x^5") is False


@settings(deadline=None)
@given(st.text(alphabet=r"0123456789.,+-/()[]{}\ isqrtfacp^o=<>|!_e%$xA:;", max_size=40), st.text(max_size=40))
def test_no_text_is_an_error(one, other):
    for answer, gold in ((one, other), (other, one), (one, one)):
        if stated_answer(answer) and stated_answer(gold):
            quick_verdict(stated_answer(answer), stated_answer(gold))


UNITS = [
    *(
        " ",
        "1,",
        "1+",
        "(",
        r"\frac{ ",
        r"\sqrt{",
        "1 ",
        "^",
        r"^\circ",
        "0",
        "1,234",
        " 234",
        r"\text{",
        "a ",
        "is 5 ",
    ),
    *("A. ", "not ", "(or ", "=", "≤", "x=1,", "½", "²", "√", r"\cup", "<", "{,}", '"', "_", "0.(3", "5 cm", r"\pm"),
    *("x(", "e", "B or "),
]


@pytest.mark.parametrize("unit", UNITS)
def test_long_nonsense_does_not_take_long(unit):
    start = time.perf_counter()
    run = unit * (4_900 // len(unit))
    for text in (unit * (100_000 // len(unit)), run, f"({run}x", rf"\frac{{{run}x", f"5 {run}"):
        if answer := stated_answer(text):
            quick_verdict(answer, stated_answer("12"))
            quick_verdict(stated_answer("B"), answer)
    assert time.perf_counter() - start < 8
