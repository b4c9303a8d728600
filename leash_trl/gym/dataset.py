"""Builds datasets of gym problems in TRL's format, as sums and as stories."""

import functools

from datasets import Dataset, DatasetDict

from leash_trl.gym.stories import STORY_LEVELS, Story
from leash_trl.gym.task import LEVELS, Split, problems


SIZES: dict[Split, int] = {"train": 3072, "test": 512}


@functools.cache
def gym_problems(split: Split, size: int, seed: int = 0, as_stories: bool = False) -> Dataset:
    """Returns `size` different problems of one split. Levels are drawn uniformly and duplicates are dropped, so level
    1, which has few different problems, is less frequent than the others.

    Returns:
        `Dataset`: Columns `prompt` (one user message), `solution` (a number) and `level` (number of operations).
    """
    levels = STORY_LEVELS if as_stories else LEVELS
    # Rows by question, in the order in which they were drawn; a question that is drawn again changes nothing.
    rows: dict[str, dict] = {}
    for problem in problems(seed, levels, split):
        if len(rows) == size:
            break
        question = Story(problem).question if as_stories else problem.question
        message = {"role": "user", "content": question}
        row = {"prompt": [message], "solution": str(problem.answer), "level": problem.level}
        rows.setdefault(question, row)
    return Dataset.from_list(list(rows.values()))


def load_gym(name: str) -> DatasetDict:
    """Returns the training and the test problems of `gym` or `gym_stories`. The two splits share no problem."""
    as_stories = name == "gym_stories"
    splits = {split: gym_problems(split, size, as_stories=as_stories) for split, size in SIZES.items()}
    return DatasetDict(splits)
