"""What `leash train` trains on: the split that was named, all columns, and sources without repeats."""

import json
import logging

import datasets
import pytest
from datasets import Dataset, DatasetDict, IterableDataset
from published_rows import GSM8K, dapo_row

from leash_trl.cli.main import main
from leash_trl.data import problems as reader
from leash_trl.data.problems import load_training_rows


@pytest.fixture(autouse=True)
def cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def folder(tmp_path):
    """A folder of GSM8K's form, with a question for each split."""
    path = tmp_path / "folder"
    path.mkdir()
    for split in ("train", "test"):
        (path / f"{split}.jsonl").write_text(json.dumps({**GSM8K, "question": f"From {split}?"}) + "\n")
    return path


def questions(rows) -> list[str]:
    return [row["prompt"][-1]["content"] for row in rows]


def test_a_named_source_gives_the_split_that_was_named(folder):
    train, test = load_training_rows(f"gsm8k={folder}", "train", "test", suffix="")
    assert (questions(train), questions(test)) == (["From train?"], ["From test?"])


def test_a_named_source_gives_the_configuration_that_was_named(folder, monkeypatch):
    def answer(path, config, streaming):
        asked.append((path, config, streaming))
        return DatasetDict({split: Dataset.from_list([GSM8K]) for split in ("train", "test")})

    asked: list = []
    monkeypatch.setattr(reader, "load_dataset", answer)
    load_training_rows("gsm8k")
    load_training_rows("gsm8k", config="socratic")
    load_training_rows(f"gsm8k={folder}", config="socratic")
    load_training_rows("openai/gsm8k", streaming=True)
    assert asked == [
        ("openai/gsm8k", "main", False),
        ("openai/gsm8k", "socratic", False),
        (str(folder), "socratic", False),
        ("openai/gsm8k", "main", True),
    ]


def test_a_named_source_is_streamed_on_request_and_it_is_said_that_repeats_stay(tmp_path, caplog):
    (tmp_path / "rows.jsonl").write_text((json.dumps(dapo_row("One?", "1")) + "\n") * 3)
    rows, _ = load_training_rows(f"dapo_math_17k={tmp_path / 'rows.jsonl'}", streaming=True, suffix="")
    assert isinstance(rows, IterableDataset)
    assert questions(rows) == ["One?"] * 3
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert isinstance(load_training_rows("gym", streaming=True)[0], IterableDataset)


@pytest.mark.parametrize("where", ["folder", "folder/test.jsonl"])
def test_the_rows_of_a_benchmark_are_not_trained_on(where, folder):
    with pytest.raises(ValueError, match="dataset_train_split is 'test', but gsm8k"):
        load_training_rows(f"gsm8k={folder.parent / where}", "test")
    with pytest.raises(ValueError, match="dataset_train_split"):
        load_training_rows(f"math500={folder / 'test.jsonl'}")
    with pytest.raises(ValueError, match="dataset_train_split"):
        load_training_rows("gym_test", "test")


def test_a_source_is_without_repeats_by_name_and_by_hub_id_and_other_data_keep_theirs(tmp_path, monkeypatch):
    rows = [dapo_row("One?", "1"), dapo_row("One?", "1"), dapo_row("Two?", "1"), dapo_row("Two?", "2")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(load_training_rows(str(tmp_path / "rows.jsonl"))[0]) == 4
    monkeypatch.setattr(reader, "load_dataset", lambda *_, **__: DatasetDict(train=Dataset.from_list(rows)))
    for name in ("dapo_math_17k", "BytedTsinghua-SIA/DAPO-Math-17k"):
        assert load_training_rows(name)[0]["solution"][:] == ["1"]
    assert len(load_training_rows("owner/copy")[0]) == 4


def test_reward_functions_get_the_columns_of_the_file(tmp_path, monkeypatch):
    row = {"question": "1 + 1 = ?", "answer": "so #### 2", "hint": {"level": 1}, "topic": "sums"}
    (tmp_path / "rows.jsonl").write_text((json.dumps(row) + "\n") * 2)
    rows, _ = load_training_rows(str(tmp_path / "rows.jsonl"), suffix="")
    prompt = [{"role": "user", "content": "1 + 1 = ?"}]
    assert rows.to_list() == [{"prompt": prompt, "solution": "2", **row}] * 2
    asked = 'def by_answer(completions, answer, **kwargs):\n    return [float("2" in text) for text in answer]\n'
    (tmp_path / "rewards_by_answer.py").write_text(asked)
    (tmp_path / "rows.jsonl").write_text((json.dumps(row) + "\n") * 40)
    monkeypatch.chdir(tmp_path)
    fields = {"model_name_or_path": "gym", "use_cpu": "true", "bf16": "false", "report_to": "none", "max_steps": 1}
    fields |= {"target_length": 9, "max_completion_length": 12, "output_dir": "run", "save_strategy": "no"}
    fields |= {"per_device_train_batch_size": 4, "num_generations": 4, "gradient_accumulation_steps": 1}
    run = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    assert main(["train", *run, "--dataset_name", "rows.jsonl", "--reward_funcs", "rewards_by_answer.by_answer"]) == 0


def test_evaluating_on_a_single_file_is_refused_in_one_line_with_the_remedy(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(GSM8K) + "\n")
    with pytest.raises(ValueError, match=r"dataset_test_split is 'test'.*train\.jsonl and test\.jsonl") as error:
        load_training_rows(str(tmp_path / "rows.jsonl"), "train", "test")
    assert "\n" not in str(error.value)


def test_a_solution_that_is_no_text_stays_as_it_is_for_the_user_s_own_reward(tmp_path):
    rows = [{"prompt": "Say hi.", "solution": ["a", "b"]}, {"prompt": "Say ho.", "solution": None}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded, _ = load_training_rows(str(tmp_path / "rows.jsonl"))
    assert loaded["solution"][:] == [["a", "b"], None]
