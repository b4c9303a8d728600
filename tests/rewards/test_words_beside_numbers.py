"""What words beside a number do to it: a unit leaves it as it is; what counts, computes or judges does not."""

import pytest

from leash_trl.rewards.grader.answer import stated_answer
from leash_trl.rewards.grader.grading import quick_verdict


def verdict(answer, gold):
    return quick_verdict(stated_answer(answer), stated_answer(gold))


@pytest.mark.parametrize(
    "text",
    [
        "15 dozen",
        "15 dozens of eggs",
        "15 hundred",
        "15 million",
        "15 thirds",
        "15 tenths",
        "15 halves",
        "15 minus one",
        "15 plus one",
        "15 squared",
        "15 factorial",
        "15 doubled",
        "15 below zero",
        "15 (incorrect)",
        "15 (wrong)",
        "15 (not correct)",
        "15 is not right",
        "15 is extraneous",
        "15...",
        r"15\ldots",
        r"15 \dots",
        "15…",
        "15, ...",
        "15 of 60",
        "15 or more",
        "over 15",
        "not 15",
        "negative 15",
        "minus 15",
        "half of 15",
        "twice 15",
        "the square root of 15",
        "all except 15",
    ],
)
def test_a_number_that_words_change_is_another_one(text):
    assert verdict(text, "15") is False
    assert verdict(text, "15 apples") is False


@pytest.mark.parametrize(
    "text",
    [
        "15 apples",
        "15 negative integers",
        "15 months",
        r"15 \text{ cm squared}",
        "15 times",
        "So there are 15.",
        "15 (fifteen)",
        "15 (16 is wrong)",
        "15, not 16",
        "15, since 16 is impossible",
        "15 (because 3*5 = 15)",
        "**15**",
        "the answer is 15",
        "15 seconds",
        "15 square meters",
        "15 (not 16)",
    ],
)
def test_a_unit_or_a_remark_does_not_change_the_number(text):
    assert verdict(text, "15") is True


def test_a_word_that_counts_is_counted():
    assert verdict("15 dozen", "180") is True
    assert verdict("3 million dollars", "3000000") is True


@pytest.mark.parametrize(
    ("one", "other"),
    [("1.0000000000000001", "1"), ("0.33333", r"\frac13"), ("10^{30}+1", "10^{30}"), ("9007199254740993.0", "2^53")],
)
def test_numbers_are_compared_exactly_in_either_order(one, other):
    assert verdict(one, other) is False
    assert verdict(other, one) is False
