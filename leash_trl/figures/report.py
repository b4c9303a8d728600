"""Builds a report on training runs, evaluated runs and comparisons: one page, as HTML and as Markdown."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import jinja2
import pandas as pd
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from leash_trl import __version__
from leash_trl.comparison.curves import LAST_BATCHES, ends, first_at_target
from leash_trl.comparison.tables import comparison_tables, read_comparison
from leash_trl.evaluation import tables
from leash_trl.evaluation.changes import changes
from leash_trl.evaluation.intervals import Estimate
from leash_trl.evaluation.metrics import OVERALL
from leash_trl.evaluation.runs import EvaluatedRun, have_overall, warning
from leash_trl.evaluation.tables import format_number, format_percent, format_points, format_tokens, with_interval
from leash_trl.figures.behavior import KEYWORDS, behavior, behavior_figure
from leash_trl.figures.evaluation import budget_curves, budget_figure, pareto_figure, read_trade_offs, trade_offs
from leash_trl.figures.runs import find_runs, load_evaluated_runs, load_runs
from leash_trl.figures.style import NARROW, inline_svg, write_figure
from leash_trl.figures.training import dynamics_figure, logged, targets_of, training_figure
from leash_trl.files import write_whole
from leash_trl.paths import existing_path
from leash_trl.run_folder import TargetSpan, length_control_state, read_saved_recipe


LONG_TEXT = 800  # characters; the page folds questions and completions longer than this
LONG_GOLD = 200  # characters; a heading cuts golds longer than this
MOST_TARGETS = 4  # listed in a cell; a schedule or targets of single prompts have more
VERDICTS = {1.0: "correct", 0.0: "incorrect"}
NOT_EVALUATED = "No run on this page has been evaluated; leash eval measures accuracy and tokens on held-out problems."
NO_OVERALL = "Means over benchmarks and their figures are omitted because the runs have different benchmarks."
NOT_SIGNIFICANT = ", not significant (the interval includes zero)"


Block = str | dict[str, Any]  # a paragraph of plain text, a table, a figure, or a question and its completions


def _table(caption: str, rows: Any) -> Block:
    return {"caption": caption, "frame": pd.DataFrame(rows)}


def _picture(name: str, caption: str, figure: Figure) -> Block:
    return {"name": name, "caption": caption, "figure": figure}


class Section(NamedTuple):
    """A section of the page, with the sentences that it adds to the top of the page."""

    title: str
    blocks: Sequence[Block]
    headline: Sequence[str] = ()


def write_report(paths: Sequence[Path], folder: Path, title: str, baseline: Path | None = None) -> None:
    """Writes `report.html`, which is self-contained, `report.md` with its figures, and, for evaluated runs,
    `behavior.csv` with the count of every keyword.

    The evaluated runs are compared with `baseline`, which defaults to the first of them. The same inputs give
    identical files.
    """
    folders = find_runs([Path(existing_path(path, "paths")) for path in paths])
    evaluation_folders = folders["evaluation"]
    if baseline is not None:
        baseline = Path(existing_path(baseline, "baseline"))
        baseline_folders = find_runs([baseline], ["evaluation"])["evaluation"]
        others = [run for run in evaluation_folders if run.resolve() != baseline.resolve()]
        evaluation_folders = [*baseline_folders, *others]

    sections = []
    for number, comparison in enumerate(folders["comparison"], start=1):
        sections.append(comparison_section(comparison, f"comparison-{number}"))
    runs = load_evaluated_runs(evaluation_folders)
    if runs:
        keywords = behavior(runs)
        sections.append(evaluation_section(runs, keywords))
        before_and_after = before_and_after_section(runs)
        if before_and_after is not None:
            sections.append(before_and_after)
    if folders["training"]:
        is_evaluated = bool(runs or folders["comparison"])
        sections.append(training_section(folders["training"], runs, is_evaluated))

    # files are written last, so that an error above leaves none
    for section in sections:
        for block in section.blocks:
            if isinstance(block, dict) and "figure" in block:
                write_figure(block["figure"], folder / "figures" / f"{block['name']}.svg")
    if runs:
        write_whole(folder / "behavior.csv", tables.csv(keywords))
    write_whole(folder / "report.md", render("report.md.j2", title, sections))
    write_whole(folder / "report.html", render("report.html.j2", title, sections))


def render(template: str, title: str, sections: Sequence[Section]) -> str:
    """Renders the page as one HTML file without scripts, or as Markdown that links to the figures."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=jinja2.select_autoescape(["html.j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["md"] = tables.escaped
    environment.filters["markdown"] = _markdown_table
    environment.filters["svg"] = _described_svg
    environment.filters["breakable"] = _breakable
    environment.filters["whole_interval"] = whole_interval
    settings = {"version": __version__, "narrow": NARROW, "long_text": LONG_TEXT}
    return environment.get_template(template).render(settings, title=title, sections=sections)


def _markdown_table(frame: pd.DataFrame) -> str:
    return tables.markdown(frame.rename(columns=tables.escaped).map(tables.escaped))


def _described_svg(picture: Mapping[str, Any]) -> Markup:
    """Returns a figure for the HTML page; screen readers read its label or, without one, its caption."""
    description = picture["figure"].get_label() or picture["caption"]
    return Markup(inline_svg(picture["figure"], picture["name"], description))


def _breakable(name: str) -> Markup:
    """Returns a name as HTML whose lines break after underscores only."""
    return escape(name).replace("_", Markup("_<wbr>"))


def whole_interval(text: str) -> str:
    """Returns the text of a cell with non-breaking spaces inside intervals, to keep each interval on one line."""
    return re.sub(r"\[[^\[\]]*\]", lambda interval: interval[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def comparison_section(folder: Path, name: str) -> Section:
    """Builds the section of a folder of `leash compare`; `name` is the file name of its figure."""
    page = (folder / "table.md").read_text(encoding="utf-8").replace("`", "")
    text_before_table, _, _ = page.partition("\n\n| ")
    blocks: list[Block] = [*text_before_table.split("\n\n")]
    for frame, caption in comparison_tables(read_comparison(folder / "seeds.csv")):
        if frame is None:  # a paragraph between tables
            blocks.append(caption)
            continue
        if "change of tokens" in frame:  # first column of numbers, so that it is visible on phones
            frame.insert([*frame].index("seeds"), "change of tokens", frame.pop("change of tokens"))
        blocks.append(_table(caption, frame))
    figure = pareto_figure(read_trade_offs(folder / "table.csv"))
    blocks.append(_picture(name, "Accuracy or reward over mean tokens, with the table's 95 % intervals.", figure))
    return Section(f"Comparison: {folder.resolve().name}", blocks)


def evaluation_section(runs: Sequence[EvaluatedRun], keywords: pd.DataFrame) -> Section:
    """Builds the section with metrics, token budgets and [`behavior`] of evaluated runs, against the first run."""
    base, *others = runs
    blocks: list[Block] = []
    changes_by_label: dict[str, pd.DataFrame] = {}
    for run in others:
        try:
            changes_by_label[run.label] = changes(run, base)
        except ValueError as error:
            blocks.append(f"{run.label} cannot be compared with {base.label}: {error}.")
    if message := warning(runs):
        blocks.append(message)

    blocks.append(_table(tables.LEGEND, tables.summary_table(runs)))
    for run in others:
        if run.label in changes_by_label:
            blocks.append(_changes_table(run, base, changes_by_label[run.label]))
    have_equal_benchmarks = len({frozenset(run.benchmarks) for run in runs}) == 1
    if have_equal_benchmarks:
        blocks.extend(_result_pictures(runs))
    else:
        blocks.append(NO_OVERALL)
    blocks.extend(_benchmark_tables(runs))
    blocks.append(tables.METRIC_LEGEND)
    blocks.extend(_behavior_blocks(keywords))
    settings = {run.label: _sampling_settings(run.run) for run in runs}
    blocks.append(_settings_table("Sampling settings of the runs.", settings))
    return Section("Evaluation", blocks, headline(runs, changes_by_label))


def _changes_table(run: EvaluatedRun, base: EvaluatedRun, change: pd.DataFrame) -> Block:
    """Returns the table of a run's [`changes`] from the base, one row per benchmark."""
    cells = tables.metric_cells(run, change, has_overall=have_overall([run]))
    caption = f"Changes of {run.label} from {base.label}, paired by problem, with 95 % intervals."
    return _table(caption, cells.T.rename_axis("benchmark").reset_index())


def _benchmark_tables(runs: Sequence[EvaluatedRun]) -> list[Block]:
    """Returns one table per benchmark, with one row per metric and one column per run that has the benchmark."""
    columns_by_benchmark: dict[str, dict[str, pd.Series]] = {}
    for run in runs:
        cells = tables.metric_cells(run, run.results, has_overall=False)
        for name in run.benchmarks:
            columns_by_benchmark.setdefault(name, {})[run.label] = cells[name]
    blocks = []
    for name, columns in columns_by_benchmark.items():
        metrics = pd.DataFrame(columns).fillna("").rename_axis("metric").reset_index()
        blocks.append(_table(f"All metrics on {name}, with 95 % intervals.", metrics))
    return blocks


def headline(runs: Sequence[EvaluatedRun], changes_by_label: Mapping[str, pd.DataFrame]) -> list[str]:
    """Returns one sentence per run on its change from the first run, or a sentence on the results of a single run.

    A change is significant if its interval does not include zero. `changes_by_label` has the [`changes`] of the runs
    with the same problems as the first run.
    """
    base, *others = runs
    problems = f"{base.results['num_problems'].iloc[-1]:,} problems"  # the last row is a mean over benchmarks
    if len(base.benchmarks) > 1:
        problems += f" of {len(base.benchmarks)} benchmarks"
    if not others:
        if base.knows_correctness:
            score = f"accuracy {with_interval(base.estimate('accuracy'), format_percent)} %"
        else:
            score = f"mean reward {with_interval(base.estimate('reward'), '{:.3f}'.format)}"
        length = with_interval(base.estimate("tokens"), format_tokens)
        return [f"{base.label}, on {problems}: {score}, {length} tokens per response; no baseline is given."]
    sentences = []
    for run in others:
        if run.label in changes_by_label:
            change = _describe_change(changes_by_label[run.label])
            sentences.append(f"{run.label} compared with {base.label}, on the same {problems}: {change}.")
        else:
            sentences.append(f"{run.label} is not compared with {base.label} because their problems differ.")
    return sentences


def _describe_change(change: pd.DataFrame) -> str:
    """Returns the changes of tokens and, if known, of accuracy: `tokens -33.0 % [-40.0, -25.0]; accuracy ...`."""
    overall = change[change["benchmark"] == OVERALL].set_index("metric")
    parts = []
    for metric, template in (("relative_tokens_change", "tokens {} %"), ("accuracy_change", "accuracy {} points")):
        if metric not in overall.index:  # accuracy is not known
            continue
        value, low, high = overall.loc[metric, ["value", "low", "high"]]
        part = template.format(with_interval(Estimate(value, low, high), format_points))
        is_significant = low > 0 or high < 0  # not if the interval is unknown, which is NaN
        parts.append(part if is_significant else part + NOT_SIGNIFICANT)
    return "; ".join(parts)


def _result_pictures(runs: Sequence[EvaluatedRun]) -> list[Block]:
    """Returns the figures of means over benchmarks; none if the accuracy of a run is not known."""
    if not all(run.knows_correctness for run in runs):
        return []
    pictures = []
    if len(runs) > 1:
        base = runs[0].label
        caption = f"Accuracy over mean tokens (means over benchmarks), with 95 % intervals. The diamond is {base}."
        pictures.append(_picture("evaluation-pareto", caption, pareto_figure(trade_offs(runs), width=NARROW)))
    caption = "Share of completions that are correct within a token budget, mean over benchmarks, with 95 % intervals."
    pictures.append(_picture("budget", caption, budget_figure(budget_curves(runs), width=NARROW)))
    return pictures


def _behavior_blocks(keywords: pd.DataFrame) -> list[Block]:
    table = keywords[["run", "step", "responses"]].astype(object).fillna("").astype(str)
    for column in ("tokens", *KEYWORDS):
        format_value = format_tokens if column == "tokens" else format_number
        cells = []
        for value, low, high in keywords[[column, f"{column}_low", f"{column}_high"]].itertuples(index=False):
            cells.append(with_interval(Estimate(value, low, high), format_value))
        table[column] = cells
    for group in KEYWORDS:
        per_thousand = 1000 * keywords[group] / keywords["tokens"]
        table[f"{group} / 1k"] = per_thousand.map(format_number)
    table_caption = (
        "Keywords of the paper per response, with 95 % intervals over problems, and per 1,000 tokens (/ 1k)."
    )
    caption = "Mean response length and occurrences per response of the paper's keyword groups, with 95 % intervals."
    return [_table(table_caption, table), _picture("behavior", caption, behavior_figure(keywords, columns=1))]


def _settings_table(caption: str, settings: Mapping[str, Mapping[str, Any]]) -> Block:
    """Returns a table with one row per setting and one column per run; settings that no run has are left out."""
    frame = pd.DataFrame(settings, dtype=object).dropna(how="all").fillna("").astype(str)
    return _table(caption, frame.rename_axis("setting").reset_index())


def _sampling_settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings in the `run.json` of `leash eval` by the name that the page shows."""
    settings = {name: value for name, value in run.items() if name != "label" and not isinstance(value, dict)}
    weights = run.get("weights")
    settings["weights"] = weights[:8] if weights else None  # the complete hash is too wide for a phone
    for name, value in run["decoding"].items():
        settings[f"decoding: {name}"] = value
    settings.update(run["sampling"])
    for package, version in run["versions"].items():
        settings[f"version of {package}"] = version
    return settings


def before_and_after_section(runs: Sequence[EvaluatedRun]) -> Section | None:
    """Builds the section that shows completions of the first run beside those of the other runs; `None` if no problems
    are shared."""
    base, *others = runs
    blocks: list[Block] = []
    for run in others:
        pairs = sample_pairs(base, run)
        if pairs.empty:
            continue
        became_incorrect = _became_incorrect(pairs)
        became_correct = (pairs["is_correct_before"] == 0) & (pairs["is_correct"] == 1)
        blocks.append(
            f"{run.label} and {base.label} have {len(pairs):,} pairs of samples of the same problems. In "
            f"{became_incorrect.sum():,} pairs, the answer became incorrect; in {became_correct.sum():,}, it became "
            "correct. A fixed rule selects the pairs shown: the median change in tokens, the largest saving, and the "
            "first pair that became incorrect."
        )
        for index, reason in select_pairs(pairs).items():
            pair = pairs.loc[index]
            sample = f"{pair['id']} of {pair['benchmark']}, sample {pair['sample'] + 1}"
            title = f"{reason.capitalize()}: {sample}, {_reference_answer(pair)}"
            completions = [_titled_completion(base.label, pair, "_before"), _titled_completion(run.label, pair, "")]
            blocks.append({"title": title, "question": pair["question"], "completions": completions})
    return Section("Before and after", blocks) if blocks else None


def sample_pairs(before: EvaluatedRun, after: EvaluatedRun) -> pd.DataFrame:
    """Returns pairs of completions of two runs for the same samples, in the order of the second run. Columns of the
    first run end in `_before`."""
    problem_key = ["benchmark", "id", "solution"]  # an id alone may be a row number, as in `changes`
    frames = []
    for run in (after, before):
        # columns that only some runs have are empty in the others
        optional = {name: run.samples.get(name) for name in ("reward", "question", "columns")}
        frame = run.samples.assign(**optional).astype(dict.fromkeys(problem_key, str))
        frames.append(frame.fillna({"solution": "", "question": ""}))
    samples_after, samples_before = frames
    return pd.merge(samples_after, samples_before, on=[*problem_key, "sample"], suffixes=("", "_before"))


def _became_incorrect(pairs: pd.DataFrame) -> "pd.Series[bool]":
    return (pairs["is_correct_before"] == 1) & (pairs["is_correct"] == 0)


def select_pairs(pairs: pd.DataFrame) -> dict[int, str]:
    """Returns the index of each pair to show, with the reason. A fixed rule avoids selection by hand.

    The rule selects the median change in tokens (the lower of two medians), the largest saving, if any completion is
    shorter, and the first pair that became incorrect, if any. Of equal changes, the first is selected.
    """
    change = (pairs["num_tokens"] - pairs["num_tokens_before"]).sort_values(kind="stable")
    median = change.index[(len(change) - 1) // 2]
    reasons = {median: ["median change in tokens"]}
    if change.iloc[0] < 0:
        reasons.setdefault(change.index[0], []).append("largest saving")
    incorrect = pairs.index[_became_incorrect(pairs)]
    if len(incorrect):
        reasons.setdefault(incorrect[0], []).append("first that became incorrect")
    return {index: ", ".join(words) for index, words in reasons.items()}


def _reference_answer(pair: "pd.Series[Any]") -> str:
    """Returns the reference answer of a pair's problem, or the columns in which a reward function finds it."""
    if pair["solution"]:
        return f"reference answer {pair['solution']}"
    columns = pair["columns"] if isinstance(pair["columns"], dict) else {}
    values = [shorten(f"{name} {value!r}", LONG_GOLD, placeholder="...") for name, value in columns.items()]
    return ", ".join(values) or "reference answer unknown"


def _titled_completion(label: str, pair: "pd.Series[Any]", ending: str) -> tuple[str, str]:
    """Returns the title and the text of a pair's completion, whose columns have the given ending."""
    facts = []
    if pd.isna(pair[f"reward{ending}"]):  # the user's reward functions extract no answer
        answer = pair[f"answer{ending}"]
        facts.append("no answer" if pd.isna(answer) else f"answer {answer}")
    facts.append(VERDICTS.get(pair[f"is_correct{ending}"], "not graded"))
    if pair[f"finish_reason{ending}"] == "length":
        facts.append("truncated")
    title = f"{label}: {pair[f'num_tokens{ending}']:,} tokens, {', '.join(facts)}"
    return title, pair[f"text{ending}"]


def training_section(
    paths: Sequence[Path], evaluated: Sequence[EvaluatedRun] = (), is_evaluated: bool = False
) -> Section:
    """Builds the section with final values, figures and settings of training runs.

    `paths` are those of [`~leash_trl.figures.training.load_curves`].
    """
    runs = load_runs(paths, evaluated)
    settings = {run.attrs["label"]: run_settings(path, run) for path, run in zip(paths, runs, strict=True)}
    numbers_caption = (
        f"First and last are means over {LAST_BATCHES} logged batches (over half, if fewer than {2 * LAST_BATCHES}) "
        "or, without batches, over evaluations. With `length_of: thinking`, tokens are those of thinking. λ of last "
        "batch: the value before its update. Steps to target: first batch with a mean at or under the target; "
        "empty if the target or what it counts changed. Accuracy and satisfaction are in %."
    )
    training_caption = "Mean length in tokens and mean accuracy over training."
    dynamics_caption = (
        "Satisfaction rate, penalty coefficient λ, mean penalty, mean length and accuracy over training."
    )
    settings_caption = "Settings in the recipes of the runs; all other settings have their defaults."
    blocks = [
        _table(numbers_caption, [final_numbers(run) for run in runs]),
        _picture("training", training_caption, training_figure(runs, columns=1)),
        _picture("dynamics", dynamics_caption, dynamics_figure(runs, columns=2)),
        _settings_table(settings_caption, settings),
    ]
    return Section("Training", blocks, headline=() if is_evaluated else [NOT_EVALUATED])


def run_settings(path: Path, curves: pd.DataFrame) -> dict[str, Any]:
    """Returns the method, target and recipe saved in a run's folder, and the reward functions that the run logged."""
    state = length_control_state(path) or {}
    settings = {"length_control": state.get("method"), "target_length": state.get("target_length")}
    settings |= read_saved_recipe(path)
    spans = targets_of(curves)
    if 1 < len(spans) <= MOST_TARGETS:
        settings["target_length"] = _changed_targets(spans)
    # TRL logs `rewards/NAME/mean` for each reward function
    rewards = [name.split("/")[1] for name in curves if name.startswith("rewards/") and name.endswith("/mean")]
    settings["reward_funcs"] = ", ".join(rewards) or None
    return settings


def _changed_targets(spans: Sequence[TargetSpan]) -> str:
    """Returns the targets of a run by steps, with what they count if that changed too."""
    has_several_units = len({span.length_of for span in spans}) > 1
    parts = []
    for span in spans:
        part = f"{span.target:g}"
        if has_several_units:
            part += f" ({span.length_of})"
        if span is not spans[-1]:
            part += f" until step {span.last_step}"
        parts.append(part)
    return ", then ".join(parts)


class EndMeans(NamedTuple):
    """Means of a curve's first and of its last values; `None` if it has none."""

    first: float | None
    last: float | None


def final_numbers(run: pd.DataFrame) -> dict[str, str]:
    """Returns a run's row in the table of training runs."""
    length = _end_means(run, "mean_length")
    accuracy = _end_means(run, "accuracy")
    satisfaction = _end_means(run, "satisfaction_rate")
    lambdas = logged(run, "leash/lambda")
    generated_tokens = logged(run, "leash/generated_tokens")
    first_unit, last_unit = "", ""
    spans = targets_of(run)
    if len({span.length_of for span in spans}) > 1:
        first_unit = f" ({spans[0].length_of})"
        last_unit = f" ({spans[-1].length_of})"
    return {
        "run": run.attrs["label"],
        "steps": str(run.index[-1]),
        "first tokens": format_tokens(length.first) + first_unit,
        "last tokens": format_tokens(length.last) + last_unit,
        "first accuracy": format_percent(accuracy.first),
        "last accuracy": format_percent(accuracy.last),
        "last satisfaction": format_percent(satisfaction.last),
        "maximum λ": format_number(lambdas.max()),
        "λ of last batch": format_number(lambdas.iloc[-1]) if len(lambdas) else "",
        "steps to target": _steps_to_target(run),
        "tokens in training": f"{generated_tokens.iloc[-1]:,.0f}" if len(generated_tokens) else "",
    }


def _steps_to_target(run: pd.DataFrame) -> str:
    """Returns the step of the first batch with a mean length at or under the target, or `"never"`; empty without
    batches or without a target that held for the whole run."""
    lengths = logged(run, "leash/mean_length")
    target = run.attrs["target_length"]
    if target is None or lengths.empty:
        return ""
    step = first_at_target(lengths, target)
    return "never" if step is None else str(step)


def _end_means(run: pd.DataFrame, key: str) -> EndMeans:
    """Returns the means of the first and of the last logged values; the windows overlap only for a single value."""
    values = logged(run, f"leash/{key}")
    if values.empty:
        values = logged(run, f"eval_leash/{key}")
    if values.empty:
        return EndMeans(None, None)
    first, last = ends(values)
    return EndMeans(first=float(first.mean()), last=float(last.mean()))
