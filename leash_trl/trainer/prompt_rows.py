"""Prepares data set rows for generation: the target of each prompt, its text, and the columns that a method reads."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from leash_trl.completions.prompts import template_arguments, with_suffix
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.targets import TARGET_COLUMN, plain_value, row_target, scaled_target
from leash_trl.trainer.questions import question_hash


class PromptFacts(NamedTuple):
    """What is known of a prompt before its completion is generated.

    Args:
        question (`int`): Number that identifies the prompt, its images and its template arguments, the same in every
            run.
        target (`float`): Target in the unit of `length_of`; `None` if it has none.
        has_common_target (`bool`): Whether the target is that of the run, and neither the data set nor the method
            gives targets to single prompts.
        columns (`Mapping[str, Any]`): Values of the data set columns that the method reads.
        template_arguments (`Mapping[str, Any]`): Arguments of the chat template for this prompt, in addition to those
            of the configuration.
    """

    question: int
    target: float | None
    has_common_target: bool
    columns: Mapping[str, Any]
    template_arguments: Mapping[str, Any]


def prompt_facts(
    row: Mapping[str, Any],
    method: LengthControl,
    current_target: float | None,
    target_length: float | None,
    generation_limit: float,
) -> PromptFacts:
    """Returns the facts of a data set row's prompt.

    A row's own target has precedence over the method's `target_for`. Both are scaled in proportion to the schedule,
    but not raised beyond the largest length.

    Args:
        current_target (`float`): The current target of the schedule; without a schedule, the configured one.
        target_length (`float`): The configured target, or `None`.
        generation_limit (`float`): Largest length that a completion can have, in the unit of the target.
    """
    question = question_hash(row)
    target = row_target(row)
    if target is None:
        target = method.target_for(question, target_length)
    # If prompts have targets of their own, the targets of a batch depend on which prompts are drawn, which is no
    # change of the run's target.
    has_common_target = TARGET_COLUMN not in row and target == target_length
    # Without a schedule the target stays as it is; a factor of 1 would change the last bit of some fractions.
    if target is not None and target_length is not None and current_target not in (None, target_length):
        target = scaled_target(target, current_target, target_length, largest_length=generation_limit)
    columns = row_columns(row, method.columns_read(), target_length)
    return PromptFacts(question, target, has_common_target, columns, template_arguments(row))


def row_of_model(
    row: Mapping[str, Any], method: LengthControl, target: float | None, generation_limit: float
) -> dict[str, Any]:
    """Returns a copy of a data set row with the prompt that the model gets, to which a method may append text."""
    copy = dict(row)
    suffix = method.prompt_suffix(target, generation_limit)
    if suffix:  # without this check, a row that has no prompt would raise an error
        copy["prompt"] = with_suffix(row["prompt"], suffix)
    return copy


def row_columns(row: Mapping[str, Any], names: Sequence[str], target_length: float | None) -> dict[str, Any]:
    """Returns a row's values of the columns that a method reads; `None` where the row has no value.

    In the column `target_length`, a row without its own target gets the argument `target_length`.
    """
    columns = {name: plain_value(row.get(name)) for name in names}
    if TARGET_COLUMN in columns:
        columns[TARGET_COLUMN] = row_target(row) or target_length
    return columns


def columns_of_rows(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, list[Any]]:
    """Returns the values of several rows by column.

    >>> columns_of_rows([{"effort": "low"}, {"effort": "high"}], ["effort"])
    {'effort': ['low', 'high']}
    """
    return {name: [row[name] for row in rows] for name in names}
