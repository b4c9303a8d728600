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
    """Rows of a comparison of (name, target, tokens, accuracy), each of five seeds, after that of the base."""
    frame = pd.DataFrame(
        [("base", np.nan, 90.0, 0.7), *rows], columns=["name", "target_length", "mean_tokens", "score"]
    )
    for key, reach in (("mean_tokens", 5), ("score", 0.1)):
        frame[f"{key}_interval_low"] = frame[key] - reach
        frame[f"{key}_interval_high"] = frame[key] + reach
    return frame.assign(seeds="0 1 2 3 4", measure="accuracy")


def lines_of(axis):
    """Lines that a legend names, by label."""
    return {line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")}


def dotted(axis):
    return [line for line in axis.lines if line.get_linestyle() == ":"]


def test_a_line_breaks_at_gaps_of_the_log():
    run = batches("a", size=5)
    run.index = [1, 2, 3, 50, 51]
    line = dynamics_figure([run.mul(10).astype(int)]).axes[0].lines[0]
    np.testing.assert_array_equal(line.get_data(), [[1, 2, 3, np.nan, 50, 51], [2, 3, 5, np.nan, 6, 8]])


def test_a_panel_says_what_was_not_logged():
    run = curves("a", {"leash/mean_penalty": [-0.3], "leash/mean_length": [90.0]})
    assert len(dynamics_figure([run]).axes[1].texts) == 1


@pytest.mark.parametrize(("other_target", "drawn"), [(46, [46]), (None, [46]), (45, [])])
def test_a_target_is_drawn_that_all_runs_share(other_target, drawn):
    figure = dynamics_figure([batches("a", target=46), batches("b", target=other_target)])
    assert [line.get_ydata()[0] for line in dotted(figure.axes[3])] == drawn


def logged_targets(*targets, num_thinking=0):
    """Curves of a run with these targets of batches, of which the last `num_thinking` are targets of the thinking."""
    log = []
    for step, target in enumerate(targets, 1):
        log.append({"step": step, "leash/mean_length": 50.0, "leash/target_length": target})
    for row in log[len(log) - num_thinking :]:
        row["leash/mean_answer_length"] = 5.0
    return curves_from_log(log, "run")


def targets_drawn(*runs):
    """The dotted lines of both figures' panels of lengths: steps, targets and label."""
    in_both = []
    for axis in (dynamics_figure(runs).axes[3], training_figure(runs).axes[0]):
        lines = dotted(axis)
        in_both.append([(line.get_xdata().tolist(), line.get_ydata().tolist(), line.get_label()) for line in lines])
        texts = axis.get_legend().get_texts() if axis.get_legend() else []
        assert [text.get_text() for text in texts] == [line.get_label() for line in lines]
    assert in_both[0] == in_both[1]
    return in_both[0]


def test_a_target_that_changed_is_drawn_as_it_was_logged():
    run = logged_targets(46, 46, 24)
    assert targets_drawn(run) == [([1, 2, 3], [46, 46, 24], "target")]
    assert targets_drawn(run, logged_targets(46, 46)) == []


def test_the_targets_of_two_units_are_two_lines_even_if_they_are_equal():
    run = logged_targets(46, 46, 46, 20, num_thinking=2)
    completion, thinking = targets_drawn(run)
    assert completion == ([1, 2], [46, 46], "target 46 (completion)")
    assert thinking == ([3, 4], [46, 20], "target (thinking)")
    assert targets_drawn(logged_targets(46), logged_targets(46, num_thinking=1)) == []


def test_evaluations_are_drawn_where_all_runs_have_them_and_else_the_legend_says_what():
    evaluations = {"eval_leash/mean_length": [90, np.nan, 70], "eval_leash/accuracy": [0.5, np.nan, 0.6]}
    both = curves("both", {**evaluations, "leash/mean_length": 99.0})
    lengths, accuracies = training_figure([both]).axes
    assert lines_of(lengths)["both"].get_xydata().tolist() == [[1, 90], [3, 70]]
    assert lines_of(accuracies)["both"].get_ydata().tolist() == [0.5, 0.6]
    lengths, _ = training_figure([both, batches("b")]).axes
    assert lines_of(lengths)["both"].get_ydata().tolist() == [99] * 3
    (legend,) = training_figure([batches("ours"), curves("theirs", evaluations)]).legends
    labels, sources = zip(*(text.get_text().split(" (") for text in legend.get_texts()), strict=True)
    assert labels == ("ours", "theirs")
    assert sources[0] != sources[1]


def test_many_batches_are_smoothed():
    run = curves("a", {"leash/mean_length": range(12), "leash/accuracy": range(12)})
    faint, line = training_figure([run]).axes[0].lines
    # means of 0..9, 1..10, 2..11, each at its last batch
    np.testing.assert_allclose(line.get_xydata(), [[10, 4.5], [11, 5.5], [12, 6.5]], rtol=1e-6)
    assert faint.get_ydata().tolist() == [*range(12)]


def test_budget_curves_and_their_bands():
    rows = [
        ("a", 1024, 0.1, 0.0, 0.2),
        ("a", 2048, 0.4, 0.3, 0.5),
        ("a", 3000, 0.5, 0.4, 0.6),
        ("b", 8, 0, 0.25, 1),
    ]
    (axis,) = budget_figure(pd.DataFrame(rows, columns=["run", "at", "value", "low", "high"])).axes
    assert lines_of(axis)["a"].get_xydata().tolist() == [[1024, 0.1], [2048, 0.4], [3000, 0.5]]
    corners = {tuple(corner) for corner in axis.collections[0].get_paths()[0].vertices}
    assert {(1024.0, 0.0), (1024.0, 0.2), (3000.0, 0.4), (3000.0, 0.6)} <= corners
    assert axis.collections[1].get_segments()[0].tolist() == [[8, 0.25], [8, 1]]  # of a single point a bar


def test_a_method_is_a_curve_in_the_order_of_its_targets():
    rows = points(("a", 28, 22.0, 0.8), ("a", 12, 10.0, 0.6), ("alone", np.nan, 60.0, 0.8))
    (axis,) = pareto_figure(rows).axes
    lines = lines_of(axis)
    assert [*lines] == ["a", "alone", "base"]
    assert lines["a"].get_xydata().tolist() == [[10, 0.6], [22, 0.8]]
    assert [line.get_linestyle() for line in lines.values()] == ["-", "None", "None"]
    assert [line.get_xdata()[0] for line in dotted(axis)] == [12, 28]
    assert [10, pytest.approx(0.5)] in [collection.get_segments()[0][0].tolist() for collection in axis.collections]


def test_rows_of_one_name_and_target_are_told_apart_by_their_settings_and_intervals_by_their_sample():
    rows = points(*[("a", 12, 12, 0.6), ("a", 28, 28, 0.6)] * 2)
    rows["generated_tokens"] = 0.0
    rows["length_control_kwargs.alpha"] = [None, "1", "1", "3", "3"]
    (axis,) = pareto_figure(rows).axes
    assert [*lines_of(axis)] == ["a, alpha 1", "a, alpha 3", "base"]
    assert re.findall("over (seeds|problems)", axis.get_xlabel()) == ["seeds"]
    (axis,) = pareto_figure(rows.assign(seeds="0")).axes
    assert re.findall("over (seeds|problems)", axis.get_ylabel()) == ["problems"]


def test_training_is_drawn_over_the_tokens_that_it_cost():
    rows = points(("a", 12, 10.0, 0.6), ("b", 12, 9.0, 0.6))
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
