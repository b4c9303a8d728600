"""Draws the README's picture, half_the_tokens.svg, from curves.csv and held_out.csv beside it.

`python recipes/smollm2_135m/picture.py`: tokens and accuracy over the updates, with LEASH and without, every seed.
"""

from pathlib import Path

import pandas as pd

from leash_trl.figures import style


HERE = Path(__file__).parent
WINDOW = 10  # updates in a running mean
TARGETS = (40, 55)  # tokens, of LEASH and of LEASH-Predictive
KINDS = {
    "none": ("no penalty", style.COLORS[0], "--"),
    "leash": ("LEASH", style.COLORS[1], "-"),
    "predictive-55": ("LEASH-Predictive", style.COLORS[2], "-."),
}


def main() -> None:
    curves, held_out = pd.read_csv(HERE / "curves.csv"), pd.read_csv(HERE / "held_out.csv").set_index("run")
    figure, axes = style.new_figure(style.NARROW, 5.4, rows=2)
    told = []
    for axis, column, name, form in zip(
        axes, ("mean_length", "accuracy"), ("tokens", "accuracy"), ("{:.1f}", "{:.2f}"), strict=True
    ):
        titles = [f"before {form.format(held_out.loc['warm start', name])}"]
        for kind, (label, color, dashes) in KINDS.items():
            runs = [run for run in curves["run"].unique() if run.rpartition("-")[0] == kind]
            for run in runs:
                values = curves[curves["run"] == run].set_index("step")[column].rolling(WINDOW).mean().dropna()
                axis.plot(values.index, values, color=color, linestyle=dashes, label=label, linewidth=1.8)
            titles.append(f"{label} {', '.join(form.format(held_out.loc[run, name]) for run in runs)}")
        axis.set_title("Tokens per answer" if name == "tokens" else "Accuracy", loc="left", pad=30)
        lines = ["; ".join(titles[:2]), "; ".join(titles[2:])]
        axis.text(0, 1.03, "held out: " + ";\n".join(lines), transform=axis.transAxes, fontsize=8)
        told.append(f"{name}, held out: {'; '.join(titles)}")
    for target in TARGETS:
        axes[0].axhline(target, color="black", linestyle=":", linewidth=1.2)
        axes[0].text(10, target - 1, f"target {target}", fontsize=style.LABEL_SIZE, va="top")
    handles = dict(zip(*reversed(axes[1].get_legend_handles_labels()), strict=True))
    look = {"loc": "lower right", "ncols": len(KINDS), "frameon": False, "fontsize": style.LABEL_SIZE}
    axes[1].legend(handles.values(), handles, **look)
    axes[0].set_ylim(0, 140)
    axes[1].set_ylim(0.4, 1.0)
    axes[1].set_xlabel(f"policy updates (running mean over {WINDOW} batches; a line per seed)")
    figure.set_label(". ".join(told))
    style.write_figure(figure, HERE / "half_the_tokens.svg")


if __name__ == "__main__":
    main()
