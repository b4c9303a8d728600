"""Files as people have them: conversations, Alpaca, worked solutions, and what no rule can read."""

import json
import logging

import pytest

from leash_trl.data.problems import load_problems, load_training_rows
from leash_trl.data.readable_solutions import with_readable_solutions


QUESTION = "What is 2 + 5?"
USER = {"role": "user", "content": QUESTION}
ANSWER = {"role": "assistant", "content": "7"}


def line(row):
    return json.dumps(row) + "\n"


@pytest.fixture
def read_row(tmp_path):
    """What training and filtering read from a file of one row: prompt and gold, the same for both."""

    def read(row):
        file = tmp_path / "rows.jsonl"
        file.write_text(line(row))
        (to_train_on,) = load_training_rows(str(file), suffix="")[0]
        (to_filter,) = load_problems(str(file), suffix="")
        assert (to_train_on["prompt"], to_train_on["solution"]) == (to_filter["prompt"], to_filter["solution"])
        return to_filter["prompt"], to_filter["solution"]

    return read


SYSTEM = {"role": "system", "content": "Be brief."}
BLOCKS = {"role": "user", "content": [{"type": "text", "text": QUESTION}]}


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"messages": [USER, ANSWER]}, [USER]),
        ({"messages": [SYSTEM, USER, ANSWER]}, [SYSTEM, USER]),
        ({"messages": [USER, {"role": "assistant", "content": "Hm."}], "answer": "7", "solution": "So"}, [USER]),
        ({"messages": [USER], "ground_truth": "7"}, [USER]),
        (
            {
                "conversations": [
                    {"from": "human", "value": QUESTION},
                    {"from": "gpt", "value": "7"},
                ]
            },
            [USER],
        ),
        ({"instruction": QUESTION, "input": "", "output": "7"}, [USER]),
        ({"instruction": "What is", "input": "2 + 5?", "output": "7"}, [{**USER, "content": "What is\n\n2 + 5?"}]),
        ({"problem": QUESTION, "solution": "7"}, [USER]),
        ({"question": QUESTION, "ground_truth": [7]}, [USER]),
        ({"prompt": [USER], "reward_model": {"ground_truth": ["7"]}, "extra_info": '{"index": 0}'}, [USER]),
        ({"prompt": [BLOCKS], "solution": "7"}, [BLOCKS]),
    ],
    ids=str,
)
def test_common_columns_are_read_as_prompt_and_solution(read_row, row, prompt):
    assert read_row(row) == (prompt, "7")


@pytest.mark.parametrize("load", [load_problems, load_training_rows])
@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER, {"role": "assistant", "content": "<think>"}], "solution": "7"},  # TRL would not continue it
        {"prompt": [QUESTION, QUESTION], "solution": "7"},  # texts are no messages
        {"messages": [USER]},
        {"chosen": "7", "rejected": "8"},
    ],
    ids=" ".join,
)
def test_what_cannot_be_asked_is_refused_by_every_command_in_one_line(tmp_path, load, row):
    file = tmp_path / "rows.json"
    file.write_text(line(row))
    with pytest.raises(ValueError, match=r"prompt|messages") as error:
        load(str(file))
    assert "\n" not in str(error.value)


def test_a_folder_with_two_kinds_of_files_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text(line({"prompt": QUESTION, "solution": "7"}))
    (tmp_path / "b.csv").write_text("prompt,solution\n2 + 2?,4\n")
    with pytest.raises(ValueError, match=r"csv.*json"):
        load_training_rows(str(tmp_path))


def test_numina_math_says_in_words_that_there_is_no_answer(tmp_path, caplog):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(line({"problem": f"{gold}?", "answer": gold}) for gold in ("7", "proof", "notfound")))
    problems = load_problems(str(file))
    with pytest.raises(ValueError, match="2 of 3"):
        with_readable_solutions(problems, "numina")
    with caplog.at_level(logging.WARNING):
        assert with_readable_solutions(problems, "numina", drops_unreadable=True)["solution"][:] == ["7"]
