"""Counts how often completions summarize, rethink and plan, by the paper's keywords, and draws it over checkpoints."""

import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leash_trl.evaluation.frame import EvaluatedRun
from leash_trl.evaluation.intervals import mean_amount, mean_over_benchmarks
from leash_trl.figures import style
from leash_trl.figures.evaluation import draw_with_band


# The appendix table "Keyword groups used for behavior analysis", in its order and in lower case.
KEYWORDS = {
    "summary": ("so", "therefore", "thus", "conclude", "overall"),
    "rethink": (
        *("check again", "double-check", "re-evaluate", "re-examine", "reanalyze", "reassess", "recheck"),
        *("reconsider",),
        *("reevaluate", "reevaluation", "reexamine", "rethink", "think again", "verify again", "wait"),
    ),
    "plan": ("first", "second", "step"),
}
FORMS = [word.replace("-", "[-‐‑]").replace(" ", r"\s+") for words in KEYWORDS.values() for word in words]
KEYWORD = re.compile(rf"(?<!\w)(?:{'|'.join(FORMS)})(?!\w)", re.IGNORECASE)
LEGEND_ROOM = 1.18  # height of a panel with a legend inside, relative to one without
APART = 0.12  # between markers of one checkpoint, where checkpoints are 1 apart
LONGEST_TICK = 24  # characters of a line
SLANT_FROM = 24  # characters of all labels of an axis, from which they would touch each other


def keyword_counts(text: str) -> dict[str, int]:
    """Occurrences of the paper's keywords in a text, thinking included.

    Whole words count: "So" is not in "also", "step" not in "steps". Hyphens separate words ("step-by-step" has two
    steps) and belong to "re-evaluate", "re-examine" and "double-check", whichever of three Unicode hyphens is used;
    the words of "check again" may stand on two lines. Of keywords that overlap the one that begins first counts.

    Source: appendix of [LEASH](https://huggingface.co/papers/2512.21540), which says "matched case-insensitively" over
    a table that lists first and First, second and Second, step and Step, here one keyword each. Its figure has 6.8
    times as much summary as rethink, where 16 public traces of R1 and Qwen3 have 4.4 and 4.3 times (mathematics, other
    tasks). So compare counts with each other, not with the paper's.

    Returns:
        `dict[str, int]`: Occurrences by group: `summary`, `rethink`, `plan`; then by `keyword ...`, in the order of
        the paper's table.

    Example:
        >>> counts = keyword_counts("So first I add. Wait, also step by step: first")
        >>> {group: counts[group] for group in KEYWORDS}
        {'summary': 1, 'rethink': 1, 'plan': 4}
    """
    found = Counter(re.sub(r"\s+", " ", re.sub("[‐‑]", "-", match[0])).lower() for match in KEYWORD.finditer(text))
    sums = {group: sum(found[keyword] for keyword in keywords) for group, keywords in KEYWORDS.items()}
    # rethink and step are keywords too
    return sums | {f"keyword {keyword}": found[keyword] for keywords in KEYWORDS.values() for keyword in keywords}


def behavior(runs: Sequence[EvaluatedRun]) -> pd.DataFrame:
    """Behavior of evaluated checkpoints, means over benchmarks, in the order of their training steps.

    Steps that are equal or missing leave the given order; but one checkpoint without a step among others that have
    one is the model that training began with, at step 0.

    Returns:
        `DataFrame`: A row per checkpoint. Columns `run`; `step`, missing if not known; `problems`; `responses`;
        `tokens`, mean length, and `summary`, `rethink`, `plan`, occurrences per response, each with 95 % intervals
        over problems in `_low` and `_high`; `summary_per_1000_tokens` and so on, so that a change does not come from
        length alone; `keyword so` and so on, occurrences per response.
    """
    points = pd.DataFrame([_checkpoint(run) for run in runs]).astype({"step": "Int64"})
    steps = points["step"].fillna(0)
    are_known = points["step"].notna().any() and steps.is_unique
    return points.loc[steps.sort_values().index].reset_index(drop=True) if are_known else points


def _checkpoint(run: EvaluatedRun) -> dict[str, Any]:
    samples = run.samples
    counts = pd.DataFrame([keyword_counts(text) for text in samples["text"]], index=samples.index)
    values = pd.concat([samples[["benchmark", "id"]], samples["num_tokens"].rename("tokens"), counts], axis=1)
    problems = values.groupby(["benchmark", "id"], sort=False).mean()
    benchmarks = [own for _, own in problems.groupby("benchmark", sort=False)]
    sizes = {"problems": len(problems), "responses": len(samples)}
    row: dict[str, Any] = {"run": run.label, "step": run.run.get("step"), **sizes}
    for name in ("tokens", *KEYWORDS):
        estimate = mean_over_benchmarks([mean_amount(own[name].to_numpy()) for own in benchmarks])
        row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    means = np.mean([own.to_numpy().mean(axis=0) for own in benchmarks], axis=0)
    return row | dict(zip(problems.columns[1 + len(KEYWORDS) :], means[1 + len(KEYWORDS) :].tolist(), strict=True))


def behavior_figure(points: pd.DataFrame, columns: int = 2) -> Figure:
    """The paper's behavior figure: mean response length, and keywords per response by group, over checkpoints.

    Checkpoints with different training steps are points of lines, others named markers side by side without lines.

    Source: figure "behaviors" of [LEASH](https://huggingface.co/papers/2512.21540).

    `points` are as [`behavior`] returns them. Panels stand beside each other, or in one column.
    """
    figure, (left, right) = style.two_panels(columns)
    steps = points["step"].fillna(0).astype(int)
    has_steps = points["step"].notna().any() and steps.is_unique
    places = steps if has_steps else pd.Series(range(len(points)))
    # unlike any keyword group, which the legend names
    looks: dict[str, dict[str, Any]] = {"tokens": {"color": "black", "linestyle": "-", "marker": "o"}}
    looks |= {group: style.marked_style(index) for index, group in enumerate(KEYWORDS)}
    for index, (name, look) in enumerate(looks.items()):
        axis, (low, high) = (left if name == "tokens" else right), (points[f"{name}_low"], points[f"{name}_high"])
        if has_steps:
            draw_with_band(axis, places, points[name], low, high, name.capitalize(), look)
            continue
        x = places + (0.0 if name == "tokens" else APART * (index - 2))
        axis.plot(x, points[name], markersize=6, label=name.capitalize(), **{**look, "linestyle": "None"})
        axis.vlines(x, low, high, color=look["color"])
    left.set_title("Mean response length (tokens)", fontsize=style.TITLE_SIZE)
    right.set_title("Keywords per response", fontsize=style.TITLE_SIZE)
    for axis in (left, right):
        style.leave_room(axis)
        if not has_steps:
            _label_ticks(axis, points["run"])
        else:
            style.label_steps(axis, "training step")
            if len(points) == 1:
                axis.set_xticks(places)
    right.set_ylim(top=LEGEND_ROOM * right.get_ylim()[1])
    right.legend(loc="upper right", ncols=len(KEYWORDS), frameon=False, fontsize=style.LABEL_SIZE, columnspacing=1.2)
    return figure


def _label_ticks(axis: Axes, labels: Sequence[str]) -> None:
    is_slanted = len(labels) > 1 and sum(map(len, labels)) > SLANT_FROM
    slant: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if is_slanted else {}
    lines = [textwrap.fill(label, LONGEST_TICK) for label in labels]
    axis.set_xticks(range(len(labels)), lines, fontsize=style.LABEL_SIZE, **slant)
    axis.set_xlim(-0.5, len(labels) - 0.5)
