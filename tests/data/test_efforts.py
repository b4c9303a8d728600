"""Efforts: one question per effort, each with its word and target."""

import pytest
from datasets import Dataset

from leash_trl.completions.prompts import template_arguments
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


def test_a_suffix_that_does_not_state_the_effort_is_refused():
    with pytest.raises(ValueError, match="effort_suffix is ' brief'"):
        with_efforts(ROWS, {"low": 64}, " brief")


@pytest.mark.parametrize("template_kwargs", [None, {False: {"enable_thinking": False}}])
def test_a_name_that_yaml_reads_as_no_text_is_refused(template_kwargs):
    with pytest.raises(ValueError, match="efforts has False"):
        with_efforts(ROWS, {False: 9, True: 15}, template_kwargs=template_kwargs)  # {off: 9, on: 15} in YAML


@pytest.mark.parametrize("column", ["effort", "target_length", "chat_template_kwargs"])
def test_a_column_of_the_data_is_not_overwritten(column):
    with pytest.raises(ValueError, match=f"'{column}'"):
        with_efforts(ROWS.add_column(column, [9, 9]), {"low": 64}, template_kwargs={"low": {"brief": True}})


def test_efforts_that_a_template_renders_alike_are_refused(tokenizer):
    template = "{{ messages[0].content }}{% if not enable_thinking %}</think>{% endif %}"
    arguments = {"on": {"enable_thinking": True}, "off": {"enable_thinking": False}, "low": {"effort": "low"}}
    question = ROWS.select([0])
    on_and_off = with_efforts(question, {"on": 9, "off": 15}, template_kwargs={"on": arguments["on"]})
    check_efforts_differ(tokenizer, on_and_off, chat_template=template)
    all_efforts = with_efforts(question, {"on": 9, "off": 15, "low": 12}, template_kwargs=arguments)
    with pytest.raises(ValueError, match="efforts has off and low"):
        check_efforts_differ(tokenizer, all_efforts, chat_template=template)


TEMPLATE_KWARGS = {"low": {"reasoning_effort": "low"}, "off": {"enable_thinking": False}}


@pytest.mark.parametrize("states_columns", [True, False])
def test_efforts_by_arguments_of_the_template_add_no_words_also_to_streams(states_columns):
    stream = ROWS.to_iterable_dataset()
    if not states_columns:
        stream = stream.map(dict)
    for rows in (ROWS, stream):
        asked = [*with_efforts(rows, {"low": 64, "off": 9}, template_kwargs=TEMPLATE_KWARGS)]
        assert [row["prompt"][-1]["content"] for row in asked] == ["1 + 1?", "1 + 1?", "2 + 1?", "2 + 1?"]
        assert [template_arguments(row) for row in asked] == [TEMPLATE_KWARGS["low"], TEMPLATE_KWARGS["off"]] * 2


def test_words_may_stand_beside_arguments():
    asked = with_efforts(ROWS, {"low": 64, "off": 9}, " ({effort})", TEMPLATE_KWARGS)
    assert [row["prompt"][-1]["content"] for row in asked.select([0, 1])] == ["1 + 1? (low)", "1 + 1? (off)"]


def test_arguments_of_no_effort_are_refused():
    with pytest.raises(ValueError, match=r"^effort_template_kwargs has 'high'"):
        with_efforts(ROWS, {"low": 64, "off": 9}, template_kwargs={"high": {"reasoning_effort": "high"}})
