"""math-verify's verdict, in this process."""

import pytest
from math_verify import parse, verify

from leash_trl.rewards.grader_worker import are_equivalent, is_readable


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        (r"\boxed{\frac{1}{2}}", r"\boxed{0.5}", True),
        (r"\boxed{\sqrt{12}}", r"\boxed{2\sqrt{3}}", True),
        (r"\boxed{1}", r"\boxed{2}", False),
        (r"\boxed{x+1}", r"\boxed{1+x}", True),
        (r"\boxed{x+1}", r"\boxed{y+1}", False),
        (r"\boxed{1} and \boxed{2}", r"\boxed{\{2, 1\}}", True),
        ("the largest $n$ is 34", r"\boxed{34}", True),
        (r"\boxed{\text{no solution}}", "no solution", True),
    ],
)
def test_verdicts(answer, gold, expected):
    assert are_equivalent(answer, gold) is expected


def test_the_verdict_is_that_of_a_direct_call():
    for answer, gold in [(r"\boxed{\frac{2}{4}}", r"\boxed{\frac12}"), (r"\boxed{(1,2)}", r"\boxed{[1,2]}")]:
        direct = verify(parse(gold, parsing_timeout=None), parse(answer, parsing_timeout=None), timeout_seconds=None)
        assert are_equivalent(answer, gold) is direct


def test_what_divides_by_zero_equals_nothing():
    # math-verify reads both as {1, zoo}
    assert are_equivalent(r"\boxed{1, 12:00}", r"\boxed{1, 3:00}") is False
    assert are_equivalent(r"\boxed{\frac{1}{0}}", r"\boxed{\frac{2}{0}}") is False


def test_an_unreadable_gold_has_no_verdict():
    assert are_equivalent(r"\boxed{1}", r"\boxed{\text{}}") is None
    assert not is_readable(r"\boxed{\text{}}")
    assert is_readable(r"\boxed{1}")


def test_an_unreadable_answer_is_wrong():
    assert are_equivalent("", r"\boxed{1}") is False


def test_gold_and_answer_do_not_change_places():
    # math-verify takes the right side of an answer's equation, and of a gold's only where a letter is assigned
    assert are_equivalent(r"\boxed{2x = 5}", r"\boxed{5}") is True
    assert are_equivalent(r"\boxed{5}", r"\boxed{2x = 5}") is False
