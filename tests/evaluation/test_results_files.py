"""What an evaluation writes: Markdown, CSV and JSON with the same numbers, and the Hub's forms, read by its client."""

import json
import math
import re

import pandas as pd
import pytest
from sampled_run import completion, problem, write_run

from leash_trl.evaluation.changes import changes
from leash_trl.evaluation.runs import load_evaluated_run
from leash_trl.evaluation.tables import results_markdown, summary_markdown, summary_table, write_results


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


def rows_of(table):
    """The cells of a table, without intervals."""
    return [[re.sub(r" \[.*", "", cell) for cell in cells(line)] for line in table.splitlines() if line[:1] == "|"]


def test_the_papers_table_has_a_line_per_run_and_the_differences_stand_below(runs):
    table, differences = summary_markdown(*runs).split("\n\n")[:2]
    names = [f"{name} {metric}" for name in ("aime", "amc", "overall") for metric in ("Avg@2", "tokens")]
    head, _, *lines = rows_of(table)
    assert head == ["model", *names]
    assert lines[0] == ["base", "75.0", "12.5", "50.0", "37.0", "62.5", "24.8"]
    assert lines[1] == ["leash", "100.0", "10.0", "100.0", "10.0", "100.0", "10.0"]
    assert "75.0 [" in table
    assert "| 37.0 |" in table  # one problem gives no interval of tokens
    _, _, *lines = rows_of(differences)
    assert lines == [
        ["aime", "+25.0", "-2.5", "-20.0"],
        ["amc", "+50.0", "-27.0", "-73.0"],
        ["overall", "+37.5", "-14.8", "-59.6"],
    ]


def test_every_metric_has_a_line_and_every_benchmark_a_column(runs):
    lines = rows_of(results_markdown(runs[0]).partition("## leash")[2])
    assert lines[0] == ["metric", "aime", "amc", "overall"]
    assert lines[2] == ["problems", "2", "1", "3"]
    names = [line[0] for line in lines[3:]]
    assert names[:3] == ["Avg@2", "pass@2", "maj@2"]
    assert {"right within 64 tokens", "median tokens"} <= {*names}
    assert lines[-1] == ["wrong tokens", "", "", ""]


def test_a_name_breaks_no_table_and_one_benchmark_needs_no_mean_over_benchmarks(runs, tmp_path):
    run = load(tmp_path / "one", "a|b\n<c>", aime=[problem(0, RIGHT)])
    table = summary_markdown(run)
    assert len(cells(table.splitlines()[2])) == 3
    assert "<c>" not in table
    assert "aime has 1" in table  # which is few
    assert not [name for name in summary_table([run, runs[0]]) if "overall" in name]  # which has two


def test_csv_and_json_have_every_number_in_full(runs, tmp_path):
    write_results(tmp_path, *runs)
    rows, document = pd.read_csv(tmp_path / "results.csv"), json.loads((tmp_path / "results.json").read_text())
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


def test_a_metric_that_a_benchmark_lacks_has_an_empty_cell(tmp_path):
    decided = {**completion(None, 10, True), "reward": 1.0}
    undecided = {**completion(None, 10, None), "reward": 0.5}  # its correctness_func returned None
    run = load(tmp_path, aime=[problem(0, decided)], amc=[problem(0, undecided)])
    lines = rows_of(results_markdown(run).partition("## base")[2])
    assert ["Avg@1", "100.0", "", ""] in lines  # in aime, amc and overall
