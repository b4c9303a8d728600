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
from leash_trl.comparison.tables import comparison_tables, read_comparison
from leash_trl.evaluation import tables
from leash_trl.evaluation.frame import OVERALL, EvaluatedRun, changes, have_overall, warning
from leash_trl.evaluation.intervals import Estimate
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
LAST_BATCHES = 10
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
    found = find_runs([Path(existing_path(path, "paths")) for path in paths])
    evaluated = found["evaluation"]
    if baseline is not None:
        baseline = Path(existing_path(baseline, "baseline"))
        others = [run for run in evaluated if run.resolve() != baseline.resolve()]
        evaluated = [*find_runs([baseline], ["evaluation"])["evaluation"], *others]
    sections = [comparison_section(run, f"comparison-{number}") for number, run in enumerate(found["comparison"], 1)]
    runs = load_evaluated_runs(evaluated)
    if runs:
        keywords = behavior(runs)
        sections += [evaluation_section(runs, keywords), *before_and_after_section(runs)]
    if found["training"]:
        is_evaluated = bool(runs or found["comparison"])
        sections.append(training_section(found["training"], runs, is_evaluated))
    for block in (block for section in sections for block in section.blocks):
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
    environment.filters |= {
        "md": tables.escaped,
        "whole_interval": whole_interval,
        "breakable": lambda name: escape(name).replace("_", Markup("_<wbr>")),  # names break after underscores only
        "svg": lambda block: Markup(
            inline_svg(block["figure"], block["name"], block["figure"].get_label() or block["caption"])
        ),
        "markdown": lambda frame: tables.markdown(frame.rename(columns=tables.escaped).map(tables.escaped)),
    }
    settings = {"version": __version__, "narrow": NARROW, "long_text": LONG_TEXT}
    return environment.get_template(template).render(settings, title=title, sections=sections)


def whole_interval(text: str) -> str:
    """Returns the text of a cell with non-breaking spaces inside intervals, to keep each interval on one line."""
    return re.sub(r"\[[^\[\]]*\]", lambda interval: interval[0].replace(" ", "\N{NO-BREAK SPACE}"), text)


def comparison_section(folder: Path, name: str) -> Section:
    """Builds the section of a folder of `leash compare`; `name` is the file name of its figure."""
    words, *_ = (folder / "table.md").read_text(encoding="utf-8").replace("`", "").partition("\n\n| ")
    blocks: list[Block] = [*words.split("\n\n")]
    for frame, caption in comparison_tables(read_comparison(folder / "seeds.csv")):
        if frame is None:
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
    found: dict[str, pd.DataFrame] = {}
    blocks: list[Block] = []
    for run in others:
        try:
            found[run.label] = changes(run, base)
        except ValueError as error:
            blocks.append(f"{run.label} cannot be compared with {base.label}: {error}.")
    if warned := warning(runs):
        blocks.append(warned)
    blocks.append(_table(tables.LEGEND, tables.summary_table(runs)))
    for run in (run for run in others if run.label in found):
        differences = tables.metric_cells(run, found[run.label], have_overall([run])).T.rename_axis("benchmark")
        caption = f"Changes of {run.label} from {base.label}, paired by problem, with 95 % intervals."
        blocks.append(_table(caption, differences.reset_index()))
    blocks += _result_pictures(runs) if len({frozenset(run.benchmarks) for run in runs}) == 1 else [NO_OVERALL]
    for name in dict.fromkeys(name for run in runs for name in run.benchmarks):
        cells = {run.label: tables.metric_cells(run, run.results, False) for run in runs if name in run.benchmarks}
        metrics = pd.DataFrame({label: columns[name] for label, columns in cells.items()}).fillna("")
        caption = f"All metrics on {name}, with 95 % intervals."
        blocks.append(_table(caption, metrics.rename_axis("metric").reset_index()))
    blocks.append(tables.METRIC_LEGEND)
    sampling = _settings_table("Sampling settings of the runs.", {run.label: _sampling(run.run) for run in runs})
    return Section("Evaluation", [*blocks, *_behavior_blocks(keywords), sampling], headline(runs, found))


def headline(runs: Sequence[EvaluatedRun], found: Mapping[str, pd.DataFrame]) -> list[str]:
    """Returns one sentence per run on its change from the first run, or a sentence on the results of a single run.

    A change is significant if its interval does not include zero. `found` has the [`changes`] by run label, for runs
    with the same problems as the first run.
    """
    base, *others = runs
    benchmarks = f" of {len(base.benchmarks)} benchmarks" if len(base.benchmarks) > 1 else ""
    problems = f"{base.results['num_problems'].iloc[-1]:,} problems{benchmarks}"
    if not others:
        if base.knows_correctness:
            score = f"accuracy {with_interval(base.estimate('accuracy'), format_percent)} %"
        else:
            score = f"mean reward {with_interval(base.estimate('reward'), '{:.3f}'.format)}"
        length = with_interval(base.estimate("tokens"), format_tokens)
        return [f"{base.label}, on {problems}: {score}, {length} tokens per response; no baseline is given."]
    return [
        f"{run.label} compared with {base.label}, on the same {problems}: {_describe(found[run.label])}."
        if run.label in found
        else f"{run.label} is not compared with {base.label} because their problems differ."
        for run in others
    ]


def _describe(change: pd.DataFrame) -> str:
    overall, parts = change[change["benchmark"] == OVERALL].set_index("metric"), []
    for metric, words in {"relative_tokens_change": "tokens {} %", "accuracy_change": "accuracy {} points"}.items():
        if metric not in overall.index:  # accuracy is not known
            continue
        number = Estimate(*overall.loc[metric, ["value", "low", "high"]])
        is_significant = number.low > 0 or number.high < 0
        parts.append(words.format(with_interval(number, format_points)) + ("" if is_significant else NOT_SIGNIFICANT))
    return "; ".join(parts)


def _result_pictures(runs: Sequence[EvaluatedRun]) -> list[Block]:
    words = "Share of completions that are correct within a token budget, mean over benchmarks, with 95 % intervals."
    if not all(run.knows_correctness for run in runs):
        return []
    budgets = _picture("budget", words, budget_figure(budget_curves(runs), width=NARROW))
    if len(runs) == 1:
        return [budgets]
    figure = pareto_figure(trade_offs(runs), width=NARROW)
    words = f"Accuracy over mean tokens (means over benchmarks), with 95 % intervals. The diamond is {runs[0].label}."
    return [_picture("evaluation-pareto", words, figure), budgets]


def _behavior_blocks(keywords: pd.DataFrame) -> list[Block]:
    table = keywords[["run", "step", "responses"]].astype(object).fillna("").astype(str)
    for name, shown in {"tokens": format_tokens, **dict.fromkeys(KEYWORDS, format_number)}.items():
        numbers = keywords[[name, f"{name}_low", f"{name}_high"]].itertuples(index=False)
        table[name] = [with_interval(Estimate(*number), shown) for number in numbers]
    for group in KEYWORDS:
        table[f"{group} / 1k"] = (1000 * keywords[group] / keywords["tokens"]).map(format_number)
    caption = "Keywords of the paper per response, with 95 % intervals over problems, and per 1,000 tokens (/ 1k)."
    words = "Mean response length and occurrences per response of the paper's keyword groups, with 95 % intervals."
    return [_table(caption, table), _picture("behavior", words, behavior_figure(keywords, columns=1))]


def _settings_table(caption: str, settings: Mapping[str, Mapping[str, Any]]) -> Block:
    frame = pd.DataFrame(settings, dtype=object).dropna(how="all").fillna("").astype(str)
    return _table(caption, frame.rename_axis("setting").reset_index())


def _sampling(run: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in run.items() if name != "label" and not isinstance(value, dict)}
    values["weights"] = (run.get("weights") or "")[:8] or None  # the complete hash is too wide for a phone
    values |= {f"decoding: {key}": value for key, value in run["decoding"].items()}
    return values | run["sampling"] | {f"version of {name}": version for name, version in run["versions"].items()}


def before_and_after_section(runs: Sequence[EvaluatedRun]) -> list[Section]:
    """Builds one section that shows completions of the first run beside those of the other runs; no section if no
    problems are shared."""
    base, *others = runs
    blocks: list[Block] = []
    for run in others:
        pairs = sample_pairs(base, run)
        if pairs.empty:
            continue
        was_correct, is_correct = pairs["is_correct_before"], pairs["is_correct"]
        blocks.append(
            f"{run.label} and {base.label} have {len(pairs):,} pairs of samples of the same problems. In "
            f"{((was_correct == 1) & (is_correct == 0)).sum():,} pairs, the answer became incorrect; in "
            f"{((was_correct == 0) & (is_correct == 1)).sum():,}, it became correct. A fixed rule selects the pairs "
            "shown: the median change in tokens, the largest saving, and the first pair that became incorrect."
        )
        for index, reason in select_pairs(pairs).items():
            pair = pairs.loc[index]
            sample = f"{pair['id']} of {pair['benchmark']}, sample {pair['sample'] + 1}"
            title = f"{reason.capitalize()}: {sample}, {_gold(pair)}"
            sides = [_completion(base.label, pair, "_before"), _completion(run.label, pair, "")]
            blocks.append({"title": title, "question": pair["question"], "completions": sides})
    return [Section("Before and after", blocks)] if blocks else []


def sample_pairs(before: EvaluatedRun, after: EvaluatedRun) -> pd.DataFrame:
    """Returns pairs of completions of two runs for the same samples, in the order of the second run. Columns of the
    first run end in `_before`."""
    key = ["benchmark", "id", "solution"]  # an id alone may be a row number, as in `changes`
    sides = []
    for run in (after, before):
        optional = {name: run.samples.get(name) for name in ("reward", "question", "columns")}
        side = run.samples.assign(**optional).astype(dict.fromkeys(key, str))
        sides.append(side.fillna({"solution": "", "question": ""}))
    return pd.merge(*sides, on=[*key, "sample"], suffixes=("", "_before"))


def select_pairs(pairs: pd.DataFrame) -> dict[int, str]:
    """Returns the index of each pair to show, with the reason. A fixed rule avoids selection by hand.

    The rule selects the median change in tokens (the lower of two medians), the largest saving, if any completion is
    shorter, and the first pair that became incorrect, if any. Of equal changes, the first is selected.
    """
    change = (pairs["num_tokens"] - pairs["num_tokens_before"]).sort_values(kind="stable")
    reasons = {change.index[(len(change) - 1) // 2]: ["median change in tokens"]}
    if change.iloc[0] < 0:
        reasons.setdefault(change.index[0], []).append("largest saving")
    wrong = pairs.index[(pairs["is_correct_before"] == 1) & (pairs["is_correct"] == 0)]
    if len(wrong):
        reasons.setdefault(wrong[0], []).append("first that became incorrect")
    return {index: ", ".join(words) for index, words in reasons.items()}


def _gold(pair: "pd.Series[Any]") -> str:
    """Returns the reference answer of a pair's problem, or the columns in which a reward function finds it."""
    if pair["solution"]:
        return f"reference answer {pair['solution']}"
    columns = pair["columns"] if isinstance(pair["columns"], dict) else {}
    shown = [shorten(f"{name} {value!r}", LONG_GOLD, placeholder="...") for name, value in columns.items()]
    return ", ".join(shown) or "reference answer unknown"


def _completion(label: str, pair: "pd.Series[Any]", side: str) -> tuple[str, str]:
    answer = "no answer" if pd.isna(pair[f"answer{side}"]) else f"answer {pair[f'answer{side}']}"
    answer = answer if pd.isna(pair[f"reward{side}"]) else ""  # own rewards extract none
    cut = "truncated" if pair[f"finish_reason{side}"] == "length" else ""
    said = filter(None, [answer, VERDICTS.get(pair[f"is_correct{side}"], "not graded"), cut])
    return f"{label}: {pair[f'num_tokens{side}']:,} tokens, {', '.join(said)}", pair[f"text{side}"]


def training_section(
    paths: Sequence[Path], evaluated: Sequence[EvaluatedRun] = (), is_evaluated: bool = False
) -> Section:
    """Builds the section with final values, figures and settings of training runs.

    `paths` are those of [`~leash_trl.figures.training.load_curves`].
    """
    runs = load_runs(paths, evaluated)
    settings = {run.attrs["label"]: run_settings(path, run) for path, run in zip(paths, runs, strict=True)}
    caption = (
        f"First and last are means over {LAST_BATCHES} logged batches (over half, if fewer than {2 * LAST_BATCHES}) "
        "or, without batches, over evaluations. With `length_of: thinking`, tokens are those of thinking. λ of last "
        "batch: the value before its update. Steps to target: first batch with a mean at or under the target; "
        "empty if the target or what it counts changed. Accuracy and satisfaction are in %."
    )
    words = "Satisfaction rate, penalty coefficient λ, mean penalty, mean length and accuracy over training."
    blocks = [
        _table(caption, [final_numbers(run) for run in runs]),
        _picture(
            "training", "Mean length in tokens and mean accuracy over training.", training_figure(runs, columns=1)
        ),
        _picture("dynamics", words, dynamics_figure(runs, columns=2)),
        _settings_table("Settings in the recipes of the runs; all other settings have their defaults.", settings),
    ]
    return Section("Training", blocks, () if is_evaluated else [NOT_EVALUATED])


def run_settings(path: Path, curves: pd.DataFrame) -> dict[str, Any]:
    """Returns the method, target and recipe saved in a run's folder, and the reward functions that the run logged."""
    state = length_control_state(path) or {}
    rewards = [name.split("/")[1] for name in curves if name.startswith("rewards/") and name.endswith("/mean")]
    known = {
        "length_control": state.get("method"),
        "target_length": state.get("target_length"),
        **read_saved_recipe(path),
    }
    spans = targets_of(curves)
    if 1 < len(spans) <= MOST_TARGETS:
        known["target_length"] = _changed_targets(spans)
    return known | {"reward_funcs": ", ".join(rewards) or None}


def _changed_targets(spans: Sequence[TargetSpan]) -> str:
    """Returns the targets of a run by steps, with what they count if that changed too."""
    has_several_units = len({span.length_of for span in spans}) > 1
    targets = [f"{span.target:g}" + (f" ({span.length_of})" if has_several_units else "") for span in spans]
    ends = [f" until step {span.last_step}" for span in spans[:-1]]
    return ", then ".join(target + end for target, end in zip(targets, [*ends, ""], strict=True))


def final_numbers(run: pd.DataFrame) -> dict[str, str]:
    """Returns a run's row in the table of training runs."""
    lengths, accuracies, rates = (_end_means(run, key) for key in ("mean_length", "accuracy", "satisfaction_rate"))
    units = [span.length_of for span in targets_of(run)]
    marks = [f" ({units[0]})", f" ({units[-1]})"] if len({*units}) > 1 else ["", ""]
    lambdas, generated = logged(run, "leash/lambda"), logged(run, "leash/generated_tokens")
    batches, target = logged(run, "leash/mean_length"), run.attrs["target_length"]
    met = [] if target is None else batches.index[batches <= target]
    return {
        "run": run.attrs["label"],
        "steps": str(run.index[-1]),
        "first tokens": format_tokens(lengths[0]) + marks[0],
        "last tokens": format_tokens(lengths[1]) + marks[1],
        "first accuracy": format_percent(accuracies[0]),
        "last accuracy": format_percent(accuracies[1]),
        "last satisfaction": format_percent(rates[1]),
        "maximum λ": format_number(lambdas.max()),
        "λ of last batch": format_number(lambdas.iloc[-1]) if len(lambdas) else "",
        "steps to target": "" if target is None or batches.empty else str(met[0]) if len(met) else "never",
        "tokens in training": f"{generated.iloc[-1]:,.0f}" if len(generated) else "",
    }


def _end_means(run: pd.DataFrame, key: str) -> tuple[float | None, float | None]:
    """Returns the means of the first and of the last logged values; the windows overlap only for a single value."""
    values = logged(run, f"leash/{key}")
    values = values if len(values) else logged(run, f"eval_leash/{key}")
    if values.empty:
        return None, None
    size = min(LAST_BATCHES, max(1, len(values) // 2))
    return float(values.iloc[:size].mean()), float(values.iloc[-size:].mean())
