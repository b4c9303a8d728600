"""Prepares data set rows for generation: the target of each prompt, its text, and the columns that a method reads."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leash_trl.completions.prompts import with_suffix
from leash_trl.data.questions import question_hash
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.targets import TARGET_COLUMN, plain_value, row_target, scaled_target


def rows_with_targets(
    rows: Sequence[dict[str, Any]],
    method: LengthControl,
    current_target: float | None,
    target_length: float | None,
    generation_limit: float,
) -> tuple[list[dict[str, Any]], list[int], list[float]]:
    """Returns copies of the rows with the prompts that the model gets, their question numbers, and their targets in
    tokens, NaN for none.

    A row's own target has precedence over the method's `target_for`. Both are scaled in proportion to the schedule,
    but not beyond the generation limit.

    Args:
        rows (`Sequence[dict]`): Rows of the data set; they stay unchanged.
        current_target (`float`): The current target of the schedule in tokens.
        target_length (`float`): The configured target in tokens.
    """
    rows_of_model = []
    questions = []
    targets = []
    for row in rows:
        question = question_hash(row)
        target = row_target(row)
        if target is None:
            target = method.target_for(question, target_length)
        # Without a schedule the target stays as it is; a factor of 1 would change the last bit of some fractions.
        if target is not None and target_length is not None and current_target not in (None, target_length):
            target = scaled_target(target, current_target, target_length, largest_length=generation_limit)
        row_of_model = dict(row)
        suffix = method.prompt_suffix(target, generation_limit)
        if suffix:  # a row without a prompt has none to append to
            row_of_model["prompt"] = with_suffix(row["prompt"], suffix)
        rows_of_model.append(row_of_model)
        questions.append(question)
        targets.append(math.nan if target is None else target)
    return rows_of_model, questions, targets


def common_target(
    rows: Sequence[Mapping[str, Any]],
    questions: Sequence[int],
    targets: Sequence[float],
    method: LengthControl,
    target_length: float | None,
) -> float:
    """Returns the target that all prompts of a batch have in common, in the unit of `length_of`.

    It is NaN without a target, or if the data set or the method gives prompts targets of their own: these differ
    between batches by which prompts are drawn, which is no change of the run's target.

    Args:
        rows (`Sequence[Mapping]`): Rows of the data set.
        questions, targets (`Sequence`): The results of [`rows_with_targets`] for these rows.
        target_length (`float`): The configured target.
    """
    for row, question in zip(rows, questions, strict=True):
        if TARGET_COLUMN in row or method.target_for(question, target_length) != target_length:
            return math.nan
    return targets[0]


def prompt_for_card(row: Mapping[str, Any]) -> str | list[dict[str, str]] | None:
    """Returns the prompt of a row for the model card, or `None` if text alone cannot show it, since it has images or
    calls tools."""
    # TRL: GRPOTrainer._generate_and_score_completions reads images from these columns
    if row.get("images") or row.get("image"):
        return None
    if isinstance(row["prompt"], str):
        return row["prompt"]
    messages = []
    for message in row["prompt"]:
        if message.get("tool_calls") or not isinstance(message["content"], str):
            return None
        # without fields that Arrow adds because other messages have them
        messages.append({"role": message["role"], "content": message["content"]})
    return messages


def column_values(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], target_length: float | None
) -> dict[str, list[Any]]:
    """Returns the values of the columns that a method reads, one per row; `None` where a row has no value.

    In the column `target_length`, rows without their own target get the argument `target_length`.
    """
    columns = {}
    for name in names:
        if name == TARGET_COLUMN:
            columns[name] = [row_target(row) or target_length for row in rows]  # `None` for a row without a target
        else:
            columns[name] = [plain_value(row.get(name)) for row in rows]
    return columns
