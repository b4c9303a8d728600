"""Where the answer of a completion stands."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.rewards.grader.answer import boxed_answer, find_answer, gold_answer, stated_answer


def final_answer(completion, lenient=False):
    answer = find_answer(completion, lenient)
    return answer and answer.text


@pytest.mark.parametrize(
    ("completion", "expected"),
    {
        r"thinking \boxed{1}</think>It is \boxed{2}.": "2",
        r"<think>\boxed{1}</think>no box here": None,
        r"<think>so \boxed{1} and then it was cut off": None,
        r"<think>a</think>\boxed{1}<think>once more": None,
        r"\boxed{\frac{1}{2}}, rather \boxed{\sqrt{\frac{2}{3}}}": r"\sqrt{\frac{2}{3}}",
        r"\boxed{\{1, 2\}}": r"\{1, 2\}",
        r"\boxed{\left\{ 1 \right| 2}": r"\left\{ 1 \right| 2",
        r"\fbox{7}": "7",
        r"\boxed{ } Answer: 9": "9",
        r"\boxed{the box \boxed{1} in a box}": "1",
        r"\boxed{$34$}": "34",
        r"\boxed{34.}": "34",
        r"\boxed{1, 2, ...}": "1, 2, ...",
        "Some steps.\nAnswer: $34$": "34",
        "Answer: \\[34\\]": "34",
        "Answer: $3$ or $4$": "$3$ or $4$",
        "**Answer: 12**": "12",
        "答案 Answer：１２": "12",
        "Answer: 1\nand some more text": "1",
        "Answer: 1\nWait.\nAnswer: 2": "2",
        "Final Answer:\n\n**Answer:** 34": "34",
        "Answer: the answer: 34": "34",
        "Answer: <answer>34</answer>": "34",
        "Answer: 1, boxed \\boxed{2}": "2",
        "Answer: 5\r\nThe end.\r\n": "5",
        "The answer is 7.": None,
        "myanswer: 7": None,
        "Answer:\r\n": None,
        r"\boxed{a\\}": r"a\\",
        r"so \boxed{1}. But no: \boxed{2": None,  # cut off, so it may go on
        "Answer: 1\n\\boxed{\\frac{1}{2}": None,
    }.items(),
)
def test_the_answer_is_the_last_box_or_answer_line_after_thinking(completion, expected):
    assert final_answer(completion) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    {
        "<answer>1</answer> no, <answer>$2$</answer>": "2",
        "<answer>1</answer> and <answer>cut off": "1",
        "</answer><answer>": "</answer><answer>",  # no complete tag, so all of the text
        "it is 7": "it is 7",
        "<think>it is 7": None,
        " \n": None,
        r"<answer>1</answer> \boxed{2}": "2",
        r"<answer>1</answer> \boxed{2": None,
    }.items(),
)
def test_final_answer_on_request_only(completion, expected):
    assert final_answer(completion, lenient=True) == expected
    if r"\boxed" not in completion:
        assert final_answer(completion) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    {
        r"\boxed{1} or \boxed{2}": "1, 2",
        r"$\boxed{1}$, $\boxed{2}$, and $\boxed{3}$": "1, 2, 3",
        r"\boxed{x = 1} \quad y = \boxed{2}": "x = 1, 2",
        r"x_1 = \boxed{1}, x_{2} = \boxed{2}": "1, 2",
        r"\boxed{1} is wrong, it is \boxed{2}": "2",
        r"\boxed{1}. Then \boxed{2} and \boxed{3}": "2, 3",
        r"\boxed{1} and \boxed{}": "1, ",
    }.items(),
)
def test_boxes_joined_by_little_are_one_answer(text, expected):
    assert boxed_answer(text).text == expected


def test_math_verify_is_given_a_box_but_where_it_must_look_itself():
    assert stated_answer(r"2\sqrt{3}").math_verify_input == r"\boxed{2\sqrt{3}}"
    assert stated_answer(r"\$34").math_verify_input == r"\boxed{\$34}"  # an escaped dollar is money
    assert stated_answer("the largest $n$ is 34").math_verify_input == "the largest $n$ is 34"
    assert find_answer("1000,99", lenient=True).math_verify_input == "1000,99"


@pytest.mark.parametrize(
    ("signs", "expected"),
    {
        "−5": "-5",
        "２＋３": "2+3",
        "5\u202e\x00\u200b": "5",
        "½": r"\frac{1}{2}",
        "−∞": r"-\infty",
        "a\ud800": "a\ud800",
    }.items(),
)
def test_signs_are_brought_to_what_math_verify_reads(signs, expected):
    assert final_answer(rf"\boxed{{{signs}}}") == expected


def test_golds_are_boxed_or_stated():
    assert gold_answer(r"so it is $\boxed{3}$").text == "3"
    assert gold_answer("$3$").math_verify_input == r"\boxed{3}"
    assert gold_answer(" ") is None


@given(st.text(max_size=80), st.text(alphabet="0123456789+-x^", min_size=1, max_size=12))
def test_whatever_was_thought_the_box_after_it_counts(thought, answer):
    assert final_answer(f"<think>{thought}</think>The answer is \\boxed{{{answer}}}") == answer.strip()


@given(st.text(max_size=300), st.booleans())
def test_no_text_is_an_error(text, lenient):
    answer = find_answer(text, lenient)
    assert answer is None or answer.math_verify_input
    stated_answer(text)
    gold_answer(text)


LONG = 200_000  # characters
# fmt: off
NONSENSE = [
    "\\boxed{", "\\boxed{1}", "{", "}", "$", "\\", "\\text{", "x_{a}", "a_{",
    "answer:", "answer ", "answer*", "answer: \n", "<answer>", "</answer>", "<think>", "and ", "A or ",
    "\n", "\r\n", "\u202e", "\x00", "\ud800",
]
# fmt: on


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_long_nonsense_does_not_take_quadratic_time(nonsense):
    # to search the rest of the text at each repetition would take 1e9 steps and more
    repeated = nonsense * (LONG // len(nonsense))
    start = time.perf_counter()
    for text in (repeated, f"Answer: {repeated}x", rf"\boxed{{1}}{repeated}\boxed{{2}}"):
        find_answer(text, lenient=True)
    assert time.perf_counter() - start < 10
