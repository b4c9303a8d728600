"""Figures: what they show of the numbers that they are given."""

import html
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from leash_trl.comparison.tables import comparison_rows, read_comparison_rows
from leash_trl.figures.evaluation import budget_figure, pareto_figure
from leash_trl.figures.training import dynamics_figure, training_figure
from leash_trl.gym import base_record


GYM_SEEDS = Path(__file__).parents[2] / "recipes" / "gym" / "compare_seeds.csv"


def curves(label, **columns):
    """The curves of a run with these columns of `leash/`, from step 1 on."""
    frame = pd.DataFrame({f"leash/{name}": values for name, values in columns.items()}, dtype=float)
    frame.index += 1
    frame.attrs = {"label": label, "length_of": "completion"}
    return frame


def points(*rows):
    """Rows of a comparison of (name, target, tokens, accuracy), each of five seeds, after that of the base."""
    base = ("base", np.nan, 90.0, 0.7)
    frame = pd.DataFrame([base, *rows], columns=["name", "target_length", "mean_tokens", "score"])
    for key, reach in (("mean_tokens", 5), ("score", 0.1)):
        frame[f"{key}_interval_low"] = frame[key] - reach
        frame[f"{key}_interval_high"] = frame[key] + reach
    return frame.assign(seeds="0 1 2 3 4", measure="accuracy")


def lines_of(axis):
    """Lines that a legend names, by label."""
    return {line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")}


def dotted(axis):
    return [line for line in axis.lines if line.get_linestyle() == ":"]


def test_a_panel_says_what_was_not_logged():
    run = curves("a", mean_penalty=[-0.3], mean_length=[90.0])
    _, lambdas, penalties, _ = dynamics_figure([run]).axes
    assert len(lambdas.texts) == 1
    assert len(penalties.texts) == 0
    assert penalties.lines[0].get_xydata().tolist() == [[1, -0.3]]


def test_accuracy_has_a_panel_where_it_was_logged():
    without = curves("a", mean_length=[90.0, 80.0])
    with_accuracy = curves("b", mean_length=[90.0, 80.0], accuracy=[0.5, 0.6])
    assert len(dynamics_figure([without]).axes) == 4
    assert len(dynamics_figure([without, with_accuracy], columns=2).axes) == 5


@pytest.fixture(params=["dynamics", "training"])
def targets_drawn(request):
    """Factory: the dotted lines of a figure's panel of lengths, and the texts of the panel's legend."""

    def drawn(*runs):
        axis = dynamics_figure(runs).axes[3] if request.param == "dynamics" else training_figure(runs).axes[0]
        legend = axis.get_legend()
        texts = legend.get_texts() if legend else []
        return dotted(axis), [text.get_text() for text in texts]

    return drawn


def test_the_target_of_all_runs_is_one_line_with_a_legend(targets_drawn):
    run = curves("a", mean_length=[50, 50], target_length=[46, 46])
    without_target = curves("b", mean_length=[60, 60])
    (line,), texts = targets_drawn(run, without_target)
    assert line.get_ydata() == [46, 46]
    assert texts == ["target 46"]


@pytest.mark.parametrize(
    ("costs", "title"),
    [
        (["completion", "completion"], "Mean length (tokens)"),
        (["thinking"], "Mean thinking (tokens)"),
        (["costs.py:num_lines"], "Mean num_lines"),
        (["tool_calls", "completion"], "Mean of completion, tool_calls"),
    ],
)
def test_the_panel_of_lengths_says_what_they_are(costs, title):
    runs = []
    for length_of in costs:
        run = curves(length_of, mean_length=[50, 50])
        run.attrs["length_of"] = length_of
        runs.append(run)
    assert title in [axis.get_title() for axis in dynamics_figure(runs).axes]


def test_several_targets_are_drawn_as_they_were_logged_in_the_colors_of_their_runs(targets_drawn):
    changed = curves("a", mean_length=[50, 50, 50], target_length=[46, 46, 24])
    other = curves("b", mean_length=[50, 50, 50], target_length=[45, 45, 45])
    lines, texts = targets_drawn(changed, other)
    assert [line.get_ydata().tolist() for line in lines] == [[46, 46, 24], [45, 45, 45]]
    assert len({line.get_color() for line in lines}) == 2
    assert texts == []


def test_evaluations_are_drawn_where_all_runs_have_them():
    batches = curves("batches", mean_length=[99, 99, 99])
    evaluations = {
        "eval_leash/mean_length": [90, np.nan, 70],
        "eval_leash/accuracy": [0.5, np.nan, 0.6],
    }
    evaluated = batches.assign(**evaluations)
    lengths, accuracies = training_figure([evaluated]).axes
    assert lengths.lines[0].get_xydata().tolist() == [[1, 90], [3, 70]]
    assert accuracies.lines[0].get_ydata().tolist() == [0.5, 0.6]
    lengths, _ = training_figure([evaluated, batches]).axes
    assert [line.get_ydata()[0] for line in lengths.lines] == [99] * 4  # batches and their running mean of each


def test_batches_are_smoothed():
    run = curves("a", mean_length=range(12), accuracy=range(12))
    lengths, _ = training_figure([run]).axes
    faint, line = lengths.lines
    assert faint.get_ydata().tolist() == [*range(12)]
    # means of 0, of 0 and 1, ..., of 0..9, 1..10, 2..11, each at its last batch
    first, second, *_, tenth, eleventh, twelfth = line.get_ydata()
    assert [first, second] == [0, 0.5]
    assert [tenth, eleventh, twelfth] == [4.5, 5.5, 6.5]


def test_budget_curves_and_their_bands():
    points = pd.DataFrame(
        {
            "run": "a",
            "at": [1024, 2048, 3000],
            "value": [0.1, 0.4, 0.5],
            "low": [0.0, 0.3, 0.4],
            "high": [0.2, 0.5, 0.6],
        }
    )
    (axis,) = budget_figure(points).axes
    assert axis.lines[0].get_xydata().tolist() == [[1024, 0.1], [2048, 0.4], [3000, 0.5]]
    corners = {tuple(corner) for corner in axis.collections[0].get_paths()[0].vertices}
    assert {(1024.0, 0.0), (3000.0, 0.6)} <= corners


def test_a_method_is_a_curve_in_the_order_of_its_targets():
    rows = points(("a", 28, 22.0, 0.8), ("a", 12, 10.0, 0.6), ("alone", np.nan, 60.0, 0.8))
    (axis,) = pareto_figure(rows).axes
    lines = lines_of(axis)
    assert lines["a"].get_xydata().tolist() == [[10, 0.6], [22, 0.8]]
    assert lines["a"].get_linestyle() == "-"
    assert lines["base"].get_linestyle() == "None"
    assert lines["alone"].get_linestyle() == "None"
    assert [line.get_xdata()[0] for line in dotted(axis)] == [12, 28]
    interval = axis.collections[2].get_segments()[0]  # after the two intervals of the base
    np.testing.assert_allclose(interval, [[10, 0.5], [10, 0.7]])


def test_a_target_of_another_cost_is_no_number_of_tokens():
    (axis,) = pareto_figure(points(("a", 2, 10.0, 0.6)).assign(target_of="turns")).axes
    assert dotted(axis) == []


def test_rows_of_one_name_and_target_are_told_apart_by_their_settings_and_intervals_by_their_sample():
    rows = points(*[("a", 12, 12, 0.6), ("a", 28, 28, 0.6)] * 2)
    rows["generated_tokens"] = 0.0
    rows["length_control_kwargs.alpha"] = [None, "1", "1", "3", "3"]
    (axis,) = pareto_figure(rows).axes
    assert [*lines_of(axis)] == ["base", "a, alpha 1", "a, alpha 3"]
    assert re.findall("over (seeds|problems)", axis.get_xlabel()) == ["seeds"]
    (axis,) = pareto_figure(rows.assign(seeds="0")).axes
    assert re.findall("over (seeds|problems)", axis.get_ylabel()) == ["problems"]


def test_training_is_drawn_over_the_tokens_that_it_cost():
    rows = points(("a", 12, 10.0, 0.6), ("b", 12, 9.0, 0.6))
    accuracy = pd.Series([0.0, 1.0, 0.5], index=[500_000.0, 1_000_000.0, 1_500_000.0])
    above, below = pareto_figure(rows, training={"b": [accuracy], "a": [accuracy]}).axes
    points_of = lines_of(above)
    first, second = below.lines
    assert first.get_color() == points_of["b"].get_color()
    assert second.get_color() == points_of["a"].get_color()
    # running means in millions of tokens
    assert first.get_xydata().tolist() == [[0.5, 0.0], [1.0, 0.5], [1.5, 0.5]]


def test_the_picture_of_the_readme_tells_the_recorded_numbers():
    # leash plot recipes/gym/compare_seeds.csv --figure pareto --output recipes/gym/accuracy_over_tokens.svg
    svg = GYM_SEEDS.with_name("accuracy_over_tokens.svg").read_text(encoding="utf-8")
    told = html.unescape(re.search("<desc>(.*?)</desc>", svg)[1])
    assert told == pareto_figure(comparison_rows(read_comparison_rows(GYM_SEEDS))).get_label()
    assert told.startswith(f"base: accuracy {base_record()['accuracy']:.3f} [")
    assert len(svg) < 200_000
