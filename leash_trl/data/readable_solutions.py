"""Finds golds (reference answers) that the grader cannot read, and refuses or drops their rows before a run."""

import logging
import re

from datasets import Dataset

from leash_trl.rewards.grader.grading import unreadable_solutions


logger = logging.getLogger(__name__)

MAX_ROWS_SHOWN = 10
PLACEHOLDER_GOLDS = ("proof", "notfound")  # texts that NuminaMath has instead of an answer
INTEGER = re.compile(r"-?\d{1,15}", re.ASCII)


def with_readable_solutions(problems: Dataset, name: str, drops_unreadable: bool = False) -> Dataset:
    """Returns the problems whose golds the grader can read; answers to other problems could not be scored.

    Other problems raise a `ValueError`, which calls the data set `name`, or are dropped with a warning if
    `drops_unreadable` is true.
    """
    golds = problems["solution"][:]  # the complete column as a list, which is read from the disk once
    for row, gold in enumerate(golds):
        if not isinstance(gold, str):
            raise ValueError(
                f"row {row} (counted from 0) of {name}: solution is {gold!r}, but must be text; fix or drop the row"
            )
    # The grader can read every integer, so only other golds are checked, and each different gold once: of a million
    # golds, most are integers or occur several times.
    doubtful = [gold for gold in dict.fromkeys(golds) if not INTEGER.fullmatch(gold)]
    # `unreadable_solutions` returns faults by position in `doubtful`; here they are by gold, such as {"": "is empty"}.
    faults = {doubtful[index]: fault for index, fault in unreadable_solutions(doubtful).items()}
    for gold in doubtful:
        if gold in PLACEHOLDER_GOLDS:
            faults[gold] = "is no answer"
    faulty_rows = [row for row, gold in enumerate(golds) if gold in faults]
    if not faulty_rows:
        return problems
    examples = "; ".join(f"row {row}: {golds[row]!r:.80} {faults[golds[row]]}" for row in faulty_rows[:MAX_ROWS_SHOWN])
    fault = f"{len(faulty_rows)} of {len(problems)} solutions of {name} cannot be graded (rows from 0): {examples}"
    if not drops_unreadable:
        raise ValueError(f"{fault}; fix them, or drop their rows, as leash filter does")
    logger.warning("%s; these rows are dropped", fault)
    return problems.select([row for row, gold in enumerate(golds) if gold not in faults])
