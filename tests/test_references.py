"""What names on a command line stand for."""

import pytest

from leash_trl.data.sources import SOURCES, Reference, parse_reference


def test_names_of_the_table_are_their_keys_and_benchmarks_say_how_many_rows_they_have():
    assert all(name == source.name for name, source in SOURCES.items())
    assert all(source.num_rows for source in SOURCES.values() if source.kind == "benchmark")


@pytest.mark.parametrize("name", SOURCES)
def test_a_named_source_is_its_data_set_on_the_hub(name):
    source = SOURCES[name]
    assert parse_reference(name) == Reference(name, source, hub_id=source.hub_id, config=source.config)


def test_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1").mkdir()
    file = tmp_path / "lr=0.1" / "rows.jsonl"
    file.write_text("{}\n")
    assert parse_reference("lr=0.1/rows.jsonl").path.resolve() == file
    assert parse_reference(str(file)) == Reference("rows", path=file)
    named = parse_reference(f"amc23={file}")
    assert (named.name, named.source, named.path, named.hub_id) == ("amc23", SOURCES["amc23"], file, None)
    assert named.is_benchmark


def test_a_named_source_comes_before_a_file_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aime24").mkdir()
    assert parse_reference("aime24").path is None
    assert parse_reference("./aime24").path is not None


def test_hub_ids():
    assert parse_reference("owner/name") == Reference("name", hub_id="owner/name")
    assert parse_reference("owner/name:en") == Reference("name", hub_id="owner/name", config="en")
    assert not parse_reference("owner/name").is_benchmark


@pytest.mark.parametrize(
    "text", ["aime42", "a/b/c", "/name", "owner/", "", "rows/missing.jsonl", "nothing=rows.jsonl"]
)
def test_what_is_nothing_is_an_error_that_lists_the_names(text):
    with pytest.raises(ValueError, match=r"is no data set.*aime24.*NAME=PATH"):
        parse_reference(text)


def test_a_named_source_at_a_path_that_is_not_there():
    with pytest.raises(ValueError, match=r"'amc23=missing.jsonl' names 'missing.jsonl', but there is no such"):
        parse_reference("amc23=missing.jsonl")
    with pytest.raises(ValueError, match="names '', but there is no such"):
        parse_reference("amc23=")
