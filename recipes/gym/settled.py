"""Draws settled.svg from settled.csv and settled_seeds.csv: tokens and accuracy over 400 updates, every seed.

    python recipes/gym/settled.py                                            # draws
    python recipes/gym/settled.py runs/settled_800 runs/settled_801 ...      # first collects the two tables anew

A folder is the `output_dir` of a comparison of settled.yaml. settled.csv has means of the training batches over ten
updates, settled_seeds.csv the held-out rows of each `seeds.csv`.
"""

import sys
from pathlib import Path

import pandas as pd

from leash_trl.figures import style
from leash_trl.figures.training import load_curves


HERE = Path(__file__).parent
WINDOW = 10  # updates in a mean
ARMS = {
    "none": ("no control", style.COLORS[0], "--"),
    "leash": ("LEASH, target 36", style.COLORS[1], "-"),
}
COLUMNS = {"leash/mean_length": "tokens", "leash/accuracy": "accuracy"}


def collect(folders: list[Path]) -> None:
    """Writes both tables from the folders of comparisons."""
    parts = []
    for run in (run for folder in folders for arm in ARMS for run in sorted((folder / arm).glob("seed-*"))):
        curves = load_curves(run)[[*COLUMNS]].rename(columns=COLUMNS)
        means = curves.groupby((curves.index - 1) // WINDOW).mean()
        means.index = (means.index + 1) * WINDOW
        parts.append(means.assign(arm=run.parent.name, seed=run.name).rename_axis("step").reset_index())
    pd.concat(parts).round(4).to_csv(HERE / "settled.csv", index=False)
    seeds = pd.concat([pd.read_csv(folder / "seeds.csv", dtype=str, keep_default_na=False) for folder in folders])
    seeds.drop_duplicates().to_csv(HERE / "settled_seeds.csv", index=False)


def main() -> None:
    if folders := [Path(name) for name in sys.argv[1:]]:
        collect(folders)
    curves, held_out = pd.read_csv(HERE / "settled.csv"), pd.read_csv(HERE / "settled_seeds.csv")
    base = held_out[held_out["name"] == "base"].iloc[0]
    figure, axes = style.new_figure(style.NARROW, 5.4, rows=2)
    told = []
    for axis, column, score in zip(axes, ("tokens", "accuracy"), ("mean_tokens", "score"), strict=True):
        form = "{:.0f}" if column == "tokens" else "{:.2f}"
        titles = [f"before {form.format(base[score])}"]
        for arm, (label, color, dashes) in ARMS.items():
            for _, own in curves[curves["arm"] == arm].groupby("seed"):
                axis.plot(own["step"], own[column], color=color, linestyle=dashes, linewidth=1.6, label=label)
            name, _, target = label.partition(", target ")
            rows = held_out[(held_out["name"] == name) & (held_out["target_length"].fillna(0) == float(target or 0))]
            titles.append(f"{label}: {', '.join(map(form.format, rows[score]))}")
        axis.set_title("Tokens per answer" if column == "tokens" else "Accuracy", loc="left", pad=18)
        axis.text(0, 1.03, f"held out: {'; '.join(titles)}", transform=axis.transAxes, fontsize=8)
        told.append(f"{column}, held out: {'; '.join(titles)}")
    axes[0].axhline(36, color="black", linestyle=":", linewidth=1.2)
    axes[0].set_ylim(0, None)
    axes[1].set_ylim(0.7, 1.0)
    axes[1].set_xlabel(f"policy updates (training batches, means over {WINDOW}; one line per seed)")
    handles = dict(zip(axes[0].get_legend_handles_labels()[1], axes[0].get_legend_handles_labels()[0], strict=True))
    axes[1].legend(handles.values(), handles.keys(), loc="lower right", frameon=False, fontsize=style.LABEL_SIZE)
    figure.set_label(". ".join(told))
    style.write_figure(figure, HERE / "settled.svg")


if __name__ == "__main__":
    main()
