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
    assert rational(with_plain_numbers(normalized(with_commands(text)))) == expected


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
    if mark:
        return text
    return draw(st.sampled_from(["", "0"])) + text


@st.composite
def written(draw, value: Fraction) -> str:
    """A rational number as a model could write it."""
    sign = draw(st.sampled_from("-−–")) if value < 0 else ""
    size = abs(value)
    factor = draw(st.integers(1, 9))
    top = size.numerator * factor
    bottom = size.denominator * factor
    forms = [rf"\frac{{{top}}}{{{bottom}}}", f"{top}/{bottom}", rf"\dfrac{{{top}}}{{{bottom}}} \text{{ cm}}"]
    whole, rest = divmod(size, 1)
    if rest == 0:
        forms += [draw(grouped(whole)), f"{size}.0", f"{size} cm"]
    elif whole:
        forms.append(rf"{whole}\frac{{{rest.numerator}}}{{{rest.denominator}}}")
        if rest.numerator < 100:  # three digits after a blank are thousands
            forms.append(f"{whole} {rest}")
    millionths = size * 10**6
    if millionths.denominator == 1:
        decimal = f"{whole}.{int(rest * 10**6):06d}"
        forms += [decimal, rf"{decimal} \times 10^{{0}}", f"{millionths}e-6", rf"{millionths} \cdot 10^{{-6}}"]
    return sign + draw(st.sampled_from(forms))


@given(st.data(), rationals, rationals)
def test_renderings_are_equal_where_their_values_are(data, value, other_value):
    text = data.draw(written(value))
    same = data.draw(written(value))
    other = data.draw(written(other_value))
    assert quick_verdict(stated_answer(text), stated_answer(same)) is True, (text, same)
    assert quick_verdict(stated_answer(text), stated_answer(other)) is (value == other_value), (text, other)


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
