"""Asks each question once per effort, so that one model learns several budgets, which prompts select."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from datasets import Dataset, Features, interleave_datasets

from leash_trl.completions.prompts import TEMPLATE_COLUMN, effort_text, template_arguments, with_suffix
from leash_trl.data.schemas import column_types
from leash_trl.length_control.targets import TARGET_COLUMN
from leash_trl.model_facts import prompt_ids


if TYPE_CHECKING:
    from leash_trl.data.problems import Rows


EFFORT_COLUMN = "effort"


def check_efforts_differ(tokenizer: Any, rows: Iterable[Mapping[str, Any]], **options: Any) -> None:
    """Raises `ValueError` if the prompts of two efforts have the same tokens, which no model could distinguish.

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
        other = efforts_by_prompt.get(tuple(ids))
        if other is not None:
            raise ValueError(
                f"efforts has {other} and {effort}, whose prompts have the same tokens; use other words, or arguments "
                "that the chat template distinguishes"
            )
        efforts_by_prompt[tuple(ids)] = effort


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
            become a column `chat_template_kwargs`, which [`~leash_trl.LeashGRPOTrainer`] passes to the template. An
            effort without arguments gets the defaults of the template.

    Raises:
        `ValueError`: If the data set has one of the columns already, if the name of an effort is no text, if
            `template_kwargs` names another effort, or if `suffix` has no `{effort}`.
    """
    template_kwargs = template_kwargs or {}
    added_columns = _added_columns(efforts, template_kwargs)
    # The types are taken from all efforts together: if one effort has {"enable_thinking": False} and another {}, the
    # second does not state the type of the argument, and a stream would lose the value of the first.
    added_types = Dataset.from_list(added_columns).features
    types_of_rows = column_types(rows)
    for column in added_types:
        if column in types_of_rows:
            raise ValueError(f"the data set already has a column {column!r}; rename it, or remove efforts")
    types = Features({**types_of_rows, **added_types})
    rows_by_effort = []  # for each effort, the data set with this effort in every row
    for values in added_columns:
        text = effort_text(values[EFFORT_COLUMN], suffix, template_states_effort=bool(template_kwargs))
        rows_by_effort.append(rows.map(_with_effort, fn_kwargs={"text": text, "values": values}, features=types))
    # The rows take turns: the first row with each effort, then the second row with each effort, and so on. By default,
    # a stream would end with the first data set that is exhausted, before the last rows of the other efforts.
    return interleave_datasets(rows_by_effort, stopping_strategy="all_exhausted_without_replacement")


def _added_columns(
    efforts: Mapping[str, float], template_kwargs: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns the columns to add for each effort, such as `{"effort": "low", "target_length": 1024.0}`."""
    unknown = [name for name in template_kwargs if name not in efforts]
    if unknown:
        raise ValueError(f"effort_template_kwargs has {unknown[0]!r}, but must have efforts: {', '.join(efforts)}")
    columns: list[dict[str, Any]] = []
    for effort, target in efforts.items():
        if not isinstance(effort, str):
            raise ValueError(f"efforts has {effort!r}, but names must be text; put it in quotes, as 'off' in YAML")
        values: dict[str, Any] = {EFFORT_COLUMN: effort, TARGET_COLUMN: float(target)}
        if template_kwargs:
            values[TEMPLATE_COLUMN] = dict(template_kwargs.get(effort, {}))
        columns.append(values)
    return columns


def _with_effort(row: dict[str, Any], text: str, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the columns that `map` changes or adds: the prompt with the text on the effort, and `values`."""
    return {"prompt": with_suffix(row["prompt"], text), **values}
