"""The tokens after the first place where the right answer stands."""

import pytest

from leash_trl.completions.checking import checking_length, end_of_first_occurrence
from leash_trl.errors import TrainingError


def decode(words):
    """Each token is a word of its own, with a blank before it unless it is the first."""
    return " ".join(words)


@pytest.mark.parametrize(
    ("completion", "right_answer", "length"),
    [
        ("2 + 2 = 4 . So 4 .", "4", 4),  # . So 4 .
        ("2 + 2 = 5 . Wait, it is 4", "4", 0),  # the check repairs a wrong result
        ("2 + 2 = 5 .", "4", 0),
        ("It is 14 or 4.5 or 4", "4", 0),  # a part of another number is no place
        ("It is 4. Yes.", "4", 1),  # the token of the answer ends with a period
        ("It is $1,200 , so 1200", "1200", 3),
        ("It is 0.50 all right", "0.5", 2),
        ("It is -3 , not 3", "3", 0),
        ("It is 3 , not -3", "-3", 0),
        ("It is 9-3 or (1+8)-3 .", "-3", 0),  # both are subtractions
        ("It is 9-3 , yes", "3", 2),
        ("The capital is new york , of course", "New York", 3),
        ("Yesterday it was yes , I think", "Yes", 3),
        ("It is \u22123 , not 3", "3", 0),  # with the minus sign of typography
        ("It is \u22123 , yes", "-3", 2),
        ("It is 3 , not -3", "\u22123", 0),
        ("It is 1.5 km , no, 5 km", "5 km", 0),  # a part of another number is no place, in front of a unit either
        ("It is 1,250% or .250% or -250% or 250%", "250%", 0),
        ("From 3-5 km , yes", "5 km", 2),
        ("It is route 66.5 or route 66", "Route 66", 0),
        ("1.Paris , of course", "Paris", 3),
        (r"It is \boxed{50\%} , yes", "50%", 2),  # as LaTeX writes it
        (r"So x=1{,}234 , yes", "1234", 2),  # thousands as LaTeX writes them
        (r"So x=1\,234.5 , yes", "1,234.5", 2),
        (r"So x=1{,}234 , yes", "234", 0),
        ("", "4", 0),
    ],
)
def test_tokens_after_the_first_right_result(completion, right_answer, length):
    assert checking_length(completion.split(), right_answer, decode) == length


@pytest.mark.parametrize("solution", ["4", " 4 ", "$4$", "4.0"])
def test_one_value_has_one_place(solution):
    assert end_of_first_occurrence("x = 4, so 4", solution) == len("x = 4")


@pytest.mark.parametrize(
    "solution", ["", "A", r"\frac{3}{4}", "3/4", "x^2", "one two three four five six", "(1, 2) = x"]
)
def test_answers_whose_place_cannot_be_told_by_their_text_are_refused(solution):
    with pytest.raises(TrainingError, match="length_of is 'checking'") as caught:
        end_of_first_occurrence("It is 3/4", solution)
    assert "\n" not in str(caught.value)
    assert repr(solution) in str(caught.value)


def test_tokens_that_hold_only_a_part_of_the_answer(tokenizer):
    """The answer ends in the last of its tokens, and what follows it costs one token of EOS."""
    completion_ids = [*tokenizer.encode("12 + 11 = 23"), tokenizer.eos_token_id]
    assert checking_length(completion_ids, "23", tokenizer.decode) == 1
