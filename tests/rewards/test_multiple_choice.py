"""Letters of multiple-choice answers."""

import pytest

from leash_trl.rewards.grader.multiple_choice import choice_letter, choice_verdict


@pytest.mark.parametrize(
    ("texts", "letter"),
    [
        (("C", " C ", "(C)", "C.", "**C**", r"\text{(C)}", r"\mathrm{C}", "C. carbon", "(C) carbon", "C. 5"), "C"),
        (("C, it cannot be A or B", "C。不是 A", "C. A dog", "the answer is C"), "C"),
        (("(I) only",), "I"),
        (("A, B", "A or B", "A/B", "A. B. C", "(A) or (B)", "A、B", "B或C", "I, II", "C\nor D"), None),
        (("", "A + B", "E = mc^2", "A: 3, B: 5", "AB", "c", "K", "1", "A carbon", "A. First.\nThen."), None),
    ],
)
def test_one_letter_alone_or_before_its_text_is_a_choice(texts, letter):
    assert {text: choice_letter(text) for text in texts} == dict.fromkeys(texts, letter)


def test_a_small_letter_is_a_choice_too():
    assert choice_verdict("b", "B") is True
