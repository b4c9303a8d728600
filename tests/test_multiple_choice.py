"""Letters of multiple-choice answers."""

import pytest

from leash_trl.rewards.multiple_choice import choice_letter


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        *((text, "C") for text in ("C", " C ", "(C)", "C.", "**C**", r"\text{(C)}", r"\textbf{C}", r"\mathrm{C}")),
        *((text, "C") for text in ("C. carbon", "C) carbon", "(C) carbon", "C, it cannot be A or B", "C。不是 A")),
        *((text, "C") for text in ("C不是 A", "C. A dog", "C. In all", "C. 5", "C. DNA")),
        ("A", "A"),
        ("J", "J"),
        ("(I) only", "I"),
    ],
)
def test_a_letter_alone_or_before_its_text(text, letter):
    assert choice_letter(text) == letter


@pytest.mark.parametrize(
    "text",
    [
        *("A, B", "A,B", "A or B", "A and B", "A/B", "A. B. C", "(A) (B)", "(A) or (B)", "A) or B)", "A、B", "B或C"),
        *("(A), (B)", "A; B", "I, II", "(I), (III)", "C\nor D"),
    ],
)
def test_the_first_of_several_letters_is_no_choice(text):
    assert choice_letter(text) is None


@pytest.mark.parametrize("text", ["", "A + B", "E = mc^2", "A: 3, B: 5", "AB", "c", "K", "K. carbon", "1", "A carbon"])
def test_no_letter(text):
    assert choice_letter(text) is None


def test_a_letter_before_many_lines_is_no_choice():
    assert choice_letter("A. First we add.\nThen we subtract.") is None
