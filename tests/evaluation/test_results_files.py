"""What an evaluation writes: Markdown, CSV and JSON with the same numbers, and the Hub's forms, read by its client."""

import json
import math
import re

import pandas as pd
import pytest
from sampled_run import completion, problem, write_run

from leash_trl.evaluation.frame import changes, load_evaluated_run
from leash_trl.evaluation.tables import (
    results_markdown,
    summary_markdown,
    write_results,
)


RIGHT, WRONG, LONG = completion("1", 10, True), completion("9", 20, False), completion(None, 64, False)


def load(folder, label="base", **benchmarks):
    return load_evaluated_run(write_run(folder, benchmarks, label=label, step=7))


@pytest.fixture
def runs(tmp_path):
    """Accuracies 3/4 and 1 before, 1 and 1 after; tokens (15 + 10) / 2 = 12.5 and 64 / 2 = 37, then 10 and 10."""
    before = [problem(0, RIGHT, WRONG), problem(1, RIGHT, RIGHT)]
    after = [problem(0, RIGHT, RIGHT), problem(1, RIGHT, RIGHT)]
    baseline = load(tmp_path / "base", aime=before, amc=[problem(0, RIGHT, LONG)])
    return load(tmp_path / "run", "leash", aime=after, amc=[problem(0, RIGHT, RIGHT)]), baseline


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_the_papers_table_has_a_line_per_run(runs):
    head, _, base, leash = map(cells, results_markdown(*runs).splitlines()[:4])
    assert head[:3] == ["model", "aime Avg@2", "aime tokens"]
    assert head[5:] == ["overall Avg@2", "overall tokens"]
    assert [row[0] for row in (base, leash)] == ["base", "leash"]
    assert base[1].startswith("75.0 [")
    assert base[2].startswith("12.5 [")
    assert base[4] == "37.0"  # one problem gives no interval of tokens
    assert base[5].startswith("62.5 [")
    assert leash[5].startswith("100.0 [")


def test_every_metric_has_a_line_and_every_benchmark_a_column(runs):
    run, _ = runs
    lines = [cells(line) for line in results_markdown(run).partition("## leash")[2].splitlines() if line[:1] == "|"]
    assert lines[0] == ["metric", "aime", "amc", "overall"]
    names = [line[0] for line in lines[2:]]
    assert names[:5] == ["problems", "Avg@2", "pass@2", "maj@2", "short-1@2"]
    assert {"short-1@2 waiting tokens", "right within 64 tokens", "median tokens", "wrong tokens"} <= {*names}
    assert lines[-1] == ["wrong tokens", "", "", ""]


def test_differences_stand_below_with_signs(runs):
    aime, amc, overall = map(cells, summary_markdown(*runs).split("\n\n")[1].splitlines()[2:])
    assert [row[0] for row in (aime, amc, overall)] == ["aime", "amc", "overall"]
    assert aime[1].startswith("+25.0 [")
    assert aime[2].startswith("-2.5 [")
    assert aime[3].startswith("-20.0 [")
    assert amc[2] == "-27.0"


def test_one_benchmark_needs_no_mean_over_benchmarks(tmp_path):
    run = load(tmp_path / "run", aime=[problem(0, RIGHT, WRONG)])
    assert "overall" not in summary_markdown(run).partition("\n\n")[0]


def test_a_name_breaks_no_table(tmp_path):
    run = load(tmp_path / "run", "a|b\n<c>", aime=[problem(0, RIGHT)])
    assert len(cells(summary_markdown(run).splitlines()[2])) == 3
    assert "<c>" not in summary_markdown(run)


@pytest.fixture
def written(runs, tmp_path):
    """The rows of results.csv and the document of results.json."""
    write_results(tmp_path, *runs)
    return pd.read_csv(tmp_path / "results.csv"), json.loads((tmp_path / "results.json").read_text())


def test_csv_and_json_have_every_number_in_full(runs, written):
    rows, document = written
    run, baseline = runs
    changed = changes(run, baseline)
    assert rows["value"].tolist() == pytest.approx([*run.results["value"], *changed["value"]], rel=1e-15, nan_ok=True)
    assert [row["value"] for row in document["results"]] == rows["value"].replace(math.nan, None).tolist()
    assert [row["high"] for row in document["results"]] == rows["high"].replace(math.nan, None).tolist()
    assert rows["metric"].tolist()[-3:] == ["accuracy_change", "tokens_change", "relative_tokens_change"]
    assert rows[["label", "model", "step"]].drop_duplicates().to_numpy().tolist() == [["leash", "models/tiny", 7]]
    assert document["run"] == run.run
    assert document["baseline"] == "base"
    assert document["results"][0]["num_problems"] == 2


def test_few_problems_are_warned_of(runs):
    assert "aime has 2" in results_markdown(runs[0])
    assert "aime has 2" in summary_markdown(runs[0])
