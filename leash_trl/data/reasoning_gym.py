"""Makes problems with reasoning-gym, whose tasks generate problems and score the answers to them."""

import json

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
    settings["seed"] = settings.get("seed") or 0
    splits: dict[str, Dataset] = {}
    # Questions of the split `train`, which is made first, so that `test` can leave them out.
    training_questions: set[str] = set()
    for split, offset in (("train", 0), ("test", TEST_SEED_OFFSET)):
        split_settings = json.dumps({**settings, "seed": settings["seed"] + offset}, default=str)
        rows = []
        for index, entry in enumerate(procedural_dataset(split_settings)):
            question = entry["question"]
            answer = str(entry["answer"])
            if question not in training_questions and answer.strip():
                # From the number of the problem and the settings, such as '7 {"task": "chain_sum", "seed": 0}', the
                # reward function makes the problem again, whose task then scores the answer of a completion.
                reference = f"{index} {split_settings}"
                rows.append({"question": question, "answer": answer, "reasoning_gym": reference})
        if not rows:
            raise ValueError(
                f"reasoning_gym:{text} has no problem for the split {split}; lower size or vary its settings"
            )
        training_questions = {row["question"] for row in rows}
        splits[split] = Dataset.from_list(rows)
    return DatasetDict(splits)
