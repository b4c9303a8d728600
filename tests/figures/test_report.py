"""The report: its numbers, that nothing breaks out of it, and that the same inputs give the same bytes."""

import html
import math
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled_run import problem, write_run
from written_runs import evaluated, files_in, said, seeds_of, write_comparison, write_evaluation, write_training

from leash_trl.cli.main import main
from leash_trl.comparison.tables import Table
from leash_trl.evaluation.tables import escaped
from leash_trl.figures.report import (
    Section,
    changes_sentence,
    comparison_section,
    completion_pairs,
    evaluation_section,
    final_numbers_row,
    render,
    training_section,
    write_report,
)
from leash_trl.figures.runs import load_evaluated_runs
from leash_trl.figures.training import curves_from_state


HOSTILE = '<script>alert("1")</script> | [x](javascript:y) & `z` $\\foo{$'


def cells_of(page):
    """The rows of cells of all tables of a page."""
    rows = re.findall(r"<tr.*?</tr>", page.replace("\N{NO-BREAK SPACE}", " "), re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in rows]
    return [[html.unescape(cell).strip() for cell in row] for row in cells]


def write_problems(folder, label, tokens, num_right=1):
    """A run with two problems of two completions each; of the first `num_right` are right, of the second none."""
    first = [said(tokens, number < num_right) for number in range(2)]
    second = [said(64, False, answer=None), said(tokens, False, answer="3")]
    return write_evaluation(folder, label, {"gym": [first, second], "aime": [first, second]})


@pytest.fixture
def base_and_shorter(tmp_path):
    """Of two problems, the second run solves the first one always, the first run half of the time."""
    return load_evaluated_runs(
        [
            write_problems(tmp_path / "base", "base", tokens=40, num_right=1),
            write_problems(tmp_path / "leash", "leash", tokens=20, num_right=2),
        ]
    )


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
    blocks = [*section.blocks, *section.details]
    return [block.frame for block in blocks if isinstance(block, Table)]


def test_training_is_told_before_its_numbers(tmp_path):
    rows = [{"leash/mean_length": length, "leash/accuracy": 0.5} for length in (60.0, 40.0)]
    section = training_section([write_training(tmp_path / "run", rows)])
    (sentence,) = section.headline
    assert sentence.startswith("run: ")
    for words in ("leash", "2 updates", "60.0", "40.0 tokens", "50.0 %"):
        assert words in sentence


def test_sentences_at_the_top_are_folded_from_the_ninth_on():
    sentences = [f"sentence {number}" for number in range(10)]
    page = render("report.html.j2", "t", [Section("Runs", [], sentences)])
    assert page.index("sentence 7") < page.index("<summary>2 more") < page.index("sentence 8")


def test_settings_are_folded_below_the_story(written):
    page = (written / "report.html").read_text(encoding="utf-8")
    assert page.index("<summary>More numbers") < page.index(">sampling temperature<")


def test_the_table_of_runs_stands_before_the_changes_from_the_first_run(base_and_shorter):
    frame, change, *_ = tables(evaluation_section(base_and_shorter))
    in_all = frame[frame["benchmark"] == "overall"]
    assert in_all["model"].tolist() == ["base", "leash"]
    assert in_all["tokens"].str.partition(" [")[0].tolist() == ["46.0", "31.0"]  # (3 * 40 + 64) / 4
    overall = change.set_index("benchmark").loc["overall"]
    assert overall["Δ tokens (%)"].startswith("-32.6 [")  # 31 / 46 - 1


def test_every_metric_of_a_benchmark_stands_beside_that_of_the_other_run(base_and_shorter):
    of_gym, of_aime = [frame for frame in tables(evaluation_section(base_and_shorter)) if "metric" in frame]
    lengths = of_gym.set_index("metric").loc["median tokens"]
    assert lengths.to_dict() == {"base": "40.0", "leash": "20.0"}
    assert of_gym.equals(of_aime)


def test_the_numbers_of_a_training_run_by_hand():
    columns = {
        "step": [1, 2, 3],
        "leash/common_target": 46,
        "leash/mean_length": [60, 46, 50],
        "leash/lambda": [0.1, 0.6, 0.3],
        "leash/satisfaction_rate": [0.2, 0.5, 0.4],
        "leash/generated_tokens": [1000, 2000, 3000],
    }
    log = pd.DataFrame(columns).to_dict("records")
    cells = final_numbers_row(curves_from_state({"log_history": log}, "run"))
    assert cells["steps"] == "3"
    assert cells["target"] == "46"
    assert cells["steps to target"] == "2"
    assert cells["tokens in training"] == "3,000"
    assert cells["maximum λ"] == "0.6"
    assert cells["λ of last batch"] == "0.3"
    assert cells["last satisfaction"] == "40.0"
    first_only = final_numbers_row(curves_from_state({"log_history": log[:1]}, "run"))
    assert first_only["steps to target"] == "never"


def test_a_run_without_batches_has_the_numbers_of_its_evaluations():
    log = [{"step": 2, "eval_leash/mean_length": 7.0}]
    assert final_numbers_row(curves_from_state({"log_history": log}, "run"))["last length"] == "7.0"


@pytest.mark.parametrize(
    ("rows", "target", "steps_to_target"),
    [
        # by a schedule
        ([(1, 40.0, 46.0, 46.0), (2, 40.0, 24.0, 24.0)], "46, 24 from step 2", ""),
        # targets of rows, which are equal in one batch by chance
        ([(1, 40.0, 46.0, math.nan), (2, 10.0, 12.0, 12.0)], "of each prompt", ""),
        # means over ten and over two updates, which differ in the last bit
        ([(10, 40.0, 12.3, 12.299999999999999), (12, 11.0, 12.3, 12.3)], "12.3", "12"),
    ],
)
def test_targets_are_told_by_steps_if_all_prompts_have_them(rows, target, steps_to_target):
    columns = ["step", "leash/mean_length", "leash/target_length", "leash/common_target"]
    log = pd.DataFrame(rows, columns=columns).to_dict("records")
    numbers = final_numbers_row(curves_from_state({"log_history": log}, "run"))
    assert (numbers["target"], numbers["steps to target"]) == (target, steps_to_target)


def test_a_run_shows_what_it_was_told_while_it_trained(tmp_path):
    advice = [{"name": "truncated", "step": 20, "text": "raise max_completion_length"}]
    run = write_training(tmp_path / "run", [{"leash/mean_length": 9.0}], advice=advice)
    assert "run, update 20: raise max_completion_length." in training_section([run]).blocks


def test_settings_are_the_recipe(tmp_path):
    run = write_training(tmp_path / "run", [{"leash/mean_length": 9.0}])
    (run / "leash_recipe.yaml").write_text("learning_rate: 0.1\n")
    settings = tables(training_section([run]))[-1].set_index("setting")["run"]
    assert settings.to_dict() == {"length_control": "leash", "target_length": "46", "learning_rate": "0.1"}


def test_a_comparison_has_its_files_words_and_tables_and_a_sentence_on_each_point(everything):
    section = comparison_section(everything[0], "comparison-1")
    _, leash, _ = section.headline
    assert leash.startswith("LEASH at 46: accuracy 0.900")
    first = tables(section)[0]
    assert first["method"].tolist() == ["base", "LEASH", "ALP"]
    assert first["change of tokens"].tolist() == ["", "-59.5%", "-49.5%"]
    assert section.blocks[0] == "leash compare: 3 problems."


@pytest.mark.parametrize(
    ("tokens", "accuracy", "insignificant"),
    [
        ((-0.4, -0.5, -0.3), (0.02, 0.01, 0.03), 0),
        ((-0.01, -0.03, 0.0), (0.02, math.nan, math.nan), 2),
    ],
)
def test_the_headline_states_the_change_and_its_significance(base_and_shorter, tokens, accuracy, insignificant):
    rows = [("overall", "relative_tokens_change", *tokens), ("overall", "accuracy_change", *accuracy)]
    change = pd.DataFrame(rows, columns=["benchmark", "metric", "value", "low", "high"])
    base, shorter = base_and_shorter
    sentence = changes_sentence(shorter, base, change)
    percents = [f"{100 * number:+.1f}" for number in (*tokens, *accuracy) if not math.isnan(number)]
    assert re.findall(r"[+-]\d+\.\d", sentence) == percents
    assert sentence.count("not significant") == insignificant


def test_the_headline_states_the_change_of_another_cost(base_and_shorter):
    rows = [("overall", "relative_tokens_change", 0.0, -0.1, 0.1), ("overall", "cost_change", -2.5, -3.0, -2.0)]
    change = pd.DataFrame(rows, columns=["benchmark", "metric", "value", "low", "high"])
    base, shorter = base_and_shorter
    shorter = replace(shorter, record=shorter.record | {"length_of": "tool_calls"})
    assert "tool calls -2.5 [-3, -2]" in changes_sentence(shorter, base, change)


def test_the_headline_of_runs_that_are_not_compared(base_and_shorter, tmp_path):
    base, _ = base_and_shorter
    (alone,) = evaluation_section([base]).headline
    assert "25.0 [" in alone  # 1 of 4 completions is correct
    with_other_problems = evaluated(tmp_path, "other", words=[[said(9)]])
    (not_compared,) = evaluation_section([base, with_other_problems]).headline
    assert "compared" in not_compared
    assert "%" not in not_compared


@pytest.fixture
def pairs_of(tmp_path):
    """Factory: the pairs shown of two runs, each with one completion for each of these problems."""

    def shown(before, after, *fields):
        folders = []
        for label, completions in (("base", before), ("leash", after)):
            problems = [problem(index, completions[index], **row) for index, row in enumerate(fields)]
            folders.append(write_run(tmp_path / "pairs" / label, {"words": problems}, label))
        return completion_pairs(load_evaluated_runs(folders))

    return shown


def test_pairs_are_selected_by_rule(pairs_of):
    # changes of tokens: -10, -40, 5, -5; the median is the lower one of -10 and -5
    before = [said(50), said(50), said(50), said(50)]
    after = [said(40), said(10), said(55, False), said(45)]
    fields = [{"question": "a"}, {"question": "b"}, {"question": "c"}, {"question": "d"}]
    median, became_incorrect = pairs_of(before, after, *fields)
    assert median.question == "a"
    assert became_incorrect.question == "c"
    assert became_incorrect.completions == [
        ("base: 50 tokens, correct", "text"),
        ("leash: 55 tokens, incorrect", "text"),
    ]


@pytest.mark.parametrize(
    ("fields", "gold"),
    [
        ({"solution": "12"}, "12"),
        ({"solution": None, "columns": {"word": "dog"}}, "{'word': 'dog'}"),
        ({"solution": None}, "unknown"),
    ],
)
def test_a_pair_shows_its_gold(pairs_of, fields, gold):
    (shown,) = pairs_of([said(50)], [said(40)], fields)
    assert shown.title.endswith(f"reference answer {gold}")


def test_texts_of_a_pair_stay_text_and_long_ones_are_folded(pairs_of):
    long = "<b>bold</b> & " * 80
    blocks = pairs_of([said(50, text=HOSTILE)], [said(64, text=long)], {"question": HOSTILE})
    section = Section("Pairs", blocks)
    page = render("report.html.j2", "t", [section])
    markdown = render("report.md.j2", "t", [section])
    assert page.count("<details") == 1
    assert page.count(html.escape(HOSTILE, quote=False)[:20]) == 2
    assert not re.search("<script|<b>", page + markdown)


def test_runs_without_a_common_problem_have_no_pairs(tmp_path, base_and_shorter):
    base, _ = base_and_shorter
    assert completion_pairs([base, evaluated(tmp_path, "other", words=[[said(9)]])]) == []


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
    assert HOSTILE in [row[1] for row in cells_of(page) if len(row) > 1]
    markdown = (written / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"<script|\]\(javascript", markdown)


@given(st.text())
def test_escaped_text_is_one_line_without_tags_and_cells(text):
    shown = escaped(text)
    assert not re.search(r"<|\]\(", shown)
    assert len(shown.splitlines()) <= 1
    assert not re.search(r"(?<!\\)(?:\\\\)*[|*`]", shown)


def test_the_same_inputs_give_the_same_bytes(everything, written, tmp_path):
    assert main(["report", *map(str, everything), "--title", HOSTILE, "--output_dir", str(tmp_path / "one")]) == 0
    files = files_in(tmp_path / "one")
    assert files == files_in(written)
    names = ("comparison-1", "evaluation-pareto", "budget", "training", "dynamics")
    figures = {f"figures/{name}.svg" for name in names}
    assert files.keys() == {"report.md", "report.html"} | figures
    assert {*re.findall(r"\]\((figures/[^)]+)\)", files["report.md"].decode())} == figures


def test_the_first_run_is_the_one_to_compare_with_and_counts_once(everything, tmp_path):
    _, first, second, _ = everything
    write_report([second, first, second], tmp_path, "t")
    first_table, _, _ = (tmp_path / "report.html").read_text().partition("</table>")
    labels = [row[1] for row in cells_of(first_table)[1:3]]
    assert labels == ["leash", HOSTILE]


def test_a_missing_folder_is_named_and_nothing_is_written(everything, tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        write_report([*everything, Path("nowhere")], tmp_path / "nothing", "t")
    assert not (tmp_path / "nothing").exists()
