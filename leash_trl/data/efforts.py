"""Asks each question once per effort, so that one model learns several budgets, which prompts select."""

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from datasets import Dataset, Features, interleave_datasets

from leash_trl.completions.prompts import TEMPLATE_COLUMN, effort_text, template_arguments, with_suffix
from leash_trl.length_control.fields import is_number
from leash_trl.length_control.targets import TARGET_COLUMN
from leash_trl.model_facts import prompt_ids


if TYPE_CHECKING:
    from leash_trl.data.problems import Rows


EFFORT_COLUMN = "effort"


def check_efforts_differ(tokenizer: Any, rows: Iterable[Mapping[str, Any]], **options: Any) -> None:
    """Raises `ValueError` if two efforts have the same tokens, so that no model could distinguish them.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Tokenizer of the model.
        rows (`Iterable[Mapping]`): One question at each effort, as [`with_efforts`] returns it.
        options: Arguments of the chat template for all rows.
    """
    # by the token ids of the question's prompt
    efforts_by_prompt: dict[tuple[int, ...], str] = {}
    for row in rows:
        # Arguments of the row, such as {"enable_thinking": False}, replace those for all rows.
        (ids,) = prompt_ids(tokenizer, [row["prompt"]], **{**options, **template_arguments(row)})
        effort = row[EFFORT_COLUMN]
        # returns the effort that has this prompt already, or else records this effort and returns it
        other = efforts_by_prompt.setdefault(tuple(ids), effort)
        if other != effort:
            raise ValueError(
                f"efforts has {other} and {effort}, whose prompts have the same tokens; use other words, or arguments "
                "that the chat template distinguishes"
            )


def with_efforts(
    rows: "Rows",
    efforts: Mapping[str, float],
    suffix: str | None = None,
    template_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
) -> "Rows":
    """Returns every row once per effort, with the effort in its prompt and in a column, and with the effort's target.

    To train with a multiplier for each effort, set `length_control_kwargs={"multiplier_per": "effort"}`.

    Args:
        rows (`Dataset` or `IterableDataset`): Training rows with a column `prompt` and without columns `effort` and
            `target_length`.
        efforts (`Mapping[str, float]`): Target in tokens for each effort, such as `{"low": 1024, "high": 8192}`.
        suffix (`str`): Text to append to the prompt, in which `{effort}` is replaced by the name of the effort; by
            default `" Effort: {effort}."`, or nothing if there are `template_kwargs`.
        template_kwargs (`Mapping[str, Mapping]`): Arguments of the chat template for each effort, such as
            `{"low": {"reasoning_effort": "low"}, "off": {"enable_thinking": False}}`, in the model's own words. They
            become a column `chat_template_kwargs`, which [`~leash_trl.LeashGRPOTrainer`] passes to the template.
    """
    template_kwargs = template_kwargs or {}
    check_efforts(efforts, template_kwargs)
    # Some streams state neither their columns nor the types of these (`features`).
    columns = rows.column_names or []
    added_columns = [EFFORT_COLUMN, TARGET_COLUMN]
    if template_kwargs:
        added_columns.append(TEMPLATE_COLUMN)
    for column in added_columns:
        if column in columns:
            raise ValueError(f"the data set already has a column {column!r}; rename it, or remove efforts")
    # The columns to add, such as [{"effort": "low", "target_length": 1024.0}, {"effort": "high", ...}].
    values_by_effort: list[dict[str, Any]] = []
    for effort, target in efforts.items():
        values: dict[str, Any] = {EFFORT_COLUMN: effort, TARGET_COLUMN: float(target)}
        if template_kwargs:
            values[TEMPLATE_COLUMN] = dict(template_kwargs.get(effort, {}))
        values_by_effort.append(values)
    features = rows.features or Dataset.from_list([next(iter(rows))]).features
    # The types are those of all efforts together: if one effort has {"enable_thinking": False} and another {}, the
    # latter does not state the type of the argument, and a stream would lose the values of the former.
    features = Features({**features, **Dataset.from_list(values_by_effort).features})
    rows_by_effort = []  # for each effort, the data set with this effort in every row
    for values in values_by_effort:
        text = effort_text(values[EFFORT_COLUMN], suffix, template_states_effort=bool(template_kwargs))
        rows_by_effort.append(rows.map(_with_effort, fn_kwargs={"text": text, "values": values}, features=features))
    # The rows take turns: the first row with each effort, then the second row with each effort, and so on. By default,
    # a stream would end before the last rows of the other efforts.
    return interleave_datasets(rows_by_effort, stopping_strategy="all_exhausted_without_replacement")


def check_efforts(efforts: Mapping[str, float], template_kwargs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises `ValueError` if an effort has no name or no target, or if arguments of the chat template belong to no
    effort or are no mapping; warns of efforts without arguments beside efforts with some."""
    for name, target in efforts.items():
        # YAML reads a name such as off, if it is not in quotes, as `False`.
        if not (isinstance(name, str) and is_number(target) and target > 0):
            raise ValueError(f"efforts has {name!r}: {target!r}, but must map text such as 'off' to positive numbers")
    for name, arguments in template_kwargs.items():
        if name not in efforts or not isinstance(arguments, Mapping):
            raise ValueError(
                f"effort_template_kwargs has {name!r}: {arguments!r}, but must map efforts, which are "
                f"{', '.join(efforts)}, to arguments such as {{reasoning_effort: low}}"
            )
    without_arguments = [name for name in efforts if name not in template_kwargs]
    if template_kwargs and without_arguments:
        # This function is called for the data of training and again for that of evaluation. With `stacklevel=1`, both
        # warnings come from this line, and Python shows the same warning from one line once.
        warnings.warn(
            f"effort_template_kwargs has no {', '.join(without_arguments)}, which get the defaults of the chat "
            "template; set their arguments, or {} if the defaults are meant",
            stacklevel=1,
        )


def _with_effort(row: dict[str, Any], text: str, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns that `map` changes or adds: the prompt with the text on the effort, and `values`."""
    return {"prompt": with_suffix(row["prompt"], text), **values}
