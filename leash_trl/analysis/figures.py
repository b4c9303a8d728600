"""Figures of the paper, drawn from curves."""

import matplotlib


matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leash_trl.analysis.curves import Curves


PANELS = {
    "satisfaction_rate": "Satisfaction rate",
    "lambda": "Penalty coefficient λ",
    "mean_penalty": "Mean penalty (reward units)",
    "mean_length": "Mean length (tokens)",
}


def dynamics_figure(runs: list[Curves]) -> Figure:
    """The four panels of the paper's training-dynamics figure, one line per run.

    Source: figure "Training dynamics" of [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        runs (`list[Curves]`):
            Runs to draw; the target is a dotted line where all runs that tell theirs agree.

    Returns:
        `Figure`: 16 by 3.6 inches.
    """
    figure, axes = plt.subplots(1, len(PANELS), figsize=(16, 3.6), layout="constrained")
    for axis, (key, title) in zip(axes, PANELS.items(), strict=True):
        for run in runs:
            if key in run.values:
                _draw_line(axis, run.steps, run.values[key], run.label)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("optimizer step")
        axis.grid(alpha=0.25)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(0, 1.02)
    targets = {run.target_length for run in runs if run.target_length is not None}
    if len(targets) == 1:
        target = targets.pop()
        line = axes[-1].axhline(target, color="black", linestyle=":", linewidth=1.2, label=f"target {target}")
        axes[-1].legend(handles=[line], frameon=False, fontsize=9)
    if len(runs) > 1:
        axes[0].legend(frameon=False, fontsize=9)
    return figure


def _draw_line(axis: Axes, steps: np.ndarray, values: np.ndarray, label: str) -> None:
    """A line that is broken where the log has a gap, so that no value is made up."""
    gap = np.diff(steps) > 5 * np.median(np.diff(steps)) if len(steps) > 1 else np.array([], dtype=bool)
    breaks = np.flatnonzero(gap) + 1
    axis.plot(
        np.insert(steps.astype(float), breaks, np.nan), np.insert(values, breaks, np.nan), linewidth=1.6, label=label
    )
