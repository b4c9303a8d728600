"""Results as Markdown, CSV and JSON."""

import csv
import io
import json

import pytest
from sampled_run import completion, problem, write_run

from leash_trl.evaluation.export import summary_markdown, to_csv, to_json, to_markdown
from leash_trl.evaluation.numbers import percent, with_interval
from leash_trl.evaluation.results import load_results


@pytest.fixture
def base(tmp_path):
    """Two benchmarks, two completions each: accuracy 1/2 and 1, tokens 2000 and 1000."""
    aime = problem(0, completion("1", 1500, True, 4096), completion("9", 2500, False, 4096))
    amc = problem(0, *[completion("1", 1000, True, 4096)] * 2)
    return load_results(write_run(tmp_path / "base", {"aime": [aime], "amc": [amc]}, limit=4096))


@pytest.fixture
def leash(tmp_path):
    """Accuracy 1/2 and 1/2, tokens 800 and 400."""
    aime = problem(0, completion("1", 700, True, 4096), completion("9", 900, False, 4096))
    amc = problem(0, completion("1", 400, True, 4096), completion(None, 400, False, 4096))
    return load_results(write_run(tmp_path / "leash", {"aime": [aime], "amc": [amc]}, "leash", limit=4096, step=100))


def records(text):
    return list(csv.DictReader(io.StringIO(text)))


def lines_of(markdown, heading):
    """Rows of the table that begins with a heading."""
    block = next(part for part in markdown.split("\n\n") if part.startswith(f"| {heading} |"))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block.splitlines()]


def test_markdown_has_the_papers_table(base, leash):
    heading, _, first, second = lines_of(to_markdown(leash, base), "model")
    names = ("aime", "amc", "overall")
    assert heading == ["model", *(f"{name} {unit}" for name in names for unit in ("Avg@2", "tokens"))]
    rates = "[0.0, 100.0]"
    assert first[:-2] == ["base", f"50.0 {rates}", "2,000", f"100.0 {rates}", "1,000"]
    assert second[:-2] == ["leash", f"50.0 {rates}", "800.0", f"50.0 {rates}", "400.0"]
    assert (first[-2][:6], first[-1], second[-2][:6], second[-1]) == ("75.0 [", "1,500", "50.0 [", "600.0")


def test_every_line_of_a_table_has_as_many_cells(base, leash):
    tables = [part for part in to_markdown(leash, base).split("\n\n") if part.startswith("|")]
    assert len(tables) == 3  # the paper's, that of metrics, that of changes
    for table in tables:
        heading, alignment, *rows = table.splitlines()
        assert {line.count("|") for line in rows} == {heading.count("|")}
        assert alignment == "| --- |" + " ---: |" * (heading.count("|") - 2)


def test_markdown_without_a_baseline_has_no_differences(leash):
    assert "Δ" not in to_markdown(leash)


def test_markdown_shows_every_metric_with_its_interval(base):
    heading, _, *rows = lines_of(to_markdown(base), "metric")
    assert heading == ["metric", "aime", "amc", "overall"]
    assert {name: aime for name, aime, *_ in rows} == {
        "problems": "1",
        "Avg@2": "50.0 [0.0, 100.0]",
        "pass@2": "100.0 [0.0, 100.0]",
        "maj@2": "50.0 [0.0, 100.0]",
        "short-1@2": "100.0 [0.0, 100.0]",
        "short-1@2 waiting tokens": "1,500",
        "short-1@2 total tokens": "3,000",
        "tokens": "2,000",
        "generated tokens": "2,010",
        "truncated rate": "0.0 [0.0, 100.0]",
        "no answer rate": "0.0 [0.0, 100.0]",
        "right within 128 tokens": "0.0 [0.0, 100.0]",
        "right within 256 tokens": "0.0 [0.0, 100.0]",
        "right within 512 tokens": "0.0 [0.0, 100.0]",
        "right within 1,024 tokens": "0.0 [0.0, 100.0]",
        "right within 2,048 tokens": "50.0 [0.0, 100.0]",
        "right within 4,096 tokens": "50.0 [0.0, 100.0]",
        "median tokens": "2,000",
        "p95 tokens": "2,450",
        "right tokens": "1,500",
        "wrong tokens": "2,500",
    }


def test_a_number_that_does_not_exist_is_an_empty_cell(base):
    rows = {name: cells for name, *cells in lines_of(to_markdown(base), "metric")}
    assert rows["wrong tokens"] == ["2,500", "", ""]  # no wrong completion on amc, so none over both


def test_an_interval_is_shown_from_low_to_high(tmp_path):
    rows = [problem(i, completion("1", tokens, i == 0)) for i, tokens in enumerate((8, 16))]
    run = load_results(write_run(tmp_path / "run", {"m": rows}))
    markdown = to_markdown(run)
    assert f"| Avg@1 | {with_interval(run.overall.accuracy, percent)} |" in markdown
    assert "| tokens | 12.0 [0.0, 62.8] |" in markdown  # 12 -+ 12.706 * 4
    for text in (markdown, summary_markdown(run), to_json(run)):
        assert text.count("m has 2") == 1


def test_markdown_shows_changes(base, leash):
    rows = lines_of(to_markdown(leash, base), "against base")
    assert rows[2:4] == [
        ["aime", "+0.0 [-100.0, +100.0]", "-1,200", "-60.0"],
        ["amc", "-50.0 [-100.0, +100.0]", "-600.0", "-60.0"],
    ]
    assert rows[4][0] == "overall"


def test_gains_carry_a_plus(base, leash):
    rows = lines_of(to_markdown(base, leash), "against leash")
    assert rows[-1][1].startswith("+25.0 [-")
    assert rows[-1][2:] == ["+900.0", "+150.0"]


def test_a_tiny_loss_is_not_minus_zero(tmp_path):
    runs = [
        load_results(
            write_run(tmp_path / str(tokens), {"m": [problem(0, completion("1", tokens, True, 99999))]}, limit=99999)
        )
        for tokens in (10000, 9999)
    ]
    markdown = to_markdown(runs[1], runs[0])
    assert lines_of(markdown, "against base")[-1] == [
        "m",
        "+0.0 [-100.0, +100.0]",
        "-1.0",
        "+0.0",
    ]


def test_one_benchmark_needs_no_overall_column(tmp_path):
    folders = [
        write_run(tmp_path / label, {"m": [problem(0, completion("1", tokens, True))]}, label)
        for label, tokens in (("base", 20), ("leash", 10))
    ]
    runs = [load_results(folder) for folder in folders]
    markdown = to_markdown(runs[1], runs[0])
    assert lines_of(markdown, "model")[0] == ["model", "m Avg@1", "m tokens"]
    assert lines_of(markdown, "model")[-1] == ["leash", "100.0 [0.0, 100.0]", "10.0"]
    assert lines_of(markdown, "metric")[0] == ["metric", "m"]
    assert [row[0] for row in lines_of(markdown, "against base")[2:]] == ["m"]
    assert "overall" not in markdown


def test_the_note_says_what_the_metrics_are(base):
    markdown = to_markdown(base)
    for words in ("short-m@k", "waiting tokens", "total tokens", "generated tokens", "maj@k", "overall"):
        assert f"{words}: " in markdown


def test_the_summary_holds_the_papers_table_and_the_differences_only(base, leash):
    whole, summary = to_markdown(leash, base), summary_markdown(leash, base)
    tables = [part for part in summary.split("\n\n") if part.startswith("|")]
    assert [table.split(" | ")[0] for table in tables] == ["| model", "| against base"]
    assert tables[1] in whole
    assert "overall: unweighted mean" in summary
    assert "short-" not in summary
    assert summary.endswith(".\n")
    assert "ifference" not in summary_markdown(base).replace("differences in points", "")


def test_labels_break_no_table_and_become_no_tag(tmp_path):
    label = "a|b\n<script>"
    markdown = to_markdown(
        load_results(write_run(tmp_path / "run", {"m": [problem(0, completion("1", 8, True))]}, label))
    )
    assert "| a\\|b &lt;script> | 100.0 [0.0, 100.0] | 8.0 |" in markdown
    assert "## a\\|b &lt;script>\n" in markdown


def test_no_table_says_nan_or_none(base, leash):
    for table in (to_markdown, to_csv, to_json):
        text = table(leash, base).lower()
        assert "nan" not in text
        assert "none" not in text


def test_csv_has_a_line_per_benchmark(base, leash):
    rows = records(to_csv(leash, base))
    assert [(row["label"], row["benchmark"]) for row in rows] == [("leash", n) for n in ("aime", "amc", "overall")]
    overall = rows[-1]
    assert (overall["step"], records(to_csv(base))[0]["step"]) == ("100", "")
    accuracy = leash.overall.accuracy
    assert [float(overall[f"accuracy{end}"]) for end in ("", "_low", "_high")] == [0.5, accuracy.low, accuracy.high]
    assert (overall["tokens"], overall["tokens_low"]) == ("600.0", "")
    assert float(overall["accuracy_change"]) == -0.25
    assert float(overall["token_change"]) == -900.0
    assert float(overall["relative_token_change"]) == pytest.approx(-0.6)
    assert records(to_csv(base))[1]["wrong_tokens"] == ""  # amc of base: all right
    assert float(rows[0]["accuracy_within_2048"]) == 0.5


def test_csv_columns_come_in_the_order_of_the_metrics(base, leash):
    header = to_csv(leash, base).splitlines()[0].split(",")
    identity = ["label", "model", "step", "benchmark", "num_problems", "num_graded", "num_samples"]
    means = [name + end for name in base.overall.means for end in ("", "_low", "_high")]
    changes = [
        name + end
        for name in ("accuracy_change", "token_change", "relative_token_change")
        for end in ("", "_low", "_high")
    ]
    assert header == [*identity, *means, *base.overall.statistics, *changes]


def test_csv_keeps_every_digit(tmp_path):
    rows = [problem(i, completion("1", 8, i == 0)) for i in range(3)]
    run = load_results(write_run(tmp_path / "run", {"m": rows}))
    assert float(records(to_csv(run))[0]["accuracy"]) == run.overall.accuracy.value == pytest.approx(1 / 3)


def test_json_holds_the_run_the_rows_and_the_changes(base, leash):
    (first,), (second,) = json.loads(to_json(base)), json.loads(to_json(leash, base))
    assert first["run"]["sampling"]["max_new_tokens"] == 4096
    assert first["changes"] is None
    assert [row["name"] for row in second["benchmarks"]] == ["aime", "amc"]
    assert second["overall"]["means"]["tokens"] == {"value": 600.0, "low": None, "high": None}
    assert first["benchmarks"][1]["statistics"]["wrong_tokens"] is None
    assert second["changes"]["baseline_label"] == "base"
    assert second["changes"]["overall"]["tokens"]["value"] == -900.0


def test_the_same_samples_give_the_same_bytes(tmp_path, base, leash):
    again = [load_results(tmp_path / name) for name in ("leash", "base")]
    for table in (to_markdown, to_csv, to_json):
        assert table(*again) == table(leash, base)
