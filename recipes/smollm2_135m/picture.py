"""Draws the README's pictures from curves.csv and held_out.csv beside it, every seed: half_the_tokens.svg of the runs
of 60 updates, to_the_end.svg of those of 160.

`python recipes/smollm2_135m/picture.py`
"""

from pathlib import Path

import pandas as pd

from leash_trl.figures import style


HERE = Path(__file__).parent
BLUE, ORANGE, TEAL, PINK = style.COLORS[:4]
# by the number of updates: the file, the updates in a running mean, the targets in tokens, and the runs by the
# beginning of their names
PICTURES = {
    60: (
        "half_the_tokens.svg",
        10,
        (40, 55),
        {
            "none": ("no penalty", BLUE, "--"),
            "leash": ("LEASH", ORANGE, "-"),
            "predictive-55": ("LEASH-Predictive", TEAL, "-."),
        },
    ),
    160: (
        "to_the_end.svg",
        20,
        (40,),
        {
            "none": ("no penalty", BLUE, "--"),
            "leash": ("LEASH", ORANGE, "-"),
            "predictive-40": ("LEASH-Predictive", TEAL, "-."),
            "both_sides-40": ("LEASH-Predictive, lambda_min -1", PINK, "-"),
        },
    ),
}


def draw(curves: pd.DataFrame, held_out: pd.DataFrame, updates: int) -> None:
    """Draws tokens and accuracy over the updates."""
    file, window, targets, kinds = PICTURES[updates]
    figure, axes = style.new_figure(style.NARROW, 5.4, rows=2)
    ends = held_out.rename(index=lambda run: run.removesuffix(f" after {updates}"))
    names, told = curves["run"].unique(), []
    for axis, column, name, form in zip(
        axes, ("mean_length", "accuracy"), ("tokens", "accuracy"), ("{:.1f}", "{:.2f}"), strict=True
    ):
        titles = [f"before {form.format(held_out.loc['warm start', name])}"]
        for kind, (label, color, dashes) in kinds.items():
            runs = [run for run in names if run.rpartition("-")[0] == kind]
            for run in runs:
                values = curves[curves["run"] == run].set_index("step")[column].rolling(window).mean().dropna()
                axis.plot(values.index, values, color=color, linestyle=dashes, label=label, linewidth=1.8)
            titles.append(f"{label} {', '.join(form.format(ends.loc[run, name]) for run in runs)}")
        axis.set_title("Tokens per answer" if name == "tokens" else "Accuracy", loc="left", pad=30)
        lines = ["; ".join(titles[:2]), "; ".join(titles[2:])]
        axis.text(0, 1.03, "held out: " + ";\n".join(lines), transform=axis.transAxes, fontsize=8)
        told.append(f"{name}, held out: {'; '.join(titles)}")
    for target in targets:
        axes[0].axhline(target, color="black", linestyle=":", linewidth=1.2)
        axes[0].text(window, target - 1, f"target {target}", fontsize=style.LABEL_SIZE, va="top")
    handles = dict(zip(*reversed(axes[1].get_legend_handles_labels()), strict=True))
    look = {
        "loc": "lower right",
        "ncols": 3 if len(kinds) == 3 else 2,
        "frameon": False,
        "fontsize": style.LABEL_SIZE,
    }
    axes[1].legend(handles.values(), handles, **look)
    axes[0].set_ylim(0, 140)
    axes[1].set_ylim(0.4, 1.0)
    axes[1].set_xlabel(f"policy updates (running mean over {window} batches; a line per seed)")
    figure.set_label(". ".join(told))
    style.write_figure(figure, HERE / file)


def main() -> None:
    curves, held_out = pd.read_csv(HERE / "curves.csv"), pd.read_csv(HERE / "held_out.csv").set_index("run")
    last = curves.groupby("run")["step"].transform("max")
    for updates in PICTURES:
        draw(curves[last == updates], held_out, updates)


if __name__ == "__main__":
    main()
