"""Figures: what they show of the numbers that they are given."""

import html
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from leash_trl.figures.evaluation import budget_figure, pareto_figure, read_trade_offs
from leash_trl.figures.training import curves_from_log, dynamics_figure, training_figure
from leash_trl.gym import base_record


GYM_SEEDS = Path(__file__).parents[2] / "recipes" / "gym" / "compare_seeds.csv"
KEYS = ("satisfaction_rate", "lambda", "mean_penalty", "mean_length", "accuracy")


def curves(label, values, target=None):
    frame = pd.DataFrame(values, dtype=float)
    frame.index += 1
    frame.attrs = {"label": label, "target_length": target}
    return frame


def batches(label, size=4, target=None):
    return curves(label, {f"leash/{key}": np.linspace(0.2, 0.8, size) for key in KEYS}, target)


def points(*rows):
    """Rows of a comparison of (name, target, tokens, accuracy), each of five seeds."""
    frame = pd.DataFrame(rows, columns=["name", "target_length", "mean_tokens", "score"])
    for key, reach in (("mean_tokens", 5), ("score", 0.1)):
        frame = frame.assign(**{f"{key}_interval_low": frame[key] - reach, f"{key}_interval_high": frame[key] + reach})
    return frame.assign(seeds="0 1 2 3 4", measure="accuracy")


def lines_of(axis):
    """Lines that a legend names, by label."""
    return {line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")}


def test_a_line_breaks_at_gaps_of_the_log():
    run = batches("a", size=5)
    run.index = [1, 2, 3, 50, 51]
    x, y = dynamics_figure([run.mul(10).astype(int)]).axes[0].lines[0].get_data()
    np.testing.assert_array_equal(x, [1, 2, 3, np.nan, 50, 51])
    np.testing.assert_array_equal(y, [2, 3, 5, np.nan, 6, 8])


def test_a_panel_says_what_was_not_logged_and_a_target_is_drawn_that_all_runs_share():
    _, lam, *_ = dynamics_figure([curves("a", {"leash/mean_penalty": [-0.3], "leash/mean_length": [90.0]})]).axes
    assert len(lam.texts) == 1

    def drawn(*targets):
        axis = dynamics_figure([batches(str(i), target=target) for i, target in enumerate(targets)]).axes[3]
        return [line.get_ydata()[0] for line in axis.lines if line.get_linestyle() == ":"]

    assert [drawn(46, 46), drawn(46, None), drawn(46, 45)] == [[46], [46], []]


def logged_targets(*rows):
    """Curves of a run that logged (target, mean thinking length) in these batches; without thinking, None."""
    log = []
    for step, (target, answer_length) in enumerate(rows, 1):
        log.append({"step": step, "leash/mean_length": 50.0, "leash/target_length": target})
        log[-1]["leash/mean_answer_length"] = answer_length
    return curves_from_log(log, "run")


def targets_drawn(*runs):
    """The dotted lines of both figures' panels of lengths: steps, targets and label."""
    dotted = []
    for axis in (dynamics_figure(runs).axes[3], training_figure(runs).axes[0]):
        lines = [line for line in axis.lines if line.get_linestyle() == ":"]
        shown = [(*np.asarray(line.get_xydata()).T.tolist(), line.get_label()) for line in lines]
        legend = axis.get_legend()
        assert ([text.get_text() for text in legend.get_texts()] if legend else []) == [label for *_, label in shown]
        dotted.append(shown)
    assert dotted[0] == dotted[1]
    return dotted[0]


def test_a_target_that_changed_is_drawn_as_it_was_logged():
    run = logged_targets((46, None), (46, None), (24, None))
    assert targets_drawn(run) == [([1, 2, 3], [46, 46, 24], "target")]
    assert targets_drawn(run, logged_targets((46, None), (46, None))) == []


def test_the_targets_of_two_units_are_two_lines_even_if_they_are_equal():
    run = logged_targets((46, None), (46, None), (46, 5.0), (20, 5.0))
    completion, thinking = targets_drawn(run)
    assert completion == ([1, 2], [46, 46], "target 46 (completion)")
    assert thinking == ([3, 4], [46, 20], "target (thinking)")
    assert targets_drawn(logged_targets((46, None)), logged_targets((46, 5.0))) == []


def test_evaluations_are_drawn_where_all_runs_have_them_and_else_the_legend_says_what():
    own = {"eval_leash/mean_length": [90, np.nan, 70], "eval_leash/accuracy": [0.5, np.nan, 0.6]}
    both = curves("both", own).assign(**{"leash/mean_length": 99.0})
    figure = training_figure([both])
    x, y = lines_of(figure.axes[0])["both"].get_data()
    assert (x.tolist(), y.tolist()) == ([1, 3], [90, 70])
    assert lines_of(figure.axes[1])["both"].get_ydata().tolist() == [0.5, 0.6]
    assert lines_of(training_figure([both, batches("b")]).axes[0])["both"].get_ydata().tolist() == [99] * 3
    (legend,) = training_figure([batches("ours"), curves("theirs", own)]).legends
    mixed = [text.get_text() for text in legend.get_texts()]
    assert [label.split(" (")[0] for label in mixed] == ["ours", "theirs"]
    assert len({label.split(" (")[1] for label in mixed}) == 2


def test_many_batches_are_smoothed():
    run = curves("a", {"leash/mean_length": np.arange(12.0), "leash/accuracy": np.arange(12.0)})
    faint, line = training_figure([run]).axes[0].lines
    # means of 0..9, 1..10, 2..11, each at its last batch
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([10, 11, 12], pytest.approx([4.5, 5.5, 6.5]))
    assert faint.get_ydata().tolist() == [*range(12)]


def test_budget_curves_and_their_bands():
    rows = [("a", 1024, 0.1, 0.0, 0.2), ("a", 2048, 0.4, 0.3, 0.5), ("a", 3000, 0.5, 0.4, 0.6), ("b", 8, 0, 0.25, 1)]
    (axis,) = budget_figure(pd.DataFrame(rows, columns=["run", "at", "value", "low", "high"])).axes
    assert lines_of(axis)["a"].get_xydata().tolist() == [[1024, 0.1], [2048, 0.4], [3000, 0.5]]
    corners = {tuple(corner) for corner in axis.collections[0].get_paths()[0].vertices}
    assert {(1024.0, 0.0), (1024.0, 0.2), (3000.0, 0.4), (3000.0, 0.6)} <= corners
    assert axis.collections[1].get_segments()[0].tolist() == [[8, 0.25], [8, 1]]  # of a single point a bar


def test_a_method_is_a_curve_in_the_order_of_its_targets():
    base, *rows = [("base", np.nan, 90.0, 0.7), ("a", 28, 22.0, 0.8), ("a", 12, 10.0, 0.6), ("one", np.nan, 60.0, 0.8)]
    (axis,) = pareto_figure(points(base, *rows)).axes
    lines = lines_of(axis)
    assert [*lines] == ["a", "one", "base"]
    assert lines["a"].get_xydata().tolist() == [[10, 0.6], [22, 0.8]]
    assert [lines[name].get_linestyle() for name in lines] == ["-", "None", "None"]
    assert [line.get_xdata()[0] for line in axis.lines if line.get_linestyle() == ":"] == [12, 28]
    assert [10, pytest.approx(0.5)] in [collection.get_segments()[0][0].tolist() for collection in axis.collections]


def test_rows_of_one_name_and_target_are_told_apart_by_their_settings_and_intervals_by_their_sample():
    rows = points(("base", np.nan, 90.0, 0.7), *[("a", target, target, 0.6) for target in (12, 28)] * 2)
    rows["generated_tokens"] = 0.0
    rows["length_control_kwargs.alpha"] = [None, "1", "1", "3", "3"]
    axis = pareto_figure(rows).axes[0]
    assert [*lines_of(axis)] == ["a, alpha 1", "a, alpha 3", "base"]
    assert ("over seeds" in axis.get_xlabel(), "over problems" in axis.get_xlabel()) == (True, False)
    axis = pareto_figure(rows.assign(seeds="0")).axes[0]
    assert ("over seeds" in axis.get_ylabel(), "over problems" in axis.get_ylabel()) == (False, True)


def test_training_is_drawn_over_the_tokens_that_it_cost():
    rows = points(("base", np.nan, 90.0, 0.7), ("a", 12, 10.0, 0.6), ("b", 12, 9.0, 0.6))
    accuracy = pd.Series([0.0] * 9 + [1.0, 1.0], index=np.arange(1, 12) * 500_000.0)
    above, below = pareto_figure(rows, training={"b": [accuracy, accuracy], "a": [accuracy]}).axes
    assert [line.get_color() for line in below.lines] == [lines_of(above)[name].get_color() for name in "bba"]
    # the first mean over ten batches, 0.1, after 5 million tokens
    assert below.lines[0].get_xydata()[9:].tolist() == [[5.0, pytest.approx(0.1)], [5.5, pytest.approx(0.2)]]


def test_the_picture_of_the_readme_tells_the_recorded_numbers():
    # leash plot recipes/gym/compare_seeds.csv --figure pareto --output recipes/gym/accuracy_over_tokens.svg
    svg = GYM_SEEDS.with_name("accuracy_over_tokens.svg").read_text(encoding="utf-8")
    told = html.unescape(re.search("<desc>(.*?)</desc>", svg)[1])
    assert told == pareto_figure(read_trade_offs(GYM_SEEDS)).get_label()
    assert told.startswith(f"base: accuracy {base_record()['accuracy']:.3f} [")
    assert len(svg) < 200_000
