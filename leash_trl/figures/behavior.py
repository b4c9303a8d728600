"""Counts the paper's keywords for summary, rethinking and planning in completions, and draws them over checkpoints."""

import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leash_trl.evaluation.intervals import mean_amount, mean_over_benchmarks
from leash_trl.evaluation.runs import EvaluatedRun
from leash_trl.figures import style
from leash_trl.figures.evaluation import draw_with_band


# appendix table "Keyword groups used for behavior analysis", in the paper's order and in lower case
KEYWORDS = {
    "summary": ("so", "therefore", "thus", "conclude", "overall"),
    "rethink": (
        "check again",
        "double-check",
        "re-evaluate",
        "re-examine",
        "reanalyze",
        "reassess",
        "recheck",
        "reconsider",
        "reevaluate",
        "reevaluation",
        "reexamine",
        "rethink",
        "think again",
        "verify again",
        "wait",
    ),
    "plan": ("first", "second", "step"),
}
ALL_KEYWORDS = [*itertools.chain.from_iterable(KEYWORDS.values())]
# a keyword as a whole word; its hyphen may be any of three in Unicode, and its space any white space
KEYWORD_FORMS = [keyword.replace("-", "[-‐‑]").replace(" ", r"\s+") for keyword in ALL_KEYWORDS]
KEYWORD = re.compile(rf"(?<!\w)(?:{'|'.join(KEYWORD_FORMS)})(?!\w)", re.IGNORECASE)
LEGEND_ROOM = 1.18  # height of a panel with a legend inside, relative to a panel without
MARKER_OFFSET = 0.12  # distance between markers of one checkpoint; checkpoints have a distance of 1
LONGEST_TICK = 24  # characters per line of a tick label
SLANT_FROM = 24  # total characters of an axis's labels above which horizontal labels would overlap


def keyword_counts(text: str) -> dict[str, int]:
    """Counts the paper's keywords in a text, including the thinking.

    Only whole words count: "also" does not contain "so", and "steps" does not contain "step". Hyphens separate words
    ("step-by-step" counts as two steps), except in "re-evaluate", "re-examine" and "double-check", which match with
    any of three Unicode hyphens. Two words, as in "check again", may be separated by a line break. Of overlapping
    keywords, only the first is counted.

    Source: appendix of [LEASH](https://huggingface.co/papers/2512.21540), whose keywords are "matched
    case-insensitively". The paper's table lists "first" and "First", which are one keyword here, as are "second" and
    "step". In the paper's figure, summary is 6.8 times as frequent as rethink; in 16 public traces of R1 and Qwen3,
    4.4 times (mathematics) and 4.3 times (other tasks). Counts are therefore not comparable with those of the paper.

    Returns:
        `dict[str, int]`: Counts by group (`summary`, `rethink`, `plan`), followed by counts by keyword (`keyword so`
        and so on), in the order of the paper's table.

    Example:
        >>> counts = keyword_counts("So first I add. Wait, also step by step: first")
        >>> {group: counts[group] for group in KEYWORDS}
        {'summary': 1, 'rethink': 1, 'plan': 4}
    """
    occurrences: Counter[str] = Counter()
    for match in KEYWORD.finditer(text):
        with_plain_hyphen = re.sub("[‐‑]", "-", match[0])
        keyword = re.sub(r"\s+", " ", with_plain_hyphen).lower()
        occurrences[keyword] += 1
    counts = {}
    for group, keywords in KEYWORDS.items():
        counts[group] = sum(occurrences[keyword] for keyword in keywords)
    for keyword in ALL_KEYWORDS:
        # the prefix distinguishes the keywords `rethink` and `step` from the group and the column of these names
        counts[f"keyword {keyword}"] = occurrences[keyword]
    return counts


def behavior(runs: Sequence[EvaluatedRun]) -> pd.DataFrame:
    """Returns the keyword counts of evaluated checkpoints, as means over benchmarks, in the order of training steps.

    A single checkpoint without a step is taken as the model before training, at step 0. If further steps are missing,
    or steps are equal, the given order is kept.

    Returns:
        `DataFrame`: One row per checkpoint, with `run`, `step` (missing if not known), `problems` and `responses`.
        `tokens` is the mean length, and `summary`, `rethink` and `plan` are counts per response; each has a 95 %
        interval over problems in `*_low` and `*_high`. `keyword so` and so on are counts per response.
    """
    points = pd.DataFrame([_checkpoint(run) for run in runs]).astype({"step": "Int64"})
    steps = points["step"].fillna(0)
    are_known = points["step"].notna().any() and steps.is_unique
    if not are_known:
        return points
    order = steps.sort_values().index
    return points.loc[order].reset_index(drop=True)


def _checkpoint(run: EvaluatedRun) -> dict[str, Any]:
    """Returns the row of a checkpoint in the result of [`behavior`]."""
    samples = run.samples
    counts = pd.DataFrame([keyword_counts(text) for text in samples["text"]], index=samples.index)
    lengths = samples["num_tokens"].rename("tokens")
    values = pd.concat([samples[["benchmark", "id"]], lengths, counts], axis=1)  # one row per completion
    problems = values.groupby(["benchmark", "id"], sort=False).mean()  # one row per problem
    benchmarks = [means for _, means in problems.groupby("benchmark", sort=False)]

    row = {"run": run.label, "step": run.run.get("step"), "problems": len(problems), "responses": len(samples)}
    for name in ("tokens", *KEYWORDS):
        estimate = mean_over_benchmarks([mean_amount(means[name].to_numpy()) for means in benchmarks])
        row[name] = estimate.value
        row[f"{name}_low"] = estimate.low
        row[f"{name}_high"] = estimate.high
    columns = [f"keyword {keyword}" for keyword in ALL_KEYWORDS]
    # means over problems and then over benchmarks, so that benchmarks count alike: one value per keyword
    overall = np.mean([means[columns].to_numpy().mean(axis=0) for means in benchmarks], axis=0)
    return row | dict(zip(columns, overall.tolist(), strict=True))


def behavior_figure(points: pd.DataFrame, columns: int = 2) -> Figure:
    """Draws the paper's behavior figure: mean response length and keyword counts per response, over checkpoints.

    If the checkpoints have different training steps, the points are connected by lines; otherwise each checkpoint is a
    labeled position on the axis.

    Source: figure "behaviors" of [LEASH](https://huggingface.co/papers/2512.21540).

    `points` is the result of [`behavior`]. The two panels are side by side, or in one column with `columns=1`.
    """
    figure, (left, right) = style.two_panels(columns)
    steps = points["step"].fillna(0).astype(int)
    has_steps = points["step"].notna().any() and steps.is_unique
    positions = steps if has_steps else pd.Series(range(len(points)))
    # tokens differ in color from the keyword groups of the legend
    looks: dict[str, dict[str, Any]] = {"tokens": {"color": "black", "linestyle": "-", "marker": "o"}}
    looks |= {group: style.marked_style(index) for index, group in enumerate(KEYWORDS)}
    offsets = {"tokens": 0.0, "summary": -MARKER_OFFSET, "rethink": 0.0, "plan": MARKER_OFFSET}
    for name, look in looks.items():
        axis = left if name == "tokens" else right
        low = points[f"{name}_low"]
        high = points[f"{name}_high"]
        label = name.capitalize()
        if has_steps:
            draw_with_band(axis, positions, points[name], low, high, label=label, look=look)
        else:
            x = positions + offsets[name]
            axis.plot(x, points[name], markersize=6, label=label, **(look | {"linestyle": "None"}))
            axis.vlines(x, low, high, color=look["color"])
    left.set_title("Mean response length (tokens)", fontsize=style.TITLE_SIZE)
    right.set_title("Keywords per response", fontsize=style.TITLE_SIZE)
    for axis in (left, right):
        style.set_y_limits(axis)
        if not has_steps:
            _label_ticks(axis, points["run"])
            continue
        style.label_steps(axis, "training step")
        if len(points) == 1:
            axis.set_xticks(positions)
    right.set_ylim(top=LEGEND_ROOM * right.get_ylim()[1])
    right.legend(loc="upper right", ncols=len(KEYWORDS), frameon=False, fontsize=style.LABEL_SIZE, columnspacing=1.2)
    return figure


def _label_ticks(axis: Axes, labels: Sequence[str]) -> None:
    lines = [textwrap.fill(label, LONGEST_TICK) for label in labels]
    slant: dict[str, Any] = {}
    if len(labels) > 1 and sum(map(len, labels)) > SLANT_FROM:
        slant = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    axis.set_xticks(range(len(labels)), lines, fontsize=style.LABEL_SIZE, **slant)
    axis.set_xlim(-0.5, len(labels) - 0.5)
