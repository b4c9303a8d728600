"""Where the answer of a completion stands."""

import time

import pytest

from leash_trl.rewards.answer import final_answer, last_boxed, visible_text


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (r"thinking \boxed{1}</think>It is \boxed{2}.", "2"),
        (r"<think>\boxed{1}</think>no box here", None),
        (r"<think>so \boxed{1} and then it was cut off", None),
        (r"a model that does not think: \boxed{3}", "3"),
        (r"<think>a</think>\boxed{1}<think>b</think>\boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}} or rather \boxed{\sqrt{\frac{2}{3}}}", r"\sqrt{\frac{2}{3}}"),
        (r"\boxed{5} and an unfinished \boxed{6", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\fbox{7}", "7"),
        ("Some steps.\nAnswer: $34$", "$34$"),
        ("**Answer:** 12", "12"),
        ("Answer: 1\nAnswer: 2", "2"),
        ("Answer: 1, boxed \\boxed{2}", "2"),
        ("The answer is 7.", None),
        ("", None),
        ("Answer:\r\n", None),
        (r"\boxed{a\\}", r"a\\"),
    ],
)
def test_final_answer(completion, expected):
    assert final_answer(completion) == expected


def test_visible_text_is_what_follows_the_last_end_of_thinking():
    assert visible_text("a</think>b</think>c") == "c"


def test_an_unclosed_box_is_no_answer():
    assert last_boxed(r"\boxed{1") is None


@pytest.mark.parametrize("text", ["\\boxed{" * 20_000, "\n" * 200_000, "answer" + "*" * 200_000, "{" * 200_000])
def test_long_nonsense_does_not_take_quadratic_time(text):
    # one scan of the rest per box, line or star would be 1e9 steps and more
    start = time.perf_counter()
    assert final_answer(text) is None
    assert time.perf_counter() - start < 10
