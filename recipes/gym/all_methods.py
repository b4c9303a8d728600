"""Table and picture of all_methods.csv: the `seeds.csv` of the comparison of all methods, with a column of updates.

`python recipes/gym/all_methods.py` draws all_methods.svg beside it and prints the tables.
"""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from leash_trl.comparison.tables import comparison_rows, read_comparison
from leash_trl.evaluation.intervals import holm, t_p_value, t_quantile
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
    "distance to correct answers": ["HAPO", "ShorterBetter", "LEAD"],
    "credit or turns": ["DRPO", "Toggle"],
}


def after(seeds: pd.DataFrame, updates: str) -> pd.DataFrame:
    """The base and the rows after this number of updates."""
    return seeds[(seeds["updates"] == updates) | (seeds["name"] == "base")]


def curves(seeds: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The points of each method, means over its seeds, by rising tokens."""
    points = comparison_rows(seeds)[1:]
    return {name: own.sort_values("mean_tokens") for name, own in points.groupby("name", sort=False)}


def at_lengths(own: pd.DataFrame) -> pd.Series:
    """Scores of a seed's points at `LENGTHS`, on lines over the logarithm of tokens; NaN where they do not reach."""
    own = own.sort_values("mean_tokens")
    log_tokens = np.log(own["mean_tokens"])
    scores = np.interp(np.log(LENGTHS), log_tokens, own["score"], left=np.nan, right=np.nan)
    return pd.Series(scores, index=LENGTHS)


def scores_at_lengths(seeds: pd.DataFrame) -> pd.DataFrame:
    """Scores at `LENGTHS`: a method a row, a seed of a length a column."""
    return seeds[1:].groupby(["name", "seeds"], sort=False)[["mean_tokens", "score"]].apply(at_lengths).unstack()


def told_apart(scores: pd.DataFrame, length: int) -> str:
    """How many pairs of methods differ at a length, by a t test with the spread of seeds pooled over all methods."""
    known = scores[length].dropna()
    if len(known) < 2:
        return f"At {length} tokens, {len(known)} of {len(scores)} curves have all seeds."
    pairs = [*combinations(known.index, 2)]
    spread, freedom = np.sqrt(known.var(axis=1, ddof=1).mean()), len(known) * (known.shape[1] - 1)
    reach = spread * np.sqrt(2 / known.shape[1])
    gaps = [known.loc[one].mean() - known.loc[other].mean() for one, other in pairs]
    p_values = np.array([t_p_value(gap / reach, freedom) for gap in gaps])
    return (
        f"At {length} tokens {len(known)} of {len(scores)} curves have all seeds. Of their {len(gaps)} pairs "
        f"{(p_values < 0.05).sum()} are told apart, {holm(p_values).sum()} after Holm's correction: a t test with the "
        f"spread of seeds pooled over the methods (standard deviation {spread:.3f}, {freedom} degrees of freedom; "
        f"differences from {t_quantile(freedom) * reach:.3f} on)."
    )


def table(seeds: pd.DataFrame) -> str:
    """Each method's scores at `LENGTHS` and its points, sorted by the scores at `SORTED_BY` and then by accuracy."""
    scores, drawn = (function(after(seeds, END)) for function in (scores_at_lengths, curves))
    middle, rows = curves(after(seeds, MIDDLE)), []
    for name, own in drawn.items():
        row = {"method": name}
        for length in LENGTHS:
            each = scores.loc[name, length].dropna()
            row[f"at {length}"] = f"{each.mean():.3f}" if len(each) else ""
            if len(each) > 1:
                row[f"at {length}"] += f" ({', '.join(f'{value:.3f}' for value in each)})"
        mean = scores.loc[name, SORTED_BY].mean()
        for updates, points in ((END, own), (MIDDLE, middle[name])):
            shown = (f"{point.score:.3f} at {point.mean_tokens:.1f}" for point in points.itertuples())
            row[f"after {updates} updates"] = "; ".join(shown)
        rows.append(((np.isnan(mean), -np.nan_to_num(mean), -own["score"].max()), row))
    rows.sort(key=lambda row: row[0])
    return markdown(pd.DataFrame([row for _, row in rows]))


def picture(seeds: pd.DataFrame) -> None:
    """Draws accuracy over tokens, a family a panel, with all other methods in gray behind. Dotted: after `MIDDLE`."""
    figure, axes = style.new_figure(style.NARROW, 13.5, rows=5, columns=2)
    drawn, middle = (curves(after(seeds, updates)) for updates in (END, MIDDLE))
    base, ends = seeds.iloc[0], after(seeds, END)
    for axis, (family, names) in zip(axes, FAMILIES.items(), strict=False):
        for name, own in drawn.items():
            if name not in names:
                axis.plot(own["mean_tokens"], own["score"], color=style.NEUTRAL, linewidth=0.8, alpha=0.4, zorder=1)
        for index, name in enumerate(names):
            look = style.marked_style(index)
            own, each = drawn[name], ends[ends["name"] == name]
            axis.plot(own["mean_tokens"], own["score"], color=look["color"], linewidth=1.4, zorder=3)
            early = middle[name][["mean_tokens", "score"]].to_numpy().T
            axis.plot(*early, color=look["color"], linewidth=0.8, linestyle=":", zorder=2)
            axis.plot(
                *each[["mean_tokens", "score"]].to_numpy().T,
                **{**look, "linestyle": "None"},
                markersize=4,
                alpha=0.8,
                zorder=3,
                label=name,
            )
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
    words = f"accuracy after {END} updates (dotted: {MIDDLE}); a dot is a seed, lines join the means of each setting"
    figure.supylabel(words, fontsize=style.LABEL_SIZE)
    figure.set_label("; ".join(f"{name}: {len(own)} settings" for name, own in drawn.items()))
    style.write_figure(figure, HERE / "all_methods.svg")


def main() -> None:
    seeds = read_comparison(HERE / "all_methods.csv")
    picture(seeds)
    print(table(seeds))
    for updates in (END, MIDDLE):
        scores = scores_at_lengths(after(seeds, updates))
        print(f"After {updates} updates:", *(told_apart(scores, length) for length in LENGTHS), sep="\n\n")


if __name__ == "__main__":
    main()
