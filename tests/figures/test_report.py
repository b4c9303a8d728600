"""The report: its numbers, that nothing breaks out of it, and that the same inputs give the same bytes."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled_run import problem, write_run
from written_runs import said, seeds_of, write_comparison, write_evaluation, write_training

from leash_trl.cli.main import main
from leash_trl.evaluation.tables import escaped
from leash_trl.figures.behavior import behavior
from leash_trl.figures.report import (
    LONG_TEXT,
    before_and_after_section,
    comparison_section,
    evaluation_section,
    final_numbers,
    headline,
    render,
    sample_pairs,
    select_pairs,
    training_section,
    write_report,
)
from leash_trl.figures.runs import load_evaluated_runs
from leash_trl.figures.training import curves_from_log


HOSTILE = '<script>alert("1")</script> | [x](javascript:y) & `z` $\\foo{$'


def cells_of(page):
    """The rows of cells of all tables of a page."""
    rows = re.findall(r"<tr.*?</tr>", page.replace("\N{NO-BREAK SPACE}", " "), re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[html.unescape(cell).strip() for cell in row] for row in cells]


def write_problems(folder, label, tokens, num_right=1, benchmarks=("gym", "aime")):
    """A run with two problems of two completions each; of the first `num_right` are right, of the second none."""
    first = [said(tokens, number < num_right) for number in range(2)]
    second = [said(64, False, answer=None), said(tokens, False, answer="3")]
    return write_evaluation(folder, label, {name: [first, second] for name in benchmarks})


@pytest.fixture
def evaluated(tmp_path):
    def make(label, tokens, **changes):
        return write_problems(tmp_path / f"{label}-{tokens}", label, tokens, **changes)

    return make


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Paths of a comparison, two evaluated runs, of which the first has a hostile label, and a training run."""
    folder = tmp_path_factory.mktemp("everything")
    rows = [{"leash/mean_length": 60.0 - 10 * step, "leash/lambda": 0.1, "leash/accuracy": 0.5} for step in (1, 2, 3)]
    return [
        write_comparison(folder / "compare", [*seeds_of("LEASH", 40, 0.9), *seeds_of("ALP", 50, 0.8)]),
        write_problems(folder / "40", HOSTILE, 40),
        write_problems(folder / "20", "leash", 20),
        write_training(folder / "run", rows),
    ]


@pytest.fixture(scope="module")
def written(everything, tmp_path_factory):
    """The folder of a report's files; drawing takes most of the time."""
    folder = tmp_path_factory.mktemp("written")
    write_report(everything, folder, HOSTILE)
    return folder


def tables(section):
    return [block["frame"] for block in section.blocks if isinstance(block, dict) and "frame" in block]


def test_the_papers_table_by_hand(evaluated):
    runs = load_evaluated_runs([evaluated("base", 40), evaluated("leash", 20, num_right=2)])
    frame, change, *_ = tables(evaluation_section(runs, behavior(runs)))
    # right: 1 of 4 and 2 of 4; tokens: (40 + 40 + 64 + 40) / 4 = 46 and (20 + 20 + 64 + 20) / 4 = 31
    assert [*frame][:3] == ["model", "gym Avg@2", "gym tokens"]
    cells = frame.set_index("model").map(lambda cell: cell.partition(" [")[0])
    assert cells.loc["base", ["aime Avg@2", "overall tokens"]].tolist() == ["25.0", "46.0"]
    assert cells.loc["leash", ["aime Avg@2", "overall tokens"]].tolist() == ["50.0", "31.0"]
    overall = change.set_index("benchmark").loc["overall"]
    assert overall["Δ tokens (%)"].startswith("-32.6 [")  # 31 / 46 - 1
    assert overall["Δ accuracy (points)"].startswith("+25.0 [")


@pytest.mark.parametrize(
    ("size", "first", "last"), [(1, "1.0", "1.0"), (2, "1.0", "2.0"), (5, "1.5", "4.5"), (22, "5.5", "17.5")]
)
def test_first_and_last_numbers_are_means_over_up_to_ten_batches(size, first, last):
    # lengths 1, 2, ...: of 22 the first ten have a mean of 5.5; of fewer than 20 the halves share none
    log = [{"step": i, "leash/mean_length": i, "leash/accuracy": i / 100} for i in range(1, size + 1)]
    cells = final_numbers(curves_from_log(log, "run"))
    assert [cells["first tokens"], cells["last tokens"]] == [first, last]
    assert [cells["first accuracy"], cells["last accuracy"]] == [first, last]


def test_the_numbers_of_a_training_run_by_hand():
    columns = {
        "step": [1, 2, 3],
        "leash/target_length": 46,
        "leash/mean_length": [60, 46, 50],
        "leash/lambda": [0.1, 0.6, 0.3],
        "leash/satisfaction_rate": [0.2, 0.5, 0.4],
        "leash/generated_tokens": [1000, 2000, 3000],
    }
    log = pd.DataFrame(columns).to_dict("records")
    expected = {
        "steps": "3",
        "steps to target": "2",
        "maximum λ": "0.6",
        "λ of last batch": "0.3",
        "last satisfaction": "40.0",
        "tokens in training": "3,000",
    }
    assert expected.items() <= final_numbers(curves_from_log(log, "run")).items()
    assert final_numbers(curves_from_log(log[:1], "run"))["steps to target"] == "never"
    evaluated = [{"step": 2, "eval_leash/mean_length": 7.0}]
    assert final_numbers(curves_from_log(evaluated, "run"))["last tokens"] == "7.0"


@pytest.mark.parametrize(
    ("before", "after", "targets"),
    [
        ((46, None), (24, None), "46 until step 2, then 24"),
        ((46, None), (46, 5.0), "46 (completion) until step 2, then 46 (thinking)"),
        ((46, None), (46, None), "46"),
    ],
)
def test_a_target_or_unit_that_changed_is_told_by_steps(tmp_path, before, after, targets):
    rows = []
    for target, answer_length in (before, before, after, after):
        lengths = {"leash/mean_length": 46.0, "leash/mean_answer_length": answer_length}
        rows.append({"leash/target_length": target, **lengths})
    numbers, settings = tables(training_section([write_training(tmp_path / "run", rows)]))
    assert settings.set_index("setting")["run"]["target_length"] == targets
    assert numbers["steps to target"].item() == ("1" if before == after else "")
    units = [" (completion)", " (thinking)"] if before[1] != after[1] else ["", ""]
    assert numbers["first tokens"].item() == f"46.0{units[0]}"
    assert numbers["last tokens"].item() == f"46.0{units[1]}"


def test_settings_are_the_recipe_and_the_reward_functions_that_were_logged(tmp_path):
    run = write_training(tmp_path / "run", [{"leash/mean_length": 9.0, "rewards/my_reward/mean": 0.5}])
    (run / "leash_recipe.yaml").write_text("learning_rate: 0.1\n")
    settings = {"length_control": "leash", "target_length": "46", "learning_rate": "0.1", "reward_funcs": "my_reward"}
    assert tables(training_section([run]))[-1].set_index("setting")["run"].to_dict() == settings


def test_a_comparison_has_its_files_words_and_tables(everything):
    section = comparison_section(everything[0], "comparison-1")
    first = tables(section)[0]
    assert [*first][:3] == ["method", "change of tokens", "seeds"]
    assert first["method"].tolist() == ["base", "LEASH", "ALP"]
    assert first["change of tokens"].tolist() == ["", "-59.5%", "-49.5%"]
    words = [block if isinstance(block, str) else block["caption"] for block in section.blocks]
    assert words[0] == "leash compare: 3 problems."
    assert not [text for text in words if "|" in text]


@pytest.mark.parametrize(
    ("tokens", "accuracy", "insignificant"),
    [
        ((-0.4, -0.5, -0.3), (0.02, 0.01, 0.03), 0),
        ((0.4, 0.3, 0.5), (0.02, -0.01, 0.05), 1),
        ((-0.01, -0.03, 0.0), (0.02, float("nan"), float("nan")), 2),
    ],
)
def test_the_headline_states_the_change_and_its_significance(evaluated, tokens, accuracy, insignificant):
    rows = [("overall", "relative_tokens_change", *tokens), ("overall", "accuracy_change", *accuracy)]
    change = pd.DataFrame(rows, columns=["benchmark", "metric", "value", "low", "high"])
    runs = load_evaluated_runs([evaluated("base", 40), evaluated("leash", 20)])
    (sentence,) = headline(runs, {"leash": change})
    shown = [float(number) / 100 for number in re.findall(r"[+-]\d+\.\d", sentence)]
    assert shown == [number for number in (*tokens, *accuracy) if number == number]
    assert sentence.count("not significant") == insignificant
    (alone,) = headline(runs[:1], {})
    assert "25.0 [" in alone
    (with_other_problems,) = headline(runs, {})
    assert not re.search(r"\d", with_other_problems)


def pair_of(tmp_path, before, after):
    folders = [
        write_evaluation(tmp_path / "base", "base", {"gym": before}),
        write_evaluation(tmp_path / "leash", "leash", {"gym": after}),
    ]
    return load_evaluated_runs(folders)


def test_pairs_are_counted_and_selected_by_rule(tmp_path):
    # changes: of the first -10 and -20, of the second -40 and -5, of the third 0 and 10
    before = [[said(50), said(60)], [said(50), said(60)], [said(50), said(60, False)]]
    after = [[said(40), said(40, False)], [said(10), said(55, False)], [said(50), said(70)]]
    runs = pair_of(tmp_path, before, after)
    pairs = sample_pairs(*runs)
    assert (pairs["num_tokens"] - pairs["num_tokens_before"]).tolist() == [-10, -20, -40, -5, 0, 10]
    # the median is the lower one of -10 and -5
    assert select_pairs(pairs) == {0: "median change in tokens", 2: "largest saving", 1: "first that became incorrect"}
    assert [*select_pairs(pairs[4:].reset_index())] == [0]
    of_others = replace(runs[1], samples=runs[1].samples.assign(solution="another"))
    assert sample_pairs(runs[0], of_others).empty
    section = before_and_after_section(runs)
    assert re.findall(r"\d+", section.blocks[0]) == ["6", "2", "1"]  # pairs, became incorrect, became correct


def test_completions_stand_beside_each_other_with_their_answers_and_tokens(tmp_path, evaluated):
    long = "<b>bold</b> & " * (LONG_TEXT // 10)
    runs = pair_of(tmp_path, [[said(50, text=HOSTILE)]], [[said(64, False, long, answer=None)]])
    section = before_and_after_section(runs)
    assert section.blocks[1]["completions"] == [
        ("base: 50 tokens, answer 1, correct", HOSTILE),
        ("leash: 64 tokens, no answer, incorrect, truncated", long),
    ]
    with_reward = pair_of(tmp_path, [[{**said(9, answer=None), "reward": 1.0}]], [[said(8)]])
    assert before_and_after_section(with_reward).blocks[1]["completions"] == [
        ("base: 9 tokens, correct", "text"),
        ("leash: 8 tokens, answer 1, correct", "text"),
    ]
    page = render("report.html.j2", "t", [section])
    assert page.count("<details") == 1  # the long one is folded
    assert not re.search("<script|<b>", page + render("report.md.j2", "t", [section]))
    others = load_evaluated_runs([evaluated("other", 20, benchmarks=["aime"])])
    assert before_and_after_section([runs[0], *others]) is None  # no common problem


def test_a_pair_shows_its_question_and_its_own_gold(tmp_path):
    long = "Is 7 prime? " * LONG_TEXT
    rows = [
        {"question": HOSTILE, "solution": "12"},
        {"question": "Turn dog around.", "solution": None, "columns": {"word": "dog", "turned": "god"}},
        {"question": long, "solution": None, "columns": {}},
    ]
    # the first has the median change, the second saves most, the third became incorrect
    completions = {"base": [said(50)] * 3, "leash": [said(49), said(9), said(60, False)]}
    runs = []
    for label in completions:
        problems = [problem(i, completions[label][i], **row) for i, row in enumerate(rows)]
        runs.append(write_run(tmp_path / label, {"words": problems}, label))
    section = before_and_after_section(load_evaluated_runs(runs))
    shown = section.blocks[1:]
    assert [block["question"] for block in shown] == [HOSTILE, "Turn dog around.", long]
    golds = [block["title"].rpartition("sample 1, ")[2] for block in shown]
    assert golds == ["reference answer 12", "word 'dog', turned 'god'", "reference answer unknown"]
    page = render("report.html.j2", "t", [section])
    assert html.escape(HOSTILE, quote=False)[:20] in page
    assert page.count("<details") == 1  # the long one is folded
    markdown = render("report.md.j2", "t", [section])
    assert "Turn dog around." in markdown
    assert not re.search("<script", page + markdown)


def test_html_is_complete_needs_nothing_else_and_hostile_labels_stay_text(written):
    page = (written / "report.html").read_text(encoding="utf-8")
    assert page.index("<h1>") < page.index(" compared with ") < page.index("<h2")
    assert not re.search("<(script|link|img)", page)
    # the names of XML's own formats are no requests
    urls = {*re.findall(r"https?://[^\"' )<]+", page)}
    assert urls == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len({*ids})
    links = re.findall(r'<a href="#([^"]+)"', page)
    assert len(links) == 4
    assert {*links} <= {*ids}
    assert HOSTILE in [row[0] for row in cells_of(page)]
    markdown = (written / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"<script|\]\(javascript", markdown)


@given(st.text())
def test_escaped_text_is_one_line_without_tags_and_cells(text):
    shown = escaped(text)
    assert not re.search(r"<|\]\(", shown)
    assert len(shown.splitlines()) <= 1
    assert not re.search(r"(?<!\\)(?:\\\\)*[|*`]", shown)


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_inputs_give_the_same_bytes(everything, written, tmp_path):
    assert main(["report", *map(str, everything), "--title", HOSTILE, "--output_dir", str(tmp_path / "one")]) == 0
    files = files_in(tmp_path / "one")
    assert files == files_in(written)
    names = ("comparison-1", "evaluation-pareto", "budget", "behavior", "training", "dynamics")
    figures = {f"figures/{name}.svg" for name in names}
    assert files.keys() == {"report.md", "report.html", "behavior.csv"} | figures
    assert {*re.findall(r"\]\((figures/[^)]+)\)", files["report.md"].decode())} == figures
    keywords = pd.read_csv(written / "behavior.csv")
    assert keywords[["run", "keyword so"]].to_numpy().tolist() == [[HOSTILE, 0], ["leash", 0]]


def test_the_baseline_can_be_chosen_and_counts_once_however_it_is_written(everything, tmp_path, monkeypatch):
    _, first, second, run = everything
    monkeypatch.chdir(first.parent)
    write_report([first, second], tmp_path, "t", baseline=Path(second.name))
    first_table, _, _ = (tmp_path / "report.html").read_text().partition("</table>")
    assert [row[0] for row in cells_of(first_table)[1:]] == ["leash", HOSTILE]
    with pytest.raises(ValueError, match=str(run)):
        write_report([first], tmp_path / "nothing", "t", baseline=run)
    assert not (tmp_path / "nothing").exists()
