"""BibTeX of exactly what a run used, in the model card and from `leash methods --cite`."""

import re
import sys
from dataclasses import fields

import pytest
import saved_run
import yaml
from conftest import ROOT

from leash_trl import LeashGRPOConfig
from leash_trl.citations import bibtex, citations
from leash_trl.cli.main import main
from leash_trl.length_control import Paper
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.methods import METHODS


LEASH = "arxiv2512.21540"
DAPO = "arxiv2503.14476"
GDPO = "arxiv2601.05242"
SOFTWARE = ["vonwerra2020trl", "leash_trl"]
WITHOUT_DAPO = {"loss_type": "grpo", "epsilon_high": None}


def keys(text):
    return re.findall(r"^@\w+\{(.+),$", text, re.MULTILINE)


def keys_of(name, **recipe):
    return keys("\n".join(citations(METHODS[name], recipe)))


@pytest.mark.parametrize(
    ("name", "recipe", "papers"),
    [
        ("leash", {}, [LEASH, DAPO]),
        ("leash_predictive", {}, [LEASH, DAPO]),  # ours, which is derived from LEASH
        ("dapo_overlong", {}, [DAPO]),
        ("dapo_overlong", WITHOUT_DAPO, [DAPO]),
        ("none", {"multi_objective_aggregation": "normalize_then_sum"}, [DAPO, GDPO]),
        ("leash", WITHOUT_DAPO, [LEASH]),
        ("leash", {"loss_type": "grpo"}, [LEASH, DAPO]),  # clip-higher
        ("leash", {"epsilon_high": None}, [LEASH, DAPO]),  # the loss
        ("leash", WITHOUT_DAPO | {"dynamic_sampling_rounds": 2}, [LEASH, DAPO]),
        ("leash", WITHOUT_DAPO | {"mask_truncated_completions": True}, [LEASH, DAPO]),
    ],
)
def test_a_run_is_cited_by_what_it_used_and_by_nothing_else(name, recipe, papers):
    assert keys_of(name, **recipe) == [*papers, *SOFTWARE]


def test_fields_that_a_recipe_leaves_out_have_the_values_of_the_configuration():
    defaults = {field.name: field.default for field in fields(LeashGRPOConfig)}
    for changed in ({}, {"loss_type": "grpo"}, {"epsilon_high": None}, WITHOUT_DAPO):
        assert keys_of("leash", **changed) == keys_of("leash", **defaults | changed)


def test_a_preprint_has_the_year_of_its_id_and_no_author_that_is_not_known():
    assert bibtex(Paper("On {Length}", "2601.00001")).splitlines() == [
        "@misc{arxiv2601.00001,",
        "  title = {{On {Length}}},",
        "  year = {2026},",
        "  eprint = {2601.00001},",
        "  archivePrefix = {arXiv},",
        "}",
    ]


def test_the_entries_of_all_methods_are_whole():
    for method in METHODS.values():
        for entry in citations(method, {"multi_objective_aggregation": "normalize_then_sum"}):
            assert entry.count("{") == entry.count("}")
            assert len(keys(entry)) == 1
            assert entry.endswith("}")


def test_this_software_and_its_paper_are_cited_as_in_the_file_for_citing_it():
    file = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (author,) = file["authors"]
    software = citations(Leash, {})[-1]
    assert f"title = {{{{{file['title']}}}}}" in software
    assert f"author = {{{{{author['name']}}}}}" in software
    assert f"license = {{{file['license']}}}" in software
    (paper,) = file["references"]
    entry = bibtex(Leash.paper)
    assert entry.startswith("@inproceedings{")
    authors = [f"{author['given-names']} {author['family-names']}" for author in paper["authors"]]
    assert f"author = {{{' and '.join(authors)}}}" in entry
    assert f"title = {{{{{paper['title']}}}}}" in entry
    assert f"booktitle = {{{paper['collection-title']}}}" in entry
    assert f"pages = {{{paper['start']}--{paper['end']}}}" in entry
    assert f"year = {{{paper['year']}}}" in entry
    assert f"url = {{{paper['url']}}}" in entry


@pytest.fixture
def cited(capsys):
    """Runs `leash methods --cite NAME`, and returns the keys that it prints."""

    def run(name):
        assert main(["methods", "--cite", str(name)]) == 0
        return keys(capsys.readouterr().out)

    return run


def test_a_run_or_a_checkpoint_is_cited_by_its_saved_recipe(cited, tmp_path):
    run = saved_run.save(tmp_path / "run", 4, recipe={"length_control": "gfpo", **WITHOUT_DAPO})
    checkpoint = run / "checkpoint-2"
    checkpoint.mkdir()
    assert cited(run) == cited(checkpoint) == ["arxiv2508.09726", *SOFTWARE]


def test_a_recipe_without_a_method_has_that_of_the_configuration(cited, tmp_path):
    assert cited(saved_run.save(tmp_path / "run", 4)) == [LEASH, DAPO, *SOFTWARE]


def test_a_method_of_the_users_own_is_cited_by_its_path(cited, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "cited_methods.py").write_text(
        "from leash_trl.length_control import LengthControl, Paper\n\n\n"
        "class Mine(LengthControl):\n    name = 'mine'\n    paper = Paper('Mine', '2611.00001')\n"
    )
    assert cited(f"{tmp_path}/cited_methods.py:Mine") == ["arxiv2611.00001", DAPO, *SOFTWARE]


def test_a_method_is_cited_by_its_name_and_says_in_a_comment_that_it_has_no_paper(capsys):
    assert main(["methods", "--cite", "prime_rl"]) == 0
    printed = capsys.readouterr().out
    assert keys(printed) == [DAPO, *SOFTWARE]
    (comment,) = [line for line in printed.splitlines() if line.startswith("%")]
    assert "prime_rl" in comment
