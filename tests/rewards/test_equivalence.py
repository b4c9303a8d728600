"""What the worker says about two answers, in this process."""

import pytest

from leash_trl.rewards.grader.algebra import are_equivalent, formulas_equal


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (r"\frac{1}{\sqrt{3}-1}", r"\frac{\sqrt{3}+1}{2}", True),
        ("(3+4i)(3-4i)", "25", True),
        ("x^2+2x+1", "(x+1)^2", True),
        ("x^2+2x+1", "(x-1)^2", False),
        ("x", "X", False),
        ("x'", "x", False),
        ("3b+2ab", "2ab+3b", True),  # a last b or m is no unit
        ("2m+3m", "5m", True),
        ("e^{2x}", "(e^x)^2", True),
        (r"\sin^2 x + \cos^2 x", "1", True),
        (r"\ln 4", r"2\ln 2", True),
        (r"\sqrt[3]{-8}", "-2", True),
        (r"\sqrt[3]{2}", "1.259921049894873", False),
        ("2^{1000000}", "2^{1000000}+1", False),
        ("|x|", "x", None),  # equal for some letters only
        (r"\frac{1}{0}", "1", None),
        ("x=1", "x", None),
    ],
)
def test_formulas_are_compared_exactly_or_not_at_all(one, other, expected):
    assert formulas_equal(one, other) is expected
    assert formulas_equal(other, one) is expected


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        # sets of reals
        (r"-2 \le x < 7", "[-2, 7)", True),
        (r"-2 \le x \le 7", "[-2, 7)", False),
        ("]3, 4]", "(3, 4]", True),
        (r"x < 2 or x > 3", r"(-\infty, 2) \cup (3, \infty)", True),
        (r"\{x \mid x > \sqrt{3}\}", r"(\frac{3}{\sqrt{3}}, \infty)", True),
        (r"0 \le x \le \frac{\pi}{2}", r"[0, \pi/2]", True),
        (r"x \ne 2", r"(-\infty, 2) \cup (2, \infty)", True),
        # members, units, names and equations
        (r"(\sqrt{12}, 1)", r"(2\sqrt{3}, 1)", True),
        (r"(1, \sqrt{12})", r"(2\sqrt{3}, 1)", False),
        (r"1 \pm \sqrt{2}", r"1 - \sqrt{2}, 1 + \sqrt{2}", True),
        (r'\sqrt{2} "m"', r'100\sqrt{2} "cm"', True),
        ("y = 2x + 3", "2x + 3", True),
        ("3x - 4y = 12", "6x - 8y - 24 = 0", True),
        (r"\sqrt{8}:2", r"\sqrt{2}:1", True),
        # what math-verify decides
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}", True),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}", False),
        (r"\{3,-4\}", "(3,-4)", False),
        ("1.414214", r"\sqrt{2}", False),
        (r"\sqrt{2}", "1.414214", True),  # a rounded gold
        ("", "1", False),
        ("1", r"\text{}", None),
    ],
)
def test_answers_are_equal_by_mathematics_in_sets_units_names_and_equations(answer, gold, expected):
    assert are_equivalent(f"\\boxed{{{answer}}}", f"\\boxed{{{gold}}}") is expected
