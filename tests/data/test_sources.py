"""What names on a command line stand for, and the templates that published data have around a question."""

import re

import pytest

from leash_trl.data.prompts import BOXED_SUFFIX, DAPO_HEADS, DAPO_TAIL, bare_question
from leash_trl.data.sources import SOURCES, Reference, parse_reference


@pytest.mark.parametrize("name", sorted(SOURCES.keys() - {"reasoning_gym"}))
def test_a_source_by_its_name_is_the_source_by_its_hub_id(name):
    source = SOURCES[name]
    expected = Reference(source.name, source, hub_id=source.hub_id, config=source.config)
    assert parse_reference(name) == expected
    if source.hub_id is not None:
        assert parse_reference(source.hub_id) == expected


def test_a_source_may_have_another_configuration():
    socratic = Reference("gsm8k", SOURCES["gsm8k"], hub_id="openai/gsm8k", config="socratic")
    assert parse_reference("openai/gsm8k:socratic") == parse_reference("gsm8k", config="socratic") == socratic


def test_other_hub_ids_are_other_data():
    assert parse_reference("owner/name") == Reference("name", hub_id="owner/name")
    assert parse_reference("owner/name:en") == Reference("name", hub_id="owner/name", config="en")


def test_a_reference_may_be_a_path_and_a_source_comes_before_a_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aime24").mkdir()
    file = tmp_path / "lr=0.1" / "rows.jsonl"
    file.parent.mkdir()
    file.write_text("{}\n")
    assert parse_reference("lr=0.1/rows.jsonl").path.resolve() == file
    assert parse_reference(str(file), config="en") == Reference("rows", path=file, config="en")
    assert parse_reference(f"amc23={file}") == Reference("amc23", SOURCES["amc23"], path=file)
    assert parse_reference("aime24").path is None  # a source comes before a folder of its name
    assert parse_reference("./aime24").path is not None


@pytest.mark.parametrize("text", ["aime42", "owner/", "", "nothing=rows.jsonl", "nothing=./rows", "amc23="])
def test_what_is_nothing_is_an_error_that_lists_the_names(text):
    with pytest.raises(ValueError, match="aime24"):
        parse_reference(text)


@pytest.mark.parametrize(
    "text",
    [
        "a/b/c",
        "rows.jsonl",
        "./rows",
        "~/missing.jsonl",
        "here/missing",
        "amc23=./rows",
    ],
)
def test_a_path_that_does_not_exist_is_called_that(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    path = text.removeprefix("amc23=")
    with pytest.raises(ValueError, match=f"benchmarks .*{re.escape(path)}") as failure:
        parse_reference(text, field="benchmarks")
    assert "\n" not in str(failure.value)
    assert "aime24" not in str(failure.value)  # nor are the names of data sets of any use


def test_a_name_without_a_folder_of_its_owner_here_is_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_reference("there/name").hub_id == "there/name"


QUESTION = "Let $x + 1 = 4$.\n\nWhat is $x$?"


@pytest.mark.parametrize(
    ("head", "tail"),
    [("", ""), ("\n", f"{BOXED_SUFFIX}\n"), ("", f" {BOXED_SUFFIX}"), *((head, DAPO_TAIL) for head in DAPO_HEADS)],
)
def test_a_bare_question_is_without_every_known_template(head, tail):
    assert bare_question(f"{head}{QUESTION}{tail}") == QUESTION
    quoted = f"What does this ask?{head}{tail} Discuss."  # inside the question it stays
    assert bare_question(quoted) == quoted
