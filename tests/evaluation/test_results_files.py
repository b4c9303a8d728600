"""What an evaluation writes: Markdown, CSV and JSON with the same numbers, and the Hub's forms, read by its client."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from sampled_run import completion, evaluated_run, problem

from leash_trl.evaluation.changes import changes_from_baseline
from leash_trl.evaluation.tables import results_markdown, summary_markdown, summary_table, write_results


RIGHT = completion("1", 10, True)
SOLVED = problem(0, RIGHT, RIGHT)


@pytest.fixture
def runs(tmp_path):
    """Accuracies 3/4 and 1/2 before, 1 and 1 after; tokens (15 + 10) / 2 = 12.5 and 74 / 2 = 37, then 10 and 10."""
    half_solved = problem(0, RIGHT, completion("9", 20, False))
    cut = problem(0, RIGHT, completion(None, 64, False))
    also_solved = problem(1, RIGHT, RIGHT)
    baseline = evaluated_run(tmp_path / "base", {"aime": [half_solved, also_solved], "amc": [cut]})
    run = evaluated_run(tmp_path / "run", {"aime": [SOLVED, also_solved], "amc": [SOLVED]}, "leash")
    return run, baseline


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def rows_of(table):
    """The cells of a table, without intervals."""
    return [[re.sub(r" \[.*", "", cell) for cell in cells(line)] for line in table.splitlines() if line[:1] == "|"]


def test_a_benchmark_has_a_line_per_run_and_the_differences_stand_below(runs):
    table, differences, *_ = summary_markdown(*runs).split("\n\n")
    head, _, *lines = rows_of(table)
    assert head[:4] == ["benchmark", "model", "Avg@2", "truncated rate"]
    assert head[4:] == ["Avg of completed", "Avg of truncated", "tokens", "sd tokens", "p95 tokens"]
    assert [[*line[:4], line[6]] for line in lines] == [
        ["aime", "base", "75.0", "0.0", "12.5"],
        ["aime", "leash", "100.0", "0.0", "10.0"],
        ["amc", "base", "50.0", "50.0", "37.0"],
        ["amc", "leash", "100.0", "0.0", "10.0"],
        ["overall", "base", "62.5", "25.0", "24.8"],
        ["overall", "leash", "100.0", "0.0", "10.0"],
    ]
    assert "75.0 [" in table
    assert "| 37.0 |" in table  # one problem gives no interval of tokens
    _, _, *lines = rows_of(differences)
    assert lines == [
        ["aime", "+25.0", "-2.5", "-20.0"],
        ["amc", "+50.0", "-27.0", "-73.0"],
        ["overall", "+37.5", "-14.8", "-59.6"],
    ]


def test_completed_and_truncated_completions_are_scored_apart_where_some_are_truncated(runs):
    row = summary_table(runs).set_index(["benchmark", "model"]).loc[("amc", "base")]
    # of two completions the one with 10 tokens is right, and the other was cut at 64
    assert row[["Avg of completed", "Avg of truncated", "sd tokens"]].tolist() == ["100.0", "0.0", "27.0"]
    solved, _ = runs
    assert "Avg of completed" not in summary_table([solved])


def test_every_metric_has_a_line_and_every_benchmark_a_column(runs):
    lines = rows_of(results_markdown(runs[0]).partition("## leash")[2])
    assert lines[0] == ["metric", "aime", "amc", "overall"]
    assert lines[2] == ["problems", "2", "1", "3"]
    names = [line[0] for line in lines[3:]]
    assert names[:3] == ["Avg@2", "pass@2", "maj@2"]
    assert {"right within 64 tokens", "median tokens"} <= {*names}
    assert lines[-1] == ["wrong tokens", "", "", ""]


def test_a_name_breaks_no_table_and_one_benchmark_needs_no_mean_over_benchmarks(runs, tmp_path):
    run = evaluated_run(tmp_path / "one", {"aime": [problem(0, RIGHT)]}, "a|b\n<c>")
    table = summary_markdown(run)
    head, _, row, *_ = table.splitlines()
    assert len(cells(row)) == len(cells(head))
    assert "<c>" not in table
    assert "aime has 1" in table  # which is few
    assert "overall" not in summary_table([run, runs[0]])["benchmark"].tolist()  # the latter has two


def test_csv_and_json_have_every_number_in_full(runs, tmp_path):
    run, baseline = runs
    write_results(tmp_path, run, baseline)
    rows = pd.read_csv(tmp_path / "results.csv")
    expected = pd.concat([run.results, changes_from_baseline(run, baseline)])
    assert rows["metric"].tolist() == expected["metric"].tolist()
    np.testing.assert_allclose(rows["value"], expected["value"], rtol=1e-15)
    first = rows.loc[0]
    assert first["label"] == "leash"
    assert first["model"] == "models/tiny"
    assert first["step"] == 7
    text = (tmp_path / "results.json").read_text()
    assert "NaN" not in text  # which is no JSON
    document = json.loads(text)
    assert document["run"] == run.record
    assert document["baseline"] == "base"
    results = pd.DataFrame(document["results"])
    for column in ("num_problems", "value", "high"):
        np.testing.assert_array_equal(results[column].astype(float), rows[column])


def test_a_metric_that_a_benchmark_lacks_has_an_empty_cell(tmp_path):
    decided = {**completion(None, 10, True), "reward": 1.0}
    undecided = {**completion(None, 10, None), "reward": 0.5}  # its correctness_func returned None
    run = evaluated_run(tmp_path, {"aime": [problem(0, decided)], "amc": [problem(0, undecided)]})
    lines = rows_of(results_markdown(run).partition("## base")[2])
    assert ["Avg@1", "100.0", "", ""] in lines  # in aime, amc and overall
