"""Loads problems to evaluate on or to filter, and rows to train on, from published data, files and the Hub."""

import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from datasets import Dataset, Features, IterableDataset, Value, concatenate_datasets, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError
from datasets.load import load_dataset_builder
from pyarrow import ArrowInvalid  # type: ignore[import-untyped]

from leash_trl.data.prompts import as_conversation, has_suffix, say_suffix
from leash_trl.data.reasoning_gym import load_reasoning_gym
from leash_trl.data.schemas import Schema, columns_to_read, detect_schema, row_id
from leash_trl.data.sources import FILE_BUILDERS, Kind, Reference, file_builder, parse_reference
from leash_trl.gym.dataset import load_gym


logger = logging.getLogger(__name__)

Rows: TypeAlias = Dataset | IterableDataset
Splits: TypeAlias = Mapping[str, Rows]
# text to append to questions, or a function that returns it for the columns of the data
Suffix: TypeAlias = str | Callable[[Collection[str]], str]

TEXT = Value("string")


def load_problems(
    reference: str,
    *,
    split: str | None = None,
    limit: int | None = None,
    kind: Kind | None = None,
    needs_gold: bool | None = True,
    **rule: Any,
) -> Dataset:
    """Loads problems in the columns of TRL, together with the columns of their source.

    In training data, repeated rows are dropped, and also all rows of a prompt that occurs with different answers,
    since it is not known which answer is correct. Benchmarks keep every row, so that results are comparable with
    published ones. A warning states the number of such rows.

    Args:
        reference (`str`): A named source, `NAME=PATH`, a path or a Hub id, as for
            [`~leash_trl.data.sources.parse_reference`].
        split (`str`): Split to read; by default the split of the source, else the only one. A file has only the split
            `train`.
        limit (`int`): Number of problems to keep, from the start of the data set.
        kind (`str`): `"train"` or `"benchmark"`; by default the kind of the named source, and `"train"` for files and
            Hub ids.
        needs_gold (`bool`): Whether each row must have an answer. `None` means yes, except for problems of
            reasoning-gym, which score answers themselves. If not, all rows are kept, with the columns that
            [`load_training_rows`] returns, for the user's own reward function.
        rule: Arguments of [`~leash_trl.data.as_conversation`], which turns questions into prompts: `suffix`,
            `has_chat_template` and `system_prompt`. `suffix` may also be a function that returns the text for the
            columns of the data. What is appended is logged once.

    Returns:
        `Dataset`: Columns `id` (unique), `prompt` (messages that end with one of the user), `solution` (`str`), and
        the other columns of the source.

    Raises:
        `ValueError`: If the data set, split or schema is unknown, the data cannot be loaded, or a row lacks a required
            value.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, but must be 1 or more")
    named = parse_reference(reference, field="reference")
    splits = load_splits(named)
    usual = None if named.source is None else "train" if kind == "train" else named.source.split
    split = split or (next(iter(splits)) if len(splits) == 1 else usual)
    raw = _split(splits, "split", split, named.name)
    needs_gold = "reasoning_gym" not in (raw.column_names or ()) if needs_gold is None else needs_gold
    problems = _read_rows(raw, named.name, needs_gold, **rule)
    is_benchmark = (kind or (named.source and named.source.kind)) == "benchmark"
    if needs_gold:
        problems = _without_repeats(problems, named.name, is_benchmark)
    else:
        problems = _with_ids(problems, named.name, range(len(problems)))
    return problems.select(range(min(limit or len(problems), len(problems))))


def load_training_rows(
    data: str | Splits,
    train_split: str = "train",
    test_split: str | None = None,
    *,
    config: str | None = None,
    streaming: bool = False,
    **rule: Any,
) -> tuple[Rows, Rows | None]:
    """Loads the rows to train on, and those to evaluate on during training, with prompt, gold and all columns of the
    source.

    Named sources are read like training data in [`load_problems`], without repeats and contradictions. The user's
    files, other Hub ids and mixtures keep all rows. If they have a column `prompt`, a suffix is appended to it, and a
    gold in another column (verl, slime) becomes `solution`, which is `None` if the value is not a gold, but for
    example a label for a reward function.

    Args:
        data (`str` or `Mapping`): As for [`load_problems`], or the splits of a mixture.
        train_split (`str`), test_split (`str`): Splits to read; without `test_split` there is no evaluation.
        streaming (`bool`): Whether rows are read during training. Repeated rows of a named source are then kept.
        config (`str`): Configuration on the Hub; by default that of the source.
        rule: As for [`load_problems`].

    Raises:
        `ValueError`: If a split or schema is unknown, a prompt is blank, or the rows are the evaluation split of a
            benchmark.
    """
    named = parse_reference(data, config) if isinstance(data, str) else Reference("the mixture")
    splits = load_splits(named, streaming) if isinstance(data, str) else data
    if named.source and named.source.kind == "benchmark" and (len(splits) == 1 or train_split == named.source.split):
        remedy = f"but {named.name} is a benchmark for evaluation; name its train split, or train on other data"
        raise ValueError(f"dataset_train_split is {train_split!r}, {remedy}")
    if named.source and streaming:
        logger.warning("%s is streamed, so repeated and contradictory rows are kept", named.name)
    is_published = named.source is not None and not streaming

    def read(field: str, split: str) -> Rows:
        raw = _split(splits, field, split, named.name)
        if streaming and isinstance(raw, Dataset):
            raw = raw.to_iterable_dataset()
        rows = _read_rows(raw, named.name, is_published, **rule)
        return _without_repeats(rows, named.name) if is_published else rows

    train = read("dataset_train_split", train_split)
    return train, read("dataset_test_split", test_split) if test_split is not None else None


def fingerprint(problems: Dataset, columns: Iterable[str] = ("id", "prompt", "solution")) -> str:
    """Returns sixteen hexadecimal digits that depend on these columns of the problems and on their order."""
    sha, columns = hashlib.sha256(), [*columns]
    known = problems.select_columns([*{*columns}.intersection(problems.column_names)]).with_format("arrow")
    for row in itertools.chain.from_iterable(batch.to_pylist() for batch in known.iter(1000)):
        sha.update(json.dumps([row.get(name) for name in columns], sort_keys=True, default=str).encode())
    return sha.hexdigest()[:16]


@contextmanager
def named_files(name: object) -> Iterator[None]:
    """Raises `ValueError` with the name of a broken or empty file, which the errors of `datasets` do not include."""
    try:
        yield
    except (DatasetGenerationError, ArrowInvalid, StopIteration, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{name} is broken or empty: {error.__cause__ or error!r}") from error


def load_splits(reference: Reference, streaming: bool = False) -> Splits:
    """Returns the unchanged rows of a data set, by split."""
    with named_files(reference.path or reference.hub_id):
        if reference.path is not None:
            return _local_splits(reference.path, reference.config, streaming)
        if reference.source is not None and reference.source.embedded == "reasoning_gym":
            return load_reasoning_gym(str(reference.config))
        if reference.source is not None and reference.source.embedded is not None:
            return load_gym(reference.source.embedded)
        return load_dataset(reference.hub_id, reference.config, streaming=streaming)


def _local_splits(path: Path, config: str | None, streaming: bool) -> Splits:
    """Returns the splits of a file (only `train`), of a folder of files, or of a folder of `save_to_disk`."""
    if path.is_dir():
        is_saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
        kinds = {builder for builder in map(file_builder, path.glob("*")) if builder is not None}
        if len(kinds) > 1 and not is_saved and config is None:  # datasets would silently read only one type
            raise ValueError(f"{path} holds files of several types, {' and '.join(sorted(kinds))}; keep one")
        if kinds <= {"csv"} and not (is_saved or config) and (found := load_dataset_builder(str(path))).name == "csv":
            files = found.config.data_files or {}
            return {str(split): _read_csv(own, found.config.sep) for split, own in files.items()}
        dataset = load_from_disk(str(path)) if is_saved else load_dataset(str(path), config, streaming=streaming)
        return {"train": dataset} if isinstance(dataset, Dataset) else dataset
    builder = file_builder(path)
    if builder is None:
        raise ValueError(f"{path} ends in {path.suffix!r}, but must be a folder or end in {', '.join(FILE_BUILDERS)}")
    if builder == "csv":
        return {"train": _read_csv([path])}
    return load_dataset(builder, data_files=str(path), streaming=streaming)


def _read_csv(paths: Iterable[str | Path], sep: str = ",") -> Dataset:
    """Reads prompts, golds and ids as text, since `033` and `None` would change, and other columns as numbers if all
    their values are the same as text."""
    frame = pd.concat([pd.read_csv(path, sep=sep, dtype=object, keep_default_na=False) for path in paths])
    if "target_length" in frame:
        frame["target_length"] = pd.to_numeric(frame["target_length"]).astype("Int64")
    for name in frame.columns.difference(columns_to_read(detect_schema(frame.columns, False), frame.columns)):
        numbers = pd.to_numeric(frame[name], errors="coerce").convert_dtypes()
        if numbers.notna().any() and ((numbers.astype(str) == frame[name]) | frame[name].isin(["", np.nan])).all():
            frame[name] = numbers
    return Dataset.from_pandas(frame, preserve_index=False)


def _split(splits: Splits, field: str, split: str | None, name: str) -> Rows:
    if split is None or split not in splits:
        remedy = "name one of them, or a folder with a file for each, such as train.jsonl and test.jsonl"
        raise ValueError(f"{field} is {split!r}, but {name} has the splits {', '.join(splits)}; {remedy}")
    return splits[split]


def _read_rows(
    raw: Rows, name: str, needs_gold: bool, has_chat_template: bool = True, suffix: Suffix = "", **rule: Any
) -> Rows:
    """Returns the rows of a split, with prompts by the rule of `as_conversation`, golds in `solution`, and their own
    columns. If a gold is needed, they also get an `id`."""
    # some streams do not state their features
    features = raw.features or Dataset.from_list([next(iter(raw))]).features
    schema = detect_schema(features, needs_gold)
    types: dict[str, Any] = {"id": TEXT} if needs_gold else {}
    types["prompt"] = [{"role": TEXT, "content": TEXT}] if has_chat_template else TEXT
    if (schema is None or "prompt" in schema.columns) and not isinstance(features["prompt"], Value):
        types["prompt"] = features["prompt"]
    if schema is not None:
        gold = features["solution"] if "solution" in schema.columns else TEXT
        is_number = isinstance(gold, Value) and gold.dtype.startswith(("int", "float"))
        types["solution"] = TEXT if needs_gold or is_number else gold
    text = suffix if isinstance(suffix, str) else suffix(features)
    how = {
        "name": name,
        "schema": schema,
        "needs_gold": needs_gold,
        "has_chat_template": has_chat_template,
        "suffix": text,
        **rule,
    }
    if isinstance(raw, IterableDataset):
        all_types = raw.features and Features({**raw.features, **types})
        stream = raw.map(_read_batch, with_indices=True, batched=True, fn_kwargs=how, features=all_types)
        _say_what_is_appended(stream, text)
        return stream
    needed = columns_to_read(schema, features)
    made = raw.select_columns(needed).map(
        _read_batch,
        with_indices=True,
        batched=True,
        fn_kwargs=how,
        remove_columns=needed,
        features=Features(types),
        load_from_cache_file=False,  # the key of the cache does not depend on the code of this package
        desc=f"reading {name}",
    )
    _say_what_is_appended(made, text)
    # joined as columns, so that the other columns are neither read nor copied
    others = [column for column in features if column not in types]
    return concatenate_datasets([made, raw.select_columns(others)], axis=1) if others else made


def _say_what_is_appended(rows: Rows, suffix: str) -> None:
    """Logs the suffix if the first prompt has it, since messages stay as they are."""
    first = next(iter(rows), None)
    if suffix and first is not None and has_suffix(first["prompt"], suffix):
        say_suffix(suffix)


def _read_batch(batch: Mapping[str, list[Any]], indices: list[int], name: str, **how: Any) -> dict[str, list[Any]]:
    made = []
    for index, values in zip(indices, zip(*batch.values(), strict=True), strict=True):
        row = dict(zip(batch, values, strict=True))
        try:
            made.append(_read_row(row, f"{name}-{index}", **how))
        except ValueError as error:
            raise ValueError(f"{name}, row {index} (counted from 0): {error}") from error
    return {column: [row[column] for row in made] for column in made[0]}


def _read_row(
    row: Mapping[str, Any],
    own_id: str,
    schema: Schema | None,
    needs_gold: bool,
    has_chat_template: bool,
    suffix: str,
    **rule: Any,
) -> dict[str, Any]:
    made: dict[str, Any] = {"id": row_id(row) or own_id} if needs_gold else {}
    asked = dict(row)
    if schema is not None:
        has_prompt = "prompt" in schema.columns
        has_chat_template |= has_prompt and not isinstance(row["prompt"], str)  # messages need no template
        try:
            question, made["solution"] = schema.read(row, keeps_template=not suffix)  # which a suffix replaces
            stays = has_prompt and not isinstance(question, str)  # keep all fields of the messages
            asked["prompt"] = row["prompt"] if stays else question
        # the value may be a label or a list for the user's own reward function
        except (AttributeError, TypeError, ValueError) as error:
            if needs_gold or not has_prompt:
                raise ValueError(f"{', '.join(schema.columns)}: {error}") from error
            made["solution"] = row["solution"] if "solution" in schema.columns else None
    return {**made, **as_conversation(asked, suffix, has_chat_template, **rule)}


def _without_repeats(problems: Dataset, name: str, is_benchmark: bool = False) -> Dataset:
    """Drops repeats and contradictions unless the problems are a benchmark; a warning states their number."""
    # hashes need less memory than questions, and are compared only within this process
    batches = problems.select_columns("prompt").iter(10_000)
    frame = pd.DataFrame({"question": [hash(str(prompt)) for batch in batches for prompt in batch["prompt"]]})
    for column in {"solution", "target_length"}.intersection(problems.column_names):
        frame[column] = problems[column][:]
    repeats = frame.duplicated()
    contradicts = frame.groupby("question")["solution"].transform("nunique") > 1
    rows = range(len(problems)) if is_benchmark else np.flatnonzero(~(repeats | contradicts))
    kept = problems if len(rows) == len(problems) else problems.select(rows)
    if repeats.any() or contradicts.any():
        repeated, contradicted = repeats.sum(), frame["question"][contradicts].nunique()
        found = f"{repeated:,} repeats of prompt and answer, {contradicted:,} prompts with different answers"
        logger.warning(f"{name}: {len(kept):,} problems of {len(problems):,} rows; {found}")
    return _with_ids(kept, name, rows)


def _with_ids(problems: Dataset, name: str, rows: Iterable[int]) -> Dataset:
    """Returns the problems with unique ids: their own or, if these are missing or not unique, names with their row
    numbers in `rows`."""
    ids = problems["id"][:] if "id" in problems.column_names else []
    if len({each for each in ids if isinstance(each, str | int)}) == len(problems):
        return problems
    if ids:
        doubt = "ids are not unique, or are neither text nor 64-bit integers"
        logger.warning(f"{name}: {doubt}, so {name}-ROW replaces them")
        problems = problems.remove_columns("id")
    return problems.add_column("id", [f"{name}-{row}" for row in rows])
