"""Prepares one split of training data: prompts follow the rule of `as_conversation`, all rows and columns stay."""

from collections.abc import Iterable
from typing import Any

from datasets import Features, IterableDataset, Value

from leash_trl.data.prompts import BOXED_SUFFIX, as_conversation
from leash_trl.data.schemas import detect_schema, find_schema, read_target, read_text
from leash_trl.data.sources import read_problems
from leash_trl.data.splits import Rows


def training_rows(raw: Rows, name: str, suffix: str = BOXED_SUFFIX, has_chat_template: bool = True) -> Rows:
    """One split of training data, with prompts by the rule of [`~leash_trl.data.as_conversation`].

    Rows with a prompt keep all their columns, which reward functions may need, and none is left out, whatever other
    schemas they fit. If the gold has another name (verl, slime), `solution` is added; it is `None` if that value is
    not a gold, but a label for a reward function, say. Rows without a prompt become problems, as `load_problems` makes
    them.

    Args:
        raw (`Dataset` or `IterableDataset`):
            Rows as the source has them.
        name (`str`):
            Short name of the data set, for messages.
        suffix (`str`, *optional*):
            As for `load_problems`.
        has_chat_template (`bool`, *optional*, defaults to `True`):
            As for `as_conversation`.

    Raises:
        `ValueError`: If there are no rows, the schema is not known, or a row asks nothing.
    """
    columns = raw.column_names or ["prompt"]  # some streams do not say
    keeps_rows = "prompt" in columns
    how = {
        "with_indices": True,
        "fn_kwargs": {"name": name, "suffix": suffix, "has_chat_template": has_chat_template},
        "features": _training_features(raw, has_chat_template),
    }
    if isinstance(raw, IterableDataset):
        if not keeps_rows:
            raise ValueError(
                f"{name} has columns {', '.join(columns)}, which must be read completely; do not stream it"
            )
        return raw.map(_as_training_row, **how)
    if len(raw) == 0:
        raise ValueError(f"{name} has no rows")
    if not keeps_rows:
        return read_problems(raw, name, suffix, is_benchmark=False, has_chat_template=has_chat_template)
    return raw.map(_as_training_row, **how, load_from_cache_file=False, desc=f"reading {name}")  # as _read_rows


def _as_training_row(
    row: dict[str, Any], index: int, name: str, suffix: str, has_chat_template: bool
) -> dict[str, Any]:
    try:
        target = {"target_length": read_target(row["target_length"])} if "target_length" in row else {}
        gold: dict[str, Any] = {}
        if _has_gold_elsewhere(row):
            question, gold["solution"] = _question_and_gold(row)
            has_chat_template |= not isinstance(row["prompt"], str)  # messages stay messages
            row = row if question is None else {**row, "prompt": question}
        if isinstance(row.get("solution"), int | float):
            gold["solution"] = read_text(row, "solution")
        return {**target, **gold, **as_conversation(row, suffix, has_chat_template)}
    except ValueError as error:
        raise ValueError(f"{name}, row {index} (counted from 0): {error}") from error


def _has_gold_elsewhere(columns: Iterable[str]) -> bool:
    if "solution" in (columns := list(columns)):
        return False
    schema = find_schema(columns)
    return schema is not None and "prompt" in schema.columns


def _question_and_gold(row: dict[str, Any]) -> tuple[str | None, str | None]:
    """The question of a verl or slime row, if it is text, and its gold; neither if the row only has such columns."""
    try:
        question, gold = detect_schema(row).read(row)
    except (ValueError, AttributeError):  # a label that is no gold, a reward_model that is no mapping
        return None, None
    return question if isinstance(question, str) else None, gold


def _training_features(raw: Rows, has_chat_template: bool) -> Features | None:
    """Types of the columns when prompts follow the rule and golds and targets have their final types; `None` if a
    stream does not say."""
    if raw.features is None:
        return None
    text = Value("string")
    features = Features(raw.features)
    if has_chat_template and "prompt" in features and isinstance(features["prompt"], Value):
        features["prompt"] = [{"role": text, "content": text}]
    if features.get("target_length") == text:
        features["target_length"] = Value("int64")
    if _has_gold_elsewhere(features):
        features["solution"] = text
    if isinstance(gold := features.get("solution"), Value) and gold.dtype.startswith(("int", "float")):
        features["solution"] = text
    return features
