"""Builds a report on training runs, evaluated runs and comparisons: one page, as HTML and as Markdown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from leash_trl import __version__
from leash_trl.comparison.curves import first_step_at_target
from leash_trl.comparison.tables import (
    DIFFERENCES_FILE,
    Table,
    comparison_rows,
    comparison_sentences,
    comparison_tables,
    read_comparison_rows,
)
from leash_trl.completions.costs import cost_label
from leash_trl.evaluation import tables
from leash_trl.evaluation.changes import PROBLEM_KEY, changes_from_baseline, samples_with_text_keys
from leash_trl.evaluation.intervals import Estimate
from leash_trl.evaluation.metrics import OVERALL
from leash_trl.evaluation.runs import EvaluatedRun, have_comparable_overall, warning_line
from leash_trl.evaluation.tables import (
    format_cost,
    format_number,
    format_percent,
    format_points,
    format_tokens,
    with_interval,
)
from leash_trl.figures.evaluation import budget_figure, budget_points, pareto_figure, pareto_points
from leash_trl.figures.runs import find_runs, load_evaluated_runs, load_labeled_curves
from leash_trl.figures.style import NARROW_INCHES, inline_svg, write_figure
from leash_trl.figures.training import (
    dynamics_figure,
    length_title,
    logged_curve,
    training_figure,
)
from leash_trl.files import write_atomically
from leash_trl.run_folder import (
    MEAN_TARGET_KEY,
    TargetSpan,
    length_control_state,
    read_saved_recipe,
    target_spans,
)


MAX_GOLD_CHARACTERS = 200  # a heading cuts longer golds
NUM_END_BATCHES = 10  # at each end of a log
MAX_LISTED_TARGETS = 4  # largest number that a cell lists; a schedule may have more
NOT_EVALUATED_SENTENCE = (
    "No run on this page has been evaluated; leash eval measures accuracy and tokens on held-out problems."
)
NO_OVERALL_SENTENCE = "Means over benchmarks and their figures are omitted because the runs have different benchmarks."
NOT_SIGNIFICANT = ", not significant (the interval includes zero)"
NUMBERS_CAPTION = (
    "Numbers of the training; accuracy and satisfaction are in %.\n"
    f"- first, last: means over {NUM_END_BATCHES} logged batches (over half, if fewer than {2 * NUM_END_BATCHES}) "
    "or, without batches, over evaluations\n"
    "- length: what length_of counts, by default tokens\n"
    "- λ of last batch: the value before its update\n"
    "- steps to target: first batch with a mean at or under the target; empty if the target changed"
)
DYNAMICS_CAPTION = "Satisfaction rate, penalty coefficient λ, mean penalty, mean length and accuracy over training."


class CaptionedFigure(NamedTuple):
    """A figure with the name of its file and its caption."""

    name: str
    caption: str
    figure: Figure


class CompletionPair(NamedTuple):
    """A question and its completions by two runs, each with its title, such as `"leash: 55 tokens, incorrect"`."""

    title: str
    question: str
    completions: Sequence[tuple[str, str]]


Block = str | Table | CaptionedFigure | CompletionPair  # a text is a paragraph


class Section(NamedTuple):
    """A section of the page: its blocks, the sentences that it adds to the top of the page (`headline`), and further
    blocks (`details`), which the HTML page folds."""

    title: str
    blocks: Sequence[Block]
    headline: Sequence[str] = ()
    details: Sequence[Block] = ()


def write_report(paths: Sequence[Path], folder: Path, title: str) -> None:
    """Writes `report.html`, which is self-contained, and `report.md` with its figures.

    The evaluated runs are compared with the first of them. The same inputs give identical files.
    """
    folders = find_runs(paths)
    sections = sections_of(folders["training"], folders["comparison"], load_evaluated_runs(folders["evaluation"]))
    # Files are written last, so that an error before leaves no files.
    for section in sections:
        for block in section.blocks:
            if isinstance(block, CaptionedFigure):
                write_figure(block.figure, folder / "figures" / f"{block.name}.svg")
    write_atomically(folder / "report.md", render("report.md.j2", title, sections))
    write_atomically(folder / "report.html", render("report.html.j2", title, sections))


def sections_of(
    training_folders: Sequence[Path], comparison_folders: Sequence[Path], runs: Sequence[EvaluatedRun]
) -> list[Section]:
    """Builds the sections of a page on training runs, comparisons and evaluated runs, in this order."""
    sections = []
    if training_folders:
        section = training_section(training_folders)
        if not comparison_folders and not runs:
            section = section._replace(headline=[*section.headline, NOT_EVALUATED_SENTENCE])
        sections.append(section)
    for number, folder in enumerate(comparison_folders, start=1):
        sections.append(comparison_section(folder, f"comparison-{number}"))
    if runs:
        sections.append(evaluation_section(runs))
        pairs = completion_pairs(runs)
        if pairs:
            sections.append(Section("Before and after", pairs))
    return sections


def render(template: str, title: str, sections: Sequence[Section]) -> str:
    """Renders the page as one HTML file without scripts, or as Markdown that links to the figures."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        # In HTML all text is escaped; in Markdown the filter `md` escapes what the template passes to it.
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = tables.escaped
    environment.filters["markdown"] = tables.markdown
    environment.filters["svg"] = inline_svg
    return environment.get_template(template).render(
        version=__version__, escaped=tables.escaped, title=title, sections=sections
    )


def comparison_section(folder: Path, name: str) -> Section:
    """Builds the section of a folder of `leash compare`; `name` is the file name of its figure."""
    # The paragraphs at the start of the comparison's page are shown as plain text, without backticks.
    page = (folder / "table.md").read_text(encoding="utf-8").replace("`", "")
    text_before_table, _, _ = page.partition("\n\n| ")
    blocks: list[Block] = [*text_before_table.split("\n\n")]
    seeds = read_comparison_rows(folder / "seeds.csv")
    rows = comparison_rows(seeds)  # a row per point, with means over its seeds
    figure = pareto_figure(rows, width=NARROW_INCHES)
    caption = "Accuracy or reward over mean tokens, with the table's 95 % intervals."
    blocks.append(CaptionedFigure(name, caption, figure))
    differences = pd.read_csv(folder / DIFFERENCES_FILE)
    blocks.extend(comparison_tables(seeds, differences))
    headline = [f"{sentence}." for sentence in comparison_sentences(rows)]
    return Section(f"Comparison: {folder.resolve().name}", blocks, headline)


def evaluation_section(runs: Sequence[EvaluatedRun]) -> Section:
    """Builds the section with metrics and token budgets of evaluated runs, against the first run."""
    base, *others = runs
    changes = [_changes_from(base, run) for run in others]
    headline = [change.sentence for change in changes] or [results_sentence(base)]
    blocks: list[Block] = []
    if message := warning_line(runs):
        blocks.append(message)
    blocks.extend(_result_figures(runs))
    blocks.append(Table(tables.summary_table(runs), tables.SUMMARY_LEGEND))
    blocks.extend(change.table for change in changes if change.table is not None)
    # The settings of each run, with nested ones such as `sampling top_p`.
    settings = {run.label: pd.json_normalize(run.record, sep=" ").loc[0] for run in runs}
    details: list[Block] = [*_benchmark_tables(runs)]
    details.append(tables.METRIC_LEGEND)
    details.append(_settings_table("Sampling settings of the runs.", settings))
    return Section("Evaluation", blocks, headline, details)


class Changes(NamedTuple):
    """Changes from the first run, in a sentence and, if both runs have the same problems, in a table."""

    sentence: str
    table: Table | None = None


def _changes_from(base: EvaluatedRun, run: EvaluatedRun) -> Changes:
    """Returns the changes of a run from the base; for a run on other problems, a sentence that says so."""
    try:
        changes = changes_from_baseline(run, base)
    except ValueError as error:
        return Changes(f"{run.label} cannot be compared with {base.label}: {error}.")
    cells = tables.metric_cells(run, changes, has_overall=have_comparable_overall([run]))
    frame = cells.T.rename_axis("benchmark").reset_index()  # one row per benchmark
    caption = f"Changes of {run.label} from {base.label}, paired by problem, with 95 % intervals."
    return Changes(changes_sentence(run, base, changes), Table(frame, caption))


def _benchmark_tables(runs: Sequence[EvaluatedRun]) -> list[Table]:
    """Returns one table per benchmark, with one row per metric and one column per run that has the benchmark."""
    cells_by_label = {run.label: tables.metric_cells(run, run.results, has_overall=False) for run in runs}
    # A column for each pair of run and benchmark, such as ("leash", "aime24").
    cells = pd.concat(cells_by_label, axis="columns").fillna("")
    benchmark_tables = []
    for name in cells.columns.unique(level=1):
        frame = cells.xs(name, axis="columns", level=1).rename_axis("metric").reset_index()
        benchmark_tables.append(Table(frame, f"All metrics on {name}, with 95 % intervals."))
    return benchmark_tables


def _num_problems_text(run: EvaluatedRun) -> str:
    """Returns the size of an evaluation, such as "60 problems of 2 benchmarks"."""
    # The last row is a mean over benchmarks, and has the number of problems of all benchmarks.
    problems = f"{run.results['num_problems'].iloc[-1]:,} problems"
    return problems if len(run.benchmarks) == 1 else f"{problems} of {len(run.benchmarks)} benchmarks"


def results_sentence(run: EvaluatedRun) -> str:
    """Returns a sentence on the results of a run without a baseline."""
    # Such as "accuracy 50.0 [40.0, 62.5] %".
    if run.knows_correctness():
        score = f"accuracy {with_interval(run.estimate('accuracy'), format_percent)} %"
    else:
        score = f"mean reward {with_interval(run.estimate('reward'), '{:.3f}'.format)}"
    length = with_interval(run.estimate("tokens"), format_tokens)
    return f"{run.label}, on {_num_problems_text(run)}: {score}, {length} tokens per completion; no baseline is given."


def changes_sentence(run: EvaluatedRun, base: EvaluatedRun, change: pd.DataFrame) -> str:
    """Returns a sentence on the [`changes_from_baseline`] of a run: the change of tokens, and those of another cost
    and of accuracy, if there are any.

    A change is significant if its interval does not include zero.
    """
    # Rows of the means over benchmarks, by metric.
    overall = change[change["benchmark"] == OVERALL].set_index("metric")
    formats = [
        ("relative_tokens_change", "tokens {} %", format_points),
        ("cost_change", f"{cost_label(run.record['length_of'])} {{}}", "{:+.3g}".format),
        ("accuracy_change", "accuracy {} points", format_points),
    ]
    parts = []
    for metric, template, formatter in formats:
        # There is no change of accuracy if it is not known, and none of a cost other than tokens if none was measured.
        if metric not in overall.index:
            continue
        estimate = Estimate(*overall.loc[metric, ["value", "low", "high"]])
        # Comparisons with NaN are false, so a change without an interval is not significant.
        is_significant = estimate.low > 0 or estimate.high < 0
        part = template.format(with_interval(estimate, formatter))
        parts.append(part if is_significant else part + NOT_SIGNIFICANT)
    return f"{run.label} compared with {base.label}, on the same {_num_problems_text(base)}: {'; '.join(parts)}."


def _result_figures(runs: Sequence[EvaluatedRun]) -> list[Block]:
    """Returns the figures of means over benchmarks. There are none if the accuracy of a run is not known; if the runs
    have different benchmarks, whose means cannot be compared, the result is a sentence that says so."""
    if len({frozenset(run.benchmarks) for run in runs}) > 1:
        return [NO_OVERALL_SENTENCE]
    if not all(run.knows_correctness() for run in runs):
        return []
    figures: list[Block] = []
    if len(runs) > 1:
        base = runs[0].label
        caption = f"Accuracy over mean tokens (means over benchmarks), with 95 % intervals. The diamond is {base}."
        figure = pareto_figure(pareto_points(runs), width=NARROW_INCHES)
        figures.append(CaptionedFigure("evaluation-pareto", caption, figure))
    caption = "Share of completions that are correct within a token budget, mean over benchmarks, with 95 % intervals."
    figures.append(CaptionedFigure("budget", caption, budget_figure(budget_points(runs), width=NARROW_INCHES)))
    return figures


def _settings_table(caption: str, settings: Mapping[str, Mapping[str, Any]]) -> Table:
    """Returns a table with one row per setting and one column per run; settings that no run has are left out."""
    # Runs may have different settings; the cell of a setting that a run does not have is empty.
    frame = pd.DataFrame(settings, dtype=object).dropna(how="all").fillna("").astype(str)
    return Table(frame.rename_axis("setting").reset_index(), caption)


def completion_pairs(runs: Sequence[EvaluatedRun]) -> list[CompletionPair]:
    """Returns completions of the first run beside those of each other run for the same samples: the pair with the
    median change in tokens (the lower of two medians), and the first pair that became incorrect, if there is one.

    A fixed rule avoids selection by hand.
    """
    base, *others = runs
    shown = []
    for run in others:
        pairs = _paired_samples(run, base)
        if pairs.empty:
            continue
        shown.append(_completion_pair("Median change in tokens", _median_pair(pairs), run, base))
        # Correctness is 1, 0 or, if it is not known, NaN, which equals neither.
        became_incorrect = pairs[(pairs["is_correct_before"] == 1) & (pairs["is_correct"] == 0)]
        if len(became_incorrect):
            reason = f"First of {len(became_incorrect):,} answers of {len(pairs):,} that became incorrect"
            shown.append(_completion_pair(reason, became_incorrect.iloc[0], run, base))
    return shown


def _paired_samples(run: EvaluatedRun, base: EvaluatedRun) -> pd.DataFrame:
    """Returns a row per sample that both runs have; the columns of the base end in `_before`, such as
    `text_before`."""
    samples = samples_with_text_keys(run)
    base_samples = samples_with_text_keys(base)
    return pd.merge(samples, base_samples, on=[*PROBLEM_KEY, "sample"], suffixes=("", "_before"))


def _median_pair(pairs: pd.DataFrame) -> "pd.Series[Any]":
    """Returns the pair whose change in tokens is the median, or the lower of two medians."""
    changes = pairs["num_tokens"] - pairs["num_tokens_before"]
    row_numbers = changes.argsort(kind="stable")  # of the changes in ascending order
    return pairs.iloc[row_numbers.iloc[(len(pairs) - 1) // 2]]


def _completion_pair(reason: str, pair: "pd.Series[Any]", run: EvaluatedRun, base: EvaluatedRun) -> CompletionPair:
    """Returns the block that shows a row of [`_paired_samples`]."""
    completions = []
    for label, ending in ((base.label, "_before"), (run.label, "")):
        verdict = {1.0: "correct", 0.0: "incorrect"}.get(pair[f"is_correct{ending}"], "not graded")
        completion_title = f"{label}: {pair[f'num_tokens{ending}']:,} tokens, {verdict}"
        completions.append((completion_title, pair[f"text{ending}"]))
    # Without a solution, the gold is in some column that the reward function reads, so all columns are shown.
    gold = pair["solution"] or pair["columns"] or "unknown"
    gold = shorten(str(gold), MAX_GOLD_CHARACTERS, placeholder="...")
    title = f"{reason}: {pair['id']} of {pair['benchmark']}, reference answer {gold}"
    return CompletionPair(title, pair["question"], completions)


def training_section(paths: Sequence[Path]) -> Section:
    """Builds the section with final values, figures and settings of training runs.

    `paths` are those of [`~leash_trl.figures.training.load_curves`].
    """
    runs = load_labeled_curves(paths)
    settings = {run.attrs["label"]: saved_settings(path) for path, run in zip(paths, runs, strict=True)}
    # a row of the table for each run, such as {"run": "leash", "steps": "80", "first length": "60.1"}
    numbers = [final_numbers_row(run) for run in runs]
    headline = [_training_sentence(row, settings[row["run"]]) for row in numbers]
    blocks: list[Block] = []
    for run in runs:
        # The advice that was given during training, and the update at which it was given.
        for advice in run.attrs["advice"]:
            blocks.append(f"{run.attrs['label']}, update {advice['step']}: {advice['text']}.")
    training_caption = f"{length_title(runs)} and mean accuracy over training."
    blocks.append(CaptionedFigure("training", training_caption, training_figure(runs, columns=1)))
    blocks.append(CaptionedFigure("dynamics", DYNAMICS_CAPTION, dynamics_figure(runs, columns=2)))
    blocks.append(Table(pd.DataFrame(numbers), NUMBERS_CAPTION))
    recipes_caption = "Settings in the recipes of the runs; all other settings have their defaults."
    return Section("Training", blocks, headline, details=[_settings_table(recipes_caption, settings)])


def _training_sentence(numbers: Mapping[str, str], settings: Mapping[str, Any]) -> str:
    """Returns a sentence on what a run trained and how its batches changed. `numbers` is its [`final_numbers_row`],
    `settings` its [`saved_settings`]."""
    model = settings.get("model_name_or_path", "a model")
    method = settings["length_control"] or "no length control"
    parts = [f"{numbers['run']}: {model} trained with {method} for {numbers['steps']} updates"]
    if numbers["target"]:
        parts.append(f"target {numbers['target']}")
    for name, unit in (("length", f" {cost_label(numbers['length of'])}"), ("accuracy", " %")):
        # The text is empty if the run did not log this number.
        if numbers[f"last {name}"]:
            parts.append(f"{name} in training from {numbers[f'first {name}']} to {numbers[f'last {name}']}{unit}")
    return ", ".join(parts) + "."


def saved_settings(path: Path) -> dict[str, Any]:
    """Returns the method, the target and the recipe saved in a run's folder."""
    state = length_control_state(path) or {}
    recipe = read_saved_recipe(path)
    return {"length_control": state.get("method"), "target_length": state.get("target_length"), **recipe}


def final_numbers_row(run: pd.DataFrame) -> dict[str, str]:
    """Returns a run's row in the table of training runs."""
    # means over the first and over the last ten batches; NaN, with an empty cell, for numbers that were not logged
    first_length, last_length = _first_and_last_means(run, "mean_length")
    first_accuracy, last_accuracy = _first_and_last_means(run, "accuracy")
    _, last_satisfaction = _first_and_last_means(run, "satisfaction_rate")
    spans = target_spans(run.reset_index())
    lambdas = logged_curve(run, "leash/lambda")
    generated_tokens = logged_curve(run, "leash/generated_tokens")
    return {
        "run": run.attrs["label"],
        "steps": str(run.index[-1]),  # curves are indexed by step
        "target": _targets_cell(run, spans),
        "length of": run.attrs["length_of"],
        "first length": format_cost(first_length, run.attrs["length_of"]),
        "last length": format_cost(last_length, run.attrs["length_of"]),
        "first accuracy": format_percent(first_accuracy),
        "last accuracy": format_percent(last_accuracy),
        "last satisfaction": format_percent(last_satisfaction),
        "maximum λ": format_number(lambdas.max()),
        "λ of last batch": format_number(lambdas.iloc[-1]) if len(lambdas) else "",
        "steps to target": _steps_to_target(run, spans),
        "tokens in training": f"{generated_tokens.iloc[-1]:,.0f}" if len(generated_tokens) else "",
    }


def _targets_cell(run: pd.DataFrame, spans: Sequence[TargetSpan]) -> str:
    """Returns the targets of a run, each with its first step if the target changed; empty without targets."""
    if not spans:
        return "of each prompt" if MEAN_TARGET_KEY in run else ""
    if len(spans) > MAX_LISTED_TARGETS:
        return "changing"
    targets = [f"{span.target:g}" for span in spans]
    for index, span in enumerate(spans[1:], start=1):
        targets[index] += f" from step {span.first_step}"
    return ", ".join(targets)


def _steps_to_target(run: pd.DataFrame, spans: Sequence[TargetSpan]) -> str:
    """Returns the step of the first batch with a mean length at or under the target, or `"never"`; empty without
    batches, and without a single target for the whole run."""
    lengths = logged_curve(run, "leash/mean_length")
    if len(spans) != 1 or lengths.empty:
        return ""
    step = first_step_at_target(lengths, spans[0].target)
    return "never" if step is None else str(step)


def _first_and_last_means(run: pd.DataFrame, key: str) -> tuple[float, float]:
    """Returns the means of the first and of the last ten logged batches; if there are fewer than twenty, of the first
    and of the last half, and NaN without any."""
    values = logged_curve(run, f"leash/{key}")
    # A run may have logged evaluations only.
    if values.empty:
        values = logged_curve(run, f"eval_leash/{key}")
    size = min(NUM_END_BATCHES, max(1, len(values) // 2))
    return values.iloc[:size].mean(), values.iloc[-size:].mean()
