"""Golds that the grader cannot read: named before a run, or left out of it."""

import logging

from datasets import Dataset

from leash_trl.rewards.grading import fault_list, unreadable_solutions


logger = logging.getLogger(__name__)


def with_readable_golds(problems: Dataset, name: str, drops: bool = False) -> Dataset:
    """The problems whose golds the grader reads; the samples of others would never be scored.

    Args:
        problems (`Dataset`):
            Has a column `solution`.
        name (`str`):
            What errors call it.
        drops (`bool`, *optional*, defaults to `False`):
            Whether others are left out, with a warning, instead of an error.

    Raises:
        `ValueError`: If a gold cannot be read and is not to be left out, or is no text.
    """
    for row, gold in enumerate(problems["solution"]):
        if not isinstance(gold, str):
            raise ValueError(f"row {row} (counted from 0) of {name}: solution is {gold!r}, but must be text")
    if not (faults := unreadable_solutions(problems["solution"])):
        return problems
    message = f"{len(faults)} of {len(problems)} solutions of {name} cannot be graded"
    faulty = fault_list(faults, problems["solution"])
    if not drops:
        raise ValueError(f"{message}; mend them, or drop their rows, as leash filter does: {faulty}")
    logger.warning("%s and are left out: %s", message, faulty)
    return problems.select([row for row in range(len(problems)) if row not in faults])
