"""Asks each question once per effort, so that one model learns several budgets and the prompt says which."""

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from leash_trl.length_control.method import is_number
from leash_trl.length_control.targets import TARGET_COLUMN, with_suffix


if TYPE_CHECKING:
    from leash_trl.data.problems import Rows


EFFORT_COLUMN = "effort"
EFFORT_SUFFIX = " Effort: {effort}."


def effort_suffix(effort: str, suffix: str = EFFORT_SUFFIX) -> str:
    """What a prompt says of its effort: `suffix` with the effort's name for `{effort}`, an error if it has no place.

    Example:
        >>> effort_suffix("low")
        ' Effort: low.'
    """
    if "{effort}" not in suffix:
        raise ValueError(f"effort_suffix is {suffix!r}, but must hold {{effort}}, for the model to see it")
    return suffix.replace("{effort}", effort)


def check_efforts_differ(tokenizer: Any, efforts: Mapping[str, float], suffix: str) -> None:
    """Raises `ValueError` if a tokenizer reads two efforts alike, so that no model could tell them apart."""
    read: dict[tuple[int, ...], str] = {}
    for name in efforts:
        other = read.setdefault(tuple(tokenizer("?" + effort_suffix(name, suffix))["input_ids"]), name)
        if other != name:
            raise ValueError(f"efforts {other!r} and {name!r} are the same to this tokenizer; choose words it knows")


def with_efforts(rows: "Rows", efforts: Mapping[str, float], suffix: str = EFFORT_SUFFIX) -> "Rows":
    """The rows once per effort, each with the effort in its prompt and in a column, and with the effort's target.

    To train with a multiplier for each effort, set `length_control_kwargs={"multiplier_per": "effort"}`.

    Args:
        rows (`Dataset` or `IterableDataset`): Training rows with a column `prompt`, and none `effort` or
            `target_length`.
        efforts (`Mapping[str, float]`): Target in tokens of each effort, such as `{"low": 1024, "high": 8192}`.
        suffix (`str`): Appended to the prompt, with the effort's name for `{effort}`.
    """
    for name, target in efforts.items():
        if not (isinstance(name, str) and is_number(target) and target > 0):
            raise ValueError(f"efforts holds {name!r}: {target!r}, but must map text ('off') to positive numbers")
        effort_suffix(name, suffix)
    columns = rows.column_names or ["prompt"]
    if taken := {EFFORT_COLUMN, TARGET_COLUMN}.intersection(columns):
        raise ValueError(f"the data set has a column {taken.pop()!r} already; rename it, or leave efforts out")
    how = {"efforts": dict(efforts), "suffix": suffix}
    return rows.map(_once_per_effort, batched=True, remove_columns=columns, fn_kwargs=how)


def _once_per_effort(batch: dict[str, list[Any]], efforts: dict[str, float], suffix: str) -> dict[str, list[Any]]:
    rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
    asked = []
    for row, (name, target) in product(rows, efforts.items()):
        prompt = with_suffix(row["prompt"], effort_suffix(name, suffix))
        asked.append({**row, "prompt": prompt, EFFORT_COLUMN: name, TARGET_COLUMN: target})
    return {column: [row[column] for row in asked] for column in asked[0]}
