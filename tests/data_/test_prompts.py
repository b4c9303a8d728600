"""Prompts: templates off, conversations and choices on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leash_trl.data.prompts import (
    BOXED_SUFFIX,
    DAPO_HEADS,
    DAPO_TAIL,
    as_conversation,
    bare_question,
    multiple_choice_question,
)


QUESTION = "Let $x + 1 = 4$.\n\nWhat is $x$?"
PLAIN_TEXT = st.text(st.characters(codec="utf-8", exclude_characters=":{"), min_size=1).map(str.strip).filter(bool)


@pytest.mark.parametrize(
    "text",
    [
        QUESTION,
        f"{QUESTION}{BOXED_SUFFIX}",
        f"\n{QUESTION}{BOXED_SUFFIX}\n",
        f"{QUESTION} {BOXED_SUFFIX}",
        f"{DAPO_HEADS[0]}{QUESTION}{DAPO_TAIL}",
        f"{DAPO_HEADS[1]}{QUESTION}{DAPO_TAIL}",
    ],
)
def test_bare_question_takes_off_every_known_template(text):
    assert bare_question(text) == QUESTION


def test_a_template_inside_the_question_is_not_taken_off():
    quoted = f"What does this ask?{BOXED_SUFFIX} Discuss."
    assert bare_question(quoted) == quoted


@settings(max_examples=30)
@given(PLAIN_TEXT, st.sampled_from(DAPO_HEADS))
def test_templates_come_off_whatever_they_are_put_around(question, head):
    assert bare_question(head + question + DAPO_TAIL) == question
    assert bare_question(as_conversation({"prompt": question})["prompt"][0]["content"]) == question


def test_choices_are_lettered_in_their_order():
    lines = multiple_choice_question("Which?", [str(number) for number in range(10)]).splitlines()
    assert lines[:3] == ["Which?", "", "A. 0"]
    assert lines[11:] == ["J. 9", "", "Answer with the LETTER of the right choice within \\boxed{}."]


def test_as_many_choices_as_letters_are_fine():
    assert "\nZ. x\n" in multiple_choice_question("Which?", ["x"] * 26)


def test_a_choice_without_a_letter_is_an_error():
    with pytest.raises(ValueError, match="zip"):
        multiple_choice_question("Which?", ["x"] * 27)
