"""Figures: what they show, that words do not cover each other, and the files they become."""

import dataclasses
import functools
import html
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from sampled_run import completion, problem, write_run

from leash_trl.analysis import page
from leash_trl.analysis.comparisons import read_trade_offs
from leash_trl.evaluation.intervals import Estimate
from leash_trl.figures import (
    NARROW,
    WIDE,
    TradeOff,
    behavior_figure,
    budget_figure,
    check_format,
    dynamics_figure,
    inline_svg,
    pareto_figure,
    styles_figure,
    training_figure,
    write_figure,
)
from leash_trl.figures.curves import Curves
from leash_trl.figures.drawing import COLORS, line_style, show_text_as_it_is
from leash_trl.gym import base_record
from leash_trl.gym.styles import ForcedStyle


GYM_SEEDS = Path(__file__).parent.parent / "recipes" / "gym" / "compare_seeds.csv"


def curves(label, values, target=None):
    size = len(next(iter(values.values())))
    arrays = {key: np.array(numbers, dtype=float) for key, numbers in values.items()}
    return Curves(label, np.arange(1, size + 1), arrays, target)


def batches(label, size=4, target=None):
    keys = ("satisfaction_rate", "lambda", "mean_penalty", "mean_length", "accuracy")
    return curves(label, {key: np.linspace(0.2, 0.8, size) for key in keys}, target)


def evaluations(label):
    return curves(label, {"eval_mean_length": [90, np.nan, 70], "eval_accuracy": [0.5, np.nan, 0.6]})


def behavior(labels, steps=None, columns=2, tokens=(100.0, 60.0)):
    """A figure of two groups of keywords."""
    size = len(labels)
    lengths = [Estimate(value, value - 9, value + 9) for value in tokens[:size]] or []
    lengths += [Estimate(100.0, 91.0, 109.0)] * (size - len(lengths))
    groups = {group: [Estimate(value, value - 1, value + 1)] * size for group, value in GROUPS.items()}
    return behavior_figure(labels, steps, lengths, groups, columns)


GROUPS = {"summary": 6.0, "plan": 2.0}


def row(name, tokens, accuracy):
    return TradeOff(name, Estimate(accuracy, accuracy - 0.1, accuracy + 0.1), Estimate(tokens, tokens - 5, tokens + 5))


def forced_styles():
    return [ForcedStyle(**style) for style in base_record()["styles"]]


def legend_labels(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def lines_of(axis):
    """Lines that a legend names, by label."""
    return {line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")}


def overlapping(texts):
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    return [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


def assert_nothing_overlaps(figure):
    """Tick labels of each axis, the titles, and the legend above."""
    lay_out(figure)
    for axis in figure.axes:
        level = [text for text in axis.get_xticklabels() if text.get_rotation() == 0]
        assert not overlapping(level)
        assert not overlapping(axis.get_yticklabels())
    titles = [axis.title for axis in figure.axes if axis.get_title()]
    assert not overlapping(titles)
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert not [title for title in titles if box.overlaps(title.get_window_extent())]
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.width


def lay_out(figure: Figure):
    """Puts everything where a file has it, without the pixels, which take most of the time."""
    show_text_as_it_is(figure)
    figure.draw_without_rendering()


FIGURES = {
    "pareto": lambda: pareto_figure([row("LEASH", 50.0, 0.6), row("a", 55.0, 0.6)], row("b", 90.0, 0.5)),
    "behavior over steps": lambda: behavior(["a", "a"], [0, 50]),
    "behavior of runs": lambda: behavior(["a", "b"], columns=1),
    "behavior of one": lambda: behavior(["a"], [7]),
    "curves over tokens": lambda: pareto_figure(curve_rows(), row("base", 90.0, 0.5)),
    "budget": lambda: budget_figure({f"run {i}": CURVE for i in range(6)}),
    "dynamics": lambda: dynamics_figure([batches("a", target=46), batches("b", target=46)]),
    "styles": lambda: styles_figure(forced_styles()),
    "training": lambda: training_figure([batches("a", 12, target=46), batches("b", 12, target=46)]),
}


@functools.cache
def made(name) -> Figure:
    """One of the figures, for tests that only look at it."""
    return FIGURES[name]()


def look(line):
    return line.get_color(), line.get_marker(), line.get_linestyle()


def is_drawn(line):
    return line.get_marker() != "None" or len({tuple(point) for point in line.get_xydata()}) > 1


@pytest.mark.parametrize("name", FIGURES)
def test_legends_name_what_is_drawn_and_nothing_that_looks_like_it(name):
    figure = made(name)
    legends = [(legend, figure.axes) for legend in figure.legends]
    legends += [(axis.get_legend(), [axis]) for axis in figure.axes if axis.get_legend()]
    lines = [line for axis in figure.axes for line in axis.lines if not line.get_label().startswith("_")]
    for legend, axes in legends:
        for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True):
            own = [line for axis in axes for line in axis.lines if line.get_label() == text.get_text()]
            assert own
            assert all(is_drawn(line) and look(line) == look(handle) for line in own)
            assert {line.get_label() for line in lines if look(line) == look(handle)} == {text.get_text()}
    assert any(len(legend.get_texts()) > 0 for legend, _ in legends) is (name not in ("pareto", "curves over tokens"))


def luminance(color):
    shares = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in color]
    return float(np.dot([0.2126, 0.7152, 0.0722], shares))


def contrast(color, background):
    """As WCAG 2 has it; what shines through counts."""
    *rgb, alpha = to_rgba(color)
    mixed = alpha * np.array(rgb) + (1 - alpha) * np.array(to_rgb(background))
    low, high = sorted((luminance(mixed), luminance(to_rgb(background))))
    return (high + 0.05) / (low + 0.05)


def test_contrast_by_hand():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)
    assert contrast(("#000000", 0.0), "#ffffff") == 1


def page_colors():
    """Ink and card of the report's light and of its dark page."""
    style = (Path(page.__file__).parent / "report.html.j2").read_text(encoding="utf-8")
    return list(re.findall(r"--ink: (#\w+);.*?--card: (#\w+);", style))[:2]


@pytest.mark.parametrize("name", FIGURES)
def test_lines_markers_and_bars_show_on_light_and_on_dark_pages(name):
    figure = made(name)
    lines = [line for axis in figure.axes for line in axis.lines if line.get_label() != "_batches"]
    colors = [to_rgba(line.get_color(), line.get_alpha()) for line in lines]
    colors += [color for axis in figure.axes for drawn in axis.collections for color in drawn.get_edgecolor()]
    (light, dark) = page_colors()
    assert luminance(to_rgb(light[1])) > 0.8
    assert luminance(to_rgb(dark[1])) < 0.05
    for ink, card in (light, dark):
        shown = [ink if tuple(color) == (0, 0, 0, 1) else color for color in colors]  # as inline_svg has it
        assert min(contrast(color, card) for color in shown) >= 3


# --- training --------------------------------------------------------------------------------------------------------


def test_training_figure_prefers_evaluations():
    run = evaluations("leash")
    run.values["mean_length"] = np.array([99.0, 98.0, 97.0])
    figure = training_figure([run])
    x, y = lines_of(figure.axes[0])["leash"].get_data()
    assert (x.tolist(), y.tolist()) == ([1, 3], [90, 70])
    assert lines_of(figure.axes[1])["leash"].get_ydata().tolist() == [0.5, 0.6]
    assert figure.axes[0].get_xlabel() == "optimizer step (evaluation)"


def test_training_figure_of_batches_smooths_many_and_says_so():
    values = np.arange(12.0)
    figure = training_figure([curves("leash", {"mean_length": values, "accuracy": values / 12}, target=5)])
    x, y = lines_of(figure.axes[0])["leash"].get_data()
    # means of 0..9, 1..10, 2..11, each at its last batch
    assert (x.tolist(), y.tolist()) == ([10, 11, 12], pytest.approx([4.5, 5.5, 6.5]))
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines if line.get_label() == "_batches"] == [
        values.tolist()
    ]
    assert figure.axes[0].get_xlabel() == "optimizer step (training batches, running mean over 10)"
    assert lines_of(figure.axes[0])["target 5"].get_ydata()[0] == 5


def test_few_batches_are_drawn_as_they_are():
    figure = training_figure([batches("leash", size=4)])
    assert len(lines_of(figure.axes[0])["leash"].get_ydata()) == 4
    assert figure.axes[0].get_xlabel() == "optimizer step (training batches)"


def test_evaluations_are_drawn_as_they_are_however_many():
    values = np.arange(12.0)
    figure = training_figure([curves("leash", {"eval_mean_length": values, "eval_accuracy": values / 12})])
    assert lines_of(figure.axes[0])["leash"].get_ydata().tolist() == values.tolist()
    assert figure.axes[0].get_xlabel() == "optimizer step (evaluation)"


def test_where_sources_differ_the_legend_says_which_is_which():
    figure = training_figure([batches("ours"), evaluations("theirs")])
    assert legend_labels(figure) == ["ours (training batches)", "theirs (evaluation)"]
    assert figure.axes[0].get_xlabel() == "optimizer step"


@pytest.mark.parametrize("columns", [2, 4])
def test_dynamics_of_six_runs_have_one_legend_and_six_looks(columns):
    runs = [batches(f"some_method_{i}/seed-0", target=46) for i in range(6)]
    figure = dynamics_figure(runs, columns)
    assert legend_labels(figure) == [run.label for run in runs]
    assert [line.get_linestyle() for line in figure.axes[0].lines] == ["-"] * 3 + ["--"] * 3
    looks = [(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines]
    assert len(set(looks)) == 6
    assert_nothing_overlaps(figure)


def test_a_run_looks_the_same_in_all_panels():
    without_lambda = batches("none")
    del without_lambda.values["lambda"]
    figure = dynamics_figure([without_lambda, batches("leash")])
    assert {lines_of(axis)["leash"].get_color() for axis in figure.axes} == {line_style(1)["color"]}
    assert legend_labels(figure) == ["none", "leash"]


@pytest.mark.parametrize("values", [[90.0, 91.0, 100.0], [0.0, 0.0, 0.0], [-4.0, 2.0, 10.0]])
def test_curves_do_not_touch_the_edges(values):
    figure = dynamics_figure([curves("leash", dict.fromkeys(("lambda", "mean_length"), values), target=110)])
    low, high = figure.axes[1].get_ylim()
    assert high > max(values) + 0.04 * (high - low)
    assert low == 0.0 if min(values) >= 0 else low < min(values) - 0.04 * (high - low)
    low, high = figure.axes[3].get_ylim()
    assert high > 110 + 0.04 * (high - low)
    assert figure.axes[0].get_ylim()[1] == 1.05


@pytest.mark.parametrize("number", [1, 6])
def test_figures_for_a_phone_are_narrow_and_legible(number):
    runs = [batches(f"leash {i}", size=12, target=46) for i in range(number)]
    narrow = [
        dynamics_figure(runs, 2),
        training_figure(runs, 1),
        behavior([f"some model {i}" for i in range(number)], columns=1),
    ]
    narrow.append(budget_figure({run.label: CURVE for run in runs}, width=NARROW))
    narrow.append(
        pareto_figure([row(f"{i}", 50.0 + i, 0.5) for i in range(number)], row("b", 99.0, 0.5), width=NARROW)
    )
    for figure in narrow:
        assert figure.get_figwidth() == NARROW == 5.6
        assert_nothing_overlaps(figure)


def test_targets_that_differ_are_not_drawn():
    figure = dynamics_figure([batches("a", target=4), batches("b", target=5)])
    assert set(lines_of(figure.axes[-1])) == {"a", "b"}


def test_one_run_needs_no_legend_and_one_step_is_a_dot():
    figure = dynamics_figure([batches("leash", size=1)])
    assert not figure.legends
    assert figure.axes[0].lines[0].get_marker() == "o"
    assert_nothing_overlaps(figure)


# --- evaluation ------------------------------------------------------------------------------------------------------

CURVE = {1024: Estimate(0.1, 0.0, 0.2), 2048: Estimate(0.4, 0.3, 0.5), 3000: Estimate(0.5, 0.4, 0.6)}


def test_budget_curve_and_its_band():
    figure = budget_figure({"leash": CURVE})
    (axis,) = figure.axes
    assert lines_of(axis)["leash"].get_ydata().tolist() == [0.1, 0.4, 0.5]
    (band,) = axis.collections
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices}
    assert {(1024.0, 0.0), (1024.0, 0.2), (3000.0, 0.4), (3000.0, 0.6)} <= corners
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1k", "2k", "3000"]


def test_limits_near_a_power_of_two_get_no_tick_of_their_own():
    points = {budget: Estimate(0.5, 0.4, 0.6) for budget in (8192, 16_000)}
    figure = budget_figure({"a": points, "b": {budget: Estimate(0.5, 0.4, 0.6) for budget in (8192, 16_384)}})
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["8k", "16k"]


@pytest.mark.parametrize("number", [1, 2, 6])
def test_budget_figures_of_long_names_are_legible(number):
    name = "DeepSeek-R1-Distill-Qwen-1.5B, LEASH, target 4096, run"
    figure = budget_figure({f"{name} {i}": CURVE for i in range(number)})
    assert len(legend_labels(figure)) == (number if number > 1 else 0)
    assert_nothing_overlaps(figure)


def test_behavior_over_steps():
    figure = behavior(["a", "a"], [0, 50])
    left, right = figure.axes
    assert left.lines[0].get_xydata().tolist() == [[0, 100], [50, 60]]
    assert left.get_xlabel() == "training step"
    assert {label: line.get_ydata().tolist() for label, line in lines_of(right).items()} == {
        "Summary": [6, 6],
        "Plan": [2, 2],
    }
    assert_nothing_overlaps(figure)


def test_behavior_of_runs_without_steps_has_their_whole_names_on_lines_that_fit():
    figure = behavior(["base", "a" * 40])
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["base", f"{'a' * 24}\n{'a' * 16}"]
    assert figure.axes[0].lines[0].get_xdata().tolist() == [0, 1]


def test_models_without_steps_are_not_joined_by_lines():
    figure = behavior(["base", "other"], tokens=(100.0, 100.0))
    left, right = figure.axes
    assert {line.get_linestyle() for axis in (left, right) for line in axis.lines} == {"None"}
    bars = [segment.tolist() for segment in left.collections[0].get_segments()]
    assert bars == [[[0, 91], [0, 109]], [[1, 91], [1, 109]]]
    # two groups, each a little beside the middle
    assert [line.get_xdata().tolist() for line in right.lines] == [
        pytest.approx([-0.06, 0.94]),
        pytest.approx([0.06, 1.06]),
    ]
    assert_nothing_overlaps(figure)


def test_behavior_of_one_checkpoint_shows_its_interval():
    figure = behavior(["base"], [7])
    (bar,) = figure.axes[0].collections
    assert bar.get_segments()[0].tolist() == [[7, 91], [7, 109]]
    assert figure.axes[0].get_xticks().tolist() == [7]
    assert_nothing_overlaps(figure)


@pytest.mark.parametrize("number", [0, 1, 6])
def test_pareto_of_few_and_many_runs(number):
    rows = [row(f"LEASH with a long name, step {i}", 50.0 + i, 0.5 + 0.01 * i) for i in range(number)]
    figure = pareto_figure(rows, row("base", 100.0, 0.5))
    lay_out(figure)
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    assert len(texts) == number + 1
    assert not overlapping(texts)
    assert figure.axes[0].get_xlabel() == "mean tokens, with 95 % interval over problems"


@pytest.mark.parametrize(("seeds", "sample"), [([5, 5], "seeds"), ([5, 1], "seeds or problems"), ([1], "problems")])
def test_the_pareto_figure_says_what_its_intervals_are_over(seeds, sample):
    rows = [dataclasses.replace(row(f"method {k}", 50.0, 0.5), num_seeds=num) for k, num in enumerate(seeds)]
    (axis,) = pareto_figure(rows, row("base", 100.0, 0.5)).axes
    assert axis.get_xlabel() == f"mean tokens, with 95 % interval over {sample}"
    assert axis.get_ylabel() == f"accuracy, with 95 % interval over {sample}"


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("number", [1, 3, 6])
def test_labels_of_the_pareto_figure_hide_no_bar(number, width):
    rows = [row(f"run {i}", 50.0 + 9 * i, 0.6 + 0.02 * (i % 3)) for i in range(number)]
    assert not hidden_bars(
        pareto_figure(rows, row("base", 120.0, 0.55), width=width), [*rows, row("base", 120.0, 0.55)]
    )


def crowd():
    """A base and 23 methods of one point each, most of which end alike."""
    names = [f"method {index}" if index % 2 else f"a longer name {index}" for index in range(23)]
    rows = [row(name, 37.0 + index**2 / 20, 0.85 + 0.01 * (index % 7)) for index, name in enumerate(names)]
    return [row("base", 92.0, 0.8), *rows]


@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("methods", [lambda: read_trade_offs(GYM_SEEDS), crowd], ids=["recorded", "crowd"])
def test_labels_of_many_methods_cover_neither_each_other_nor_markers(methods, width):
    base, *rows = methods()
    figure = pareto_figure(rows, base, width=width)
    lay_out(figure)
    (axis,) = figure.axes
    # a name for each method and the base, a number for each target
    assert len(axis.texts) == len({row.name for row in rows}) + 1 + len({row.target_length for row in rows} - {None})
    assert not overlapping(axis.texts)
    boxes, frame = [text.get_window_extent() for text in axis.texts], axis.get_window_extent()
    markers = axis.transData.transform([(row.tokens.value, row.accuracy.value) for row in rows])
    assert not [box for box in boxes for x, y in markers if box.contains(x, y)]
    assert all(frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1) for box in boxes)


def test_the_picture_of_the_readme_tells_the_recorded_numbers():
    # leash plot recipes/gym/compare_seeds.csv --figure pareto --output recipes/gym/accuracy_over_tokens.svg
    svg = GYM_SEEDS.with_name("accuracy_over_tokens.svg").read_text(encoding="utf-8")
    told = html.unescape(re.search("<desc>(.*?)</desc>", svg)[1])
    assert told == "; ".join(map(str, read_trade_offs(GYM_SEEDS)))
    record = base_record()
    assert told.startswith(f"base: accuracy {record['accuracy']:.3f} [")
    assert len(svg) < 200_000


def test_one_long_interval_of_many_does_not_set_the_frame():
    rows = [row(f"{i}", 50.0 + i, 0.7 + 0.01 * i) for i in range(6)]
    wide = TradeOff("wide", Estimate(0.7, 0.0, 1.0), Estimate(50.0, 1.0, 500.0))
    narrow = pareto_figure(rows, row("base", 90.0, 0.7)).axes[0]
    with_wide = pareto_figure([*rows, wide], row("base", 90.0, 0.7)).axes[0]
    assert with_wide.get_ylim() == pytest.approx(narrow.get_ylim(), abs=0.05)
    assert with_wide.get_xlim()[0] > 40
    low, high = pareto_figure([wide], row("base", 90.0, 0.7)).axes[0].get_ylim()
    assert high > 1.0 > 0.0 > low


def test_marks_and_target_of_the_pareto_figure():
    rows = [TradeOff(name, Estimate(0.7, 0.6, 0.8), Estimate(50.0, 49.0, 51.0), 46) for name in ("LEASH", "ALP")]
    axis = pareto_figure(rows, row("base", 90.0, 0.7)).axes[0]
    looks = {text.get_text(): (text.get_color(), text.get_fontweight()) for text in axis.texts}
    assert looks == {
        " target 46": ("black", "normal"),
        "LEASH": (COLORS[1], "bold"),
        "ALP": ("black", "normal"),
        "base": ("black", "normal"),
    }


METHODS = ("LEASH", "LEASH-C", "LEASH-PI", "L1-Max", "LASER-DE", "DLER", "LACONIC", "A-DLP")


def curve_rows(methods=METHODS, targets=(28, 12, 18)):
    """Methods at several targets, each a little more accurate and longer than the one before."""
    return [
        TradeOff(
            name,
            Estimate(accuracy, accuracy - 0.01, accuracy + 0.01),
            Estimate(tokens, 0.98 * tokens, 1.02 * tokens),
            target,
        )
        for index, name in enumerate(methods)
        for target in targets
        for accuracy, tokens in [(0.5 + 0.01 * target + 0.01 * index, target * (0.8 + 0.05 * index))]
    ]


def test_a_method_at_several_targets_is_a_curve_in_the_order_of_targets():
    single = TradeOff("no control", Estimate(0.8, 0.7, 0.9), Estimate(60.0, 50.0, 70.0))
    figure = pareto_figure([*curve_rows(["LEASH", "ALP"]), single], row("base", 90.0, 0.7))
    (axis,) = figure.axes
    curves = [line for line in axis.lines if line.get_marker() not in ("None", "o", "D")]
    assert [line.get_xdata().tolist() for line in curves] == [
        pytest.approx([9.6, 14.4, 22.4]),
        pytest.approx([10.2, 15.3, 23.8]),
    ]
    assert curves[0].get_ydata().tolist() == pytest.approx([0.62, 0.68, 0.78])
    texts = {text.get_text(): (text.get_color(), text.get_fontweight()) for text in axis.texts}
    assert texts == {
        " 12": ("black", "normal"),
        " 18": ("black", "normal"),
        " 28": ("black", "normal"),
        "LEASH": (curves[0].get_color(), "bold"),
        "ALP": (curves[1].get_color(), "normal"),
        "no control": ("black", "normal"),
        "base": ("black", "normal"),
    }
    assert axis.get_xlabel().endswith("; dotted: targets")
    bars = [tuple(bar.get_edgecolor()[0]) for bar in axis.collections]
    assert bars.count(to_rgba(curves[0].get_color())) == 6  # two intervals at each of three points
    # a method of one point and the base look as ever
    (circle,) = [line for line in axis.lines if line.get_marker() == "o"]
    assert (circle.get_color(), circle.get_markersize()) == (COLORS[0], 6)
    (diamond,) = [line for line in axis.lines if line.get_marker() == "D"]
    assert (diamond.get_color(), diamond.get_markersize()) == ("black", 7)
    assert "LEASH at target 12: accuracy 0.620 [0.610, 0.630], tokens 9.6 [9.4, 9.8]" in figure.get_label()
    assert "; no control: accuracy 0.800" in figure.get_label()


def test_eight_curves_have_eight_looks_without_colour_too():
    axis = pareto_figure(curve_rows(), row("base", 90.0, 0.7)).axes[0]
    curves = [line for line in axis.lines if line.get_marker() not in ("None", "D")]
    assert len({line.get_marker() for line in curves}) == 8
    assert len({(line.get_color(), line.get_linestyle()) for line in curves}) == 8


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_labels_of_eight_curves_cover_neither_each_other_nor_markers(width):
    rows, base = curve_rows(), row("base", 110.0, 0.7)
    figure = pareto_figure(rows, base, width=width)
    assert_nothing_overlaps(figure)
    (axis,) = figure.axes
    assert len(axis.texts) == len(METHODS) + 4  # and the base and the targets
    assert not overlapping(axis.texts)
    boxes, frame = [text.get_window_extent() for text in axis.texts], axis.get_window_extent()
    markers = axis.transData.transform([(row.tokens.value, row.accuracy.value) for row in [*rows, base]])
    assert not [box for box in boxes for x, y in markers if box.contains(x, y)]
    assert all(frame.contains(box.x0, box.y0) and frame.contains(box.x1, box.y1) for box in boxes)


def test_a_short_curve_has_its_label_behind_the_points_of_longer_ones():
    short = TradeOff("LEASH", Estimate(0.6, 0.5, 0.7), Estimate(14.0, 13.9, 14.1), 18)
    rows = [short, dataclasses.replace(short, tokens=Estimate(9.0, 8.9, 9.1), target_length=12)]
    rows += [
        TradeOff("DLER", Estimate(0.6, 0.5, 0.7), Estimate(tokens, tokens, tokens), target)
        for target, tokens in ((12, 12.0), (18, 16.0), (28, 18.0))
    ]
    figure = pareto_figure(rows, row("base", 60.0, 0.6))
    lay_out(figure)
    (axis,) = figure.axes
    boxes = {text.get_text(): text.get_window_extent() for text in axis.texts}
    assert boxes["LEASH"].x0 > axis.transData.transform((18.0, 0.6))[0]


def test_rows_of_one_name_and_target_are_no_curve():
    twice = [row("a", 50.0, 0.6), row("a", 55.0, 0.6)]
    axis = pareto_figure(twice, row("base", 90.0, 0.7)).axes[0]
    assert [line.get_marker() for line in axis.lines if line.get_marker() != "None"] == ["o", "o", "D"]
    assert [text.get_text() for text in axis.texts] == ["a", "a", "base"]


def hidden_bars(figure, rows):
    """Names of labels over an interval, with the name of its row."""
    lay_out(figure)
    (axis,) = figure.axes
    to_pixels = axis.transData.transform
    bars = [
        (row.name, to_pixels(ends))
        for row in rows
        for ends in (
            [(row.tokens.value, row.accuracy.low), (row.tokens.value, row.accuracy.high)],
            [(row.tokens.low, row.accuracy.value), (row.tokens.high, row.accuracy.value)],
        )
    ]
    boxes = {text.get_text(): text.get_window_extent() for text in axis.texts if text.get_text()}
    return [
        (label, name)
        for label, box in boxes.items()
        for name, ((x0, y0), (x1, y1)) in bars
        if x0 < box.x1 and x1 > box.x0 and y0 < box.y1 and y1 > box.y0
    ]


# --- the gym's styles ------------------------------------------------------------------------------------------------


def test_the_styles_figure_draws_every_level_and_the_mean_of_all():
    figure = made("styles")
    (axis,) = figure.axes
    points = forced_styles()
    lines = lines_of(axis)
    levels = sorted({point.level for point in points})
    assert list(lines) == ["1 term to add", *(f"{level} terms to add" for level in levels[1:]), "mean of all"]
    for level, line in zip(levels, lines.values(), strict=False):
        own = {(point.tokens, point.accuracy) for point in points if point.level == level}
        assert {tuple(place) for place in line.get_xydata().tolist()} == own
        assert line.get_xdata().tolist() == sorted(line.get_xdata())
    short = [point for point in points if point.style == "short"]
    mean = tuple(sum(getattr(point, field) for point in short) / len(levels) for field in ("tokens", "accuracy"))
    assert mean in [pytest.approx(tuple(place)) for place in lines["mean of all"].get_xydata()]
    assert [text.get_text() for text in axis.texts] == list(dict.fromkeys(point.style for point in points))


def test_the_styles_names_do_not_cover_each_other():
    figure = styles_figure(forced_styles())
    assert_nothing_overlaps(figure)
    assert not overlapping(figure.axes[0].texts)


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "head"), [("PNG", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_same_figure_gives_the_same_bytes(tmp_path, ending, head):
    paths = [tmp_path / name / f"figure.{ending}" for name in ("one", "two")]
    for path in paths:
        write_figure(budget_figure({"leash": CURVE}), path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].read_bytes().startswith(head)
    assert b"Date" not in paths[0].read_bytes()
    assert [path.name for path in paths[0].parent.iterdir()] == [f"figure.{ending}"]


@pytest.mark.parametrize("name", ["figure.jpg", "figure"])
def test_other_formats_are_refused(name):
    with pytest.raises(ValueError, match=rf"output is '{name}', but must end with \.png, \.svg or \.pdf"):
        check_format(name)


def test_inline_svg_takes_the_colours_of_the_page():
    svg = inline_svg(pareto_figure([row("a", 50.0, 0.6)], row("b", 90.0, 0.5)), "pareto", 'it\'s "big" <b>')
    root = ElementTree.fromstring(svg)
    assert root.get("fill") == "currentColor"
    assert root.get("role") == "img"
    assert root.get("aria-label") == 'it\'s "big" <b>'
    assert "#000000" not in svg
    assert "#ffffff" not in svg
    assert "<metadata" not in svg


def test_an_svg_file_is_dark_where_the_screen_is_and_has_words(tmp_path):
    figure = pareto_figure([row("<LEASH>", 50.0, 0.6)], row("b", 90.0, 0.5))
    write_figure(figure, tmp_path / "figure.svg")
    root = ElementTree.parse(tmp_path / "figure.svg").getroot()
    description, style = list(root)[:2]
    assert description.text == figure.get_label()
    assert "<LEASH>: accuracy 0.600" in description.text
    drawn = (tmp_path / "figure.svg").read_text().split("</style>", 1)[1]
    for color in set(re.findall(r"(?:fill|stroke): #(?:000000|ffffff)", drawn)):
        assert f'[style*="{color}"]' in style.text
    ink, card = re.search(r"svg { fill: (#\w+)", style.text)[1], "#0d1117"
    assert contrast(ink, card) > 10


def test_a_figure_that_is_drawn_twice_does_not_move():
    figure = dynamics_figure([batches(name, target=46) for name in ("leash", "alp")])
    assert inline_svg(figure, "x", "x") == inline_svg(figure, "x", "x")


def test_figures_on_one_page_share_no_ids():
    figure = budget_figure({"leash": CURVE})
    ids = [re.findall(r'\bid="([^"]+)"', inline_svg(figure, name, "x")) for name in ("one", "two")]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])
    assert all(identity.startswith("one-") for identity in ids[0])
    svg = inline_svg(figure, "one", "x")
    references = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', svg))
    assert {first or second for first, second in references} <= set(ids[0])


def test_labels_cannot_break_out_of_the_svg():
    figure = budget_figure({"<script>alert(1)</script> & </svg>": CURVE, "b": CURVE})
    svg = inline_svg(figure, "budget", "x")
    ElementTree.fromstring(svg)
    assert "<script" not in svg
    assert svg.count("</svg>") == 1


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def evaluated(tmp_path):
    def make(label, tokens, step=None):
        problems = [
            problem(index, completion("1", tokens, True), completion("2", tokens + 9, index == 0)) for index in (0, 1)
        ]
        return str(write_run(tmp_path / f"{label}-{step}", {"gym": problems}, label, step=step))

    return make


@pytest.mark.parametrize("name", ["behavior", "budget", "pareto"])
def test_figures_of_evaluated_runs(name, evaluated, tmp_path, capsys):
    from leash_trl.cli.main import main

    runs = [evaluated("leash", 30, 10), evaluated("leash", 20, 20)]
    output = tmp_path / "figure.svg"
    assert main(["plot", *runs, "--figure", name, "--output", str(output)]) == 0
    assert f"wrote {output}" in capsys.readouterr().out
    ElementTree.parse(output)
    # matplotlib keeps each text as a comment beside its outlines
    assert ("with 95 % interval over problems" in output.read_text()) is (name == "pareto")


@pytest.mark.parametrize("name", ["dynamics", "training"])
def test_figures_of_the_authors_logs(name, shared_data, tmp_path, monkeypatch):
    from leash_trl.cli.main import main

    monkeypatch.chdir(tmp_path)
    kind = "train" if name == "dynamics" else "eval"
    runs = [str(shared_data / f"leash_log_{kind}{suffix}.csv") for suffix in ("", "_constant")]
    assert main(["plot", *runs, "--figure", name]) == 0
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", ["behavior", "budget", "pareto"])
def test_runs_are_found_in_the_folder_that_holds_them(name, evaluated, tmp_path):
    from leash_trl.cli.main import main

    evaluated("leash", 30), evaluated("base", 20)
    assert main(["plot", str(tmp_path), "--figure", name, "--output", str(tmp_path / "figure.svg")]) == 0


def test_a_folder_that_holds_training_runs_is_drawn(tmp_path, shared_data):
    from leash_trl.analysis.drawn_runs import draw

    for name in ("leash_log_train.csv", "leash_log_train_constant.csv"):
        (tmp_path / name).write_bytes((shared_data / name).read_bytes())
    assert legend_labels(draw("dynamics", [str(tmp_path)], None)) == ["leash_log_train", "leash_log_train_constant"]


def test_means_over_different_benchmarks_are_not_drawn(tmp_path):
    from leash_trl.analysis.evaluated_runs import budget_curves, load_evaluated_runs, trade_offs

    problems = [problem(0, completion("1", 30, True))]
    results = load_evaluated_runs(
        [
            write_run(tmp_path / "base", {"gym": problems, "aime": problems}, "base"),
            write_run(tmp_path / "leash", {"gym": problems}, "leash"),
        ]
    )
    for draw in (budget_curves, trade_offs):
        with pytest.raises(ValueError, match=r"'base' has gym, aime; 'leash' has gym; choose one that all have"):
            draw(results)
        assert len(draw(results, "gym")) == 2


def test_one_benchmark_can_be_chosen(evaluated):
    from leash_trl.analysis.evaluated_runs import budget_curves, load_evaluated_runs, trade_offs

    results = load_evaluated_runs([evaluated("leash", 30)])
    # right: three of four; the wrong one is the longer one of the second problem
    assert [(row.name, row.accuracy.value, row.tokens.value) for row in trade_offs(results, "gym")] == [
        ("leash", 0.75, 34.5)
    ]
    curve = budget_curves(results, "gym")["leash"]
    assert {budget: point.value for budget, point in curve.items()}[32] == 0.5
    assert curve == budget_curves(results)["leash"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--figure", "budget", "--benchmark", "aime"], "benchmark is 'aime', but 'leash' has gym"),
        (["--output", "x.jpg"], "must end with .png, .svg or .pdf"),
        (["--figure", "dynamics"], "is neither a CSV file nor"),
    ],
)
def test_mistakes_are_one_line(arguments, message, evaluated, capsys):
    from leash_trl.cli.main import main

    assert main(["plot", evaluated("leash", 30), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_figure_of_another_format_is_refused_before_the_gym_is_measured(monkeypatch, capsys):
    from leash_trl.cli.main import main

    monkeypatch.setattr("leash_trl.gym.record.write_record", lambda: pytest.fail("measured"))
    assert main(["gym", "record", "--figure", "x.bmp"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "leash gym: output is 'x.bmp', but must end with .png, .svg or .pdf"
