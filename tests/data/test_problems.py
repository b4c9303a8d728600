"""Problems from files, folders, the gym and the Hub's schemas; repeats, contradictions, ids and errors."""

import json
import logging

import pytest
from datasets import Dataset, DatasetDict
from published_rows import DEEPMATH, MATH500, SLIME, TRL, dapo_row, user, write_rows

from leash_trl.data.problems import fingerprint, load_problems, load_training_rows
from leash_trl.data.prompts import BOXED_SUFFIX, bare_question, log_suffix_once


@pytest.fixture
def write(tmp_path):
    """Factory of JSONL files."""
    return lambda rows, name="rows.jsonl": write_rows(tmp_path / name, rows)


def problem(question, answer, **extra):
    return {"problem": question, "answer": answer, **extra}


def questions(problems):
    return [prompt[-1]["content"] for prompt in problems["prompt"]]


def test_a_local_file_becomes_prompts_beside_its_own_columns(write):
    row = problem("Why?", 5, source="you")
    path = write([problem("What is 2 + 2?", 4, source="me"), row])
    assert load_problems(path)[1] == {
        **row,
        "id": "rows-1",
        "prompt": user("Why?"),
        "solution": "5",
    }
    assert load_problems(path, suffix="")["prompt"][1] == user("Why?")
    assert load_problems(path, suffix=BOXED_SUFFIX)["prompt"][1] == user(f"Why?{BOXED_SUFFIX}")


def test_a_named_source_reads_a_local_copy_with_all_its_columns(write):
    (row,) = load_problems(f"deepmath_103k={write([DEEPMATH])}", suffix=BOXED_SUFFIX)
    prompt = user(DEEPMATH["question"] + BOXED_SUFFIX)
    assert row == {
        **DEEPMATH,
        "id": "deepmath_103k-0",
        "prompt": prompt,
        "solution": "1",
    }
    # its own column of this name is a worked solution
    assert load_problems(f"math500={write([MATH500])}")["solution"][:] == [MATH500["answer"]]


@pytest.mark.parametrize("row", [dapo_row("Why?", "5"), SLIME, {"messages": SLIME["prompt"], "answer": "42"}])
def test_a_suffix_replaces_the_template_around_a_question_which_stays_without_one(row, write):
    path = write([row])
    (message,) = row.get("prompt") or row["messages"]
    text = message["content"]
    assert questions(load_problems(path, suffix="")) == [text.strip()]
    assert questions(load_problems(path, suffix=" Be brief.")) == [f"{bare_question(text)} Be brief."]


def test_what_is_appended_is_logged_once_and_messages_stay(write, caplog):
    log_suffix_once.cache_clear()
    load_problems(write([{**TRL, "prompt": user("Why?")}]), suffix=" Be brief.")
    assert not caplog.records
    path = write([TRL])
    for _ in range(2):
        load_problems(path, suffix=" Be brief.")
        load_training_rows(path, test_split="train", suffix=" Be brief.")
    (record,) = caplog.records
    assert "prompt_suffix ' Be brief.'" in record.getMessage()


def test_repeats_and_contradictions_of_training_data_are_left_out_and_counted_in_one_line(write, caplog):
    rows = [
        dapo_row("One?", "1", "a"),
        dapo_row("Two?", "2", "b"),
        dapo_row("One?", "1", "a"),  # a copy
        dapo_row("Two?", "2", "c"),  # says the same under another index
        dapo_row("Three?", "3", "d"),
        dapo_row("Three?", "4", "e"),  # contradicts
        dapo_row("Three?", "4", "f"),  # and repeats
        dapo_row("One?", "1", "g") | {"chat_template_kwargs": {"effort": "low"}},  # asked otherwise
    ]
    problems = load_problems(write(rows), "train")
    assert problems["id"][:] == ["a", "b", "g"]
    assert problems["solution"][:] == ["1", "2", "1"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "rows: 3 problems of 8 rows; 3 repeats of prompt and answer, 1 prompts" in record.getMessage()


def test_ids_that_are_not_unique_are_replaced_and_it_is_said(write, caplog):
    # a row with the same index and another prompt is no copy
    rows = [dapo_row("One?", "1", "0"), dapo_row("One?", "1", "0"), dapo_row("Two?", "2", "0")]
    assert load_problems(write(rows), "train")["id"][:] == ["rows-0", "rows-2"]
    assert "not unique" in caplog.text


def test_a_benchmark_keeps_every_row(write, caplog):
    path = write([problem("One?", answer) for answer in ("1", "1", "2")])
    assert load_problems(path)["solution"][:] == ["1", "1", "2"]
    assert caplog.text == ""
    assert len(load_problems(path, "train")) == 0


def test_the_same_prompt_with_two_targets_is_two_problems(write):
    problems = load_problems(write([{**TRL, "target_length": target} for target in (512, 1024, 512)]), "train")
    assert problems["target_length"][:] == [512, 1024]


def test_limit_keeps_the_first_problems(write):
    path = write([problem(f"What is {number}?", number) for number in range(5)])
    assert load_problems(path, limit=2)["solution"][:] == ["0", "1"]
    assert len(load_problems(path, limit=9)) == 5


@pytest.mark.parametrize("limit", [-1, 0])
def test_a_limit_drops_no_problems_from_the_end(limit, write):
    path = write([problem(f"What is {number}?", number) for number in range(5)])
    with pytest.raises(ValueError, match=f"limit is {limit}"):
        load_problems(path, limit=limit)


def test_a_conversation_without_messages_is_an_error_that_names_its_row(write):
    talk = [{"role": "user", "content": "3 + 4?"}, {"role": "assistant", "content": "7"}]
    with pytest.raises(ValueError, match="row 1"):
        load_problems(write([{"messages": talk}, {"messages": []}]))


def test_every_kind_of_file_and_folder_gives_the_same_problems(write, tmp_path):
    rows = [
        {
            "id": "a",
            "prompt": "What?",
            "solution": "033",
            "target_length": 5,
            "total": 7,
            "code": "07",
        },
        {
            "id": "b",
            "prompt": "Is there\none?",
            "solution": "None",
            "target_length": None,
            "total": 8,
            "code": "8",
        },
    ]
    dataset = Dataset.from_list(rows)
    dataset.to_parquet(tmp_path / "a.parquet")
    dataset.to_csv(tmp_path / "a.csv")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    dataset.save_to_disk(tmp_path / "saved")
    DatasetDict({"train": dataset, "test": dataset.select([0])}).save_to_disk(tmp_path / "saved_splits")
    write(rows, "folder/train.jsonl")
    tables = tmp_path / "tables" / "data"
    tables.mkdir(parents=True)
    dataset.to_csv(tables / "train-0.tsv", sep="\t")
    expected = load_problems(write(rows)).to_list()
    assert expected[0]["solution"] == "033"
    dataset.to_csv(tmp_path / "a[1].csv")
    dataset.select([1]).to_csv(tmp_path / "a1.csv")  # what the pattern a[1].csv matches
    for name in ("a.parquet", "a.csv", "a[1].csv", "a.json", "saved", "folder", "tables"):
        assert load_problems(str(tmp_path / name)).to_list() == expected
    assert load_problems(str(tmp_path / "saved_splits"), split="test").to_list() == expected[:1]


def test_splits_are_named_where_the_choice_is_open_or_wrong(write, tmp_path):
    for split in ("train", "test"):
        write([problem(f"From {split}?", "1")], f"folder/{split}.jsonl")
    folder = str(tmp_path / "folder")
    assert questions(load_problems(folder, split="test", suffix="")) == ["From test?"]
    # a named source knows its split
    assert questions(load_problems(f"math500={folder}", suffix="")) == ["From test?"]
    with pytest.raises(ValueError, match=r"split is None.*train"):
        load_problems(folder)
    for reference in (f"math500={folder}", "gym"):
        with pytest.raises(ValueError, match=r"split is 'dev'.*train"):
            load_problems(reference, split="dev")


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("a.jsonl", '{"text": "x"}\n', "text"),
        ("a.jsonl", '{"problem": "x", "answer": "1"}\n{"problem": "y", "answer": null}\n', "a, row 1 .*'answer'"),
        ("a.txt", "hello", ".txt"),
    ],
)
def test_files_that_hold_no_problems_are_errors(tmp_path, name, text, named):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=named):
        load_problems(str(tmp_path / name))


def test_fingerprint_sees_ids_prompts_solutions_and_order_and_of_other_columns_those_asked_for():
    first = {"id": "a", "prompt": "One?", "solution": "1", "level": "1"}
    second = {"id": "b", "prompt": "Two?", "solution": "2", "level": "1"}
    original = Dataset.from_list([first, second])
    changed = {column: Dataset.from_list([{**first, column: "9"}, second]) for column in first}
    different = [original, original.select([1, 0]), changed["id"], changed["prompt"], changed["solution"]]
    assert len({fingerprint(problems) for problems in different}) == 5
    assert fingerprint(original) == fingerprint(changed["level"])
    assert fingerprint(original, ["id", "level"]) != fingerprint(changed["level"], ["id", "level"])


def test_real_benchmarks_are_read_whole(shared_data):
    for name, file, size in [
        ("aime24", "aime24", 30),
        ("amc23", "amc23", 40),
        ("math500", "math500", 500),
        ("gsm8k", "gsm8k_test", 1319),
    ]:
        assert len(load_problems(f"{name}={shared_data / file}.jsonl")) == size


def test_real_dapo_questions_are_deduplicated(shared_data, caplog):
    problems = load_problems(str(shared_data / "dapo_17k_questions.jsonl"), "train")
    # The data's notes count 627 rows whose text occurred before and 11 texts with two answers: 616 repeats of text and
    # answer and 11 contradictions, blanks at the ends counting. Without those blanks there are 650 and 12.
    assert "650 repeats" in caplog.text
    assert "12 prompts" in caplog.text
    assert len(problems) == len(set(questions(problems))) == 17_917 - 650 - 2 * 12


def test_a_question_stays_text_for_a_base_model_whatever_its_source_has_beside_it(write):
    path = write([{"question": "Why?", "answer": "1", "prompt": user("Hm.")}])
    assert load_problems(path, suffix="", has_chat_template=False)["prompt"][:] == ["Why?"]
