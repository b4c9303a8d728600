"""How rows of each published family are read, and the real files beside the project."""

import json

import published_rows as rows
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_rows import AIME24, DAPO, GPQA, GSM8K, MMLU_PRO, TRL, user

from leash_trl.data.prompts import BOXED_SUFFIX, DAPO_HEADS, DAPO_TAIL, bare_question
from leash_trl.data.schemas import SCHEMAS, columns_to_read, detect_schema, row_id


def read(row):
    """Id, question without template, and gold."""
    schema = detect_schema(row)
    question, gold = schema.read_row(row)
    if schema.has_template and isinstance(question, str):
        question = bare_question(question)
    return row_id(row), question, gold


SEVERAL = [{"role": "system", "content": "Be brief."}, *user(f"{DAPO_HEADS[0]}What?{DAPO_TAIL}")]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (DAPO, (DAPO["extra_info"]["index"], "What is $6 \\cdot 7$?", "42")),
        (rows.DAPO_PROCESSED, (DAPO["extra_info"]["index"], "What is $6 \\cdot 7$?", "42")),
        ({**DAPO, "prompt": user(f"Why?{BOXED_SUFFIX}"), "question_id": "q7"}, ("q7", "Why?", "42")),
        # several messages stay as they are
        ({**DAPO, "prompt": SEVERAL}, (DAPO["extra_info"]["index"], SEVERAL, "42")),
        ({"prompt": SEVERAL, "solution": "4"}, (None, SEVERAL, "4")),
        (rows.SLIME, (None, "What is $6 \\cdot 7$?", "42")),
        (rows.DEEPMATH, (None, rows.DEEPMATH["question"], "1")),
        (AIME24, ("60", AIME24["problem"], "033")),
        (rows.MATH_ARENA, ("3", rows.MATH_ARENA["problem"], "70")),
        (rows.AIMO_AMC, ("4", "How many digits?", "142")),
        (rows.MATH500, (rows.MATH500["unique_id"], rows.MATH500["problem"], rows.MATH500["answer"])),
        (GSM8K, (None, "How many eggs?", "9")),
        (TRL, (None, "What is 2 + 2?", "4")),
    ],
    ids=lambda value: "",
)
def test_rows_as_their_source_has_them(row, expected):
    assert read(row) == expected


def test_every_schema_needs_columns_that_no_earlier_one_would_claim_and_reads_no_more():
    assert all(detect_schema(schema.columns) is schema for schema in SCHEMAS)
    # worked solutions of many pages stay where they are
    assert columns_to_read(detect_schema(rows.DEEPMATH), rows.DEEPMATH) == ["question", "final_answer"]


@pytest.mark.parametrize(
    ("row", "broken", "column"),
    [
        (AIME24, {"answer": " "}, "answer"),
        (rows.AIMO_AMC, {"answer": float("nan")}, "answer"),
        (rows.SLIME, {"label": True}, "label"),
        (DAPO, {"reward_model": {"ground_truth": None}}, "ground_truth"),
        (GSM8K, {"answer": "No mark's end ####"}, "answer"),
        (GPQA, {"Incorrect Answer 2": None}, "Incorrect Answer 2"),
    ],
)
def test_what_no_problem_can_be_made_of_is_an_error_that_names_the_column(row, broken, column):
    with pytest.raises(ValueError, match=column):
        read({**row, **broken})


def choices_of(prompt):
    return {line[0]: line[3:] for line in prompt.split("\n\n")[1].splitlines()}


def test_gpqa_choices_are_cleaned_and_shuffled_alike_in_every_version():
    row, question, gold = read(GPQA)
    assert (row, gold) == ("rec0001", "D")
    assert choices_of(question) == {
        "A": "benzene",
        "B": "toluene. and more",
        "C": "phenol",
        "D": "bicyclo[2.2.1]heptane",
    }


@given(st.lists(st.sampled_from(["N/A", "x", "y", "z"]), min_size=3, max_size=10), st.data())
def test_mmlu_pro_letter_always_points_at_the_choice_that_was_right(options, data):
    right = data.draw(st.integers(0, len(options) - 1))
    _, question, gold = read(
        {
            **MMLU_PRO,
            "options": options,
            "answer_index": right,
        }
    )
    choices = choices_of(question)
    assert choices[gold] == options[right]
    assert sum(choice == "N/A" for choice in choices.values()) == (options[right] == "N/A")


@pytest.fixture
def rows_of(shared_data):
    return lambda name: [json.loads(line) for line in (shared_data / name).read_text(encoding="utf-8").splitlines()]


def test_both_layouts_of_dapo_give_the_same_problems(rows_of):
    # and so the template that is taken off is DAPO's own, to the letter
    original = rows_of("dapo_sample_original_schema.jsonl")
    processed = rows_of("dapo_sample_openr1_processed_schema.jsonl")
    assert [*map(read, original)] == [*map(read, processed)]


def test_real_mmlu_pro_golds_are_the_published_ones(rows_of):
    # none of these rows has a placeholder, so the letters must not move
    sample = rows_of("mmlu_pro_validation_sample.jsonl")
    assert [read(row)[2] for row in sample] == [row["answer"] for row in sample]
