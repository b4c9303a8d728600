"""The data sets of reasoning-gym. Their tasks make the problems for `data/`, and score the answers for `rewards/`."""

import functools
import json
from typing import Any


# Tasks of reasoning-gym 0.1.25 whose problems differ from process to process, so that no run could be resumed.
UNREPRODUCIBLE_TASKS = {
    "codeio",
    "isomorphic_strings",
    "knight_swap",
    "list_functions",
    "polynomial_multiplication",
    "ransom_note",
    "word_ladder",
}


@functools.lru_cache(maxsize=64)
def procedural_dataset(settings: str) -> Any:
    """Returns the data set of reasoning-gym with these settings, a JSON object with `task` and the fields of its
    configuration. The task `composite` mixes others: `datasets` lists objects with `name`, `weight` and `config`.

    Raises:
        `ImportError`: If reasoning-gym is not installed (`pip install reasoning-gym`).
        `ValueError`: If there is no such task, or if its problems differ between processes.
    """
    from reasoning_gym.composite import DatasetSpec
    from reasoning_gym.factory import create_dataset

    # such as {"task": "chain_sum", "seed": 0, "max_terms": 4}
    fields = json.loads(settings)
    task = fields.pop("task")
    tasks = [task]
    # The task `composite` has `datasets`, such as [{"name": "chain_sum", "weight": 1, "config": {"max_terms": 4}}].
    if "datasets" in fields:
        fields["datasets"] = [DatasetSpec(**part) for part in fields["datasets"]]
        tasks = [part.name for part in fields["datasets"]]
    unreproducible = UNREPRODUCIBLE_TASKS.intersection(tasks)
    if unreproducible:
        raise ValueError(
            f"reasoning_gym has {', '.join(unreproducible)}, whose problems differ between processes; choose another"
        )
    return create_dataset(task, **fields)
