"""Data sets of gym problems in TRL's form, as bare sums and as stories."""

import functools
from collections.abc import Iterator

from datasets import Dataset, DatasetDict

from leash_trl.gym.stories import stories
from leash_trl.gym.task import LEVELS, Problem, Split, problems


SIZES: dict[Split, int] = {"train": 3072, "test": 512}


def _rows(asked: Iterator[tuple[str, Problem]], size: int) -> Dataset:
    """The first `size` different questions."""
    rows: dict[str, dict] = {}
    for question, problem in asked:
        if len(rows) == size:
            break
        message = {"role": "user", "content": question}
        row = {"prompt": [message], "solution": str(problem.answer), "level": problem.level}
        rows.setdefault(question, row)
    return Dataset.from_list(list(rows.values()))


@functools.cache
def gym_problems(split: Split, size: int, seed: int = 0) -> Dataset:
    """`size` different problems of one split. Levels are drawn alike; level 1 repeats itself, and so has fewer.

    Returns:
        `Dataset`: Columns `prompt` (one user message), `solution` (a number) and `level` (number of operations).
    """
    return _rows(((problem.question, problem) for problem in problems(seed, LEVELS, split)), size)


@functools.cache
def gym_stories(split: Split, size: int, seed: int = 0) -> Dataset:
    """As [`gym_problems`], with sums of levels 1 to 3 told as stories."""
    return _rows(((story.question, story.problem) for story in stories(seed, split)), size)


def load_gym(name: str) -> DatasetDict:
    """Training and held-out problems; no problem of one split is ever in the other.

    Args:
        name (`str`):
            `gym` for bare sums, `gym_stories` for stories.
    """
    read = {"gym": gym_problems, "gym_stories": gym_stories}[name]
    return DatasetDict({split: read(split, size) for split, size in SIZES.items()})
