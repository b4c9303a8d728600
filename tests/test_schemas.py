"""Rows as the Hub has them, written here for each source, and the real files beside the project."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leash_trl.data.prompts import BOXED_SUFFIX, DAPO_HEADS, DAPO_TAIL
from leash_trl.data.schemas import SCHEMAS, cleaned_choice, columns_to_read, detect_schema, read_row


def user(text: str) -> list[dict]:
    return [{"content": text, "role": "user"}]


def read(row: dict) -> dict:
    return read_row(detect_schema(row), row)


def dapo_row(question: str, gold: str, index: str = "9a9b6eb4-a1cb-49d1-8c1e-62eaf2f74079") -> dict:
    return {
        "data_source": "math_dapo",
        "prompt": user(f"{DAPO_HEADS[0]}{question}{DAPO_TAIL}"),
        "ability": "MATH",
        "reward_model": {"ground_truth": gold, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


DAPO = dapo_row("What is $6 \\cdot 7$?", "42")
DAPO_PROCESSED = {**DAPO, "prompt": "What is $6 \\cdot 7$?", "solution": "42", "source_prompt": DAPO["prompt"]}
RELEASE_TRAIN = {
    "data_source": "deepmath-103k",
    "prompt": user(f"Is every group of prime order cyclic?{BOXED_SUFFIX}"),
    "ability": "math",
    "reward_model": {"ground_truth": "Yes", "style": "rule"},
    "extra_info": {"index": "0", "split": "train"},
    "question_id": "deepmath-77",
}
RELEASE_AMC = {
    "data_source": "amc",
    "prompt": user(f"How many digits has $12^{{131}}$?{BOXED_SUFFIX}"),
    "ability": "math",
    "reward_model": {"ground_truth": "142.0", "style": "rule"},
    "extra_info": {"index": 5},
}
SLIME = {"prompt": user(f"{DAPO_HEADS[1]}What is $6 \\cdot 7$?{DAPO_TAIL}"), "label": "42"}
DEEPMATH = {
    "question": "Evaluate $\\lim_{x \\to 0} \\frac{\\sin x}{x}$.",
    "final_answer": "1",
    "difficulty": 4.5,
    "topic": "Mathematics -> Calculus -> Limits",
    "r1_solution_1": "<think>long</think>",
    "r1_solution_2": "<think>longer</think>",
    "r1_solution_3": "<think>longest</think>",
}
AIME24 = {
    "id": 60,
    "problem": "Find the remainder when $7^{33}$ is divided by 1000.",
    "solution": "By Euler's theorem ... so the remainder is $\\boxed{033}$.",
    "answer": "033",
    "url": "artofproblemsolving",
    "year": "2024",
}
AIME25 = {"problem": "Find the sum of all integer bases $b>9$ ...", "answer": "70", "id": "0"}
HMMT = {
    "problem_idx": 3,
    "answer": "\\frac{1}{576}",
    "problem_type": ["Combinatorics"],
    "problem": "What is the probability?",
}
MATH_ARENA_AIME = {"problem_idx": 1, "answer": 70, "problem": "Find the sum of all integer bases $b>9$ ..."}
AMC23 = {"id": 0, "question": "Cities $A$ and $B$ are $45$ miles apart.", "answer": "27", "url": "artofproblemsolving"}
AIMO_AMC = {"id": 4, "problem": "How many digits?", "answer": 142.0, "url": "artofproblemsolving"}
MATH500 = {
    "problem": "Convert the point $(0,3)$ to polar coordinates.",
    "solution": "We have that $r = 3$ ... the answer is $\\boxed{\\left( 3, \\frac{\\pi}{2} \\right)}.$",
    "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
    "subject": "Precalculus",
    "level": 2,
    "unique_id": "test/precalculus/807.json",
}
GPQA = {
    "Record ID": "rec0001",
    "Question": "Which product forms?\n",
    "Correct Answer": " bicyclo[2.2.1]heptane\n",
    "Incorrect Answer 1": "benzene",
    "Incorrect Answer 2": "toluene [title]and  more",
    "Incorrect Answer 3": "phenol",
    "Explanation": "Diels-Alder.",
    "Subdomain": "Organic Chemistry",
    "High-level domain": "Chemistry",
    "Writer's Difficulty Estimate": "Hard undergraduate level",
}
MMLU_PRO = {
    "question_id": 70,
    "question": "Find the characteristic of the ring 2Z.",
    "options": ["N/A", "30", "0", "N/A"],
    "answer": "C",
    "answer_index": 2,
    "cot_content": "",
    "category": "math",
    "src": "cot_lib-abstract_algebra",
}
GSM8K = {"question": "How many eggs?", "answer": "She has 16 - 7 = <<16-7=9>>9 eggs.\n#### 9"}
TRL = {"prompt": "What is 2 + 2?", "solution": "4", "target_length": 4096}
TRL_CONVERSATION = {
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2 + 2?"}],
    "solution": "4",
}
OURS = {"problem": "What is 2 + 2?", "answer": "4", "source": "aime24", "id": "aime24-I-01"}


@pytest.mark.parametrize(
    ("row", "schema", "expected"),
    [
        (
            DAPO,
            "verl",
            {
                "id": DAPO["extra_info"]["index"],
                "prompt": "What is $6 \\cdot 7$?",
                "solution": "42",
                "data_source": "math_dapo",
            },
        ),
        (
            DAPO_PROCESSED,
            "dapo_processed",
            {
                "id": DAPO["extra_info"]["index"],
                "prompt": "What is $6 \\cdot 7$?",
                "solution": "42",
                "data_source": "math_dapo",
            },
        ),
        (
            RELEASE_TRAIN,
            "verl",
            {
                "id": "deepmath-77",
                "prompt": "Is every group of prime order cyclic?",
                "solution": "Yes",
                "data_source": "deepmath-103k",
            },
        ),
        (
            RELEASE_AMC,
            "verl",
            {"id": "5", "prompt": "How many digits has $12^{131}$?", "solution": "142", "data_source": "amc"},
        ),
        (SLIME, "slime", {"id": None, "prompt": "What is $6 \\cdot 7$?", "solution": "42"}),
        (
            DEEPMATH,
            "deepmath",
            {
                "id": None,
                "prompt": DEEPMATH["question"],
                "solution": "1",
                "difficulty": 4.5,
                "subject": DEEPMATH["topic"],
            },
        ),
        (AIME24, "problem_answer", {"id": "60", "prompt": AIME24["problem"], "solution": "033"}),
        (AIME25, "problem_answer", {"id": "0", "prompt": AIME25["problem"], "solution": "70"}),
        (HMMT, "problem_answer", {"id": "3", "prompt": HMMT["problem"], "solution": "\\frac{1}{576}"}),
        (MATH_ARENA_AIME, "problem_answer", {"id": "1", "prompt": MATH_ARENA_AIME["problem"], "solution": "70"}),
        (AMC23, "question_answer", {"id": "0", "prompt": AMC23["question"], "solution": "27"}),
        (AIMO_AMC, "problem_answer", {"id": "4", "prompt": "How many digits?", "solution": "142"}),
        (
            MATH500,
            "problem_answer",
            {
                "id": "test/precalculus/807.json",
                "prompt": MATH500["problem"],
                "solution": "\\left( 3, \\frac{\\pi}{2} \\right)",
                "subject": "Precalculus",
                "level": 2,
            },
        ),
        (GSM8K, "question_answer", {"id": None, "prompt": "How many eggs?", "solution": "9"}),
        (TRL, "trl", {"id": None, "prompt": "What is 2 + 2?", "solution": "4", "target_length": 4096}),
        (TRL_CONVERSATION, "trl", {"id": None, "prompt": TRL_CONVERSATION["prompt"], "solution": "4"}),
        (OURS, "problem_answer", {"id": "aime24-I-01", "prompt": "What is 2 + 2?", "solution": "4"}),
    ],
)
def test_rows_as_their_source_has_them(row, schema, expected):
    assert detect_schema(row).name == schema
    assert read(row) == expected


def test_every_schema_needs_columns_that_no_earlier_one_would_claim():
    for schema in SCHEMAS:
        assert detect_schema(schema.columns) is schema


def test_unknown_columns_are_listed_with_those_to_take():
    with pytest.raises(ValueError, match="columns text, label; rename") as error:
        detect_schema(["text", "label"])
    assert "prompt and solution" in str(error.value)


def test_worked_solutions_of_many_pages_are_not_read():
    columns = columns_to_read(detect_schema(DEEPMATH), DEEPMATH)
    assert columns == ["question", "final_answer", "difficulty", "topic"]


@pytest.mark.parametrize("row", [DAPO, RELEASE_TRAIN, SLIME, DEEPMATH, AIME24, MATH500, GPQA, MMLU_PRO, GSM8K, TRL])
def test_leaving_columns_unread_changes_nothing(row):
    schema = detect_schema(row)
    assert read_row(schema, {column: row[column] for column in columns_to_read(schema, row)}) == read(row)


def test_a_prompt_of_several_messages_stays_as_it_is():
    messages = [{"role": "system", "content": "Be brief."}, *user(f"{DAPO_HEADS[0]}What?{DAPO_TAIL}")]
    assert read({**DAPO, "prompt": messages})["prompt"] == messages


def test_only_verl_text_that_is_an_integer_loses_its_point():
    assert read({**DAPO, "reward_model": {"ground_truth": "-3.0"}})["solution"] == "-3"
    assert read({**DAPO, "reward_model": {"ground_truth": "3.05"}})["solution"] == "3.05"
    assert read({**MATH500, "answer": "3.0"})["solution"] == "3.0"
    assert read({**AIMO_AMC, "answer": 2.5})["solution"] == "2.5"


# each puts something into a row that no problem can be made of
@pytest.mark.parametrize(
    ("row", "broken", "message"),
    [
        (AIME24, {"problem": None}, "column 'problem' is None"),
        (AIME24, {"problem": "  "}, "column 'problem' is empty"),
        (AIME24, {"answer": ""}, "column 'answer' is empty"),
        (AIMO_AMC, {"answer": float("nan")}, "column 'answer' is nan"),
        (SLIME, {"label": True}, "column 'label' is True"),
        (DAPO, {"reward_model": None}, "column 'reward_model.ground_truth' is None"),
        (DAPO, {"reward_model": {"ground_truth": ["1"]}}, "ground_truth' is \\['1'\\]"),
        (DAPO, {"prompt": []}, "messages whose last one"),
        (DAPO, {"prompt": None}, "messages whose last one"),
        (TRL_CONVERSATION, {"prompt": [{"role": "assistant", "content": "Hm."}]}, "messages whose last one"),
        (TRL_CONVERSATION, {"prompt": [{"role": "user", "content": None}]}, "messages whose last one"),
        (TRL, {"prompt": None}, "column 'prompt' is None"),
        (TRL, {"target_length": "many"}, "many"),
        (GSM8K, {"answer": "No mark's end ####"}, "nothing after ####"),
        (GPQA, {"Incorrect Answer 2": None}, "column 'Incorrect Answer 2' is None"),
        (MMLU_PRO, {"answer_index": 4}, "column 'answer_index' is 4, must be 0 to 3"),
        (MMLU_PRO, {"answer_index": None}, "column 'answer_index' is None"),
        (MMLU_PRO, {"answer": "A"}, "column 'answer' is 'A', but answer_index 2 is 'C'"),
    ],
)
def test_what_no_problem_can_be_made_of_is_an_error(row, broken, message):
    with pytest.raises(ValueError, match=message):
        read({**row, **broken})


def test_target_length_as_text_becomes_a_number():
    assert read({**TRL, "target_length": "512"})["target_length"] == 512


def choices_of(prompt: str) -> dict[str, str]:
    lines = prompt.split("\n\n")[1].splitlines()
    return {line[0]: line[3:] for line in lines}


def test_gpqa_choices_are_cleaned_shuffled_and_the_gold_is_the_letter_of_the_right_one():
    problem = read(GPQA)
    choices = choices_of(problem["prompt"])
    assert choices[problem["solution"]] == "bicyclo[2.2.1]heptane"
    assert sorted(choices.values()) == ["benzene", "bicyclo[2.2.1]heptane", "phenol", "toluene. and more"]
    assert problem["prompt"].startswith("Which product forms?\n\nA. ")
    assert (problem["id"], problem["subject"]) == ("rec0001", "Organic Chemistry")
    assert problem == read(dict(reversed(GPQA.items())))


def test_gpqa_order_is_the_same_in_every_version():
    # what earlier runs were asked; a generator seeded with text is the same in every Python
    problem = read(GPQA)
    assert "".join(choice[0] for choice in choices_of(problem["prompt"]).values()) == "btpb"
    assert problem["solution"] == "D"


def test_gpqa_golds_are_spread_over_the_letters():
    golds = Counter(read({**GPQA, "Question": f"Question {number}?"})["solution"] for number in range(400))
    # 100 expected, standard deviation 8.7
    assert set(golds) == set("ABCD")
    assert all(65 < count < 135 for count in golds.values())


def test_gpqa_finds_the_right_one_of_two_equal_choices():
    twins = {**GPQA, "Incorrect Answer 1": "bicyclo[2.2.1]heptane"}
    assert read(twins)["solution"] == read(GPQA)["solution"]


def test_cleaned_choice_leaves_ordinary_text_alone():
    assert cleaned_choice("a [b] c") == "a [b] c"


def test_mmlu_pro_placeholders_are_gone_and_the_letter_moves_up():
    problem = read(MMLU_PRO)
    assert choices_of(problem["prompt"]) == {"A": "30", "B": "0"}
    assert (problem["solution"], problem["subject"], problem["id"]) == ("B", "math", "70")


def test_mmlu_pro_keeps_a_placeholder_that_is_the_right_answer():
    problem = read({**MMLU_PRO, "answer": "A", "answer_index": 0})
    assert choices_of(problem["prompt"])[problem["solution"]] == "N/A"


@given(st.lists(st.sampled_from(["N/A", "x", "y", "z"]), min_size=3, max_size=10), st.data())
def test_mmlu_pro_letter_always_points_at_the_choice_that_was_right(options, data):
    right = data.draw(st.integers(0, len(options) - 1))
    if sum(option != "N/A" for i, option in enumerate(options) if i != right) == 0:
        return
    problem = read({**MMLU_PRO, "options": options, "answer": "ABCDEFGHIJ"[right], "answer_index": right})
    assert choices_of(problem["prompt"])[problem["solution"]] == options[right]


def rows_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("file", "schema"),
    [
        ("aime24.jsonl", "problem_answer"),
        ("amc23.jsonl", "problem_answer"),
        ("math500.jsonl", "problem_answer"),
        ("gsm8k_test.jsonl", "problem_answer"),
        ("mmlu_pro_validation_sample.jsonl", "mmlu_pro"),
        ("dapo_sample_original_schema.jsonl", "verl"),
        ("dapo_sample_openr1_processed_schema.jsonl", "dapo_processed"),
    ],
)
def test_real_rows_are_read(shared_data, file, schema):
    rows = rows_of(shared_data / file)
    assert {detect_schema(row).name for row in rows} == {schema}
    assert all(read(row)["prompt"] and read(row)["solution"] for row in rows)


def test_both_layouts_of_dapo_give_the_same_problems(shared_data):
    # and so the template that is taken off is DAPO's own, to the letter
    original = rows_of(shared_data / "dapo_sample_original_schema.jsonl")
    processed = rows_of(shared_data / "dapo_sample_openr1_processed_schema.jsonl")
    assert [read(row) for row in original] == [read(row) for row in processed]


def test_real_mmlu_pro_golds_are_the_published_ones(shared_data):
    # none of these rows has a placeholder, so the letters must not move
    rows = rows_of(shared_data / "mmlu_pro_validation_sample.jsonl")
    assert [read(row)["solution"] for row in rows] == [row["answer"] for row in rows]
