"""Efforts: one question per effort, each with its word and target."""

import re

import pytest
from datasets import Dataset

from leash_trl.completions.prompts import EFFORT_SUFFIX
from leash_trl.data import with_efforts
from leash_trl.data.efforts import check_efforts_differ


ROWS = Dataset.from_list([{"prompt": [{"role": "user", "content": f"{n} + 1?"}], "solution": n} for n in "12"])


def test_each_question_is_asked_once_per_effort():
    rows = with_efforts(ROWS, {"low": 64, "high": 512})
    assert [row["prompt"][-1]["content"] for row in rows] == [
        "1 + 1? Effort: low.",
        "1 + 1? Effort: high.",
        "2 + 1? Effort: low.",
        "2 + 1? Effort: high.",
    ]
    assert rows["effort"][:] == ["low", "high", "low", "high"]
    assert rows["target_length"][:] == [64, 512, 64, 512]
    assert rows["solution"][:] == ["1", "1", "2", "2"]


def test_text_prompts_streams_and_other_words():
    stream = Dataset.from_list([{"prompt": "1 + 1?"}]).to_iterable_dataset()
    assert [*with_efforts(stream, {"low": 64, "high": 512}, " ({effort} effort)")] == [
        {"prompt": "1 + 1? (low effort)", "effort": "low", "target_length": 64},
        {"prompt": "1 + 1? (high effort)", "effort": "high", "target_length": 512},
    ]


@pytest.mark.parametrize("efforts", [{"low": 0}, {"low": "64"}, {1: 64}, {False: 64}], ids=str)
def test_an_effort_without_name_or_positive_target_is_refused_by_name(efforts):
    with pytest.raises(ValueError, match=re.escape(str(efforts).strip("{}"))):
        with_efforts(ROWS, efforts)


def test_a_suffix_that_does_not_state_the_effort_is_refused():
    with pytest.raises(ValueError, match="effort_suffix is ' brief'"):
        with_efforts(ROWS, {"low": 64}, " brief")


@pytest.mark.parametrize("column", ["effort", "target_length"])
def test_a_column_of_the_data_is_not_overwritten(column):
    with pytest.raises(ValueError, match=f"'{column}'"):
        with_efforts(ROWS.add_column(column, [9, 9]), {"low": 64})


def test_efforts_that_a_tokenizer_reads_alike_are_refused(tokenizer):
    check_efforts_differ(tokenizer, {"low": 9, "medium": 12, "high": 15}, EFFORT_SUFFIX)
    with pytest.raises(ValueError, match="efforts are brief, fully"):
        check_efforts_differ(tokenizer, {"brief": 9, "fully": 15}, EFFORT_SUFFIX)
