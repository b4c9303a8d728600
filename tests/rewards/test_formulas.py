"""Numbers, as they are read: against Fraction, by hand, and in every typography."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.rewards.grader.answer import stated_answer
from leash_trl.rewards.grader.grading import quick_verdict
from leash_trl.rewards.grader.latex import normalized, with_commands
from leash_trl.rewards.grader.rational import Unreadable, rational, with_plain_numbers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("007", "7"),
        ("+ 0.25", "1/4"),
        (".5", "1/2"),
        ("3/4", "3/4"),
        (r"\frac34", "3/4"),
        ("1½", "3/2"),
        ("1 1/2", "3/2"),
        ("1 101/125", "1101/125"),
        (r"3\frac{1}{2}", "7/2"),
        (r"2 \cdot \frac{1}{2}", "1"),
        (r"0.1\overline{6}", "1/6"),
        ("1 234.5", "2469/2"),
        ("1.234.567", "1234567"),
        ("1.5e-3", "3/2000"),
        ("6.02×10²³", "602000000000000000000000"),
        ("-2^2", "-4"),
        ("2^3^2", "512"),
        ("2^{-3}", "1/8"),
        ("(2+3)(4)", "20"),
        (r"\frac{1}{\frac{1}{2}}", "2"),
        ("1.0000000000000001", "10000000000000001/10000000000000000"),
        *((text, None) for text in (r"\sqrt{4}", "x", "-", "1 +", "(1", "1/0", "9^{9^{9^9}}", "5!")),
    ],
)
def test_values_by_hand(text, value):
    assert rational(with_plain_numbers(normalized(with_commands(text)))) == (value and Fraction(value))


@pytest.mark.parametrize("text", ["3 4", "1/2x", "x2", "1/2(3)", "1.2.3x4", "3 4 1/2"])
def test_what_has_two_meanings_is_not_read(text):
    with pytest.raises(Unreadable):
        with_plain_numbers(text)


rationals = st.builds(Fraction, st.integers(-(10**9), 10**9), st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 40, 125]))


@st.composite
def grouped(draw, number: int) -> str:
    """A whole number in one of its typographies."""
    mark = draw(st.sampled_from(["", ",", " ", "{,}", r"\,", r"\ ", r"\;", r",\!", "'", "~", "\u202f", "\u00a0"]))
    text = f"{number:,}".replace(",", mark)
    return draw(st.sampled_from(["", "0", "+"])) + text if mark == "" else text


@st.composite
def written(draw, value: Fraction) -> str:
    """A rational number as a model could write it."""
    sign = draw(st.sampled_from(["-", "−", "–"])) if value < 0 else ""
    size = abs(value)
    factor = draw(st.integers(1, 9))
    top, bottom = size.numerator * factor, size.denominator * factor
    forms = [rf"\frac{{{top}}}{{{bottom}}}", f"{top}/{bottom}", rf"\dfrac{{{top}}}{{{bottom}}} \text{{ cm}}"]
    if size.denominator == 1:
        forms += [draw(grouped(int(size))).lstrip("+"), f"{size}.0", f"{size} cm"]
    elif size > 1:
        rest = size - int(size)
        forms += [f"{int(size)} {rest}"] if rest.numerator < 100 else []  # three digits after a blank are thousands
        forms += [rf"{int(size)}\frac{{{rest.numerator}}}{{{rest.denominator}}}"]
    if 10**6 % size.denominator == 0:
        digits = int(size * 10**6)
        decimal = f"{digits // 10**6}.{digits % 10**6:06d}"
        forms += [decimal, rf"{decimal} \times 10^{{0}}", f"{digits}e-6", rf"{digits} \cdot 10^{{-6}}"]
    return sign + draw(st.sampled_from(forms))


@given(st.data(), rationals, rationals)
def test_renderings_are_equal_where_their_values_are(data, value, other):
    one, same, different = (data.draw(written(number)) for number in (value, value, other))
    assert quick_verdict(stated_answer(one), stated_answer(same)) is True, (one, same)
    assert quick_verdict(stated_answer(one), stated_answer(different)) is (value == other), (one, different)


@given(st.text(alphabet=r"0123456789.,+-/()[]{}\ isqrtfacp^o=<>|!_e%$xA:;", max_size=40), st.text(max_size=40))
def test_no_text_is_an_error(one, other):
    for answer, gold in ((one, other), (other, one), (one, one)):
        if stated_answer(answer) and stated_answer(gold):
            quick_verdict(stated_answer(answer), stated_answer(gold))


UNITS = [
    *(" ", "1,", "1+", "(", r"\frac{ ", r"\sqrt{", "1 ", "^", r"^\circ", "0", "1,234", " 234", r"\text{", "a "),
    *("A. ", "not ", "(or ", "=", "≤", "x=1,", "½", "²", "√", r"\cup", "<", "{,}", '"', "_", "0.(3", "5 cm", r"\pm"),
    *("x(", "e", "B or ", "is 5 ", "!", "^1", "1e4000", "10^{9000}", "9^"),
]


@pytest.mark.parametrize("unit", UNITS)
def test_long_nonsense_neither_raises_nor_takes_long(unit):
    start = time.perf_counter()
    run = unit * (4_900 // len(unit))
    for text in (unit * (100_000 // len(unit)), run, f"({run}x", rf"\frac{{{run}x", f"5 {run}", f"[{run},\\infty)"):
        if answer := stated_answer(text):
            for gold in ("12", "y=x+1", "1:2", "0.3333333"):
                assert not quick_verdict(answer, stated_answer(gold))
            quick_verdict(stated_answer("B"), answer)
    assert time.perf_counter() - start < 8
