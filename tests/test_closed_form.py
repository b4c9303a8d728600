"""Values of closed forms, against arithmetic by hand and against math-verify."""

import math
import random
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.rewards.closed_form import closed_form, closed_forms_equal
from leash_trl.rewards.equivalence import are_equivalent


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-7", -7),
        ("+ 0.25", 0.25),
        ("007", 7),
        ("3/4", 0.75),
        (r"\frac{3}{4}", 0.75),
        (r"-\dfrac34", -0.75),
        (r"\tfrac{-3}{4}", -0.75),
        (r"\frac{3\sqrt{2}}{4}", 3 * math.sqrt(2) / 4),
        (r"\frac{1}{2}\pi", math.pi / 2),
        (r"2\sqrt3", 2 * math.sqrt(3)),
        (r"\sqrt{12} - 2\sqrt{3}", 0.0),
        (r"\frac{\pi}{\sqrt{2}}", math.pi / math.sqrt(2)),
        ("1 - 2i", 1 - 2j),
        ("i", 1j),
        ("-i", -1j),
        (r"\frac{1}{2}i", 0.5j),
        (r"30^\circ", 30),
        (r"30^{\circ}", 30),
        ("1 + 2 - 3/4", 2.25),
    ],
)
def test_values_by_hand(text, value):
    form = closed_form(text)
    assert form.brackets == ""
    assert form.values == pytest.approx((value,), abs=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "x",
            "2x",
            "e",
            "1e5",
            "5!",
            "2^3",
            "-",
            "1 +",
            "1 2",
            "3 / 0",
            r"\frac{1}{0}",
            r"\frac{0}{\sqrt{0}}",
        ),
        *(
            r"1\frac{1}{2}",
            r"50\%",
            r"\infty",
            r"\sqrt[3]{8}",
            r"\sqrt{-4}",
            r"2\pi r",
            r"\pi x",
            "1,000",
            "1,5",
            "1,000.0",
        ),
        *(
            "(1,000)",
            "(5)",
            "[1, 2, 3)",
            "(1, x)",
            "{1, 2}",
            r"\{1, 2\}",
            "((1, 2))",
            "1/2/3",
            "1/2.5",
            "1.2.3",
            "--1",
        ),
        *("1234567890123456", "0.1234567", "1e3", "5 \\text{ cm}", "|5|", "(1, 2", "1; 2", "2 i x", "ii", "inf"),
    ],
)
def test_what_is_not_clearly_a_closed_form_has_no_value(text):
    assert closed_form(text) is None


def test_a_very_long_sum_has_no_value():
    assert closed_form("1+" * 9_000 + "1").rationals == (9_001,)
    assert closed_form("1+" * 50_000 + "1") is None


def test_lists_and_brackets():
    assert closed_form("1, 2").brackets == ","
    assert closed_form(r"\left( 1, \frac12 \right]").brackets == "(]"
    assert closed_form("[1, 2)").rationals == (1, 2)
    assert closed_form(r"(1, \sqrt{2}, 3)").rationals is None


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("0.5", r"\frac12", True),
        ("1/2", "0.50", True),
        ("0.5", "0.51", False),
        ("-0.5", "0.5", False),
        ("(1, 0.5)", r"\left(1, \frac{1}{2}\right)", True),
        ("(1, 2)", "(2, 1)", False),
        (r"(-\infty, 2)", "(1, 2)", False),
        (r"(-\infty, 2)", r"(\infty, 2)", False),
        (r"[2, \infty)", r"[3, +\infty)", False),
        (r"[2, \infty)", "2", False),
        (r"[2, \infty)", r"[\frac{4}{2}, +\infty)", None),
        ("(1, 2)", "(1, 2, 3)", False),
        ("2", "1, 2", False),  # one of two roots is not both
        ("(2, 3)", "2", False),
        (r"2\sqrt{3}", r"3\sqrt{2}", False),
        # below, math-verify decides
        (r"\sqrt{12}", r"2\sqrt{3}", None),
        ("0.333333", "1/3", None),
        ("1, 2", "2, 1", None),
        ("1, 2", "1, 3", None),
        ("(1, 2)", "[1, 2]", None),
        ("(1, 2)", "1, 2", None),
        ("1, 1", "1", None),  # as a set it is 1
        ("[2, 1]", "[3, 1]", None),  # both empty
        ("(3, 2]", "(2, 1]", None),
        (r"\frac{1}{0.5}", "2", None),  # floats
        ("0.1 + 0.2", "0.3", None),
        ("x", "x", None),
        ("100000001", "100000002.0", None),  # next to nothing apart
    ],
)
def test_equality_by_hand(one, other, expected):
    assert closed_forms_equal(one, other) is expected


@given(st.integers(-999, 999), st.integers(1, 99), st.integers(1, 9))
def test_a_fraction_is_its_value_and_an_expanded_one_equal(top, bottom, factor):
    text = f"\\frac{{{top}}}{{{bottom}}}"
    assert closed_form(text).rationals == (Fraction(top, bottom),)
    assert closed_forms_equal(text, f"\\frac{{{top * factor}}}{{{bottom * factor}}}") is True


@given(st.text(alphabet=r"0123456789.,+-/()[]{}\ isqrtfacp^o", max_size=30), st.text(max_size=30))
def test_equality_has_no_direction_and_no_text_is_an_error(one, other):
    assert closed_forms_equal(one, other) == closed_forms_equal(other, one)


@pytest.mark.parametrize("unit", [" ", "1,", "1+", "(", r"\frac{ ", r"\sqrt{", "1 ", "^", r"^\circ", "0"])
def test_long_nonsense_does_not_take_long(unit):
    start = time.perf_counter()
    for size in (9_000, 200_000):  # what is read and what is too long to be read
        run = unit * (size // len(unit))
        for text in (run, f"({run}x", rf"\frac{{{run}x"):
            closed_form(text)
    assert time.perf_counter() - start < 5


def number(rng) -> str:
    return rng.choice(
        [
            *[str(rng.randint(0, 12))] * 6,
            *[str(rng.randint(0, 2000))] * 2,
            f"{rng.randint(0, 20)}.{rng.choice(['5', '25', '0', '333333', '50'])}",
            f"{rng.randint(1, 9)},{rng.randint(0, 999):03d}",
            f"1e{rng.randint(1, 6)}",
            f"0{rng.randint(0, 99)}",
            str(10 ** rng.randint(5, 14)),
        ]
    )


def product(rng) -> str:
    factor = number(rng) if rng.random() < 0.8 else ""
    tails = [
        rf"\sqrt{{{rng.randint(0, 30)}}}",
        rf"\sqrt{rng.randint(2, 9)}",
        r"\pi",
        r"\sqrt{2}\pi",
        "i",
        r"\%",
        "",
        "",
        "",
    ]
    return factor + rng.choice(tails) or "1"


def term(rng) -> str:
    forms = [
        *[product(rng)] * 4,
        rf"\{rng.choice(['', 'd', 't'])}frac{{{rng.choice(['', '-'])}{product(rng)}}}{{{product(rng)}}}",
        rf"\frac{{{product(rng)}}}{{{product(rng)}}}\pi",
        f"{rng.randint(0, 99)}/{rng.randint(1, 99)}",
        rf"\frac{rng.randint(0, 9)}{rng.randint(1, 9)}",
        rf"{rng.randint(1, 9)}\frac{{1}}{{{rng.randint(1, 9)}}}",
    ]
    return rng.choice(forms)


def expression(rng) -> str:
    text = rng.choice(["", "", "-"]) + term(rng)
    while rng.random() < 0.3:
        text += rng.choice([" + ", "-", " - ", "+"]) + term(rng)
    return text + rng.choice(["", "", "", "", "i", r"^\circ", " "])


def written(rng) -> str:
    if rng.random() < 0.6:
        return expression(rng)
    inside = rng.choice([", ", ","]).join(expression(rng) for _ in range(rng.choice([2, 2, 3])))
    outside = rng.choice(["(%s)", "[%s]", r"\left(%s\right)", r"\left[%s\right]", "(%s]", "%s", r"\{%s\}", "(%s)^2"])
    if rng.random() < 0.2:
        inside = rng.choice(
            [rf"-\infty, {expression(rng)}", rf"{expression(rng)}, \infty", rf"{expression(rng)},+\infty"]
        )
    return outside % inside


def changed(rng, text: str) -> str:
    old, new = rng.choice(
        [("3", "4"), ("-", ""), (r"\left", ""), (" ", ""), ("2", "2.0"), ("5", "05"), ("1", r"\frac22")]
    )
    return text.replace(old, new) if rng.random() < 0.5 else text.replace(old, new, 1)


def spelled(rng, value: Fraction) -> str:
    factor = rng.randint(1, 5)
    fraction = f"frac{{{abs(value.numerator) * factor}}}{{{value.denominator * factor}}}"
    texts = [f"{float(abs(value))}", f"0{float(abs(value))}0", rf"\{fraction}", rf"\d{fraction}"]
    texts += [f"{abs(value.numerator)}/{value.denominator}", rf"\frac{{{factor}}}{{1}} - {factor} + \{fraction}"]
    return ("-" if value < 0 else "") + rng.choice(texts[: 5 if value < 0 else 6])


def same_values(rng) -> tuple[str, str]:
    values = [Fraction(rng.randint(-50, 50), rng.choice([1, 2, 4, 5, 8])) for _ in range(rng.choice([1, 1, 2, 3]))]
    texts = [", ".join(spelled(rng, value) for value in values) for _ in range(2)]
    outside = rng.choice(["(%s)", "[%s]"]) if len(values) > 1 else "%s"
    return outside % texts[0], outside % texts[1]


@pytest.mark.parametrize("seed", [0, 1])
def test_every_quick_verdict_is_math_verifys(seed):
    rng = random.Random(seed)
    verdicts = []
    while len(verdicts) < 120:
        one = written(rng).strip()
        other = changed(rng, one) if rng.random() < 0.6 else written(rng).strip()
        if rng.random() < 0.1:
            one, other = same_values(rng)
        if one != other and (quick := closed_forms_equal(one, other)) is not None:
            assert are_equivalent(rf"\boxed{{{one}}}", rf"\boxed{{{other}}}") == quick, (one, other)
            verdicts.append(quick)
    assert 20 < sum(verdicts) < 100
