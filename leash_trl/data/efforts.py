"""Asks each question once per effort, so that one model learns several budgets, which prompts select."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from datasets import interleave_datasets

from leash_trl.completions.prompts import EFFORT_SUFFIX, effort_suffix, with_suffix
from leash_trl.length_control.fields import is_number
from leash_trl.length_control.targets import TARGET_COLUMN


if TYPE_CHECKING:
    from leash_trl.data.problems import Rows


EFFORT_COLUMN = "effort"


def check_efforts_differ(tokenizer: Any, efforts: Mapping[str, float], suffix: str) -> None:
    """Raises `ValueError` if two efforts have the same tokens, so that no model could distinguish them."""
    # "?" stands for the question, since the tokens of a suffix may depend on what is before it
    endings = ["?" + effort_suffix(effort, suffix) for effort in efforts]
    distinct = {tuple(tokenizer(ending)["input_ids"]) for ending in endings}
    if len(distinct) < len(efforts):
        raise ValueError(f"efforts are {', '.join(efforts)}, of which some have the same tokens; use other words")


def with_efforts(rows: "Rows", efforts: Mapping[str, float], suffix: str = EFFORT_SUFFIX) -> "Rows":
    """Returns every row once per effort, with the effort in its prompt and in a column, and with the effort's target.

    To train with a multiplier for each effort, set `length_control_kwargs={"multiplier_per": "effort"}`.

    Args:
        rows (`Dataset` or `IterableDataset`): Training rows with a column `prompt` and without columns `effort` and
            `target_length`.
        efforts (`Mapping[str, float]`): Target in tokens for each effort, such as `{"low": 1024, "high": 8192}`.
        suffix (`str`): Text to append to the prompt, in which `{effort}` is replaced by the name of the effort.
    """
    for name, target in efforts.items():
        if not (isinstance(name, str) and is_number(target) and target > 0):
            raise ValueError(f"efforts has {name!r}: {target!r}, but must map text such as 'off' to positive numbers")
    columns = rows.column_names or []  # some streams do not state their columns
    for column in (EFFORT_COLUMN, TARGET_COLUMN):
        if column in columns:
            raise ValueError(f"the data set already has a column {column!r}; rename it, or remove efforts")
    rows_by_effort = []
    for effort, target in efforts.items():
        arguments = {"effort": effort, "target": float(target), "suffix": effort_suffix(effort, suffix)}
        rows_by_effort.append(rows.map(_with_effort, fn_kwargs=arguments))
    # in turns: the first row with each effort, then the second row with each effort, and so on
    return interleave_datasets(rows_by_effort, stopping_strategy="all_exhausted_without_replacement")


def _with_effort(row: dict[str, Any], effort: str, target: float, suffix: str) -> dict[str, Any]:
    return {"prompt": with_suffix(row["prompt"], suffix), EFFORT_COLUMN: effort, TARGET_COLUMN: target}
