"""Problems from files, folders, the gym and the Hub's schemas; repeats, contradictions, ids and errors."""

import json
import logging

import datasets
import pytest
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetNotFoundError
from test_schemas import AIME24, AIMO_AMC, DEEPMATH, GPQA, HMMT, MATH500, MMLU_PRO, TRL, dapo_row

from leash_trl.data import splits
from leash_trl.data.problems import fingerprint, load_problems
from leash_trl.data.prompts import BOXED_SUFFIX
from leash_trl.data.sources import SOURCES


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def write_rows(tmp_path):
    """Factory of JSONL files."""

    def write(rows: list[dict], name: str = "rows.jsonl") -> str:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write


def problem(question: str, answer: str, **extra) -> dict:
    return {"problem": question, "answer": answer, **extra}


def questions(problems) -> list[str]:
    return [prompt[-1]["content"] for prompt in problems["prompt"]]


def test_a_local_file_becomes_prompts_with_the_release_s_suffix(write_rows):
    problems = load_problems(write_rows([problem("What is 2 + 2?", 4), problem("What is 2 + 3?", 5)]))
    assert problems.column_names == ["id", "prompt", "solution"]
    assert problems[1] == {
        "id": "rows-1",
        "prompt": [{"role": "user", "content": f"What is 2 + 3?{BOXED_SUFFIX}"}],
        "solution": "5",
    }


@pytest.mark.parametrize(("suffix", "expected"), [("", "What?"), (" Be brief.", "What? Be brief.")])
def test_suffix_is_what_was_asked_for(write_rows, suffix, expected):
    assert questions(load_problems(write_rows([problem("What?", "4")]), suffix=suffix)) == [expected]


def test_no_suffix_is_put_twice_or_on_conversations(write_rows):
    rows = [{"prompt": f"What?{BOXED_SUFFIX}", "solution": "4"}]
    assert questions(load_problems(write_rows(rows))) == [f"What?{BOXED_SUFFIX}"]
    rows = [{"prompt": [{"role": "user", "content": "What?"}], "solution": "4"}]
    assert questions(load_problems(write_rows(rows))) == ["What?"]


def test_what_was_loaded_and_written_loads_as_it_was(write_rows, tmp_path):
    problems = load_problems(
        write_rows([{**TRL, "id": "a"}, {"prompt": "Why?", "solution": "5", "target_length": 9, "id": "b"}])
    )
    problems.to_json(tmp_path / "again.jsonl")
    again = load_problems(str(tmp_path / "again.jsonl"))
    assert again.to_list() == problems.to_list()
    assert fingerprint(again) == fingerprint(problems)


@pytest.mark.parametrize(
    ("name", "row", "expected"),
    [
        ("dapo_math_17k", dapo_row("What is 2 + 2?", "4", "uuid"), {"id": "uuid", "solution": "4"}),
        ("deepmath_103k", DEEPMATH, {"id": "deepmath_103k-0", "solution": "1", "difficulty": 4.5}),
        ("aime24", AIME24, {"id": "60", "solution": "033"}),
        ("hmmt_feb25", HMMT, {"id": "3", "solution": "\\frac{1}{576}"}),
        ("amc", AIMO_AMC, {"id": "4", "solution": "142"}),
        ("math500", MATH500, {"id": "test/precalculus/807.json", "level": 2, "subject": "Precalculus"}),
        ("gpqa_diamond", GPQA, {"id": "rec0001", "subject": "Organic Chemistry"}),
        ("mmlu_pro", MMLU_PRO, {"id": "70", "solution": "B", "subject": "math"}),
    ],
)
def test_a_named_source_reads_a_local_copy(write_rows, name, row, expected):
    problems = load_problems(f"{name}={write_rows([row])}")
    assert len(problems) == 1
    assert expected.items() <= problems[0].items()
    assert problems[0]["prompt"][0]["content"].endswith(BOXED_SUFFIX)
    assert not set(problems.column_names) - {
        *("id", "prompt", "solution", "target_length", "level", "subject", "difficulty", "data_source")
    }


def test_copies_repeats_and_contradictions_of_training_data_are_left_out_and_counted(write_rows, caplog):
    rows = [
        dapo_row("One?", "1", "a"),
        dapo_row("Two?", "2", "b"),
        dapo_row("One?", "1", "a"),  # a copy
        dapo_row("Two?", "2", "c"),  # says the same under another index
        dapo_row("Three?", "3", "d"),
        dapo_row("Three?", "4", "e"),  # contradicts
        dapo_row("Three?", "4", "f"),  # and repeats
        dapo_row("Four?", "4", "g"),
    ]
    problems = load_problems(write_rows(rows))
    assert (problems["id"][:], problems["solution"][:]) == (["a", "b", "g"], ["1", "2", "4"])
    # 8 rows - 1 copy - 2 repeats = 5, of which 2 contradict each other
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "rows: 3 problems of 8 rows; 1 copies of a row; 2 repeats of prompt and answer; "
        "1 prompts with different answers"
    )


def test_a_row_with_the_same_index_and_another_prompt_is_no_copy(write_rows):
    rows = [dapo_row("One?", "1", "0"), dapo_row("One?", "1", "0"), dapo_row("Two?", "2", "0")]
    assert load_problems(write_rows(rows))["id"][:] == ["rows-0", "rows-2"]


def test_ids_made_here_are_rows_of_the_file(write_rows):
    rows = [{**dapo_row(question, "1"), "extra_info": {"index": None}} for question in ("One?", "One?", "Two?")]
    assert load_problems(write_rows(rows))["id"][:] == ["rows-0", "rows-2"]


def test_a_part_of_training_data_is_no_reason_to_warn(write_rows, caplog):
    load_problems(f"dapo_math_17k={write_rows([dapo_row('One?', '1')])}")
    assert caplog.text == ""


def test_a_benchmark_keeps_every_row(write_rows, caplog):
    rows = [problem("One?", "1"), problem("One?", "1"), problem("One?", "2")]
    problems = load_problems(f"aime24={write_rows(rows)}")
    assert problems["solution"][:] == ["1", "1", "2"]
    assert "3 rows; 1 repeats of prompt and answer; 1 prompts with different answers" in caplog.text
    assert "aime24 has 3 rows, but is known to have 30" in caplog.text


def test_a_benchmark_keeps_copies_too(write_rows):
    rows = [dapo_row("One?", "1", "a"), dapo_row("One?", "1", "a")]
    assert load_problems(f"aime24={write_rows(rows)}")["id"][:] == ["aime24-0", "aime24-1"]


def test_the_same_prompt_with_two_targets_is_two_problems(write_rows):
    rows = [{**TRL, "target_length": target} for target in (512, 1024, 512)]
    problems = load_problems(write_rows(rows))
    assert problems["target_length"][:] == [512, 1024]


def test_columns_of_numbers_give_golds_and_ids_as_text(write_rows):
    rows = [{"id": number, "prompt": f"What is {number}?", "solution": number} for number in (7, 8)]
    assert load_problems(write_rows(rows)).remove_columns("prompt").to_list() == [
        {"id": "7", "solution": "7"},
        {"id": "8", "solution": "8"},
    ]


def test_ids_that_are_not_unique_are_replaced_and_it_is_said(write_rows, caplog):
    rows = [problem("One?", "1", id=1), problem("One?", "1", id=2), problem("Two?", "2", id=1)]
    assert load_problems(write_rows(rows))["id"][:] == ["rows-0", "rows-2"]
    assert "not unique" in caplog.text


def test_limit_keeps_the_first_problems_and_is_positive(write_rows):
    path = write_rows([problem(f"What is {number}?", number) for number in range(5)])
    assert load_problems(path, limit=2).to_list() == load_problems(path).to_list()[:2]
    assert len(load_problems(path, limit=9)) == 5
    with pytest.raises(ValueError, match="limit is 0, must be 1 or more"):
        load_problems(path, limit=0)


def test_every_kind_of_file_and_folder_gives_the_same_problems(write_rows, tmp_path):
    rows = [{"id": "a", "prompt": "What?", "solution": "033", "target_length": 5}]
    rows += [{"id": "b", "prompt": "Is there\none?", "solution": "None", "target_length": 6}]
    dataset = Dataset.from_list(rows)
    dataset.to_parquet(tmp_path / "a.parquet")
    dataset.to_csv(tmp_path / "a.csv")
    (tmp_path / "a.json").write_text(json.dumps(rows))
    dataset.save_to_disk(tmp_path / "saved")
    DatasetDict({"train": dataset, "test": dataset.select([0])}).save_to_disk(tmp_path / "saved_splits")
    (tmp_path / "folder").mkdir()
    write_rows(rows, "folder/train.jsonl")
    expected = load_problems(write_rows(rows)).to_list()
    assert expected[0]["solution"] == "033"
    for name in ("a.parquet", "a.csv", "a.json", "saved", "folder"):
        assert load_problems(str(tmp_path / name)).to_list() == expected
    assert load_problems(str(tmp_path / "saved_splits"), split="test").to_list() == expected[:1]


def test_splits_are_named_where_the_choice_is_open_or_wrong(write_rows, tmp_path):
    (tmp_path / "folder").mkdir()
    for split in ("train", "test"):
        write_rows([problem(f"From {split}?", "1")], f"folder/{split}.jsonl")
    folder = str(tmp_path / "folder")
    assert questions(load_problems(folder, split="test", suffix="")) == ["From test?"]
    # a named source knows its split
    assert questions(load_problems(f"math500={folder}", suffix="")) == ["From test?"]
    with pytest.raises(ValueError, match=r"split is None, but folder has the splits .*; name one"):
        load_problems(folder)
    with pytest.raises(ValueError, match="split is 'dev', but math500 has the splits"):
        load_problems(f"math500={folder}", split="dev")
    with pytest.raises(ValueError, match="split is 'dev', but gym has the splits train, test"):
        load_problems("gym", split="dev")


def test_the_gym_is_a_source_with_both_splits():
    test = load_problems("gym_test")
    assert len(test) == 512
    assert (
        test.to_list()
        == load_problems("gym", split="test")
        .map(lambda row: {"id": row["id"].replace("gym-", "gym_test-")}, load_from_cache_file=False)
        .to_list()
    )
    assert test[0].keys() == {"id", "prompt", "solution", "level"}
    assert test[0]["prompt"][0]["content"].endswith(" = ?")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", "", "is empty"),
        ("a.jsonl", '{"problem": "x"\n', "cannot be read"),
        ("a.jsonl", '{"text": "x"}\n', "no known schema has the columns text"),
        (
            "a.jsonl",
            '{"problem": "x", "answer": "1"}\n{"problem": "y", "answer": null}\n',
            r"a, row 1 \(counted from 0\)",
        ),
        ("a.csv", "problem,answer\n", "has no rows"),
        ("a.txt", "hello", r"ends in '.txt', must be a folder or end in \.jsonl"),
    ],
)
def test_files_that_hold_no_problems_are_errors(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_problems(str(tmp_path / name))


def test_the_row_of_an_error_is_the_row_of_the_file(write_rows):
    rows = [dapo_row("One?", "1", "a"), dapo_row("One?", "1", "a"), dapo_row("Two?", " ", "b")]
    with pytest.raises(ValueError, match=r"rows, row 2 \(counted from 0\), read as verl: .*ground_truth' is empty"):
        load_problems(write_rows(rows))


def test_without_a_connection_it_says_what_to_do():
    with pytest.raises(ValueError, match=r"cannot load math-ai/amc23 .*Check the id and the connection.* amc23=PATH"):
        load_problems("amc23")
    with pytest.raises(ValueError, match=r"it is gated: accept its terms .*Idavidrein/gpqa.*`hf auth login`"):
        load_problems("gpqa_diamond")
    with pytest.raises(ValueError, match=r"cannot load owner/nothing from the Hub .*or name a local copy$"):
        load_problems("owner/nothing")


def test_a_gated_data_set_that_is_not_in_the_table_is_told_apart(monkeypatch):
    def refuse(*_):
        # as datasets words it
        raise DatasetNotFoundError("Dataset 'owner/name' is a gated dataset on the Hub. You must be authenticated.")

    monkeypatch.setattr(splits, "load_dataset", refuse)
    with pytest.raises(ValueError, match="it is gated: accept its terms on the Hub's page of owner/name"):
        load_problems("owner/name")


def test_the_hub_is_asked_for_the_source_s_id_configuration_and_split(monkeypatch):
    asked = []

    def answer(*arguments, **options):
        asked.append(arguments)
        rows = {"question": ["How many?"], "answer": ["#### 9"]}
        return DatasetDict(
            {"train": Dataset.from_dict(rows), "test": Dataset.from_dict({**rows, "answer": ["#### 8"]})}
        )

    monkeypatch.setattr(splits, "load_dataset", answer)
    assert load_problems("gsm8k")["solution"][:] == ["8"]
    assert load_problems("owner/name:socratic", split="train")["solution"][:] == ["9"]
    assert asked == [("openai/gsm8k", "main"), ("owner/name", "socratic")]


def test_fingerprint_sees_ids_prompts_solutions_and_order_and_nothing_else(write_rows):
    rows = [problem("One?", "1", id="a", level=1), problem("Two?", "2", id="b", level=1)]
    changed = [
        [{**rows[0], "problem": "Uno?"}, rows[1]],
        [{**rows[0], "answer": "11"}, rows[1]],
        [{**rows[0], "id": "c"}, rows[1]],
        rows[::-1],
        rows[:1],
    ]
    first = fingerprint(load_problems(write_rows(rows)))
    assert len(first) == 16
    assert int(first, 16) >= 0
    assert first == fingerprint(load_problems(write_rows([{**row, "level": 2} for row in rows], "other.jsonl")))
    others = {fingerprint(load_problems(write_rows(version, f"{i}.jsonl"))) for i, version in enumerate(changed)}
    assert len(others | {first}) == 6


@pytest.mark.parametrize(
    ("name", "file"),
    [("aime24", "aime24"), ("amc23", "amc23"), ("math500", "math500"), ("gsm8k", "gsm8k_test")],
)
def test_real_benchmarks_have_the_rows_the_table_says(shared_data, name, file, caplog):
    assert len(load_problems(f"{name}={shared_data / file}.jsonl")) == SOURCES[name].num_rows
    assert caplog.text == ""


def test_real_dapo_questions_are_deduplicated(shared_data, caplog):
    problems = load_problems(str(shared_data / "dapo_17k_questions.jsonl"))
    # The data's notes count 627 rows whose text occurred before and 11 texts with two answers: 616 repeats of text and
    # answer and 11 contradictions, blanks at the ends counting. Without those blanks there are 650 and 12.
    assert "17,917 rows; 650 repeats of prompt and answer; 12 prompts with different answers" in caplog.text
    assert len(problems) == 17_917 - 650 - 2 * 12
    assert len(set(questions(problems))) == len(problems)


def test_the_caller_says_whether_a_file_is_a_benchmark_whose_rows_all_count(tmp_path):
    path = tmp_path / "mine.jsonl"
    rows = [{"problem": "1 + 1", "answer": answer} for answer in ("2", "2", "3")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(load_problems(str(path), kind="benchmark")) == 3
    assert len(load_problems(str(path), kind="train")) == 0
    assert len(load_problems(str(path))) == 0
