"""What names on a command line stand for."""

import pytest

from leash_trl.data.sources import SOURCES, Reference, parse_reference


def test_names_of_the_table_are_their_keys():
    assert all(name == source.name for name, source in SOURCES.items())


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_by_its_name_is_the_source_by_its_hub_id(name):
    source = SOURCES[name]
    expected = Reference(name, source, hub_id=source.hub_id, config=source.config)
    assert parse_reference(name) == expected
    if source.hub_id is not None:
        assert parse_reference(source.hub_id) == expected
        assert parse_reference(source.hub_id, config=source.config or "default") == expected


def test_another_configuration_is_other_data():
    other = Reference("gsm8k", hub_id="openai/gsm8k", config="socratic")
    assert parse_reference("openai/gsm8k:socratic") == other
    assert parse_reference("gsm8k", config="socratic") == other


def test_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    (tmp_path / "aime24").mkdir()
    file = tmp_path / "lr=0.1" / "rows.jsonl"
    file.write_text("{}\n")
    assert parse_reference("lr=0.1/rows.jsonl").path.resolve() == file
    assert parse_reference(str(file)) == Reference("rows", path=file)
    assert parse_reference(f"amc23={file}") == Reference("amc23", SOURCES["amc23"], path=file)
    assert parse_reference("aime24").path is None  # a source comes before a folder of its name
    assert parse_reference("./aime24").path is not None


def test_other_hub_ids():
    assert parse_reference("owner/name") == Reference("name", hub_id="owner/name")
    assert parse_reference("owner/name:en") == Reference("name", hub_id="owner/name", config="en")


@pytest.mark.parametrize(
    "text", ["aime42", "a/b/c", "owner/", "", "rows/missing.jsonl", "nothing=rows.jsonl", "amc23="]
)
def test_what_is_nothing_is_an_error_that_lists_the_names(text):
    with pytest.raises(ValueError, match="aime24"):
        parse_reference(text)
