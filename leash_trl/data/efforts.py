"""Asks each question once per effort, so that one model learns several budgets, which prompts select."""

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from datasets import Dataset, Features, interleave_datasets

from leash_trl.completions.prompts import TEMPLATE_COLUMN, effort_suffix, template_arguments, with_suffix
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
    efforts_by_prompt: dict[tuple[int, ...], str] = {}
    for row in rows:
        (ids,) = prompt_ids(tokenizer, [row["prompt"]], **{**options, **template_arguments(row)})
        effort = row[EFFORT_COLUMN]
        same = efforts_by_prompt.setdefault(tuple(ids), effort)
        if same != effort:
            raise ValueError(
                f"efforts has {same} and {effort}, whose prompts have the same tokens; use other words, or arguments "
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
    columns = rows.column_names or []  # some streams do not state their columns
    added_columns = [EFFORT_COLUMN, TARGET_COLUMN]
    if template_kwargs:
        added_columns.append(TEMPLATE_COLUMN)
    for column in added_columns:
        if column in columns:
            raise ValueError(f"the data set already has a column {column!r}; rename it, or remove efforts")
    values_by_effort: list[dict[str, Any]] = []
    for effort, target in efforts.items():
        values: dict[str, Any] = {EFFORT_COLUMN: effort, TARGET_COLUMN: float(target)}
        if template_kwargs:
            values[TEMPLATE_COLUMN] = dict(template_kwargs.get(effort, {}))
        values_by_effort.append(values)
    features = rows.features or Dataset.from_list([next(iter(rows))]).features
    # of all efforts, since one that lacks an argument does not state its type, and streams would then lose its values
    features = Features({**features, **Dataset.from_list(values_by_effort).features})
    rows_by_effort = []
    for values in values_by_effort:
        text = effort_suffix(values[EFFORT_COLUMN], suffix, has_template_kwargs=bool(template_kwargs))
        rows_by_effort.append(rows.map(_with_effort, fn_kwargs={"text": text, "values": values}, features=features))
    # in turns: the first row with each effort, then the second row with each effort, and so on
    return interleave_datasets(rows_by_effort, stopping_strategy="all_exhausted_without_replacement")


def check_efforts(efforts: Mapping[str, float], template_kwargs: Mapping[str, Mapping[str, Any]]) -> None:
    """Raises `ValueError` if an effort has no name or no target, or if arguments of the chat template belong to no
    effort or are no mapping; warns of efforts without arguments beside efforts with some."""
    for name, target in efforts.items():
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
        # with this line as its place, Python shows the warning once for the data of training and of evaluation
        warnings.warn(
            f"effort_template_kwargs has no {', '.join(without_arguments)}, which get the defaults of the chat "
            "template; set their arguments, or {} if the defaults are meant",
            stacklevel=1,
        )


def _with_effort(row: dict[str, Any], text: str, values: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": with_suffix(row["prompt"], text), **values}
