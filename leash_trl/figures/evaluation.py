"""Draws figures of evaluated runs and of comparisons: accuracy over tokens, and accuracy within token budgets."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, ScalarFormatter

from leash_trl.comparison.tables import (
    RUNNING_MEAN_BATCHES,
    comparison_sentences,
    evaluation_columns,
    method_with_settings,
)
from leash_trl.evaluation.metrics import OVERALL
from leash_trl.evaluation.runs import EvaluatedRun
from leash_trl.figures import style


BAND_ALPHA = 0.2
MARGIN = 0.04  # margin on each side of the points, as a share of the axis
WIDE_RANGE_RATIO = 6.0  # ratio of longest to shortest above which ticks are logarithmic


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
        training (`Mapping[str, Sequence[Series]]`): Accuracy of the training batches of each run, indexed by the
            number of tokens generated so far, by the method and settings of [`method_with_settings`].

    Returns:
        `Figure`: 10 by 6.5 inches, or 10.5 inches high with the second panel; 5.5 inches high if narrower. The label
            lists the numbers of the first panel for screen readers.
    """
    height_without_training = 6.5 if width >= style.WIDE_INCHES else 5.5
    height = 10.5 if training else height_without_training
    figure, axes = style.new_figure(width, height, rows=2 if training else 1)
    axis = axes[0]
    curves = [*_drawn_curves(points)]
    for curve in curves:
        _draw_curve(axis, curve)
    # The label of a figure becomes the description of the SVG file, which screen readers read.
    figure.set_label("; ".join(comparison_sentences(points)))

    # A column `target_of` says that there are targets of another cost, which do not belong on an axis of tokens.
    has_targets_in_tokens = "target_of" not in points
    targets = sorted(points["target_length"].dropna().unique()) if has_targets_in_tokens else []
    for length in targets:
        # A dotted line, and the number at its foot: x is in tokens, y a share of the axis.
        axis.axvline(length, color="black", linestyle=":", linewidth=1.2, zorder=0)
        axis.text(length, 0.01, f" {length:g}", fontsize=style.LABEL_SIZE, transform=axis.get_xaxis_transform())
    _make_lengths_logarithmic(axis)
    # For each row except the base; several seeds are such as "0 1 2".
    has_several_seeds = points["seeds"][1:].str.contains(" ")
    sample = " or ".join(has_several_seeds.map({True: "seeds", False: "problems"}).unique())
    x_label = f"mean tokens, with 95 % interval over {sample}"
    axis.set_xlabel(f"{x_label}; dotted: target" if targets else x_label)
    axis.set_ylabel(f"{points['measure'].iloc[0]}, with 95 % interval over {sample}")
    style.draw_legend_above(figure, axis)

    if training:
        # The style of a curve is also that of its runs in training, by method and settings, such as "ALP, alpha 0.5".
        looks: dict[str, dict[str, Any]] = {}
        for curve in curves:
            looks |= dict.fromkeys(curve.points["label"], curve.look)
        _draw_training(axes[1], training, looks)
    return figure


def _drawn_curves(points: pd.DataFrame) -> Iterator[DrawnCurve]:
    """Yields the base in black, and the curves of the other rows, sorted by target or, without targets, by tokens."""
    # Such as "ALP, alpha 0.5", where `name` is "ALP".
    points = points.assign(label=[method_with_settings(row) for row in points.to_dict("records")])
    yield DrawnCurve(points["name"].iloc[0], points[:1], {"color": "black", "marker": "d"})
    index = 0
    for name, group in points[1:].groupby("name", sort=False):
        # Rows of the same name and target differ in their settings, so each setting gets a curve of its own.
        has_repeats = group["target_length"].dropna().duplicated().any()
        for _, part in group.groupby("label" if has_repeats else "name", sort=False):
            # A curve over different settings has the name of the method.
            label = part["label"].iloc[0] if part["label"].nunique() == 1 else name
            yield DrawnCurve(
                str(label), part.sort_values(["target_length", "mean_tokens"]), style.line_and_marker_style(index)
            )
            index += 1


def _draw_curve(axis: Axes, curve: DrawnCurve) -> None:
    """Draws the points with the intervals of both coordinates; several points are connected."""
    x = curve.points["mean_tokens"]
    y = curve.points["score"]
    bars = {"color": curve.look["color"], "linewidth": 0.8, "alpha": 0.7, "zorder": 2}
    axis.vlines(x, curve.points["score_interval_low"], curve.points["score_interval_high"], **bars)
    axis.hlines(y, curve.points["mean_tokens_interval_low"], curve.points["mean_tokens_interval_high"], **bars)
    # The legend shows no line for a single point.
    look = curve.look if len(x) > 1 else curve.look | {"linestyle": "None"}
    axis.plot(x, y, **look, linewidth=1.4, markersize=7, label=curve.label, zorder=3)


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
    axis: Axes, training: Mapping[str, Sequence["pd.Series[float]"]], looks: Mapping[str, Mapping[str, Any]]
) -> None:
    """Draws the running mean of the accuracy of each run over the tokens generated so far.

    `training` and `looks`, the styles, are indexed by method and settings.
    """
    for label, runs in training.items():
        # Runs have hundreds of batches, too many for markers.
        look = {name: value for name, value in looks[label].items() if name != "marker"}
        for accuracy in runs:
            millions = accuracy.index / 1e6
            running_mean = accuracy.rolling(RUNNING_MEAN_BATCHES, min_periods=1).mean()
            axis.plot(millions, running_mean, **look, linewidth=1.0, alpha=0.8)
    axis.set_xlabel("millions of tokens generated in training")
    axis.set_ylabel(f"accuracy of training batches, running mean over {RUNNING_MEAN_BATCHES}")


def pareto_points(runs: Sequence[EvaluatedRun], benchmark: str = OVERALL) -> pd.DataFrame:
    """Returns the points of [`pareto_figure`]: accuracy and tokens on a benchmark, or means over benchmarks."""
    points = []
    for run in runs:
        # An evaluation has one seed, and its target is not drawn.
        point = {"name": run.label, "seeds": str(run.record["seed"]), "target_length": np.nan}
        measure = "accuracy" if run.knows_correctness(benchmark) else "reward"
        points.append(point | evaluation_columns(run, measure, benchmark))
    # Runs may measure different costs beside tokens, which one label cannot name.
    return pd.DataFrame(points).drop(columns="length_of", errors="ignore")


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
        band = (look["color"], BAND_ALPHA)
        axis.fill_between(
            line["at"], line["low"], line["high"], facecolor=band, edgecolor=look["color"], linewidth=0.5
        )
    budgets = sorted({int(budget) for budget in points["at"]})
    # Powers of two have a single bit. The largest budget, the generation limit, may be none, and has no tick then.
    ticks = [budget for budget in budgets if budget.bit_count() == 1]
    tick_labels = [f"{tick // 1024}k" if tick % 1024 == 0 else str(tick) for tick in ticks]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, tick_labels)
    axis.minorticks_off()
    axis.set_xlabel("token budget")
    axis.set_ylabel("accuracy within budget, with 95 % interval")
    style.set_y_limits(axis)
    style.draw_legend_above(figure, axis)
    return figure


def budget_points(runs: Sequence[EvaluatedRun], benchmark: str = OVERALL) -> pd.DataFrame:
    """Returns the points of [`budget_figure`]: accuracies on a benchmark, or means over benchmarks."""
    results = pd.concat([run.results.assign(run=run.label) for run in runs])
    return results[(results["metric"] == "accuracy_within") & (results["benchmark"] == benchmark)]
