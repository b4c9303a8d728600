"""Finds golds (reference answers) that the grader cannot read, and refuses or drops their rows before a run."""

import logging
from typing import Any

from datasets import Dataset

from leash_trl.rewards.grader.grading import unreadable_solutions


logger = logging.getLogger(__name__)

MAX_ROWS_SHOWN = 10
PLACEHOLDER_GOLDS = ("proof", "notfound")  # texts that NuminaMath has instead of an answer


def with_readable_solutions(problems: Dataset, name: str, drops_unreadable: bool = False) -> Dataset:
    """Returns the problems whose golds the grader can read, since answers to other problems cannot be graded.

    If there are other problems, they are dropped with a warning if `drops_unreadable` is true; otherwise a
    `ValueError` is raised. Both messages call the data set `name`.
    """
    golds = problems["solution"][:]  # the complete column as a list, which is read from the disk once
    faults = _faults(golds)
    if not faults:
        return problems
    examples = "; ".join(f"row {row}: {golds[row]!r:.80} {faults[row]}" for row in [*faults][:MAX_ROWS_SHOWN])
    message = f"{len(faults)} of {len(problems)} solutions of {name} cannot be graded (rows from 0): {examples}"
    if not drops_unreadable:
        raise ValueError(f"{message}; fix them, or drop their rows, as leash filter does")
    logger.warning("%s; these rows are dropped", message)
    return problems.select([row for row in range(len(problems)) if row not in faults])


def _faults(golds: list[Any]) -> dict[int, str]:
    """Returns what is wrong with golds, by row from 0, such as `{4: "is empty"}`."""
    texts = {gold for gold in golds if isinstance(gold, str)}
    # Equal golds are read only once, since in a million rows most of them occur several times.
    distinct = sorted(texts.difference(PLACEHOLDER_GOLDS))
    fault_of_text = dict.fromkeys(PLACEHOLDER_GOLDS, "is no answer")
    for index, fault in unreadable_solutions(distinct).items():
        fault_of_text[distinct[index]] = fault
    faults = {}
    for row, gold in enumerate(golds):
        if not isinstance(gold, str):
            faults[row] = "is no text"
        elif gold in fault_of_text:
            faults[row] = fault_of_text[gold]
    return faults
