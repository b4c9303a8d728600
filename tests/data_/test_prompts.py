"""Prompts: templates off, conversations and choices on."""

import pytest
from hypothesis import strategies as st

from leash_trl.data.prompts import (
    BOXED_SUFFIX,
    DAPO_HEADS,
    DAPO_TAIL,
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


def test_choices_are_lettered_in_their_order():
    lines = multiple_choice_question("Which?", [str(number) for number in range(10)]).splitlines()
    assert lines[:3] == ["Which?", "", "A. 0"]
    assert lines[11:] == ["J. 9", "", "Answer with the LETTER of the right choice within \\boxed{}."]
