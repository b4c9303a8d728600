"""Asks each question once per effort, so that one model learns several budgets, which prompts select."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leash_trl.completions.prompts import EFFORT_SUFFIX, effort_suffix, with_suffix
from leash_trl.length_control.fields import is_number
from leash_trl.length_control.targets import TARGET_COLUMN


if TYPE_CHECKING:
    from leash_trl.data.problems import Rows


EFFORT_COLUMN = "effort"


def check_efforts_differ(tokenizer: Any, efforts: Mapping[str, float], suffix: str) -> None:
    """Raises `ValueError` if two efforts have the same tokens, so that no model could distinguish them."""
    effort_by_tokens: dict[tuple[int, ...], str] = {}
    for effort in efforts:
        # "?" stands for the question, since the tokens of a suffix may depend on what is before it
        token_ids = tokenizer("?" + effort_suffix(effort, suffix))["input_ids"]
        first = effort_by_tokens.setdefault(tuple(token_ids), effort)
        if first != effort:
            raise ValueError(
                f"efforts {first!r} and {effort!r} have the same tokens; choose words that the model knows"
            )


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
        effort_suffix(name, suffix)
    columns = rows.column_names or ["prompt"]  # some streams do not state their columns
    if taken := {EFFORT_COLUMN, TARGET_COLUMN}.intersection(columns):
        raise ValueError(f"the data set already has a column {taken.pop()!r}; rename it, or remove efforts")
    arguments = {"efforts": dict(efforts), "suffix": suffix}
    return rows.map(_once_per_effort, batched=True, remove_columns=columns, fn_kwargs=arguments)


def _once_per_effort(batch: dict[str, list[Any]], efforts: dict[str, float], suffix: str) -> dict[str, list[Any]]:
    rows = []
    for values in zip(*batch.values(), strict=True):
        row = dict(zip(batch, values, strict=True))
        for effort, target in efforts.items():
            prompt = with_suffix(row["prompt"], effort_suffix(effort, suffix))
            rows.append({**row, "prompt": prompt, EFFORT_COLUMN: effort, TARGET_COLUMN: target})
    return {column: [row[column] for row in rows] for column in rows[0]}
