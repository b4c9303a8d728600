"""Loads problems from named sources, files, folders and the Hub in TRL's columns; drops repeats and contradictions."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset, Features, Value

from leash_trl.data.prompts import BOXED_SUFFIX, as_conversation
from leash_trl.data.references import Kind, Reference, parse_reference
from leash_trl.data.repeats import contradictory_prompts, digests, first_of_each
from leash_trl.data.schemas import KEPT_COLUMNS, Schema, columns_to_read, detect_schema, read_row
from leash_trl.data.splits import load_splits


logger = logging.getLogger(__name__)


def _chosen_split(splits: Mapping[str, Dataset], wanted: str | None, reference: Reference) -> Dataset:
    """The requested split, else the source's own, else the only one."""
    usual = reference.source.split if reference.source else None
    for name in (wanted,) if wanted is not None else (usual, *(splits if len(splits) == 1 else ())):
        if name in splits:
            return splits[name]
    raise ValueError(f"split is {wanted!r}, but {reference.name} has the splits {', '.join(splits)}; name one of them")


def _distinct_rows(raw: Dataset, schema: Schema) -> Sequence[int]:
    """Indices of the rows without copies; all rows if no columns show copies."""
    if not schema.repeat_columns or not set(schema.repeat_columns) <= set(raw.column_names):
        return range(len(raw))
    return first_of_each(digests(raw, schema.repeat_columns))


def _read(
    row: dict[str, Any],
    index: int,
    schema: Schema,
    rows: Sequence[int],
    name: str,
    suffix: str,
    has_chat_template: bool,
) -> dict[str, Any]:
    try:
        problem = read_row(schema, row)
    except ValueError as error:
        raise ValueError(f"{name}, row {rows[index]} (counted from 0), read as {schema.name}: {error}") from error
    problem["id"] = problem["id"] or f"{name}-{rows[index]}"
    if isinstance(problem["prompt"], str):
        is_message = "prompt" in schema.columns and not isinstance(row["prompt"], str)
        problem |= as_conversation(problem, suffix, has_chat_template or is_message)
    return problem


def _features(raw: Dataset, schema: Schema, has_chat_template: bool) -> Features:
    """Types of the columns; without them, `map` would turn golds back into the numbers that the source had."""
    text = Value("string")
    kept = {name: raw.features[column] for column, name in KEPT_COLUMNS.items() if column in raw.column_names}
    if "target_length" in kept:
        kept["target_length"] = Value("int64")
    has_strings = "prompt" not in schema.columns or isinstance(raw.features["prompt"], Value)
    prompt = text if has_strings and not has_chat_template else [{"role": text, "content": text}]
    return Features({"id": text, "prompt": prompt, "solution": text, **kept})


def _read_rows(
    raw: Dataset, rows: Sequence[int], schema: Schema, name: str, suffix: str, has_chat_template: bool
) -> Dataset:
    columns = columns_to_read(schema, raw.column_names)
    return (
        raw.select_columns(columns)
        .select(rows)
        .map(
            _read,
            with_indices=True,
            fn_kwargs={
                "schema": schema,
                "rows": rows,
                "name": name,
                "suffix": suffix,
                "has_chat_template": has_chat_template,
            },
            remove_columns=columns,
            features=_features(raw, schema, has_chat_template),
            load_from_cache_file=False,  # its key would not change with the functions of this package
            desc=f"reading {name}",
        )
    )


def _with_unique_ids(problems: Dataset, rows: Sequence[int], name: str) -> Dataset:
    """The ids of the source if they are unique, else `NAME-ROW` for all."""
    if len(set(problems["id"])) == len(problems):
        return problems
    logger.warning("%s: the ids of its rows are not unique, so its problems are called %s-ROW instead", name, name)
    return problems.map(
        lambda _, index: {"id": f"{name}-{rows[index]}"}, with_indices=True, load_from_cache_file=False
    )


def _check_size(num_rows: int, named: Reference) -> None:
    if num_rows == 0:
        raise ValueError(f"{named.name} has no rows")
    expected = named.source.num_rows if named.source else None
    if named.is_benchmark and expected not in (None, num_rows):
        logger.warning("%s has %d rows, but is known to have %d", named.name, num_rows, expected)


def read_problems(raw: Dataset, name: str, suffix: str, is_benchmark: bool, has_chat_template: bool) -> Dataset:
    """Problems of one split's rows as [`load_problems`] returns them; the numbers of repeats are logged.

    Args:
        raw (`Dataset`):
            Rows as the source has them.
        name (`str`):
            Short name of the data set, for ids and messages.
        suffix (`str`), has_chat_template (`bool`):
            As for [`load_problems`].
        is_benchmark (`bool`):
            Whether to keep every row, repeated or not.
    """
    schema = detect_schema(raw.column_names)
    rows = range(len(raw)) if is_benchmark else _distinct_rows(raw, schema)
    problems = _read_rows(raw, rows, schema, name, suffix, has_chat_template)
    prompts = list(digests(problems, ["prompt"]))
    contradictory = contradictory_prompts(prompts, list(digests(problems, ["prompt", "solution"])))
    told_apart_by = [column for column in ("prompt", "solution", "target_length") if column in problems.column_names]
    distinct = first_of_each(digests(problems, told_apart_by))
    found = {
        "copies of a row": len(raw) - len(rows),
        "repeats of prompt and answer": len(problems) - len(distinct),
        "prompts with different answers": len(contradictory),
    }
    if not is_benchmark:
        kept = [index for index in distinct if prompts[index] not in contradictory]
        problems, rows = problems.select(kept), [rows[index] for index in kept]
    counts = "".join(f"; {count:,} {what}" for what, count in found.items() if count)
    level = logging.WARNING if counts else logging.INFO
    logger.log(level, "%s: %s problems of %s rows%s", name, f"{len(problems):,}", f"{len(raw):,}", counts)
    return _with_unique_ids(problems, rows, name)


def load_problems(
    reference: str,
    *,
    split: str | None = None,
    suffix: str = BOXED_SUFFIX,
    limit: int | None = None,
    kind: Kind | None = None,
    has_chat_template: bool = True,
) -> Dataset:
    """Problems in TRL's columns.

    Rows of training data that copy or repeat another are left out. A prompt that occurs with two different answers is
    left out with all its rows, because at most one answer is correct and nothing says which. Benchmarks keep every
    row, so that their numbers compare with those of others. A warning states how many rows are concerned.

    Args:
        reference (`str`):
            A named source, `NAME=PATH`, a path or a Hub id, as for `leash_trl.data.references.parse_reference`.
        split (`str`, *optional*):
            Split to read; defaults to the source's own, else to the only one. A file only has the split `train`.
        suffix (`str`, *optional*):
            Text to append to questions; defaults to the instruction of the LEASH authors' release; `""` leaves them
            bare. Questions that already end with it, and prompts that are messages in TRL's form, stay as they are.
        limit (`int`, *optional*):
            Number of problems to keep, from the first on.
        kind (`str`, *optional*):
            `"train"` or `"benchmark"`; defaults to the named source's kind, and to `"train"` for files and Hub ids.
        has_chat_template (`bool`, *optional*, defaults to `True`):
            As for `as_conversation`.

    Returns:
        `Dataset`: Columns `id` (unique), `prompt` (messages, the last one the user's), `solution` (`str`), and
        `target_length`, `level`, `subject`, `difficulty`, `data_source` if the source has them.

    Raises:
        `ValueError`: If the data set, split or schema is not known, cannot be reached, or a row lacks what it needs.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, must be 1 or more")
    named = parse_reference(reference)
    raw = _chosen_split(load_splits(named), split, named)
    _check_size(len(raw), named)
    is_benchmark = named.is_benchmark if kind is None else kind == "benchmark"
    problems = read_problems(raw, named.name, suffix, is_benchmark, has_chat_template)
    return problems.select(range(min(limit or len(problems), len(problems))))


def fingerprint(problems: Dataset) -> str:
    """Sixteen hexadecimal digits that change with any id, prompt, solution or the order of the problems.

    Args:
        problems (`Dataset`):
            Problems as `load_problems` returns them; other columns do not count.

    Returns:
        `str`: Start of the SHA-256 of ids, prompts and solutions.
    """
    sha = hashlib.sha256()
    for row in problems.select_columns(["id", "prompt", "solution"]):
        sha.update(json.dumps([row["id"], row["prompt"], row["solution"]], sort_keys=True).encode())
    return sha.hexdigest()[:16]
