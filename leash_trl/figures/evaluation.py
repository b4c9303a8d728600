"""Draws figures of evaluated runs and of comparisons: accuracy over tokens, and accuracy within token budgets."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, ScalarFormatter

from leash_trl.comparison.curves import RUNNING_MEAN_BATCHES
from leash_trl.comparison.tables import comparison_sentences, evaluation_columns, method_with_settings
from leash_trl.evaluation.metrics import OVERALL
from leash_trl.evaluation.runs import EvaluatedRun
from leash_trl.figures import style


BAND_ALPHA = 0.2
MARGIN = 0.04  # margin on each side of the points, as a share of the axis
WIDE_RANGE_RATIO = 6.0  # ratio of longest to shortest above which ticks are logarithmic
INTERVAL_LOOK: dict[str, Any] = {
    "linewidth": 0.8,
    "alpha": 0.7,
    "zorder": 2,
}
CURVE_LOOK: dict[str, Any] = {
    "linewidth": 1.4,
    "markersize": 7,
    "zorder": 3,
}


class DrawnCurve(NamedTuple):
    """Points of one method or run, with the label and the style in which they are drawn."""

    label: str
    points: pd.DataFrame
    look: dict[str, Any]


def pareto_figure(
    points: pd.DataFrame,
    width: float = style.WIDE_INCHES,
    training: Mapping[str, Sequence["pd.Series[float]"]] | None = None,
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
        training (`Mapping[str, Sequence[Series]]`): For each method with its settings, as [`method_with_settings`]
            returns it, one series per run: accuracy of the training batches, indexed by the number of tokens
            generated so far.

    Returns:
        `Figure`: 6.5 inches high, or 5.5 if narrower than 10 inches; 10.5 with the second panel. The label lists the
            numbers of the first panel for screen readers.
    """
    height_without_training = 6.5 if width >= style.WIDE_INCHES else 5.5
    height = 10.5 if training else height_without_training
    figure, axes = style.new_figure(width, height, rows=2 if training else 1)
    # The label of a figure becomes the description of the SVG file, which screen readers read.
    figure.set_label("; ".join(comparison_sentences(points)))
    curves = _drawn_curves(points)
    for curve in curves:
        _draw_curve(axes[0], curve)
    targets = _targets_in_tokens(points)
    for target in targets:
        _draw_target(axes[0], target)
    _make_lengths_logarithmic(axes[0])
    _label_axes(axes[0], points, has_targets=bool(targets))
    style.draw_legend_above(axes[0])
    if training:
        _draw_training(axes[1], training, curves)
    return figure


def _label_axes(axis: Axes, points: pd.DataFrame, has_targets: bool) -> None:
    """Labels the axes, and says whether the intervals are over seeds, over problems, or over both in different
    rows."""
    # for each row except the base; the text for several seeds is such as "0 1 2"
    has_several_seeds = points["seeds"][1:].str.contains(" ")
    samples = np.where(has_several_seeds, "seeds", "problems")
    interval = f"with 95 % interval over {' or '.join(dict.fromkeys(samples))}"
    measure = points["measure"].iloc[0]
    axis.set_xlabel(f"mean tokens, {interval}; dotted: target" if has_targets else f"mean tokens, {interval}")
    axis.set_ylabel(f"{measure}, {interval}")


def _targets_in_tokens(points: pd.DataFrame) -> list[float]:
    """Returns the targets of the points; none if a target is not in tokens, the unit of the axis."""
    # The column exists only if a target limits something else than tokens.
    if "target_of" in points:
        return []
    targets = points["target_length"].dropna()
    return sorted(targets.unique())


def _drawn_curves(points: pd.DataFrame) -> list[DrawnCurve]:
    """Returns the base in black, and the curves of the other rows, sorted by target or, without targets, by tokens."""
    # such as "ALP, alpha 0.5", where `name` is "ALP"
    labels = [method_with_settings(row) for row in points.to_dict("records")]
    points = points.assign(label=labels)
    base_look = {"color": "black", "marker": "d"}
    curves = [DrawnCurve(labels[0], points[:1], base_look)]
    for _, method in points[1:].groupby("name", sort=False):
        # If a target occurs twice, each combination of settings has its own curve. Otherwise the points are one curve,
        # with the name of the method if their settings differ.
        has_repeats = method["target_length"].dropna().duplicated().any()
        has_one_label = method["label"].nunique() == 1
        label_column = "label" if has_repeats or has_one_label else "name"
        for label, rows in method.groupby(label_column, sort=False):
            look = style.line_and_marker_style(len(curves) - 1)  # the base has no index
            rows = rows.sort_values(["target_length", "mean_tokens"])
            curves.append(DrawnCurve(str(label), rows, look))
    return curves


def _draw_target(axis: Axes, target: float) -> None:
    """Draws a dotted line at a target, with the number at its foot."""
    axis.axvline(target, **style.TARGET_LOOK, zorder=0)
    axis.text(
        x=target,
        y=0.01,  # a share of the axis
        s=f" {target:g}",
        fontsize=style.LABEL_SIZE,
        transform=axis.get_xaxis_transform(),
    )


def _draw_curve(axis: Axes, curve: DrawnCurve) -> None:
    """Draws the points with the intervals of both coordinates; several points are connected."""
    points = curve.points
    bars = INTERVAL_LOOK | {"color": curve.look["color"]}
    axis.vlines(points["mean_tokens"], points["score_interval_low"], points["score_interval_high"], **bars)
    axis.hlines(points["score"], points["mean_tokens_interval_low"], points["mean_tokens_interval_high"], **bars)
    # The legend shows no line for a single point.
    look = curve.look if len(points) > 1 else curve.look | {"linestyle": "None"}
    axis.plot(points["mean_tokens"], points["score"], **look, **CURVE_LOOK, label=curve.label)


def _make_lengths_logarithmic(axis: Axes) -> None:
    """Makes the axis of lengths logarithmic, because methods shorten lengths by a factor, with plain numbers."""
    axis.set_xscale("log")
    axis.margins(MARGIN)
    shortest, longest = axis.get_xlim()
    # Over a narrow range, ticks at 1, 2, 3 and 5 times powers of ten would be too few.
    if longest / shortest > WIDE_RANGE_RATIO:
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    else:
        axis.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10]))
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.minorticks_off()


def _draw_training(
    axis: Axes,
    training: Mapping[str, Sequence["pd.Series[float]"]],
    curves: Sequence[DrawnCurve],
) -> None:
    """Draws the running mean of the accuracy of each run over the tokens generated so far, in the style of the curve
    of its method and settings."""
    looks: dict[str, dict[str, Any]] = {}
    for curve in curves:
        looks |= dict.fromkeys(curve.points["label"], curve.look)
    for label, runs in training.items():
        # Runs have hundreds of batches, too many for markers.
        look = looks[label] | {"marker": None}
        for accuracy in runs:
            millions = accuracy.index / 1e6
            running_mean = accuracy.rolling(RUNNING_MEAN_BATCHES, min_periods=1).mean()
            axis.plot(millions, running_mean, **look, linewidth=1.0, alpha=0.8)
    axis.set_xlabel("millions of tokens generated in training")
    axis.set_ylabel(f"accuracy of training batches, running mean over {RUNNING_MEAN_BATCHES}")


def pareto_points(runs: Sequence[EvaluatedRun]) -> pd.DataFrame:
    """Returns the points of [`pareto_figure`]: accuracy, or reward if accuracy is not known, and tokens, as means over
    benchmarks."""
    rows = []
    for run in runs:
        measure = "accuracy" if run.knows_correctness() else "reward"
        row = {
            "name": run.label,
            "seeds": str(run.record["seed"]),  # an evaluation has one seed
            "target_length": np.nan,  # which is not drawn
        }
        rows.append(row | evaluation_columns(run, measure))
    points = pd.DataFrame(rows)
    # Runs may measure different costs beside tokens, which one label cannot name.
    return points.drop(columns="length_of", errors="ignore")


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
        look = style.line_and_marker_style(index)
        axis.plot(line["at"], line["value"], markersize=5, label=str(run), **look)
        band = {"facecolor": (look["color"], BAND_ALPHA), "edgecolor": look["color"], "linewidth": 0.5}
        axis.fill_between(line["at"], line["low"], line["high"], **band)
    _set_budget_ticks(axis, {int(budget) for budget in points["at"]})
    axis.set_xlabel("token budget")
    axis.set_ylabel("accuracy within budget, with 95 % interval")
    style.set_y_limits(axis)
    style.draw_legend_above(axis)
    return figure


def _set_budget_ticks(axis: Axes, budgets: set[int]) -> None:
    """Makes the axis of budgets logarithmic, with ticks at powers of two, such as `512` and `1k`."""
    # Powers of two have a single bit. The largest budget is the generation limit; if it is no power of two, it has no
    # tick.
    ticks = sorted(budget for budget in budgets if budget.bit_count() == 1)
    tick_labels = [f"{tick // 1024}k" if tick % 1024 == 0 else str(tick) for tick in ticks]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, tick_labels)
    axis.minorticks_off()


def budget_points(runs: Sequence[EvaluatedRun]) -> pd.DataFrame:
    """Returns the points of [`budget_figure`]: accuracies, as means over benchmarks."""
    results = pd.concat([run.results.assign(run=run.label) for run in runs])
    is_within_budget = results["metric"] == "accuracy_within"
    is_overall = results["benchmark"] == OVERALL
    return results[is_within_budget & is_overall]
