"""Makes problems with reasoning-gym, whose tasks generate problems and score the answers to them."""

import json
from typing import Any

from datasets import Dataset, DatasetDict

from leash_trl.data.sources import task_settings
from leash_trl.reasoning_gym_tasks import procedural_dataset


TEST_SEED_OFFSET = 2**31  # added to the seed for the split `test`, since problem i of a task has the seed `seed + i`


def load_reasoning_gym(text: str) -> DatasetDict:
    """Returns problems of a task in the splits `train` and `test`, which have different seeds and no question in
    common. Problems whose answer is empty are left out.

    Args:
        text (`str`): The task, as for [`~leash_trl.data.sources.task_settings`]. By default, `seed` is 0, and `size`,
            the number of problems of a split, is 500.

    Returns:
        `DatasetDict`: Columns `question`, `answer` and `reasoning_gym`, which
            [`~leash_trl.rewards.reasoning_gym_reward`] reads.
    """
    settings = task_settings(text)  # such as {"task": "chain_sum", "max_terms": 4}
    seed = settings.get("seed") or 0
    train = _rows({**settings, "seed": seed})
    training_questions = {row["question"] for row in train}
    test = []
    for row in _rows({**settings, "seed": seed + TEST_SEED_OFFSET}):
        if row["question"] not in training_questions:
            test.append(row)
    return DatasetDict(train=Dataset.from_list(train), test=Dataset.from_list(test))


def _rows(settings: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the problems of a task with these settings, without those whose answer is empty."""
    settings_text = json.dumps(settings, default=str)
    rows = []
    for index, entry in enumerate(procedural_dataset(settings_text)):
        answer = str(entry["answer"])
        if answer.strip():
            # From the number of the problem and the settings, such as '7 {"task": "chain_sum", "seed": 0}', the reward
            # function makes the problem again, so that the task can score the answer of a completion.
            reference = f"{index} {settings_text}"
            rows.append({"question": entry["question"], "answer": answer, "reasoning_gym": reference})
    return rows
