"""Table and picture of all_methods.csv: the `seeds.csv` of the comparison of all methods, with a column of updates.

`python recipes/gym/all_methods.py` draws all_methods.svg beside it and prints the tables.
"""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from leash_trl.comparison.tables import comparison_rows, read_comparison_rows
from leash_trl.evaluation.intervals import holm_rejections, t_p_value, t_quantile
from leash_trl.evaluation.tables import markdown
from leash_trl.figures import style


HERE = Path(__file__).parent
LENGTHS = (18, 25, 36)  # tokens at which methods are compared; short traces of the gym's problems have 25
SORTED_BY = 25
MIDDLE, END = "100", "400"  # policy updates
TICKS = (12, 18, 25, 36, 50, 70)  # of the picture, which leaves out points below 0.45 or 11 tokens
FAMILIES = {
    "a price that follows a constraint": ["LEASH", "LEASH-C", "LEASH-Predictive", "LACONIC", "A-DLP"],
    "a budget in the prompt": ["L1-Exact", "L1-Max"],
    "a bonus, lost beyond a target": ["LASER", "LASER-D", "LASER-DE", "ACOER"],
    "the reward, lost beyond a limit": ["DLER", "ThinkPrune", "DAPO overlong"],
    "place in the group, shaped reward": ["Kimi k1.5", "Arora and Zanette", "GRLC", "MAI", "ALP"],
    "place in the group, own advantages": ["GRPO-LEAD", "prime-rl", "GR3", "GFPO"],
    "a fixed curve over length": ["cosine", "NeMo-RL band"],
    "distance to correct answers": ["HAPO", "ShorterBetter", "LEAD", "SmartThinker"],
    "credit or turns": ["DRPO", "Toggle"],
}


def after(seeds: pd.DataFrame, updates: str) -> pd.DataFrame:
    """The base and the rows after this number of updates."""
    return seeds[(seeds["updates"] == updates) | (seeds["name"] == "base")]


def curves(seeds: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The points of each method, means over its seeds, by rising tokens."""
    points = comparison_rows(seeds)[1:]  # without the base
    return {name: curve.sort_values("mean_tokens") for name, curve in points.groupby("name", sort=False)}


def at_lengths(points: pd.DataFrame) -> pd.Series:
    """Scores of a seed's points at `LENGTHS`, on lines over the logarithm of tokens; NaN where they do not reach."""
    points = points.sort_values("mean_tokens")
    log_tokens = np.log(points["mean_tokens"])
    scores = np.interp(np.log(LENGTHS), log_tokens, points["score"], left=np.nan, right=np.nan)
    return pd.Series(scores, index=LENGTHS)


def scores_at_lengths(seeds: pd.DataFrame) -> pd.DataFrame:
    """Scores at `LENGTHS`: a method a row, a seed of a length a column."""
    points_of_seeds = seeds[1:].groupby(["name", "seeds"], sort=False)[["mean_tokens", "score"]]
    return points_of_seeds.apply(at_lengths).unstack()


def told_apart(scores: pd.DataFrame, length: int) -> str:
    """How many pairs of methods differ at a length, by a t test with the spread of seeds pooled over all methods."""
    complete = scores[length].dropna()  # a method a row, a seed a column
    if len(complete) < 2:
        return f"At {length} tokens, {len(complete)} of {len(scores)} curves have all seeds."
    num_methods, num_seeds = complete.shape
    spread = np.sqrt(complete.var(axis=1, ddof=1).mean())
    freedom = num_methods * (num_seeds - 1)
    standard_error = spread * np.sqrt(2 / num_seeds)
    means = complete.mean(axis=1)
    p_values = []
    for first, second in combinations(means, 2):
        p_values.append(t_p_value((first - second) / standard_error, freedom))
    num_different = sum(p_value < 0.05 for p_value in p_values)
    num_after_correction = holm_rejections(np.array(p_values)).sum()
    smallest_difference = t_quantile(freedom) * standard_error
    return (
        f"At {length} tokens {num_methods} of {len(scores)} curves have all seeds. Of their {len(p_values)} pairs "
        f"{num_different} are told apart, {num_after_correction} after Holm's correction: a t test with the spread of "
        f"seeds pooled over the methods (standard deviation {spread:.3f}, {freedom} degrees of freedom; differences "
        f"from {smallest_difference:.3f} on)."
    )


def points_text(curve: pd.DataFrame) -> str:
    return "; ".join(f"{point.score:.3f} at {point.mean_tokens:.1f}" for point in curve.itertuples())


def scores_text(scores: pd.Series) -> str:
    """The mean over seeds and, in brackets, the seeds; empty if no seed reaches the length."""
    if len(scores) == 0:
        return ""
    mean = f"{scores.mean():.3f}"
    if len(scores) == 1:
        return mean
    seeds = ", ".join(f"{score:.3f}" for score in scores)
    return f"{mean} ({seeds})"


def table(seeds: pd.DataFrame) -> str:
    """Each method's scores at `LENGTHS` and its points, sorted by the scores at `SORTED_BY` and then by accuracy."""
    scores = scores_at_lengths(after(seeds, END))
    end = curves(after(seeds, END))
    middle = curves(after(seeds, MIDDLE))

    def rank(name: str) -> tuple[bool, float, float]:
        """Methods that do not reach the length come last."""
        mean = scores.loc[name, SORTED_BY].mean()
        return np.isnan(mean), -np.nan_to_num(mean), -end[name]["score"].max()

    rows = []
    for name in sorted(end, key=rank):
        row = {"method": name}
        for length in LENGTHS:
            row[f"at {length}"] = scores_text(scores.loc[name, length].dropna())
        row[f"after {END} updates"] = points_text(end[name])
        row[f"after {MIDDLE} updates"] = points_text(middle[name])
        rows.append(row)
    return markdown(pd.DataFrame(rows))


def picture(seeds: pd.DataFrame) -> None:
    """Draws accuracy over tokens, a family a panel, with all other methods in gray behind. Dotted: after `MIDDLE`."""
    figure, axes = style.new_figure(style.NARROW_INCHES, 13.5, rows=5, columns=2)
    seeds_at_end = after(seeds, END)
    end = curves(seeds_at_end)
    middle = curves(after(seeds, MIDDLE))
    base = seeds.iloc[0]
    for axis, (family, names) in zip(axes, FAMILIES.items(), strict=False):
        for name, curve in end.items():
            if name not in names:
                axis.plot(
                    curve["mean_tokens"], curve["score"], color=style.NEUTRAL, linewidth=0.8, alpha=0.4, zorder=1
                )
        for index, name in enumerate(names):
            dots = style.line_and_marker_style(index) | {"linestyle": "None", "markersize": 4, "alpha": 0.8}
            color = dots["color"]
            curve = end[name]
            early = middle[name]
            of_seeds = seeds_at_end[seeds_at_end["name"] == name]
            axis.plot(curve["mean_tokens"], curve["score"], color=color, linewidth=1.4, zorder=3)
            axis.plot(early["mean_tokens"], early["score"], color=color, linewidth=0.8, linestyle=":", zorder=2)
            axis.plot(of_seeds["mean_tokens"], of_seeds["score"], **dots, zorder=3, label=name)
        axis.plot(base["mean_tokens"], base["score"], color="black", marker="d", zorder=3)
        axis.set_title(family, fontsize=style.LABEL_SIZE)
        axis.legend(fontsize=7, frameon=False, loc="lower right", handletextpad=0.2)
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xlim(11, 80)
        axis.set_xticks(TICKS, map(str, TICKS))
        axis.minorticks_off()
        axis.set_ylim(0.45, 1.0)
    for axis in axes[len(FAMILIES) :]:
        axis.remove()
    figure.supxlabel(
        "mean tokens of an answer; diamond: base; points below 0.45 are in the table only", fontsize=style.LABEL_SIZE
    )
    figure.supylabel(
        f"accuracy after {END} updates (dotted: {MIDDLE}); a dot is a seed, lines join the means of each setting",
        fontsize=style.LABEL_SIZE,
    )
    figure.set_label("; ".join(f"{name}: {len(curve)} settings" for name, curve in end.items()))
    style.write_figure(figure, HERE / "all_methods.svg")


def main() -> None:
    seeds = read_comparison_rows(HERE / "all_methods.csv")
    picture(seeds)
    print(table(seeds))
    for updates in (END, MIDDLE):
        scores = scores_at_lengths(after(seeds, updates))
        print(f"After {updates} updates:", *(told_apart(scores, length) for length in LENGTHS), sep="\n\n")


if __name__ == "__main__":
    main()
