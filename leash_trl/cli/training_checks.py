"""Checks of `leash train` before it loads a model, besides those of the trainer: splits and golds of the data."""

from datasets import IterableDataset
from trl import ScriptArguments

from leash_trl.rewards import lenient_math_reward, math_reward
from leash_trl.rewards.grading import fault_list, unreadable_solutions
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


def check_splits(dataset, script_args: ScriptArguments, training_args: LeashGRPOConfig) -> None:
    """Raises `ValueError` if a split that the run reads is not there."""
    needed = {"dataset_train_split": script_args.dataset_train_split}
    if training_args.eval_strategy != "no":
        needed["dataset_test_split"] = script_args.dataset_test_split
    for field_name, split in needed.items():
        if split not in dataset:
            raise ValueError(f"{field_name} is {split!r}, but the data set has the splits {', '.join(dataset)}")


def check_solutions(dataset, reward_funcs: list) -> None:
    """Raises `ValueError` if the grader cannot read a gold, which would leave its samples unscored in every epoch."""
    if isinstance(dataset, IterableDataset) or not any(f in reward_funcs for f in (math_reward, lenient_math_reward)):
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
