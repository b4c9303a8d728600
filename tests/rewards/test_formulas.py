"""Numbers, as they are read: against Fraction, by hand, and in every typography."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.rewards.grader.answer import stated_answer
from leash_trl.rewards.grader.grading import quick_verdict
from leash_trl.rewards.grader.latex import normalized, with_latex_commands
from leash_trl.rewards.grader.rational import Unreadable, rational_value, with_plain_numbers


@pytest.mark.parametrize(
    ("text", "value"),
    {
        "007": "7",
        "+ 0.25": "1/4",
        ".5": "1/2",
        "3/4": "3/4",
        r"\frac34": "3/4",
        "1½": "3/2",
        "1 1/2": "3/2",
        "1 101/125": "1101/125",
        r"3\frac{1}{2}": "7/2",
        r"2 \cdot \frac{1}{2}": "1",
        r"0.1\overline{6}": "1/6",
        "1 234.5": "2469/2",
        "1.234.567": "1234567",
        "1.5e-3": "3/2000",
        "6.02×10²³": "602000000000000000000000",
        "-2^2": "-4",
        "2^3^2": "512",
        "2^{-3}": "1/8",
        "(2+3)(4)": "20",
        r"\frac{1}{\frac{1}{2}}": "2",
        "1.0000000000000001": "10000000000000001/10000000000000000",
        # no fraction, or none that is read
        r"\sqrt{4}": None,
        "x": None,
        "-": None,
        "1 +": None,
        "(1": None,
        "1/0": None,
        "9^{9^{9^9}}": None,
        "5!": None,
    }.items(),
)
def test_values_by_hand(text, value):
    expected = Fraction(value) if value else None
    assert rational_value(with_plain_numbers(normalized(with_latex_commands(text)))) == expected


@pytest.mark.parametrize("text", ["3 4", "1/2x", "x2", "1/2(3)", "1.2.3x4", "3 4 1/2"])
def test_what_has_two_meanings_is_not_read(text):
    with pytest.raises(Unreadable):
        with_plain_numbers(text)


MARKS = [",", " ", "{,}", r"\,", r"\ ", r"\;", r",\!", "'", "~", "\u202f", "\u00a0"]


@given(st.integers(-(10**9), 10**9), st.sampled_from(MARKS))
def test_groups_of_digits_have_any_mark_between_them(number, mark):
    grouped = stated_answer(f"{number:,}".replace(",", mark))
    assert quick_verdict(grouped, stated_answer(str(number))) is True
    assert quick_verdict(grouped, stated_answer(str(number + 1))) is False


@given(st.integers(-(10**9), 10**9), st.sampled_from([3, 8, 40]), st.integers(1, 9))
def test_a_fraction_equals_its_other_forms(numerator, denominator, factor):
    value = Fraction(numerator, denominator)
    sign = "−" if value < 0 else ""
    whole, rest = divmod(abs(value), 1)
    forms = [
        f"{sign}{abs(value)}",
        rf"\dfrac{{{numerator * factor}}}{{{denominator * factor}}} \text{{ cm}}",
        rf"{sign}{whole}\frac{{{rest.numerator}}}{{{rest.denominator}}}",
    ]
    for form in forms:
        assert quick_verdict(stated_answer(form), stated_answer(str(value))) is True, form
        assert quick_verdict(stated_answer(form), stated_answer(str(value + 1))) is False, form


@given(st.text(alphabet=r"0123456789.,+-/()[]{}\ isqrtfacp^o=<>|!_e%$xA:;", max_size=40), st.text(max_size=40))
def test_no_text_is_an_error(formula, text):
    answers = [answer for answer in map(stated_answer, (formula, text)) if answer]
    for answer in answers:
        for gold in answers:
            quick_verdict(answer, gold)


# fmt: off
NONSENSE = [
    " ", "1,", "1+", "(", r"\frac{ ", r"\sqrt{", "1 ", "^", r"^\circ", "0", "1,234", " 234", r"\text{",
    "a ", "A. ", "not ", "(or ", "=", "≤", "x=1,", "½", "²", "√", r"\cup", "<", "{,}", '"', "_", "0.(3",
    "5 cm", r"\pm", "x(", "e", "B or ", "is 5 ", "!", "^1", "1e4000", "10^{9000}", "9^",
]
# fmt: on


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_long_nonsense_neither_raises_nor_takes_long(nonsense):
    start = time.perf_counter()
    longest = nonsense * (100_000 // len(nonsense))
    run = nonsense * (4_900 // len(nonsense))
    for text in (longest, run, f"({run}x", rf"\frac{{{run}x", f"5 {run}", f"[{run},\\infty)"):
        if answer := stated_answer(text):
            for gold in ("12", "y=x+1", "1:2", "0.3333333"):
                assert not quick_verdict(answer, stated_answer(gold))
            quick_verdict(stated_answer("B"), answer)
    assert time.perf_counter() - start < 8
