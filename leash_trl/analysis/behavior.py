"""Counts how often completions summarise, rethink and plan, by the paper's keywords, with means and tables."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from leash_trl.analysis.page import Table
from leash_trl.analysis.run_labels import run_labels
from leash_trl.evaluation.intervals import Estimate, few_problems, mean_amount, mean_over_benchmarks
from leash_trl.evaluation.numbers import csv_table, plain, tokens, with_interval
from leash_trl.evaluation.samples import ProblemSamples, load_samples
from leash_trl.figures import behavior_figure


# As printed in the appendix table "Keyword groups used for behavior analysis", in its order.
KEYWORDS = {
    "summary": ("So", "Therefore", "Thus", "conclude", "overall"),
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
    "plan": ("first", "First", "Second", "second", "step", "Step"),
}
CAPTION = (
    "Keywords per response, mean over responses and benchmarks, with 95 % intervals of the mean over problems; and "
    "per 1,000 tokens (/ 1k), where the change of length is taken out."
)


@dataclass(frozen=True)
class KeywordCounts:
    """How often one text holds each keyword.

    Args:
        keywords (`dict[str, int]`):
            Occurrences by keyword, in the order of the paper's table; in lower case unless case decides.
        groups (`dict[str, int]`):
            Their sums by group: `"summary"`, `"rethink"`, `"plan"`.
    """

    keywords: dict[str, int]
    groups: dict[str, int]


def keyword_counts(text: str, case_sensitive: bool = False) -> KeywordCounts:
    """Occurrences of the paper's keywords in a text, thinking included.

    Whole words count: "So" is not in "also", "step" not in "steps". Hyphens separate words ("step-by-step" has two
    steps) and belong to "re-evaluate", "re-examine" and "double-check", whichever of three Unicode hyphens is used;
    the words of "check again" may stand on two lines. Of keywords that overlap the one that begins first counts, so
    that no word counts twice: "double-check again" is one "double-check".

    Source: appendix of [LEASH](https://huggingface.co/papers/2512.21540), which says "matched case-insensitively" over
    a table that lists first and First, second and Second, step and Step. Read case-insensitively these are one keyword
    each. Its figure begins with 63.5 / 9.38 / 30.5 occurrences of summary / rethink / plan per response of 16.9k
    tokens: 6.8 of summary for one of rethink, 2.1 for one of plan. Public traces, counted by this function, have per
    1,000 characters:

    | traces | case | summary | rethink | plan | summary per rethink | per plan |
    |---|---|---:|---:|---:|---:|---:|
    | R1 on mathematics, 1 trace of 6,674 characters | ignored | 7.19 | 1.65 | 0.90 | 4.4 | 8.0 |
    | | decides | 5.99 | 0.90 | 0.90 | 6.7 | 6.7 |
    | Qwen3 on other tasks, 15 traces of 145,590 characters | ignored | 4.53 | 1.04 | 1.04 | 4.3 | 4.3 |
    | | decides | 3.75 | 0.20 | 1.04 | 18.8 | 3.6 |

    Substrings instead of words change little but for summary where case is ignored (7.49 and 5.56). Rethink depends
    most on case: the traces say "Wait" 128 times and "wait" 15 times. Summary per rethink hints that the paper matched
    by case, whatever its text says; one mathematical trace, not of its model, cannot decide that. No reading gives its
    share of plan. So compare counts within one reading, not with the paper's.

    Args:
        text (`str`):
            A completion.
        case_sensitive (`bool`, *optional*, defaults to `False`):
            Whether only the spellings of the table count, each as a keyword of its own: "Wait" and "so" do not.

    Example:
        >>> keyword_counts("So first I add. Wait, also step by step: first").groups
        {'summary': 1, 'rethink': 1, 'plan': 4}
        >>> keyword_counts("So first I add. Wait, also step by step: first", case_sensitive=True).keywords["wait"]
        0
    """
    found = Counter(_spelling(match[0], case_sensitive) for match in _pattern(case_sensitive).finditer(text))
    groups = keyword_groups(case_sensitive)
    return KeywordCounts(
        keywords={keyword: found[keyword] for keywords in groups.values() for keyword in keywords},
        groups={group: sum(found[keyword] for keyword in keywords) for group, keywords in groups.items()},
    )


def keyword_groups(case_sensitive: bool = False) -> dict[str, tuple[str, ...]]:
    """The counted keywords by group; spellings that differ only by case are one keyword unless case matters.

    Example:
        >>> keyword_groups()["plan"]
        ('first', 'second', 'step')
    """
    if case_sensitive:
        return KEYWORDS
    return {group: tuple(dict.fromkeys(word.lower() for word in words)) for group, words in KEYWORDS.items()}


@cache
def _pattern(case_sensitive: bool) -> re.Pattern[str]:
    keywords = [keyword for group in keyword_groups(case_sensitive).values() for keyword in group]
    forms = [keyword.replace("-", "[-‐‑]").replace(" ", r"\s+") for keyword in keywords]
    return re.compile(rf"(?<!\w)(?:{'|'.join(forms)})(?!\w)", 0 if case_sensitive else re.IGNORECASE)


def _spelling(found: str, case_sensitive: bool) -> str:
    """The keyword as the table has it."""
    plain = re.sub(r"\s+", " ", re.sub("[‐‑]", "-", found))
    return plain if case_sensitive else plain.lower()


@dataclass(frozen=True)
class Behavior:
    """The behaviour of one checkpoint's completions. Means over benchmarks, as the overall row of its results.

    Args:
        label (`str`):
            Name of the checkpoint's run.
        step (`int`, *optional*):
            Training step of the checkpoint, if it is known.
        num_problems (`int`), num_responses (`int`):
            What it was measured on.
        tokens (`Estimate`):
            Mean length of a response in tokens.
        groups (`dict[str, Estimate]`):
            Occurrences per response by group, with 95 % intervals over problems.
        keywords (`dict[str, float]`):
            Occurrences per response by keyword.
        warning (`str`, *optional*):
            What to say beside the intervals where problems are few, or nothing.
    """

    label: str
    step: int | None
    num_problems: int
    num_responses: int
    tokens: Estimate
    groups: dict[str, Estimate]
    keywords: dict[str, float]
    warning: str = ""

    def per_1000_tokens(self, group: str) -> float:
        """Occurrences of a group per 1,000 tokens, so that a change does not come from length alone."""
        return 1000 * self.groups[group].value / self.tokens.value


def load_behaviors(folders: Iterable[str | Path], case_sensitive: bool = False) -> list[Behavior]:
    """Behaviour of evaluated checkpoints by their labels of [`run_labels`], sorted by [`over_training`].

    Args:
        folders (`Iterable[str | Path]`):
            Folders that `leash eval` wrote.
        case_sensitive (`bool`, *optional*, defaults to `False`):
            As in [`keyword_counts`].

    Raises:
        `ValueError`: If a folder holds no run, or one whose samples are not complete.
    """
    checkpoints = {}
    for folder in folders:
        run, samples = load_samples(folder)
        checkpoints[Path(folder)] = behavior(samples, run["label"], run.get("step"), case_sensitive)
    labels = run_labels(list(checkpoints))
    return over_training([replace(point, label=labels[folder]) for folder, point in checkpoints.items()])


def behavior(
    benchmarks: Mapping[str, Sequence[ProblemSamples]],
    label: str,
    step: int | None = None,
    case_sensitive: bool = False,
) -> Behavior:
    """Behaviour of one checkpoint's completions.

    Args:
        benchmarks (`Mapping[str, Sequence[ProblemSamples]]`):
            By name, one or more problems with one or more completions each.
        label (`str`), step (`int`, *optional*):
            Name and training step of the checkpoint.
        case_sensitive (`bool`, *optional*, defaults to `False`):
            As in [`keyword_counts`].
    """
    groups = keyword_groups(case_sensitive)
    keywords = [keyword for words in groups.values() for keyword in words]
    tables = [np.array([_problem_values(problem, case_sensitive) for problem in p]) for p in benchmarks.values()]
    length, *estimates = (
        mean_over_benchmarks([mean_amount(table[:, column]) for table in tables]) for column in range(1 + len(groups))
    )
    means = np.mean([table.mean(axis=0) for table in tables], axis=0)
    return Behavior(
        label=label,
        step=step,
        num_problems=sum(map(len, benchmarks.values())),
        num_responses=sum(len(problem.completions) for problems in benchmarks.values() for problem in problems),
        tokens=length,
        groups=dict(zip(groups, estimates, strict=True)),
        keywords=dict(zip(keywords, means[1 + len(groups) :].tolist(), strict=True)),
        warning=few_problems({name: len(problems) for name, problems in benchmarks.items()}),
    )


def _problem_values(problem: ProblemSamples, case_sensitive: bool) -> np.ndarray:
    """Means over one problem's completions of tokens, of each group and of each keyword, in one row."""
    rows = []
    for completion in problem.completions:
        counts = keyword_counts(completion.text, case_sensitive)
        rows.append([completion.num_tokens, *counts.groups.values(), *counts.keywords.values()])
    return np.mean(rows, axis=0)


def over_training(checkpoints: Sequence[Behavior]) -> list[Behavior]:
    """Checkpoints in the order of their training steps; in the given order if steps are equal or missing."""
    steps = training_steps(checkpoints)
    if steps is None:
        return [*checkpoints]
    return [point for _, point in sorted(zip(steps, checkpoints, strict=True), key=lambda pair: pair[0])]


def training_steps(checkpoints: Sequence[Behavior]) -> list[int] | None:
    """Step of each checkpoint; `None` if steps are equal or missing.

    One checkpoint without a step is the model that training began with, at step 0, where all others have one.
    """
    known = [point.step for point in checkpoints if point.step is not None]
    steps = [point.step or 0 for point in checkpoints]
    return steps if known and len(set(steps)) == len(steps) else None


def behavior_table(checkpoints: Sequence[Behavior]) -> Table:
    """A table to read, one row per checkpoint."""
    groups = list(checkpoints[0].groups)
    return Table(
        caption=" ".join([CAPTION, *dict.fromkeys(point.warning for point in checkpoints if point.warning)]),
        head=["run", "step", "responses", "tokens", *groups, *(f"{group} / 1k" for group in groups)],
        rows=[
            [
                point.label,
                "" if point.step is None else str(point.step),
                str(point.num_responses),
                with_interval(point.tokens, tokens),
                *(with_interval(point.groups[group], plain) for group in groups),
                *(plain(point.per_1000_tokens(group)) for group in groups),
            ]
            for point in checkpoints
        ],
    )


def behavior_csv(checkpoints: Sequence[Behavior]) -> str:
    """One row per checkpoint in full precision: groups with intervals and rates, then every keyword."""
    return csv_table([_csv_row(point) for point in checkpoints])


def _csv_row(point: Behavior) -> dict[str, Any]:
    row: dict[str, Any] = {
        "run": point.label,
        "step": point.step,
        "problems": point.num_problems,
        "responses": point.num_responses,
    }
    for name, estimate in {"tokens": point.tokens, **point.groups}.items():
        row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    row |= {f"{group}_per_1000_tokens": point.per_1000_tokens(group) for group in point.groups}
    # rethink and step are keywords too
    return row | {f"keyword {keyword}": mean for keyword, mean in point.keywords.items()}


def draw_behavior(checkpoints: Sequence[Behavior], columns: int = 2) -> Figure:
    """The paper's figure of behaviour; over training if the checkpoints have different steps."""
    return behavior_figure(
        [point.label for point in checkpoints],
        training_steps(checkpoints),
        [point.tokens for point in checkpoints],
        {group: [point.groups[group] for point in checkpoints] for group in checkpoints[0].groups},
        columns,
    )
