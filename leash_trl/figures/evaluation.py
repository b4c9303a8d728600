"""Draws figures of evaluated runs and of comparisons: accuracy over tokens, and accuracy within token budgets."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, ScalarFormatter

from leash_trl.comparison.tables import WINDOW, comparison_rows, in_words, read_comparison
from leash_trl.evaluation.frame import OVERALL, EvaluatedRun
from leash_trl.figures import style


MIN_TICK_RATIO = 1.4  # ratio of two budgets above which their tick labels do not overlap
BAND_ALPHA = 0.2
MARGIN = 0.04  # margin on each side of the points, as a share of the axis
WIDE_RANGE = 6.0  # ratio of longest to shortest above which ticks are logarithmic


def pareto_figure(
    points: pd.DataFrame, width: float = style.WIDE, training: Mapping[str, Sequence["pd.Series[float]"]] | None = None
) -> Figure:
    """Draws score over mean tokens with the intervals of both: one curve per name, and a black diamond for the base.

    With `training`, a second panel shows the accuracy of training batches over the tokens generated so far, so that
    methods can be compared at equal cost.

    Args:
        points (`DataFrame`): One row per method, run or target, with the base first. The columns are those of a
            comparison's `table.csv`: `name`, `measure`, `score`, `mean_tokens`, `target_length`, `seeds`, and the
            intervals `score_interval_low` and so on. Rows of several seeds have intervals over seeds, other rows over
            problems. Further columns have settings, which distinguish rows of the same name and target.
        width (`float`): Width in inches.
        training (`Mapping[str, Sequence[Series]]`): Accuracy of the training batches of each run, indexed by the
            number of tokens generated so far, by the method and settings of [`in_words`].

    Returns:
        `Figure`: 10 by 6.5 inches, or 10.5 inches high with the second panel; 5.5 inches high if narrower. The label
            lists the numbers of the first panel for screen readers.
    """
    height = 10.5 if training else 6.5 if width >= style.WIDE else 5.5
    figure, (axis, *others) = style.new_figure(width, height, rows=2 if training else 1)
    points = points.assign(label=[in_words(row) for row in points.to_dict("records")])
    base, rows = points[:1], points[1:]
    curves = [(label, curve, style.marked_style(index)) for index, (label, curve) in enumerate(_curves(rows))]
    curves.append((base["name"].item(), base, {"color": "black", "marker": "d"}))
    for label, curve, look in curves:
        bars = {"color": look["color"], "linewidth": 0.8, "alpha": 0.7, "zorder": 2}
        axis.vlines(curve["mean_tokens"], curve["score_interval_low"], curve["score_interval_high"], **bars)
        axis.hlines(curve["score"], curve["mean_tokens_interval_low"], curve["mean_tokens_interval_high"], **bars)
        look = look if len(curve) > 1 else {**look, "linestyle": "None"}
        axis.plot(curve["mean_tokens"], curve["score"], **look, linewidth=1.4, markersize=7, label=label, zorder=3)
    texts = [_row_text(row) for _, curve, _ in [curves[-1], *curves[:-1]] for row in curve.to_dict("records")]
    figure.set_label("; ".join(texts))
    targets = sorted(rows["target_length"].dropna().unique())
    for length in targets:
        axis.axvline(length, color="black", linestyle=":", linewidth=1.2, zorder=0)
        axis.text(length, 0.01, f" {length:g}", fontsize=style.LABEL_SIZE, transform=axis.get_xaxis_transform())
    axis.set_xscale("log")  # methods shorten lengths by a factor
    axis.margins(MARGIN)
    is_wide = axis.get_xlim()[1] / axis.get_xlim()[0] > WIDE_RANGE
    locator = LogLocator(subs=(1, 2, 3, 5)) if is_wide else MaxNLocator(nbins=8, steps=[1, 2, 5, 10])
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.minorticks_off()
    kinds = {"seeds" if " " in seeds else "problems" for seeds in rows["seeds"]}
    sample = " or ".join(sorted(kinds, reverse=True))
    dotted = "; dotted: target" if targets else ""
    axis.set_xlabel(f"mean tokens, with 95 % interval over {sample}{dotted}")
    axis.set_ylabel(f"{points['measure'].iloc[0]}, with 95 % interval over {sample}")
    style.legend_above(figure, axis, len(curves))
    for below in others:
        looks = {words: look for _, curve, look in curves for words in curve["label"]}
        _draw_training(below, training or {}, looks)
    return figure


def _draw_training(axis: Axes, training: Mapping[str, Sequence["pd.Series[float]"]], looks: Mapping[str, Any]) -> None:
    for words, runs in training.items():
        look = {name: value for name, value in looks[words].items() if name != "marker"}
        for accuracy in runs:
            axis.plot(
                accuracy.index / 1e6, accuracy.rolling(WINDOW, min_periods=1).mean(), **look, linewidth=1.0, alpha=0.8
            )
    axis.set_xlabel("millions of tokens generated in training")
    axis.set_ylabel(f"accuracy of training batches, running mean over {WINDOW}")


def trade_offs(runs: Sequence[EvaluatedRun], benchmark: str = OVERALL) -> pd.DataFrame:
    """Returns the points of [`pareto_figure`]: accuracy and tokens on a benchmark, or means over benchmarks."""
    points = []
    for run in runs:
        measure = "accuracy" if run.knows_correctness else "reward"
        point = {"name": run.label, "seeds": str(run.run["seed"]), "measure": measure, "target_length": np.nan}
        for key, metric in (("score", measure), ("mean_tokens", "tokens")):
            value, low, high = run.estimate(metric, benchmark)
            point |= {key: value, f"{key}_interval_low": low, f"{key}_interval_high": high}
        points.append(point)
    return pd.DataFrame(points)


def read_trade_offs(path: Path) -> pd.DataFrame:
    """Reads the points of [`pareto_figure`] from the `table.csv` or `seeds.csv` of `leash compare`.

    The seeds of a method and target are replaced by their mean with its interval over seeds.
    """
    rows = read_comparison(path)
    return rows if rows["seeds"].str.contains(" ").any() else comparison_rows(rows)


def _curves(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yields the label and the points of each curve, sorted by target or, without targets, by tokens."""
    for name, group in rows.groupby("name", sort=False):
        has_repeats = group["target_length"].dropna().duplicated().any()
        for _, part in group.groupby("label" if has_repeats else "name", sort=False):
            label = part["label"].iloc[0] if part["label"].nunique() == 1 else name
            yield str(label), part.sort_values(["target_length", "mean_tokens"])


def _row_text(row: Mapping[str, Any]) -> str:
    """Returns the numbers of a row as text, without intervals that are not known."""

    def estimate(key: str, digits: int) -> str:
        value, low, high = (f"{row[key + end]:.{digits}f}" for end in ("", "_interval_low", "_interval_high"))
        return value if low == "nan" else f"{value} [{low}, {high}]"

    target = "" if pd.isna(row["target_length"]) else f" at target {row['target_length']:g}"
    return f"{row['label']}{target}: {row['measure']} {estimate('score', 3)}, tokens {estimate('mean_tokens', 1)}"


def budget_figure(points: pd.DataFrame, width: float = 7.0) -> Figure:
    """Draws the share of completions that are correct within a token budget, with 95 % intervals, one line per run.

    Args:
        points (`DataFrame`): Columns `run`, `at` (the budget in tokens), `value` (the accuracy within the budget, in
            [0, 1]), `low` and `high`.
        width (`float`): Width in inches.

    Returns:
        `Figure`: 4.5 inches high.
    """
    figure, (axis,) = style.new_figure(width, 4.5)
    for index, (run, line) in enumerate(points.groupby("run", sort=False)):
        draw_with_band(axis, line["at"], line["value"], line["low"], line["high"], str(run), style.marked_style(index))
    powers = {budget for budget in points["at"] if int(budget).bit_count() == 1}
    others = {b for b in points["at"] if all(max(b, power) / min(b, power) > MIN_TICK_RATIO for power in powers)}
    budgets = sorted(int(budget) for budget in powers | others)
    axis.set_xscale("log", base=2)
    axis.set_xticks(budgets, [f"{b // 1024}k" if b % 1024 == 0 else str(b) for b in budgets])
    axis.minorticks_off()
    axis.set_xlabel("token budget")
    axis.set_ylabel("accuracy within budget, with 95 % interval")
    style.set_y_limits(axis)
    style.legend_above(figure, axis, points["run"].nunique())
    return figure


def budget_curves(runs: Sequence[EvaluatedRun], benchmark: str = OVERALL) -> pd.DataFrame:
    """Returns the points of [`budget_figure`]: accuracies on a benchmark, or means over benchmarks."""
    results = pd.concat([run.results.assign(run=run.label) for run in runs])
    return results[(results["metric"] == "accuracy_within") & (results["benchmark"] == benchmark)]


def draw_with_band(axis: Axes, x: Any, value: Any, low: Any, high: Any, label: str, look: Mapping[str, Any]) -> None:
    """Draws a line with its intervals, which are a band with edges or, for a single point, a bar."""
    axis.plot(x, value, markersize=5, label=label, **look)
    if len(x) > 1:
        axis.fill_between(x, low, high, facecolor=(look["color"], BAND_ALPHA), edgecolor=look["color"], linewidth=0.5)
    else:
        axis.vlines(x, low, high, color=look["color"])
