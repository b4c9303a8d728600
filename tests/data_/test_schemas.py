"""How rows of each published family are read, and the real files beside the project."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_rows import (
    AIME24,
    AIMO_AMC,
    DAPO,
    DAPO_PROCESSED,
    DEEPMATH,
    GPQA,
    GSM8K,
    MATH500,
    MATH_ARENA,
    MMLU_PRO,
    SLIME,
    TRL,
    user,
)

from leash_trl.data.prompts import BOXED_SUFFIX, DAPO_HEADS, DAPO_TAIL
from leash_trl.data.schemas import SCHEMAS, columns_to_read, detect_schema, row_id


def read(row: dict) -> tuple:
    """Id, question and gold."""
    return row_id(row), *detect_schema(row).read(row)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (DAPO, (DAPO["extra_info"]["index"], "What is $6 \\cdot 7$?", "42")),
        (DAPO_PROCESSED, (DAPO["extra_info"]["index"], "What is $6 \\cdot 7$?", "42")),
        ({**DAPO, "prompt": user(f"Why?{BOXED_SUFFIX}"), "question_id": "q7"}, ("q7", "Why?", "42")),
        (SLIME, (None, "What is $6 \\cdot 7$?", "42")),
        (DEEPMATH, (None, DEEPMATH["question"], "1")),
        (AIME24, ("60", AIME24["problem"], "033")),
        (MATH_ARENA, ("3", MATH_ARENA["problem"], "70")),
        (AIMO_AMC, ("4", "How many digits?", "142")),
        (MATH500, (MATH500["unique_id"], MATH500["problem"], MATH500["answer"])),
        (GSM8K, (None, "How many eggs?", "9")),
        (TRL, (None, "What is 2 + 2?", "4")),
        ({"prompt": [{"role": "system", "content": "Hm."}, *user("?")], "solution": "4"}, None),
    ],
    ids=lambda value: "",
)
def test_rows_as_their_source_has_them(row, expected):
    assert read(row) == (expected or (None, row["prompt"], "4"))


def test_every_schema_needs_columns_that_no_earlier_one_would_claim():
    assert all(detect_schema(schema.columns) is schema for schema in SCHEMAS)


def test_worked_solutions_of_many_pages_are_not_read():
    assert columns_to_read(detect_schema(DEEPMATH), DEEPMATH) == ["question", "final_answer"]


def test_a_prompt_of_several_messages_stays_as_it_is():
    messages = [{"role": "system", "content": "Be brief."}, *user(f"{DAPO_HEADS[0]}What?{DAPO_TAIL}")]
    assert read({**DAPO, "prompt": messages})[1] == messages


def test_only_verl_text_that_is_an_integer_loses_its_point():
    assert read({**DAPO, "reward_model": {"ground_truth": "-3.0"}})[2] == "-3"
    assert read({**DAPO, "reward_model": {"ground_truth": "3.05"}})[2] == "3.05"
    assert read({**MATH500, "answer": "3.0"})[2] == "3.0"
    assert read({**AIMO_AMC, "answer": 2.5})[2] == "2.5"


@pytest.mark.parametrize(
    ("row", "broken", "column"),
    [
        (AIME24, {"problem": None}, "problem"),
        (AIME24, {"answer": " "}, "answer"),
        (AIMO_AMC, {"answer": float("nan")}, "answer"),
        (SLIME, {"label": True}, "label"),
        (DAPO, {"reward_model": None}, "ground_truth"),
        (DAPO, {"reward_model": {"ground_truth": ["1"]}}, "ground_truth"),
        (DAPO, {"prompt": []}, "prompt"),
        (TRL, {"prompt": [{"role": "assistant", "content": "Hm."}]}, "prompt"),
        (TRL, {"prompt": [{"role": "user", "content": None}]}, "prompt"),
        (TRL, {"prompt": None}, "prompt"),
        (GSM8K, {"answer": "No mark's end ####"}, "answer"),
        (GPQA, {"Incorrect Answer 2": None}, "Incorrect Answer 2"),
        (MMLU_PRO, {"answer_index": 4}, "answer_index"),
        (MMLU_PRO, {"answer_index": None}, "answer_index"),
        (MMLU_PRO, {"answer": "A"}, "answer"),
    ],
)
def test_what_no_problem_can_be_made_of_is_an_error_that_names_the_column(row, broken, column):
    with pytest.raises(ValueError, match=column):
        read({**row, **broken})


def choices_of(prompt: str) -> dict[str, str]:
    return {line[0]: line[3:] for line in prompt.split("\n\n")[1].splitlines()}


def test_gpqa_choices_are_cleaned_and_shuffled_alike_in_every_version():
    row, question, gold = read(GPQA)
    choices = choices_of(question)
    assert (row, choices[gold], gold) == ("rec0001", "bicyclo[2.2.1]heptane", "D")
    assert [*choices.values()] == ["benzene", "toluene. and more", "phenol", "bicyclo[2.2.1]heptane"]


@given(st.lists(st.sampled_from(["N/A", "x", "y", "z"]), min_size=3, max_size=10), st.data())
def test_mmlu_pro_letter_always_points_at_the_choice_that_was_right(options, data):
    right = data.draw(st.integers(0, len(options) - 1))
    _, question, gold = read({**MMLU_PRO, "options": options, "answer": "ABCDEFGHIJ"[right], "answer_index": right})
    choices = choices_of(question)
    assert choices[gold] == options[right]
    assert sum(choice == "N/A" for choice in choices.values()) == (options[right] == "N/A")


def rows_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_both_layouts_of_dapo_give_the_same_problems(shared_data):
    # and so the template that is taken off is DAPO's own, to the letter
    original = rows_of(shared_data / "dapo_sample_original_schema.jsonl")
    processed = rows_of(shared_data / "dapo_sample_openr1_processed_schema.jsonl")
    assert [read(row) for row in original] == [read(row) for row in processed]


def test_real_mmlu_pro_golds_are_the_published_ones(shared_data):
    # none of these rows has a placeholder, so the letters must not move
    rows = rows_of(shared_data / "mmlu_pro_validation_sample.jsonl")
    assert [read(row)[2] for row in rows] == [row["answer"] for row in rows]
