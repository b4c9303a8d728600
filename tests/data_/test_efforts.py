"""Efforts: one question per effort, each with its word and target."""

import pytest
from datasets import Dataset

from leash_trl.data import with_efforts
from leash_trl.data.efforts import EFFORT_SUFFIX, check_efforts_differ
from leash_trl.gym.tokenizer import build_tokenizer


def asked(*questions):
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": question}], "solution": question[0]} for question in questions]
    )


def test_each_question_is_asked_once_per_effort():
    rows = with_efforts(asked("1 + 1?", "2 + 2?"), {"low": 64, "high": 512})
    assert [row["prompt"][-1]["content"] for row in rows] == [
        "1 + 1? Effort: low.",
        "1 + 1? Effort: high.",
        "2 + 2? Effort: low.",
        "2 + 2? Effort: high.",
    ]
    assert rows["effort"][:] == ["low", "high"] * 2
    assert rows["target_length"][:] == [64, 512] * 2
    assert rows["solution"][:] == ["1", "1", "2", "2"]


def test_text_prompts_streams_and_other_words():
    stream = Dataset.from_list([{"prompt": "1 + 1?"}]).to_iterable_dataset()
    rows = [*with_efforts(stream, {"low": 64, "high": 512}, " ({effort} effort)")]
    assert [row["prompt"] for row in rows] == ["1 + 1? (low effort)", "1 + 1? (high effort)"]
    assert [row["target_length"] for row in rows] == [64, 512]


@pytest.mark.parametrize(
    ("efforts", "suffix", "named"),
    [
        ({"low": 0}, " {effort}", "'low': 0"),
        ({"low": "64"}, " {effort}", "'low': '64'"),
        ({"low": True}, " {effort}", "'low': True"),
        ({1: 64}, " {effort}", "1: 64"),
        ({"low": 64}, " brief", "effort_suffix"),
        ({False: 64}, " {effort}", "'off'"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(efforts, suffix, named):
    with pytest.raises(ValueError, match=named):
        with_efforts(asked("1 + 1?"), efforts, suffix)


@pytest.mark.parametrize(("column", "value"), [("effort", "x"), ("target_length", 9)])
def test_a_column_of_the_data_is_not_overwritten(column, value):
    with pytest.raises(ValueError, match=f"'{column}' already"):
        with_efforts(asked("1 + 1?").add_column(column, [value]), {"low": 64})


def test_efforts_that_a_tokenizer_reads_alike_are_refused():
    tokenizer = build_tokenizer()
    check_efforts_differ(tokenizer, {"low": 9, "medium": 12, "high": 15}, EFFORT_SUFFIX)
    with pytest.raises(ValueError, match="'brief' and 'fully'"):
        check_efforts_differ(tokenizer, {"brief": 9, "fully": 15}, EFFORT_SUFFIX)
