"""Reads published data, files, folders and the Hub: problems to evaluate on or to filter, and rows to train on."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from datasets import Dataset, Features, IterableDataset, Value, concatenate_datasets, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError
from pyarrow import ArrowInvalid  # type: ignore[import-untyped]

from leash_trl.data.prompts import BOXED_SUFFIX, as_conversation
from leash_trl.data.schemas import Schema, columns_to_read, detect_schema, find_schema, read_text, row_id
from leash_trl.data.sources import FILE_BUILDERS, Kind, Reference, parse_reference
from leash_trl.gym.dataset import load_gym


logger = logging.getLogger(__name__)

Rows: TypeAlias = Dataset | IterableDataset
Splits: TypeAlias = Mapping[str, Rows]


QUESTION_HASH = "__question_hash__"
TEXT = Value("string")
MESSAGES = [{"role": TEXT, "content": TEXT}]


def load_problems(
    reference: str,
    *,
    split: str | None = None,
    config: str | None = None,
    suffix: str = BOXED_SUFFIX,
    limit: int | None = None,
    kind: Kind | None = None,
    has_chat_template: bool = True,
) -> Dataset:
    """Problems in TRL's columns, beside the columns of their source.

    Rows of training data that repeat another are left out. A prompt that occurs with two different answers is left out
    with all its rows, because at most one answer is correct and nothing says which. Benchmarks keep every row, so that
    their numbers compare with those of others. A warning states how many rows are concerned.

    Args:
        reference (`str`):
            A named source, `NAME=PATH`, a path or a Hub id, as for [`~leash_trl.data.sources.parse_reference`].
        split (`str`, *optional*):
            Split to read; defaults to the source's own, else to the only one. A file only has the split `train`.
        config (`str`, *optional*):
            Configuration on the Hub; defaults to the source's own.
        suffix (`str`, *optional*):
            Text to append to questions; defaults to the instruction of the LEASH authors' release; `""` leaves them
            bare. Questions that already end with it, and prompts that are messages in TRL's form, stay as they are.
        limit (`int`, *optional*):
            Number of problems to keep, from the first on.
        kind (`str`, *optional*):
            `"train"` or `"benchmark"`; defaults to the named source's kind, and to `"train"` for files and Hub ids.
        has_chat_template (`bool`, *optional*, defaults to `True`):
            As for [`~leash_trl.data.as_conversation`].

    Returns:
        `Dataset`: Columns `id` (unique), `prompt` (messages, the last one the user's), `solution` (`str`), and the
        source's own, unless they have one of these names.

    Raises:
        `ValueError`: If the data set, split or schema is not known, cannot be reached, or a row lacks what it needs.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, must be 1 or more")
    named = parse_reference(reference, config)
    splits = load_splits(named)
    if split is None:
        usual = named.source.split if named.source else None
        split = next(iter(splits)) if len(splits) == 1 and usual not in splits else usual
    raw = _split(splits, "split", split, named.name)
    is_benchmark = named.is_benchmark if kind is None else kind == "benchmark"
    problems = _read_problems(raw, named.name, is_benchmark, suffix, has_chat_template)
    return problems.select(range(min(limit or len(problems), len(problems))))


def load_training_rows(
    data: str | Splits,
    train_split: str = "train",
    test_split: str | None = None,
    *,
    config: str | None = None,
    streaming: bool = False,
    suffix: str = BOXED_SUFFIX,
    has_chat_template: bool = True,
) -> tuple[Rows, Rows | None]:
    """Rows to train on, and those to evaluate on meanwhile, with all columns of their source beside prompt and gold.

    Named sources are read as [`load_problems`] reads training data, without repeats and contradictions. Own files,
    other Hub ids and mixtures keep all rows. If they have a column `prompt`, it gets the suffix, and a gold of another
    name (verl, slime) becomes `solution`: `None` if that value is not a gold, but a label for a reward function, say.

    Args:
        data (`str` or `Mapping`):
            As for [`load_problems`], or the splits of a mixture.
        train_split (`str`, *optional*, defaults to `"train"`), test_split (`str`, *optional*):
            Splits to read; no `test_split` means no evaluation.
        streaming (`bool`, *optional*, defaults to `False`):
            Whether rows are read while training. What is repeated in a named source then stays.
        config (`str`, *optional*), suffix (`str`, *optional*), has_chat_template (`bool`, *optional*):
            As for [`load_problems`].

    Raises:
        `ValueError`: If a split or schema is not known, a row asks nothing, or the rows are those that a benchmark is
            evaluated on.
    """
    named = parse_reference(data, config) if isinstance(data, str) else Reference("the mixture")
    splits = load_splits(named, streaming) if isinstance(data, str) else data
    if named.source is not None and named.is_benchmark and (len(splits) == 1 or train_split == named.source.split):
        remedy = f"but {named.name} is a benchmark, to evaluate on; name its train split, or train on other data"
        raise ValueError(f"dataset_train_split is {train_split!r}, {remedy}")
    if named.source is not None and streaming:
        logger.warning("%s is streamed, so rows that repeat or contradict others stay", named.name)

    def read(field: str, split: str) -> Rows:
        raw = _split(splits, field, split, named.name)
        if named.source is not None and isinstance(raw, Dataset):
            return _read_problems(raw, named.name, False, suffix, has_chat_template)
        return _read_training_rows(raw, named.name, suffix, has_chat_template)

    train = read("dataset_train_split", train_split)
    return train, read("dataset_test_split", test_split) if test_split is not None else None


def fingerprint(problems: Dataset) -> str:
    """Sixteen hexadecimal digits that change with any id, prompt, solution or the order of the problems."""
    sha = hashlib.sha256()
    for row in problems.select_columns(["id", "prompt", "solution"]):
        sha.update(json.dumps([row["id"], row["prompt"], row["solution"]], sort_keys=True).encode())
    return sha.hexdigest()[:16]


@contextmanager
def named_files(name: object) -> Iterator[None]:
    """Raises `ValueError` with the name of a broken or empty file, which the errors of `datasets` leave out."""
    try:
        yield
    except (DatasetGenerationError, ArrowInvalid, StopIteration) as error:
        raise ValueError(f"{name} is broken or empty: {error.__cause__ or error!r}") from error


def load_splits(reference: Reference, streaming: bool = False) -> Splits:
    """The rows of a data set as they are, by split.

    Raises:
        `ValueError`: If the data set cannot be reached or read.
    """
    with named_files(reference.path or reference.hub_id):
        if reference.path is not None:
            splits = _local_splits(reference.path, reference.config, streaming)
        elif reference.source is not None and reference.source.embedded is not None:
            splits = load_gym(reference.source.embedded)
        else:
            splits = load_dataset(reference.hub_id, reference.config, streaming=streaming)
    are_whole = streaming and all(isinstance(rows, Dataset) for rows in splits.values())
    return {name: rows.to_iterable_dataset() for name, rows in splits.items()} if are_whole else splits


def _local_splits(path: Path, config: str | None, streaming: bool) -> Splits:
    """Splits of a file (`train` alone), of a folder of files or of a folder that `save_to_disk` wrote."""
    if path.is_dir():
        is_saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
        dataset = load_from_disk(str(path)) if is_saved else load_dataset(str(path), config, streaming=streaming)
        return {"train": dataset} if isinstance(dataset, Dataset) else dataset
    if path.suffix not in FILE_BUILDERS:
        raise ValueError(f"{path} ends in {path.suffix!r}, must be a folder or end in {', '.join(FILE_BUILDERS)}")
    if path.suffix == ".csv":  # all as text: numbers of `033` and nothing of `None` would be other answers
        frame = pd.read_csv(path, dtype=object, keep_default_na=False)
        if "target_length" in frame:
            frame["target_length"] = pd.to_numeric(frame["target_length"]).astype("Int64")
        return {"train": Dataset.from_pandas(frame, preserve_index=False)}
    return load_dataset(FILE_BUILDERS[path.suffix], data_files=str(path), streaming=streaming)


def _split(splits: Splits, field: str, split: str | None, name: str) -> Rows:
    if split is None or split not in splits:
        remedy = "name one of them, or a folder with a file for each, such as train.jsonl and test.jsonl"
        raise ValueError(f"{field} is {split!r}, but {name} has the splits {', '.join(splits)}; {remedy}")
    if isinstance(rows := splits[split], Dataset) and len(rows) == 0:
        raise ValueError(f"{name} has no rows")
    return rows


def _read_problems(raw: Dataset, name: str, is_benchmark: bool, suffix: str, has_chat_template: bool) -> Dataset:
    """Problems of one split, without repeats and contradictions unless it is a benchmark; a line says how many."""
    schema = detect_schema(raw.column_names)
    is_text = "prompt" not in schema.columns or isinstance(raw.features["prompt"], Value)
    prompt = TEXT if is_text and not has_chat_template else MESSAGES
    types = {"id": TEXT, "prompt": prompt, "solution": TEXT, QUESTION_HASH: Value("int64")}
    how = {"name": name, "schema": schema, "suffix": suffix, "has_chat_template": has_chat_template}
    problems = _with_columns(raw, columns_to_read(schema, raw.column_names), types, read=_problem, **how)
    compared = [column for column in (QUESTION_HASH, "solution", "target_length") if column in problems.column_names]
    frame = problems.select_columns(compared).to_pandas()
    problems = problems.remove_columns(QUESTION_HASH)
    repeats = frame.duplicated()
    contradicts = frame.groupby(QUESTION_HASH)["solution"].transform("nunique") > 1
    rows = range(len(raw)) if is_benchmark else np.flatnonzero(~(repeats | contradicts))
    if len(rows) < len(raw):
        problems = problems.select(rows)
    if repeats.any() or contradicts.any():
        repeated, contradicted = repeats.sum(), frame[QUESTION_HASH][contradicts].nunique()
        found = f"{repeated:,} repeats of prompt and answer, {contradicted:,} prompts with different answers"
        logger.warning(f"{name}: {len(problems):,} problems of {len(raw):,} rows; {found}")
    if not pd.Series(problems["id"][:]).is_unique:
        logger.warning("%s: the ids of its rows are not unique, so its problems are called %s-ROW instead", name, name)
        problems = problems.remove_columns("id").add_column("id", [f"{name}-{row}" for row in rows])
    return problems


def _read_training_rows(raw: Rows, name: str, suffix: str, has_chat_template: bool) -> Rows:
    """All rows and columns of one split, with prompts by the rule of `as_conversation`."""
    # some streams do not say what they hold
    features = raw.features or Dataset.from_list([next(iter(raw))]).features
    schema = find_schema(features)
    if "prompt" not in features:
        schema = detect_schema(features)
    elif schema is not None and ("prompt" not in schema.columns or "solution" in schema.columns):
        schema = None  # there is no gold of another name
    types = {"prompt": MESSAGES if has_chat_template else TEXT}
    if not isinstance(features.get("prompt", TEXT), Value):
        types["prompt"] = features["prompt"]
    gold = features.get("solution")
    if schema is not None or (isinstance(gold, Value) and gold.dtype.startswith(("int", "float"))):
        types["solution"] = TEXT
    elif gold is not None:
        types["solution"] = gold
    how = {"name": name, "schema": schema, "suffix": suffix, "has_chat_template": has_chat_template}
    has_images = not {"image", "images"}.isdisjoint(features)
    return _with_columns(
        raw, columns_to_read(schema, features), types, read=_training_row, has_images=has_images, **how
    )


def _problem(
    row: Mapping[str, Any], own_id: str, schema: Schema, suffix: str, has_chat_template: bool
) -> dict[str, Any]:
    question, gold = schema.read(row)
    has_chat_template |= not isinstance(row.get("prompt", ""), str)  # messages stay messages
    asked = as_conversation({"prompt": question}, suffix, has_chat_template)
    # much shorter than the question, and only compared within this process
    asked[QUESTION_HASH] = hash(str(asked["prompt"]))
    return {"id": row_id(row) or own_id, **asked, "solution": gold}


def _training_row(
    row: Mapping[str, Any],
    own_id: str,
    schema: Schema | None,
    suffix: str,
    has_chat_template: bool,
    has_images: bool,
) -> dict[str, Any]:
    """Prompt and gold of a row to train on. A prompt needs no gold: its reward function may look at other columns."""
    # images take long to read; the trainer looks for them where a prompt has no text
    asked: dict[str, Any] = {**row, "images": has_images}
    gold: dict[str, Any] = {}
    if schema is not None:
        has_chat_template |= not isinstance(row.get("prompt", ""), str)  # messages stay messages
        try:
            question, gold["solution"] = schema.read(row)
            asked["prompt"] = question if isinstance(question, str) else row["prompt"]
        except (ValueError, AttributeError):  # a label that is no gold, a reward_model that is no mapping
            if "prompt" not in row:
                raise
            gold["solution"] = None
    elif "solution" in row:
        is_number = isinstance(row["solution"], int | float) and not isinstance(row["solution"], bool)
        gold["solution"] = read_text(row, "solution") if is_number else row["solution"]
    return {**as_conversation(asked, suffix, has_chat_template), **gold}


def _with_columns(raw: Rows, needed: list[str], types: dict[str, Any], **how: Any) -> Rows:
    """The rows with what `_read_batch` makes of the needed columns, of these types, before their own columns."""
    if isinstance(raw, IterableDataset):
        features = raw.features and Features({**raw.features, **types})
        return raw.map(_read_batch, with_indices=True, batched=True, fn_kwargs=how, features=features)
    made = raw.select_columns(needed).map(
        _read_batch,
        with_indices=True,
        batched=True,
        fn_kwargs=how,
        remove_columns=needed,
        features=Features(types),
        load_from_cache_file=False,  # its key would not change with the functions of this package
        desc=f"reading {how['name']}",
    )
    # side by side, so that own columns are neither read nor copied
    others = [column for column in raw.column_names if column not in types]
    return concatenate_datasets([made, raw.select_columns(others)], axis=1) if others else made


def _read_batch(
    batch: Mapping[str, list[Any]], indices: list[int], name: str, read: Callable[..., dict[str, Any]], **how: Any
) -> dict[str, list[Any]]:
    made = []
    for index, values in zip(indices, zip(*batch.values(), strict=True), strict=True):
        row = dict(zip(batch, values, strict=True))
        try:
            made.append(read(row, f"{name}-{index}", **how))
        except ValueError as error:
            raise ValueError(f"{name}, row {index} (counted from 0): {error}") from error
    return {column: [row[column] for row in made] for column in made[0]}
