"""Golds that the grader cannot read: named before a run, or left out of it."""

import logging
import re

from datasets import Dataset

from leash_trl.rewards.grading import unreadable_solutions


logger = logging.getLogger(__name__)

MOST_SHOWN = 10
NO_ANSWER = ("proof", "notfound")  # what NuminaMath has in place of an answer
INTEGER = re.compile(r"-?\d{1,15}", re.ASCII)


def with_readable_golds(problems: Dataset, name: str, drops: bool = False) -> Dataset:
    """The problems whose golds the grader reads; the samples of others would never be scored.

    Others raise a `ValueError` that calls the data set `name`, or are left out with a warning if it `drops` them.
    """
    golds = problems["solution"][:]
    for row, gold in enumerate(golds):
        if not isinstance(gold, str):
            raise ValueError(f"row {row} (counted from 0) of {name}: its gold is not text; mend or drop the row")
    # every integer can be read, and of a million golds most are integers or repeat another
    doubtful = [gold for gold in dict.fromkeys(golds) if not INTEGER.fullmatch(gold)]
    known = {doubtful[place]: fault for place, fault in unreadable_solutions(doubtful).items()}
    known |= {gold: "is no answer" for gold in doubtful if gold in NO_ANSWER}
    faults = {row: known[gold] for row, gold in enumerate(golds) if gold in known}
    if not faults:
        return problems
    message = f"{len(faults)} of {len(problems)} solutions of {name} cannot be graded"
    shown = [f"row {row}: {golds[row]!r:.80} {fault}" for row, fault in [*faults.items()][:MOST_SHOWN]]
    faulty = f"{'; '.join(shown)}{', ...' if len(faults) > MOST_SHOWN else ''} (rows counted from 0)"
    if not drops:
        raise ValueError(f"{message}; mend them, or drop their rows, as leash filter does: {faulty}")
    logger.warning("%s and are left out: %s", message, faulty)
    return problems.select([row for row in range(len(problems)) if row not in faults])
