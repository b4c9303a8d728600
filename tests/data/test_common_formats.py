"""Files as people have them: conversations, Alpaca, worked solutions, compressed ones, and what no rule can read."""

import gzip
import json
import logging

import pytest

from leash_trl.data.problems import load_problems, load_training_rows
from leash_trl.data.readable_solutions import with_readable_solutions


ASKED = "What is 2 + 5?"
USER, ANSWER = {"role": "user", "content": ASKED}, {"role": "assistant", "content": "7"}


def lines(row, count=2) -> str:
    return "".join(json.dumps(row) + "\n" for _ in range(count))


@pytest.fixture
def both(tmp_path):
    """What training and filtering read from a file: the first row's messages and gold, the same for both."""

    def read(content, name="rows.jsonl"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        (trained, _), filtered = load_training_rows(str(file), suffix=""), load_problems(str(file), suffix="")
        first, other = trained[0], filtered[0]
        assert (first["prompt"], first["solution"]) == (other["prompt"], other["solution"])
        return first["prompt"], first["solution"]

    return read


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, ANSWER]},
        {"messages": [USER, {"role": "assistant", "content": "I give up."}], "answer": "7", "solution": "So 7."},
        {"messages": [USER], "ground_truth": "7"},
        {"conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": "7"}]},
        {"instruction": ASKED, "input": "", "output": "7"},
        {"problem": ASKED, "solution": "7"},
        {"question": ASKED, "ground_truth": 7},
        {"question": ASKED, "ground_truth": ["7"]},
        {"question": ASKED, "solution": "7"},
        {"prompt": [USER], "reward_model": {"ground_truth": ["7"]}, "extra_info": '{"index": 0}'},
    ],
    ids=" ".join,
)
def test_common_columns_are_read_as_prompt_and_solution(both, row):
    assert both(lines(row)) == ([USER], "7")


def test_what_surrounds_a_question_stays(both):
    system = {"role": "system", "content": "Be brief."}
    assert both(lines({"messages": [system, USER, ANSWER]})) == ([system, USER], "7")
    prompt, _ = both(lines({"instruction": "Add these.", "input": "2 and 5", "output": "7"}))
    assert prompt == [{"role": "user", "content": "Add these.\n\n2 and 5"}]
    blocks = {"role": "user", "content": [{"type": "text", "text": ASKED}]}
    assert both(lines({"prompt": [blocks], "solution": "7"})) == ([blocks], "7")


@pytest.mark.parametrize("name", ["rows.ndjson", "rows.JSONL", "rows.jsonl.gz"])
def test_a_file_is_known_by_the_end_of_its_name(both, name):
    text = lines({"prompt": ASKED, "solution": "7"})
    assert both(gzip.compress(text.encode()) if name.endswith("gz") else text, name) == ([USER], "7")


@pytest.mark.parametrize("load", [load_problems, load_training_rows])
@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER, {"role": "assistant", "content": "<think>"}], "solution": "7"},  # TRL would not continue it
        {"prompt": [ASKED, ASKED], "solution": ["7", "7"]},  # a table of columns, which is one row
        {"messages": [USER]},
        {"chosen": "7", "rejected": "8"},
    ],
    ids=" ".join,
)
def test_what_cannot_be_asked_is_refused_by_every_command_in_one_line(tmp_path, load, row):
    file = tmp_path / "rows.json"
    file.write_text(lines(row, 1))
    with pytest.raises(ValueError, match=r"prompt|messages") as error:
        load(str(file))
    assert "\n" not in str(error.value)


def test_columns_that_a_reward_reads_need_no_other_name(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text(lines({"gold": "7", "task": ASKED}))
    with pytest.raises(ValueError, match=r"gold.*prompt") as error:
        load_training_rows(str(file))
    assert "solution" not in str(error.value)


def test_a_folder_with_two_kinds_of_files_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text(lines({"prompt": ASKED, "solution": "7"}))
    (tmp_path / "b.csv").write_text("prompt,solution\n2 + 2?,4\n")
    with pytest.raises(ValueError, match=r"csv.*json"):
        load_training_rows(str(tmp_path))


def test_numina_math_says_in_words_that_there_is_no_answer(tmp_path, caplog):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(lines({"problem": f"{gold}?", "answer": gold}, 1) for gold in ("7", "proof", "notfound")))
    problems = load_problems(str(file))
    with pytest.raises(ValueError, match="2 of 3"):
        with_readable_solutions(problems, "numina")
    with caplog.at_level(logging.WARNING):
        assert with_readable_solutions(problems, "numina", drops=True)["solution"][:] == ["7"]
