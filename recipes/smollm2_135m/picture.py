"""Draws the README's pictures from curves.csv and held_out.csv beside it, with every seed of the arms listed below:
half_the_tokens.svg of the runs of 60 updates, to_the_end.svg of some of those of 160, and accuracy_over_tokens.svg of
where all of the latter end.

`python recipes/smollm2_135m/picture.py`
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from leash_trl.evaluation.intervals import Estimate, mean_share
from leash_trl.figures import style


HERE = Path(__file__).parent
BLUE, ORANGE, TEAL, PINK, PURPLE, OLIVE, GREEN, BROWN = style.COLORS


class Arm(NamedTuple):
    """Runs of one setting, whose names are `prefix`, a hyphen and a seed, and how their lines and markers look."""

    prefix: str
    label: str
    color: str
    linestyle: str
    marker: str


class Picture(NamedTuple):
    """A file and what it shows: runs of `updates` policy updates as running means over `window` of them."""

    file: str
    updates: int
    window: int
    targets: tuple[int, ...]  # in tokens
    arms: tuple[Arm, ...]


ARMS_OF_60_UPDATES = (
    Arm("none", "no penalty", BLUE, "--", "o"),
    Arm("leash", "LEASH", ORANGE, "-", "s"),
    Arm("predictive-55", "LEASH-Predictive", TEAL, "-.", "^"),
)
ARMS_SHOWN_TO_THE_END = (
    Arm("none", "no penalty", BLUE, "--", "o"),
    Arm("leash", "LEASH, 40", ORANGE, "-", "s"),
    Arm("predictive-40", "LEASH-Predictive, 40", TEAL, "-.", "^"),
    Arm("both_sides-40", "both sides of 40", PINK, "-", "v"),
    Arm("both_sides-60", "both sides of 60", PURPLE, "-", "D"),
)
ARMS_OF_160_UPDATES = (
    *ARMS_SHOWN_TO_THE_END,
    Arm("both_sides-40-negative_drift", "both sides, new filter", PINK, "-", "^"),
    Arm("checking-20", "20 tokens of checks", OLIVE, "--", "P"),
    Arm("floor-40", "40 with a floor", GREEN, "-", "X"),
    Arm("smart_thinker", "SmartThinker", BROWN, ":", "<"),
    Arm("release", "LEASH, 40, released", ORANGE, ":", ">"),
)
PICTURES = (
    Picture("half_the_tokens.svg", updates=60, window=10, targets=(40, 55), arms=ARMS_OF_60_UPDATES),
    Picture("to_the_end.svg", updates=160, window=20, targets=(40, 60), arms=ARMS_SHOWN_TO_THE_END),
)
NUM_STORIES = 512  # of an accuracy in held_out.csv


class Panel(NamedTuple):
    """One of a picture's two panels: its title, a column of curves.csv and one of held_out.csv."""

    title: str
    training_column: str
    held_out_column: str
    number_format: str


PANELS = (
    Panel("Tokens per answer", "mean_length", "tokens", "{:.1f}"),
    Panel("Accuracy", "accuracy", "accuracy", "{:.2f}"),
)


def draw(curves: pd.DataFrame, held_out: pd.DataFrame, picture: Picture) -> None:
    """Draws tokens and accuracy over the updates, with the held-out results of each arm above."""
    figure, axes = style.new_figure(style.NARROW_INCHES, 6.0, rows=2)
    after = held_out.rename(index=lambda run: run.removesuffix(f" after {picture.updates}"))
    descriptions = []
    for axis, panel in zip(axes, PANELS, strict=True):
        before = panel.number_format.format(held_out.loc["warm start", panel.held_out_column])
        results = [f"before {before}"]
        for arm in picture.arms:
            runs = [run for run in curves["run"].unique() if run.rpartition("-")[0] == arm.prefix]
            for run in runs:
                by_step = curves[curves["run"] == run].set_index("step")[panel.training_column]
                means = by_step.rolling(picture.window).mean().dropna()
                label = arm.label if run == runs[0] else "_"  # a legend leaves out what begins with an underscore
                axis.plot(means.index, means, color=arm.color, linestyle=arm.linestyle, label=label, linewidth=1.8)
            numbers = [panel.number_format.format(after.loc[run, panel.held_out_column]) for run in runs]
            results.append(f"{arm.label} {', '.join(numbers)}")
        lines = ["; ".join(results[start : start + 2]) for start in range(0, len(results), 2)]
        axis.set_title(panel.title, loc="left", pad=8 + 11 * len(lines))
        axis.text(0, 1.03, "held out: " + ";\n".join(lines), transform=axis.transAxes, fontsize=8)
        descriptions.append(f"{panel.held_out_column}, held out: {'; '.join(results)}")
    tokens, accuracy = axes
    for target in picture.targets:
        tokens.axhline(target, color="black", linestyle=":", linewidth=1.2)
        tokens.text(picture.window, target - 1, f"target {target}", fontsize=style.LABEL_SIZE, va="top")
    tokens.set_ylim(0, 140)
    style.draw_legend_above(accuracy)
    accuracy.set_ylim(0.4, 1.0)
    accuracy.set_xlabel(f"policy updates (running mean over {picture.window} batches; a line per seed)")
    figure.set_label(". ".join(descriptions))
    style.write_figure(figure, HERE / picture.file)


def draw_ends(held_out: pd.DataFrame) -> None:
    """Draws accuracy over tokens where the runs of 160 updates end, with intervals over stories."""
    figure, (axis,) = style.new_figure(style.NARROW_INCHES, 4.2)
    before = held_out.loc["warm start"]
    axis.plot(before["tokens"], before["accuracy"], color="black", marker="*", linestyle="", label="before training")
    descriptions = [f"before training {before['accuracy']:.2f} at {before['tokens']:.0f}"]
    for arm in ARMS_OF_160_UPDATES:
        ends = held_out[held_out.index.str.fullmatch(rf"{arm.prefix}-\d+ after 160")]
        intervals = [accuracy_interval(accuracy) for accuracy in ends["accuracy"]]
        below = ends["accuracy"] - [interval.low for interval in intervals]
        above = [interval.high for interval in intervals] - ends["accuracy"]
        axis.errorbar(
            ends["tokens"],
            ends["accuracy"],
            yerr=[below, above],
            color=arm.color,
            marker=arm.marker,
            linestyle="",
            elinewidth=0.8,
            label=arm.label,
        )
        results = [f"{end.accuracy:.2f} at {end.tokens:.0f}" for end in ends.itertuples()]
        descriptions.append(f"{arm.label} {', '.join(results)}")
    style.draw_legend_above(axis)
    axis.set_xlim(0, 140)
    axis.set_xlabel("tokens per answer, held out (a marker per seed)")
    axis.set_ylabel("accuracy, 95 % interval over stories")
    figure.set_label(f"Accuracy and tokens after 160 updates: {'; '.join(descriptions)}")
    style.write_figure(figure, HERE / "accuracy_over_tokens.svg")


def accuracy_interval(accuracy: float) -> Estimate:
    """Returns an accuracy over the held-out stories, one sample each, with its interval."""
    is_correct = np.arange(NUM_STORIES) < round(accuracy * NUM_STORIES)
    return mean_share(is_correct.astype(float))


def main() -> None:
    curves = pd.read_csv(HERE / "curves.csv")
    held_out = pd.read_csv(HERE / "held_out.csv").set_index("run")
    last_step = curves.groupby("run")["step"].transform("max")
    for picture in PICTURES:
        draw(curves[last_step == picture.updates], held_out, picture)
    draw_ends(held_out)


if __name__ == "__main__":
    main()
