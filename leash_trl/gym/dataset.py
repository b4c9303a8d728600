"""Data sets of gym problems in TRL's form."""

import functools

from datasets import Dataset, DatasetDict

from leash_trl.gym.task import LEVELS, Problem, Split, problems


SIZES: dict[Split, int] = {"train": 3072, "test": 512}


def _row(problem: Problem) -> dict:
    message = {"role": "user", "content": problem.question}
    return {"prompt": [message], "solution": str(problem.answer), "level": problem.level}


@functools.cache
def gym_problems(split: Split, size: int, seed: int = 0) -> Dataset:
    """`size` different problems of one split. Levels are drawn alike; level 1 repeats itself, and so has fewer.

    Returns:
        `Dataset`: Columns `prompt` (one user message), `solution` (a number) and `level` (number of operations).
    """
    rows: dict[str, dict] = {}
    for problem in problems(seed, LEVELS, split):
        if len(rows) == size:
            break
        rows.setdefault(problem.question, _row(problem))
    return Dataset.from_list(list(rows.values()))


def load_gym() -> DatasetDict:
    """Training and held-out problems; no problem of one split is ever in the other."""
    return DatasetDict({split: gym_problems(split, size) for split, size in SIZES.items()})
