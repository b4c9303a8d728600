"""Draws settled.svg from settled.csv and settled_seeds.csv: tokens and accuracy over 400 updates, every seed.

    python recipes/gym/settled.py                                            # draws
    python recipes/gym/settled.py runs/settled_800 runs/settled_801 ...      # first collects the two tables anew

A folder is the `output_dir` of a comparison of settled.yaml. settled.csv has means of the training batches over ten
updates, settled_seeds.csv the held-out rows of each `seeds.csv`.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from leash_trl.figures import style
from leash_trl.figures.training import load_curves


HERE = Path(__file__).parent
WINDOW = 10  # updates in a mean
TARGET = 36  # tokens


class Arm(NamedTuple):
    """Runs of one setting: their folder, their rows in settled_seeds.csv, and how their lines look."""

    folder: str
    name: str
    target_length: float | None
    label: str
    color: str
    linestyle: str


ARMS = (
    Arm("none", "no control", None, "no control", style.COLORS[0], "--"),
    Arm("leash", "LEASH", TARGET, f"LEASH, target {TARGET}", style.COLORS[1], "-"),
)


class Panel(NamedTuple):
    """One of the two panels: its title, a column of settled.csv and one of settled_seeds.csv."""

    title: str
    training_column: str
    held_out_column: str
    number_format: str


PANELS = (
    Panel("Tokens per answer", "tokens", "mean_tokens", "{:.0f}"),
    Panel("Accuracy", "accuracy", "score", "{:.2f}"),
)
COLUMNS = {"leash/mean_length": "tokens", "leash/accuracy": "accuracy"}


def collect(folders: list[Path]) -> None:
    """Writes both tables from the folders of comparisons."""
    runs: list[Path] = []
    for folder in folders:
        for arm in ARMS:
            runs += sorted((folder / arm.folder).glob("seed-*"))
    parts = []
    for run in runs:
        curves = load_curves(run)[[*COLUMNS]].rename(columns=COLUMNS)
        means = curves.groupby((curves.index - 1) // WINDOW).mean()
        means.index = (means.index + 1) * WINDOW
        parts.append(means.assign(arm=run.parent.name, seed=run.name).rename_axis("step").reset_index())
    pd.concat(parts).round(4).to_csv(HERE / "settled.csv", index=False)
    seeds = pd.concat([pd.read_csv(folder / "seeds.csv", dtype=str, keep_default_na=False) for folder in folders])
    seeds.drop_duplicates().to_csv(HERE / "settled_seeds.csv", index=False)


def rows_of(arm: Arm, held_out: pd.DataFrame) -> pd.DataFrame:
    """The held-out rows of an arm, one for each seed."""
    target = held_out["target_length"]
    has_target = target.isna() if arm.target_length is None else target == arm.target_length
    return held_out[(held_out["name"] == arm.name) & has_target]


def main() -> None:
    folders = [Path(name) for name in sys.argv[1:]]
    if folders:
        collect(folders)
    curves = pd.read_csv(HERE / "settled.csv")
    held_out = pd.read_csv(HERE / "settled_seeds.csv")
    base = held_out[held_out["name"] == "base"].iloc[0]
    figure, axes = style.new_figure(style.NARROW_INCHES, 5.4, rows=2)
    descriptions = []
    for axis, panel in zip(axes, PANELS, strict=True):
        results = [f"before {panel.number_format.format(base[panel.held_out_column])}"]
        for arm in ARMS:
            for _, seed in curves[curves["arm"] == arm.folder].groupby("seed"):
                axis.plot(
                    seed["step"],
                    seed[panel.training_column],
                    color=arm.color,
                    linestyle=arm.linestyle,
                    linewidth=1.6,
                    label=arm.label,
                )
            numbers = map(panel.number_format.format, rows_of(arm, held_out)[panel.held_out_column])
            results.append(f"{arm.label}: {', '.join(numbers)}")
        shown = "; ".join(results)
        axis.set_title(panel.title, loc="left", pad=18)
        axis.text(0, 1.03, f"held out: {shown}", transform=axis.transAxes, fontsize=8)
        descriptions.append(f"{panel.training_column}, held out: {shown}")
    tokens, accuracy = axes
    tokens.axhline(TARGET, color="black", linestyle=":", linewidth=1.2)
    tokens.set_ylim(0, None)
    accuracy.set_ylim(0.7, 1.0)
    accuracy.set_xlabel(f"policy updates (training batches, means over {WINDOW}; one line per seed)")
    handles, labels = tokens.get_legend_handles_labels()
    handle_by_label = dict(zip(labels, handles, strict=True))  # one line of each arm
    accuracy.legend(
        handle_by_label.values(),
        handle_by_label.keys(),
        loc="lower right",
        frameon=False,
        fontsize=style.LABEL_SIZE,
    )
    figure.set_label(". ".join(descriptions))
    style.write_figure(figure, HERE / "settled.svg")


if __name__ == "__main__":
    main()
