"""What `leash train` trains on: the split that was named, all columns, and sources without repeats."""

import logging

import pytest
from datasets import Dataset, DatasetDict, IterableDataset
from published_rows import GSM8K, dapo_row, write_rows

from leash_trl.data import problems as reader
from leash_trl.data.problems import load_training_rows
from leash_trl.data.prompts import BOXED_SUFFIX, log_suffix_once


@pytest.fixture
def folder(tmp_path):
    """A folder of GSM8K's form, with a question for each split."""
    for split in ("train", "test"):
        write_rows(tmp_path / "folder" / f"{split}.jsonl", [{**GSM8K, "question": f"From {split}?"}])
    return tmp_path / "folder"


def questions(rows):
    return [row["prompt"][-1]["content"] for row in rows]


def test_a_named_source_gives_the_split_that_was_named(folder):
    train, test = load_training_rows(f"gsm8k={folder}", "train", "test", suffix="")
    assert questions(train) == ["From train?"]
    assert questions(test) == ["From test?"]
    with pytest.raises(ValueError, match="dataset_test_split is 'dev'"):
        load_training_rows(f"gsm8k={folder}", "train", "dev")


def test_a_named_source_gives_the_configuration_that_was_named(monkeypatch):
    calls = []

    def load_dataset(*arguments, streaming):
        calls.append(arguments)
        return DatasetDict({split: Dataset.from_list([GSM8K]) for split in ("train", "test")})

    monkeypatch.setattr(reader, "load_dataset", load_dataset)
    load_training_rows("gsm8k", config="socratic")
    assert calls == [("openai/gsm8k", "socratic")]


def test_a_folder_gives_the_configuration_that_was_named(folder):
    configs = [{"config_name": split, "data_files": f"{split}.jsonl"} for split in ("train", "test")]
    (folder / "README.md").write_text(f"---\nconfigs: {configs}\n---\n")
    assert questions(load_training_rows(str(folder), config="test", suffix="")[0]) == ["From test?"]


def test_a_named_source_is_streamed_on_request_and_it_is_said_that_repeats_stay(tmp_path, caplog):
    path = write_rows(tmp_path / "rows.jsonl", [dapo_row("One?", "1")] * 3)
    log_suffix_once(BOXED_SUFFIX)  # which is said once
    caplog.clear()
    rows, _ = load_training_rows(f"dapo_math_17k={path}", streaming=True, suffix=BOXED_SUFFIX)
    assert isinstance(rows, IterableDataset)
    assert questions(rows) == [f"One?{BOXED_SUFFIX}"] * 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_the_rows_of_a_benchmark_are_not_trained_on(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    for reference in ("gsm8k=folder", "gsm8k=folder/test.jsonl", "gym_test"):
        name, _, _ = reference.partition("=")
        with pytest.raises(ValueError, match=f"dataset_train_split is 'test', but {name}"):
            load_training_rows(reference, "test")
    with pytest.raises(ValueError, match="dataset_train_split is 'train', but math500"):
        load_training_rows("math500=folder/test.jsonl")


def test_a_source_is_without_repeats_by_name_and_by_hub_id_and_other_data_keep_theirs(tmp_path, monkeypatch):
    rows = [
        dapo_row("One?", "1"),
        dapo_row("One?", "1"),
        dapo_row("Two?", "1"),
        dapo_row("Two?", "2"),
    ]
    assert len(load_training_rows(write_rows(tmp_path / "rows.jsonl", rows))[0]) == 4
    monkeypatch.setattr(reader, "load_dataset", lambda *_, **__: DatasetDict(train=Dataset.from_list(rows)))
    for name in ("dapo_math_17k", "BytedTsinghua-SIA/DAPO-Math-17k"):
        assert load_training_rows(name)[0]["solution"][:] == ["1"]
    assert len(load_training_rows("owner/copy")[0]) == 4


def test_a_solution_that_is_no_text_stays_as_it_is_for_the_user_s_own_reward(tmp_path):
    rows = [
        {"prompt": "Say hi.", "solution": ["a", "b"]},
        {"prompt": "Say ho.", "solution": None},
    ]
    loaded, _ = load_training_rows(write_rows(tmp_path / "rows.jsonl", rows))
    assert loaded["solution"][:] == [["a", "b"], None]
