"""The report: what it holds, that nothing breaks out of it, and that the same inputs give the same bytes."""

import dataclasses
import json
import re
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from event_file import write_events
from hypothesis import given
from hypothesis import strategies as st
from sampled_run import completion, problem, write_run

from leash_trl.analysis.before_and_after import chosen, sample_pairs
from leash_trl.analysis.evaluated_runs import headline, load_evaluated_runs
from leash_trl.analysis.evaluation_section import evaluation_section
from leash_trl.analysis.page import (
    LONG_TEXT,
    Page,
    Paragraph,
    Section,
    Table,
    escape_markdown,
    to_html,
    to_markdown,
)
from leash_trl.analysis.report import build_page, write_report
from leash_trl.analysis.run_folders import find_runs, kinds_of, runs_of_kind
from leash_trl.analysis.training_section import _final_table, run_settings
from leash_trl.cli.main import main
from leash_trl.evaluation.changes import Change, compare_results
from leash_trl.evaluation.intervals import Estimate
from leash_trl.evaluation.results import load_results
from leash_trl.figures.curves import Curves


HOSTILE = '<script>alert("1")</script> | [x](javascript:y) & `z` $\\foo{$'
VOID = {"meta", "link", "br", "img", "hr", "input", "wbr"}


class Reader(HTMLParser):
    """Tags in order, attributes by tag, tables as text; an end that fits no start is an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.seen, self.tables = [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("th", "td"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("th", "td"):
            self.tables[-1][-1][-1] += data.replace("\N{NO-BREAK SPACE}", " ")  # which keep intervals whole

    def named(self, tag):
        return [attributes for name, attributes in self.seen if name == tag]


def problems(tokens, num_right=1, name="p"):
    """Two problems with two completions each; of the first `num_right` are right, of the second none."""
    first = [completion("1", tokens, number < num_right) for number in range(2)]
    return [
        problem(0, *first, name=name),
        problem(1, completion(None, 64, False), completion("3", tokens, False), name=name),
    ]


def write_evaluation(folder, label, tokens, num_right=1, step=None, names=("gym", "aime")):
    benchmarks = {name: problems(tokens, num_right) for name in names}
    return write_run(folder / f"eval-{tokens}-{step}", benchmarks, label, step=step)


def write_training(folder, name="leash", target=46):
    run = folder / "runs" / name
    run.mkdir(parents=True)
    rows = [
        {"step": step, "leash/mean_length": 60.0 - 10 * step, "leash/lambda": 0.1 * step, "leash/accuracy": 0.5}
        for step in (1, 2, 3)
    ]
    callbacks = {"LengthControl": {"method": name, "target_length": target, "state": {}}}
    state = {"global_step": 3, "log_history": rows, "stateful_callbacks": callbacks}
    (run / "trainer_state.json").write_text(json.dumps(state))
    return run


def write_comparison(folder):
    """A folder with the tables of `leash compare`, written by the code that `leash compare` uses."""
    from test_compare import BASE, row_at

    from leash_trl.evaluation.comparison_table import LEGEND, csv_table, markdown_table

    run = folder / "compare"
    run.mkdir()
    rows = [BASE, row_at("LEASH", 45.0, 0.9), row_at("ALP, tuned", 50.0, 0.8)]
    (run / "table.md").write_text(f"`leash compare`: 3 problems.\n\n{markdown_table(rows)}\n\n{LEGEND}\n")
    (run / "table.csv").write_text(csv_table(rows))
    (run / "seeds.csv").write_text(csv_table(rows[1:]))
    return run


@pytest.fixture
def evaluated(tmp_path):
    return partial(write_evaluation, tmp_path)


@pytest.fixture
def trained(tmp_path):
    return partial(write_training, tmp_path)


@pytest.fixture
def compared(tmp_path):
    return write_comparison(tmp_path)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Paths of a comparison, two evaluated runs, of which the first has a hostile label, and a training run."""
    folder = tmp_path_factory.mktemp("everything")
    runs = [write_evaluation(folder, HOSTILE, 40), write_evaluation(folder, "leash", 20)]
    return [write_comparison(folder), *runs, write_training(folder)]


@pytest.fixture(scope="module")
def page(everything):
    return build_page(everything, HOSTILE)


@pytest.fixture(scope="module")
def written(page, tmp_path_factory):
    """The folder of the page's files; drawing takes most of the time."""
    folder = tmp_path_factory.mktemp("written")
    write_report(page, folder)
    return folder


@pytest.fixture(scope="module")
def html(written):
    return (written / "report.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def markdown(written):
    return (written / "report.md").read_text(encoding="utf-8")


def test_kinds_are_told_by_what_lies_there(evaluated, trained, compared, tmp_path, shared_data):
    run = trained()
    assert kinds_of(evaluated("base", 30)) == ["evaluation"]
    assert [kinds_of(run), kinds_of(run.parent), kinds_of(compared)] == [["training"], [], ["comparison"]]
    assert kinds_of(shared_data / "leash_log_eval.csv") == ["training"]
    (run / "checkpoint-3").mkdir()
    (run / "trainer_state.json").rename(run / "checkpoint-3" / "trainer_state.json")
    assert kinds_of(run) == ["training"]
    (run / "run.json").write_text("{}")
    assert kinds_of(run) == ["evaluation", "training"]


def test_a_folder_of_runs_stands_for_them_once(trained):
    first, second = trained("a"), trained("b")
    found = find_runs([second, first.parent])
    assert found == {"comparison": [], "evaluation": [], "training": [second, first]}


def test_a_bad_run_that_was_not_named_is_left_out_with_a_warning(trained, evaluated, caplog):
    good, bad = trained("good"), trained("bad")
    (bad / "trainer_state.json").write_text(json.dumps({"global_step": 3, "log_history": []}))
    unfinished = evaluated("base", 40).rename(good.parent / "unfinished")
    (unfinished / "samples" / "aime.jsonl").unlink()
    (good.parent / "results.csv").write_text("label,model\n")
    assert find_runs([good.parent]) == {"comparison": [], "evaluation": [], "training": [good]}
    assert "results.csv" not in caplog.text
    assert "bad holds no LEASH curves" in caplog.text
    assert "unfinished is not finished: aime has 0 of 2 problems" in caplog.text
    with pytest.raises(ValueError, match="bad holds no LEASH curves"):
        build_page([bad], "t")
    with pytest.raises(ValueError, match="bad holds no LEASH curves"):
        build_page([good.parent, bad], "t")


def test_a_bad_comparison_that_was_not_named_is_left_out(compared, trained, caplog):
    run = trained("good")
    bad = compared.rename(run.parent / "compared")
    assert find_runs([run.parent])["comparison"] == [bad]
    (bad / "table.md").write_text("nothing")
    assert find_runs([run.parent])["comparison"] == []
    assert "holds no table" in caplog.text


def test_folders_stand_for_the_runs_of_the_kind_that_is_asked_for(trained, evaluated):
    run = trained("seed-0")
    evaluation = evaluated("base", 40).rename(run.parent / "eval")
    # as after an evaluation into the folder of leash demo
    evaluated("top", 20).joinpath("run.json").rename(run.parent / "run.json")
    assert runs_of_kind([run.parent], "training") == [run]
    assert runs_of_kind([run.parent, evaluation], "evaluation") == [run.parent, evaluation]
    assert runs_of_kind([evaluation], "training") == [evaluation]


def test_a_folder_of_nothing_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="holds neither a training run nor what leash eval or leash compare writes"):
        find_runs([tmp_path])
    with pytest.raises(ValueError, match="nowhere holds neither"):
        find_runs([tmp_path / "nowhere"])


def test_the_papers_table_by_hand(evaluated):
    runs = [evaluated("base", 40, num_right=1), evaluated("leash", 20, num_right=2)]
    main_table = next(block for block in evaluation_section(runs).blocks if block.kind == "table")
    # right: 1 of 4 and 2 of 4; tokens: (40 + 40 + 64 + 40) / 4 = 46 and (20 + 20 + 64 + 20) / 4 = 31
    assert main_table.head[:6] == ["run", "Δ tokens", "Δ accuracy", "overall accuracy", "overall tokens", "gym Avg@2"]
    assert main_table.rows[0] == ["base", "", "", "25.0", "46.0", "25.0", "46.0", "25.0", "46.0"]
    assert main_table.rows[1][3:] == ["50.0", "31.0", "50.0", "31.0", "50.0", "31.0"]
    assert main_table.rows[1][1].startswith("-32.6 [")  # 31 / 46 - 1
    assert main_table.rows[1][2].startswith("+25.0 [")


def test_tables_of_benchmarks_by_hand(tmp_path):
    problems = [
        problem(0, completion("1", 40, True), completion("1", 40, True)),
        problem(1, completion(None, 64, False), completion(None, 40, False)),
        problem(2, completion("1", 40, True), completion("3", 20, False)),
        problem(3, completion("3", 20, False), completion("5", 30, False)),
    ]
    run = write_run(tmp_path / "run", {"gym": problems}, "base")
    tables = [block for block in evaluation_section([run]).blocks if block.kind == "table"]
    table = next(table for table in tables if table.caption.startswith("gym: 4 problems."))
    cells = dict(zip(table.head, table.rows[0], strict=True))
    assert cells["Avg@k"].startswith("37.5 [")
    assert cells["tokens"].startswith("36.8 [")  # 294 / 8
    del cells["Avg@k"], cells["tokens"]
    assert cells == {
        "run": "base",
        "k": "2",
        "pass@k": "50.0",  # the first and the third
        "maj@k": "37.5",  # the first, and half of the third, which is a tie
        "median": "40.0",
        "p95": "55.6",  # 0.65 of the way from 40 to 64
        "right": "40.0",
        "wrong": "34.8",  # (64 + 40 + 20 + 20 + 30) / 5
        "cut off": "12.5",
        "no answer": "25.0",
    }


def test_one_benchmark_needs_no_overall_row(evaluated):
    runs = [evaluated("base", 40, names=("gym",)), evaluated("leash", 20, names=("gym",))]
    tables = [block for block in evaluation_section(runs).blocks if block.kind == "table"]
    assert tables[0].head == ["run", "Δ tokens", "Δ accuracy", "gym Avg@2", "gym tokens"]
    assert tables[0].rows[0] == ["base", "", "", "25.0", "46.0"]
    assert [table.caption.split()[0] for table in tables] == ["Avg@k", "gym:", "Keywords", "How"]


def test_settings_are_those_of_the_run(evaluated):
    section = evaluation_section([evaluated("base", 40), evaluated("leash", 20, step=7)])
    settings = section.blocks[-1]
    rows = {name: cells for name, *cells in settings.rows}
    assert settings.head == ["setting", "base", "leash"]
    assert rows["step"] == ["", "7"]
    assert rows["max_new_tokens"] == ["64", "64"]
    assert rows["decoding: name"] == ["plain", "plain"]
    assert rows["version of torch"] == ["2.6", "2.6"]
    assert "label" not in rows


def test_runs_on_other_problems_are_shown_without_differences(evaluated):
    runs = [evaluated("base", 40), evaluated("leash", 20, names=("gym",))]
    section = evaluation_section(runs)
    note, few_problems, no_overall, table, *_ = section.blocks
    assert "gym has 2" in few_problems.text
    assert note.text.startswith("No differences for leash: 'leash' and its baseline 'base' differ in benchmarks")
    assert no_overall.text.startswith("No means over benchmarks")
    assert table.head == ["run", "gym Avg@2", "gym tokens", "aime Avg@2", "aime tokens"]
    assert table.rows[1] == ["leash", "25.0", "31.0", "", ""]
    assert "overall" not in table.caption
    assert [block.name for block in section.blocks if block.kind == "picture"] == ["behavior"]


def test_runs_on_different_single_benchmarks_have_no_common_mean(evaluated):
    runs = [evaluated("base", 40, names=("aime",)), evaluated("leash", 20, names=("gym",))]
    assert [block.name for block in evaluation_section(runs).blocks if block.kind == "picture"] == ["behavior"]


def test_training_tables_by_hand(trained):
    page = build_page([trained("leash"), trained("alp", target=20)], "t")
    final, settings = [block for block in page.sections[0].blocks if block.kind == "table"]
    cells = dict(zip(final.head, final.rows[0], strict=True))
    # lengths 50, 40, 30: the target of 46 is met in the second batch; of three batches the window is one
    assert (cells["first tokens"], cells["steps to target"], cells["λ at most"], cells["last accuracy"]) == (
        "50.0",
        "2",
        "0.3",
        "50.0",
    )
    assert dict(zip(final.head, final.rows[1], strict=True))["steps to target"] == "never"
    assert settings.rows[:2] == [["length_control", "leash", "alp"], ["target_length", "46", "20"]]


def final_cells(size):
    """Last numbers of a run whose lengths are 1, 2, ... up to a number of batches."""
    count = np.arange(1.0, size + 1.0)
    values = {"mean_length": count, "accuracy": count / 100, "satisfaction_rate": count / 50}
    values["lambda"] = np.linspace(0.6, 0.05, size)
    table = _final_table([Curves("run", np.arange(1, size + 1), values)])
    return dict(zip(table.head, table.rows[0], strict=True))


def test_first_and_last_numbers_are_means_over_ten_batches():
    cells = final_cells(22)
    # 1 to 10 have a mean of 5.5, 13 to 22 one of 17.5
    assert (cells["first tokens"], cells["last tokens"]) == ("5.5", "17.5")
    assert (cells["first accuracy"], cells["last accuracy"], cells["last satisfaction"]) == ("5.5", "17.5", "35.0")
    assert (cells["λ at most"], cells["λ used last"], cells["steps to target"]) == ("0.6", "0.05", "")


@pytest.mark.parametrize(
    ("size", "first", "last"), [(1, "1.0", "1.0"), (2, "1.0", "2.0"), (5, "1.5", "4.5"), (12, "3.5", "9.5")]
)
def test_first_and_last_batches_of_short_runs_share_none(size, first, last):
    cells = final_cells(size)
    assert (cells["first tokens"], cells["last tokens"]) == (first, last)
    assert (cells["first accuracy"], cells["last accuracy"]) == (first, last)


def test_settings_come_from_events_then_recipe_then_state(trained):
    run = trained("leash")
    assert run_settings(run) == {"length_control": "leash", "target_length": 46}
    recipe = {"model_name_or_path": "gym", "learning_rate": 0.1, "save_steps": 5}
    (run / "claim.json").write_text(json.dumps({"recipe": recipe, "seed": 3}))
    assert run_settings(run) == {
        "model_name_or_path": "gym",
        "length_control": "leash",
        "target_length": 46,
        "learning_rate": 0.1,
        "seed": 3,
    }
    (run / "leash_recipe.yaml").write_text(
        "model_name_or_path: other\nuse_peft: true\nlora_r: 4\nlearning_rate: 0.3\n"
    )
    settings = run_settings(run)
    assert [settings[name] for name in ("model_name_or_path", "use_peft", "lora_r")] == ["other", True, 4]
    arguments = {"learning_rate": 0.2, "beta": 0.0, "output_dir": "x", "top_p": None}
    write_events(run / "runs" / "now" / "events.out.tfevents.1", 5.0, {}, arguments)
    settings = run_settings(run)
    assert (settings["learning_rate"], settings["beta"], settings["seed"]) == (0.2, 0.0, 3)
    assert not {"output_dir", "top_p"} & set(settings)


def test_authors_logs_make_a_report_without_settings(shared_data):
    page = build_page([shared_data / "leash_log_train.csv", shared_data / "leash_log_eval.csv"], "t")
    final, *_, note = page.sections[0].blocks
    assert note.text == "The files of these runs do not tell their settings."
    assert [row[0] for row in final.rows] == ["leash_log_train", "leash_log_eval"]
    assert final.rows[0][7] == "0.581"
    assert final.rows[1][2:5] == ["16,827", "6,302", "22.2"]  # of evaluations: this log has no batches


def test_comparisons_are_taken_as_they_are(compared):
    (section,) = build_page([compared], "t").sections
    paragraph, table, picture = section.blocks
    assert paragraph.text == "leash compare: 3 problems."
    assert [row[0] for row in table.rows] == ["base", "LEASH", "ALP, tuned"]
    assert all(len(row) == len(table.head) for row in table.rows)
    labels = {text.get_text() for text in picture.figure.axes[0].texts}
    assert labels == {"base", "LEASH", "ALP, tuned", " target 46"}
    assert table.head[:3] == ["method", "change", "seeds"]
    assert table.rows[1][:4] == ["LEASH", "-55.0%", "1", "0.900 [0.870, 0.930]"]


def test_a_comparison_that_is_not_whole_is_an_error(compared):
    (compared / "table.md").write_text("nothing")
    with pytest.raises(ValueError, match=r"table\.md holds no table; run leash compare again"):
        build_page([compared], "t")
    (compared / "seeds.csv").unlink()
    assert kinds_of(compared) == []


def test_html_is_complete_and_needs_nothing_else(page, html):
    reader = Reader(html)
    titles = ["Comparison: compare", "Evaluation", "Before and after", "Training"]
    assert [section.title for section in page.sections] == titles
    assert not reader.named("script")
    assert not reader.named("link")
    assert not reader.named("img")
    # the names of XML's own formats are no requests
    addresses = set(re.findall(r"https?://[^\"' )<]+", html))
    assert addresses == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "@import" not in html
    ids = [attributes["id"] for _, attributes in reader.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes in reader.named("a")]
    assert links == ["#section-1", "#section-2", "#section-3", "#section-4"]
    assert {link[1:] for link in links} <= set(ids)
    drawings = reader.named("svg")
    assert len(drawings) == len(page.pictures) == 6
    assert all(drawing["role"] == "img" and drawing["aria-label"] for drawing in drawings)


def tables_of(page):
    return [block for section in page.sections for block in section.blocks if block.kind == "table"]


def test_tables_are_marked_up_and_complete(page, html):
    reader, tables = Reader(html), tables_of(page)
    assert reader.tables == [[list(table.head), *map(list, table.rows)] for table in tables]
    scopes = [attributes.get("scope") for attributes in reader.named("th")]
    assert scopes.count("col") == sum(len(table.head) for table in tables)
    assert scopes.count("row") == sum(len(table.rows) for table in tables)


def test_hostile_labels_stay_text(page, html, markdown):
    assert "&lt;script&gt;" in html
    assert Reader(html).tables[1][1][0] == HOSTILE
    assert all("<script" not in picture.svg for picture in page.pictures)
    assert "<script" not in markdown
    assert "](javascript" not in markdown


def test_markdown_tables_keep_their_shape(page, markdown):
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    tables = tables_of(page)
    assert len(rows) == sum(len(table.rows) + 2 for table in tables)
    widths = [len(re.findall(r"(?<!\\)\|", row)) - 1 for row in rows]
    assert widths == [len(table.head) for table in tables for _ in range(len(table.rows) + 2)]
    assert markdown.startswith("# &lt;script&gt;")
    assert "\n\n**leash against &lt;script&gt;" in markdown
    assert "\n\n\n" not in markdown


@given(st.text())
def test_escaped_text_is_one_line_without_tags_and_cells(text):
    escaped = escape_markdown(text)
    assert "<" not in escaped
    assert "](" not in escaped
    assert len(escaped.splitlines()) <= 1
    assert not re.search(r"(?<!\\)(?:\\\\)*[|*`]", escaped)


def test_markdown_table_by_hand():
    table = Table("What | it is.", ["run", "a|b"], [["x", "1"], ["y", ""]])
    assert table.to_markdown() == "| run | a\\|b |\n| --- | ---: |\n| x | 1 |\n| y |  |\n\nWhat \\| it is."


def test_a_page_of_one_section_has_no_contents():
    text = to_html(Page("t", [Section("One", [Paragraph("a < b")])]))
    assert "<nav" not in text
    assert "<p>a &lt; b</p>" in text


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_same_inputs_give_the_same_bytes(everything, written, tmp_path, capsys):
    assert main(["report", *map(str, everything), "--title", HOSTILE, "--output", str(tmp_path / "one")]) == 0
    first, second = files_of(tmp_path / "one"), files_of(written)
    assert first == second
    figures = {"comparison-1", "evaluation-pareto", "budget", "behavior", "training", "dynamics"}
    assert set(first) == {Path("report.md"), Path("report.html")} | {Path(f"figures/{name}.svg") for name in figures}
    markdown = first[Path("report.md")].decode()
    assert set(re.findall(r"\]\((figures/[^)]+)\)", markdown)) == {f"figures/{name}.svg" for name in figures}
    assert "report.html" in capsys.readouterr().out


def test_a_baseline_that_is_no_evaluation_is_an_error(evaluated, trained, tmp_path, capsys):
    run = trained()
    assert main(["report", str(evaluated("base", 40)), "--baseline", str(run), "--output", str(tmp_path / "out")]) == 2
    assert f"baseline is '{run}', but must be a folder that leash eval wrote" in capsys.readouterr().err


def test_the_baseline_can_be_chosen_and_counts_once_however_it_is_written(evaluated, monkeypatch):
    first, second = evaluated("first", 40), evaluated("second", 20)
    monkeypatch.chdir(first.parent)
    table = tables_of(build_page([first, second], "t", baseline=Path(second.name)))[0]
    assert [row[0] for row in table.rows] == ["second", "first"]
    assert "difference from second" in table.caption


def test_figures_shrink_to_a_phone_and_only_wide_ones_scroll(page, html, evaluated):
    assert [picture.name for picture in page.pictures if picture.is_wide] == ["comparison-1"]
    assert html.count('class="scroll wide"') == 1
    assert "width: 100%; max-width: 40rem; height: auto" in html
    many = evaluation_section([evaluated(f"leash {tokens}", tokens) for tokens in range(30, 37)])
    assert [block.name for block in many.blocks if block.kind == "picture" and block.is_wide] == ["evaluation-pareto"]


def test_mistakes_are_one_line(tmp_path, evaluated, capsys):
    folder = evaluated("base", 40)
    (folder / "samples" / "aime.jsonl").unlink()
    assert main(["report", str(folder), "--output", str(tmp_path / "out")]) == 2
    assert "is not finished: aime has 0 of 2 problems" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- the headline ----------------------------------------------------------------------------------------------------


def many_problems(count, tokens, right, name="p"):
    """Problems with two completions each, whose length and share of right ones move a little."""
    return [
        problem(i, *(completion("1", tokens + i % 3, (i + j) % 4 < right) for j in range(2)), name=name)
        for i in range(count)
    ]


@pytest.fixture
def two_runs(tmp_path):
    return [
        write_run(tmp_path / "base", {"gym": many_problems(40, 50, 3)}, "base"),
        write_run(tmp_path / "leash", {"gym": many_problems(40, 30, 2)}, "leash"),
    ]


def test_the_page_begins_with_the_numbers_of_the_results(two_runs):
    change = compare_results(*map(load_results, reversed(two_runs))).overall
    page = build_page(two_runs, "t")
    (sentence,) = page.headline
    shown = [float(number) for number in re.findall(r"[+-]?\d+\.\d", sentence)]
    tokens, accuracy = change.relative_tokens, change.accuracy
    expected = [-tokens.value, -tokens.high, -tokens.low, accuracy.value, accuracy.low, accuracy.high]
    assert shown == pytest.approx([100 * number for number in expected], abs=0.051)
    assert "% fewer tokens" in sentence
    assert "accuracy fell: -25.0 points" in sentence  # 3 of 4 and 2 of 4 are right
    assert "on the same 40 problems" in sentence
    text = to_html(page).replace("\N{NO-BREAK SPACE}", " ")
    assert text.index("<h1>") < text.index(sentence) < text.index("<nav") < text.index("<h2")
    assert to_markdown(page, "figures").startswith(f"# t\n\n**{escape_markdown(sentence)}**\n")


NO_INTERVAL = Estimate(0.02, float("nan"), float("nan"))
WORDS = {
    "fewer tokens": Estimate(-0.4, -0.5, -0.3),
    "more tokens": Estimate(0.4, 0.3, 0.5),
    "tokens -1.0 % [-3.0, +1.0], no clear change": Estimate(-0.01, -0.03, 0.01),
    "tokens +2.0 %, which may be chance": NO_INTERVAL,
    "tokens -1.0 % [-3.0, +0.0], no clear change": Estimate(-0.01, -0.03, 0.0),
}
ACCURACY_WORDS = {
    "accuracy +2.0 points, which may be chance (one problem gives no interval).": NO_INTERVAL,
    "accuracy +2.0 points [+1.0, +3.0].": Estimate(0.02, 0.01, 0.03),
    "accuracy fell: -2.0 points [-3.0, -1.0].": Estimate(-0.02, -0.03, -0.01),
    "accuracy -2.0 points [-5.0, +1.0], no clear change (the interval includes zero).": Estimate(-0.02, -0.05, 0.01),
    "accuracy +2.0 points [-0.5, +4.7], no clear change (the interval includes zero).": Estimate(0.02, -0.005, 0.047),
}


@pytest.mark.parametrize(("tokens_words", "accuracy_words"), list(zip(WORDS, ACCURACY_WORDS, strict=True)))
def test_words_of_the_headline_follow_the_intervals(two_runs, tokens_words, accuracy_words):
    change = Change("overall", ACCURACY_WORDS[accuracy_words], Estimate(0, 0, 0), WORDS[tokens_words])
    (sentence,) = headline(load_evaluated_runs(two_runs), {"leash": {"overall": change}})
    assert tokens_words in sentence
    assert sentence.endswith(accuracy_words)
    assert sentence.count("no clear change") == ("no clear" in tokens_words) + ("no clear" in accuracy_words)


def test_headlines_without_a_change_say_why(evaluated, trained, two_runs, compared):
    (alone,) = build_page([evaluated("base", 40)], "t").headline
    assert "accuracy 25.0 %" in alone
    assert "no baseline" in alone
    first, second = build_page([*two_runs, evaluated("other", 20, names=("aime",))], "t").headline
    assert first.startswith("leash against base")
    assert second == "other is not compared with base: their problems differ."
    (unknown,) = build_page([trained()], "t").headline
    assert unknown.startswith("No run on this page was evaluated")
    assert build_page([compared], "t").headline == []


# --- one label -------------------------------------------------------------------------------------------------------


def test_a_run_has_one_label_everywhere(evaluated, trained):
    run, base, result = trained("some-folder"), evaluated("base", 40), evaluated("LEASH", 20, step=3)
    written = json.loads((result / "run.json").read_text())
    (result / "run.json").write_text(json.dumps(written | {"model": "runs/some-folder"}))
    page = build_page([run, trained("plain"), base, result], "t")
    columns = [
        table.head[1:] if table.head[0] == "setting" else [row[0] for row in table.rows]
        for section in page.sections
        for table in section.blocks
        if table.kind == "table"
    ]
    assert {label for labels in columns for label in labels} == {"base", "LEASH", "plain"}
    legends = {
        text.get_text()
        for picture in page.pictures
        for legend in (*picture.figure.legends, *(axis.get_legend() for axis in picture.figure.axes))
        if legend is not None
        for text in legend.get_texts()
    }
    assert legends - {"Summary", "Rethink", "Plan", "target 46"} == {"base", "LEASH", "plain"}
    assert page.headline[0].startswith("LEASH against base")


# --- before and after ------------------------------------------------------------------------------------------------


def said(tokens, is_correct=True, text="text", answer="1"):
    return dataclasses.replace(completion(answer, tokens, is_correct), text=text)


def test_pairs_are_chosen_by_rule():
    before = {"gym": [problem(i, said(50), said(60)) for i in range(3)]}
    # changes in the run's order, which is another: of p2 -10 and -20, of p0 -40 and -5, of p1 0 and 10
    after = [
        problem(2, said(40), said(40, False)),
        problem(0, said(10), said(55, False)),
        problem(1, said(50), said(70)),
    ]
    pairs = sample_pairs(before, {"gym": after, "other": after})
    assert [(pair.problem.id, pair.number, pair.change) for pair in pairs] == [
        ("p2", 1, -10),
        ("p2", 2, -20),
        ("p0", 1, -40),
        ("p0", 2, -5),
        ("p1", 1, 0),
        ("p1", 2, 10),
    ]
    assert [(reason, pair.problem.id, pair.number) for reason, pair in chosen(pairs)] == [
        ("median change in tokens", "p2", 1),  # the lower one of -10 and -5
        ("largest saving", "p0", 1),
        ("first that became wrong", "p2", 2),
    ]
    longer = sample_pairs(before, {"gym": [problem(0, said(60))]})
    assert [reason for reason, _ in chosen(longer)] == ["median change in tokens"]
    only = sample_pairs(before, {"gym": [problem(0, said(40, False))]})
    assert [reason for reason, _ in chosen(only)] == [
        "median change in tokens, largest saving, first that became wrong"
    ]


def test_completions_stand_beside_each_other_with_their_answers_and_tokens(tmp_path):
    long = "<b>bold</b> & " * (LONG_TEXT // 10)
    base = write_run(tmp_path / "base", {"gym": [problem(0, said(50, text=HOSTILE))]}, "base")
    run = write_run(tmp_path / "run", {"gym": [problem(0, said(64, False, long, answer=None))]}, "leash")
    page = build_page([base, run], "t")
    section = next(section for section in page.sections if section.title == "Before and after")
    rule, pair = section.blocks
    assert "1 pairs, of which 1 became wrong and 0 became right" in rule.text
    assert pair.title == "Median change in tokens, first that became wrong: p0 of gym, sample 1, gold answer 1"
    assert [side.head for side in pair.completions] == [
        "base: 50 tokens, answer 1, right",
        "leash: 64 tokens, no answer, wrong, cut off",
    ]
    assert [side.text for side in pair.completions] == [HOSTILE, long]
    text = to_html(page)
    reader = Reader(text)
    assert not reader.named("script")
    assert not reader.named("b")
    assert len(reader.named("details")) == 1
    assert text.index("&lt;script&gt;") < text.index("<details>") < text.index("&lt;b&gt;bold")
    markdown = to_markdown(page, "figures")
    assert "<script" not in markdown
    assert "<b>" not in markdown


def test_runs_without_a_common_problem_are_not_shown_beside_each_other(evaluated):
    page = build_page([evaluated("base", 40, names=("gym",)), evaluated("leash", 20, names=("aime",))], "t")
    assert [section.title for section in page.sections] == ["Evaluation"]


# --- phones ----------------------------------------------------------------------------------------------------------


def test_differences_come_first_in_every_table(page):
    heads = [table.head[1:] for table in tables_of(page)]
    with_changes = [[cell.startswith("Δ") or " Δ " in cell for cell in head] for head in heads]
    with_changes = [flags for flags in with_changes if any(flags)]
    assert len(with_changes) == 2
    assert all(flags == sorted(flags, reverse=True) for flags in with_changes)


def test_the_hash_of_the_weights_is_short_enough_for_a_phone():
    from leash_trl.analysis.evaluation_section import _settings

    run = {"weights": "0123456789abcdef", "decoding": {}, "sampling": {}, "versions": {}}
    assert _settings(run) == {"weights": "01234567"}
