"""What `leash train` looks at before it loads a model: splits, columns, size and golds of the data."""

from datasets import IterableDataset
from trl import ScriptArguments

from leash_trl.rewards import lenient_math_reward, math_reward
from leash_trl.rewards.grading import fault_list, unreadable_solutions
from leash_trl.trainer.checks import check_columns, check_size, known_columns
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


def check_splits(dataset, script_args: ScriptArguments, training_args: LeashGRPOConfig) -> None:
    """Raises `ValueError` if a split that the run reads is not there."""
    needed = {"dataset_train_split": script_args.dataset_train_split}
    if training_args.eval_strategy != "no":
        needed["dataset_test_split"] = script_args.dataset_test_split
    for field_name, split in needed.items():
        if split not in dataset:
            raise ValueError(f"{field_name} is {split!r}, but the data set has the splits {', '.join(dataset)}")


def check_training_data(
    dataset, reward_funcs: list, training_args: LeashGRPOConfig, rollout_func: str | None = None
) -> None:
    """Raises `ValueError` for data that cannot be trained on: columns, number of rows, golds.

    `rollout_func` is the name of one, which may give the reward functions what the data lacks.
    """
    check_columns(known_columns(dataset), reward_funcs, rollout_func)
    check_size(dataset, training_args)
    _check_solutions(dataset, reward_funcs)


def _grades_mathematics(reward_funcs: list) -> bool:
    return math_reward in reward_funcs or lenient_math_reward in reward_funcs


def _check_solutions(dataset, reward_funcs: list) -> None:
    """A gold that the grader cannot read would leave its samples unscored in every epoch."""
    if not _grades_mathematics(reward_funcs) or isinstance(dataset, IterableDataset):
        return
    if "solution" not in dataset.column_names:  # a rollout function or a transform gives it
        return
    for row, gold in enumerate(dataset["solution"]):
        if not isinstance(gold, str):
            raise ValueError(f"row {row} (counted from 0) of the data set: solution is {gold!r}, but must be text")
    if faults := unreadable_solutions(dataset["solution"]):
        raise ValueError(
            f"{len(faults)} of {len(dataset)} solutions cannot be graded; mend them, or drop their rows, as leash "
            f"filter does: {fault_list(faults, dataset['solution'])}"
        )
