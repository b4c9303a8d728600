"""Loads problems to evaluate on or to filter, and rows to train on, from published data, files and the Hub."""

import glob
import hashlib
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

from leash_trl.data.prompts import as_conversation, contains_suffix, log_suffix_once
from leash_trl.data.reasoning_gym import load_reasoning_gym
from leash_trl.data.schemas import Schema, columns_to_read, detect_schema, row_id
from leash_trl.data.sources import FILE_BUILDERS, Purpose, Reference, Source, file_builder, parse_reference
from leash_trl.gym.dataset import load_gym


logger = logging.getLogger(__name__)

Rows: TypeAlias = Dataset | IterableDataset
Splits: TypeAlias = Mapping[str, Rows]
# text to append to questions, or a function that returns it for the columns of the data
Suffix: TypeAlias = str | Callable[[Collection[str]], str]

TEXT_TYPE = Value("string")


def load_problems(
    reference: str,
    *,
    split: str | None = None,
    limit: int | None = None,
    purpose: Purpose | None = None,
    needs_gold: bool | None = True,
    **prompt_options: Any,
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
        purpose (`str`): `"train"` or `"benchmark"`; by default the purpose of the named source, and `"train"` for
            files and Hub ids.
        needs_gold (`bool`): Whether each row must have an answer. `None` means yes, except for problems of
            reasoning-gym, which score answers themselves. If not, all rows are kept, with the columns that
            [`load_training_rows`] returns, for the user's own reward function.
        prompt_options: Arguments of [`~leash_trl.data.as_conversation`], which turns questions into prompts:
            `suffix`, `has_chat_template` and `system_prompt`. `suffix` may also be a function that returns the text
            for the columns of the data. What is appended is logged once.

    Returns:
        `Dataset`: Columns `id` (unique), `prompt` (messages that end with one of the user), `solution` (`str`), and
        the other columns of the source.

    Raises:
        `ValueError`: If the data set, split or schema is unknown, the data cannot be loaded, or a row lacks a required
            value.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, but must be 1 or more")
    parsed_reference = parse_reference(reference, field="reference")
    splits = load_splits(parsed_reference)  # such as {"train": Dataset, "test": Dataset}
    if not split:
        # `None` if there are several splits and none is the default; `_named_split` then raises and names them all.
        split = _default_split(splits, parsed_reference.source, purpose)
    raw = _named_split(splits, field="split", split=split, name=parsed_reference.name)
    if needs_gold is None:
        # Problems of reasoning-gym have this column, from which their reward function scores answers without a gold.
        needs_gold = "reasoning_gym" not in (raw.column_names or ())
    problems = _read_rows(raw, parsed_reference.name, needs_gold=needs_gold, **prompt_options)
    if purpose is None and parsed_reference.source is not None:
        purpose = parsed_reference.source.purpose
    if needs_gold:
        problems = _without_repeats(problems, parsed_reference.name, keeps_repeats=purpose == "benchmark")
    else:
        problems = _with_unique_ids(problems, parsed_reference.name, rows=range(len(problems)))
    num_kept = len(problems) if limit is None else min(limit, len(problems))
    return problems.select(range(num_kept))


def load_training_rows(
    data: str | Splits,
    train_split: str = "train",
    test_split: str | None = None,
    *,
    config: str | None = None,
    streaming: bool = False,
    **prompt_options: Any,
) -> tuple[Rows, Rows | None]:
    """Loads the rows to train on, and those to evaluate on during training, with prompt, gold and all columns of the
    source.

    Named sources are read like training data in [`load_problems`], without repeats and contradictions. The user's
    files, other Hub ids and mixtures keep all rows. If they have a column `prompt`, a suffix is appended to it. The
    gold of verl's column `reward_model` or slime's `label` is copied to `solution`; where such a column holds
    something else, for example a label for a reward function, `solution` is `None`.

    Args:
        data (`str` or `Mapping`): As for [`load_problems`], or the splits of a mixture.
        train_split (`str`), test_split (`str`): Splits to read; without `test_split` there is no evaluation.
        streaming (`bool`): Whether rows are read during training. Repeated rows of a named source are then kept.
        config (`str`): Configuration on the Hub; by default that of the source.
        prompt_options: As for [`load_problems`].

    Raises:
        `ValueError`: If a split or schema is unknown, a prompt is blank, or the rows are the evaluation split of a
            benchmark.
    """
    if isinstance(data, str):
        parsed_reference = parse_reference(data, config)
        splits = load_splits(parsed_reference, streaming)
    else:
        parsed_reference = Reference("the mixture")  # a name for messages
        splits = data
    # `None` for the user's files, other Hub ids and mixtures
    source = parsed_reference.source
    if source is not None and source.purpose == "benchmark":
        # Some benchmarks, such as GSM8K, also have a split to train on. If there is only one split, it is the one for
        # evaluation, whatever its name.
        is_for_evaluation = len(splits) == 1 or train_split == source.split
        if is_for_evaluation:
            raise ValueError(
                f"dataset_train_split is {train_split!r}, but {parsed_reference.name} is a benchmark for evaluation; "
                "name its train split, or train on other data"
            )
    if source is not None and streaming:
        logger.warning("%s is streamed, so repeated and contradictory rows are kept", parsed_reference.name)
    drops_repeats = source is not None and not streaming

    def read_split(field: str, split: str) -> Rows:
        """Returns the rows of a split, which the user named in the argument `field`."""
        raw = _named_split(splits, field=field, split=split, name=parsed_reference.name)
        # Only `load_dataset` streams: the gym, CSV files and folders of `save_to_disk` are loaded whole.
        if streaming and isinstance(raw, Dataset):
            raw = raw.to_iterable_dataset()
        rows = _read_rows(raw, parsed_reference.name, needs_gold=drops_repeats, **prompt_options)
        return _without_repeats(rows, parsed_reference.name) if drops_repeats else rows

    train = read_split("dataset_train_split", train_split)
    test = None if test_split is None else read_split("dataset_test_split", test_split)
    return train, test


def fingerprint(problems: Dataset, columns: Iterable[str] = ("id", "prompt", "solution")) -> str:
    """Returns sixteen hexadecimal digits that depend on these columns of the problems and on their order."""
    columns = [*columns]
    # Of a column that the problems do not have, every value is `None`.
    present = sorted({*columns}.intersection(problems.column_names))
    digest = hashlib.sha256()
    # In the format "arrow", `datasets` does not decode images, and rows are read in batches instead of one by one.
    for batch in problems.select_columns(present).with_format("arrow").iter(batch_size=1000):
        for row in batch.to_pylist():
            values = [row.get(name) for name in columns]
            # `default=str`, since JSON has no dates
            digest.update(json.dumps(values, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


@contextmanager
def errors_with_file_name(name: object) -> Iterator[None]:
    """Raises `ValueError` with the name of a broken or empty file, which the errors of `datasets` do not include."""
    try:
        yield
    # An empty file raises `StopIteration` if it is JSON, `EmptyDataError` if it is CSV, and `ArrowInvalid` if it is
    # Parquet. A broken one raises `ArrowInvalid`, or `DatasetGenerationError`, whose cause says what is broken.
    except (DatasetGenerationError, ArrowInvalid, StopIteration, pd.errors.EmptyDataError) as error:
        raise ValueError(f"{name} is broken or empty: {error.__cause__ or error!r}") from error


def load_splits(reference: Reference, streaming: bool = False) -> Splits:
    """Returns the unchanged rows of a data set, by split."""
    with errors_with_file_name(reference.path or reference.hub_id):
        if reference.path is not None:
            return _local_splits(reference.path, reference.config, streaming)
        # the name of data that this package makes itself, such as "gym"; `None` for data on the Hub
        generator = reference.source.generator if reference.source is not None else None
        if generator == "reasoning_gym":
            return load_reasoning_gym(str(reference.config))  # the configuration is the task
        if generator is not None:
            return load_gym(generator)
        return load_dataset(reference.hub_id, reference.config, streaming=streaming)


def _local_splits(path: Path, config: str | None, streaming: bool) -> Splits:
    """Returns the splits of a file (only `train`), of a folder of files, or of a folder of `save_to_disk`."""
    # `save_to_disk` writes the first file for a `DatasetDict`, and the second one for a `Dataset`.
    if (path / "dataset_dict.json").is_file():
        return load_from_disk(str(path))
    if (path / "state.json").is_file():
        return {"train": load_from_disk(str(path))}
    files = [*path.glob("*")] if path.is_dir() else [path]
    # The builders of `datasets` for the types of the files, such as {"json"}; a README, for example, has none.
    builders = {builder for builder in map(file_builder, files) if builder is not None}
    if path.is_file() and not builders:
        raise ValueError(f"{path} ends in {path.suffix!r}, but must be a folder or end in {', '.join(FILE_BUILDERS)}")
    # Without a configuration, which may choose the files, `datasets` would silently read those of one type only.
    if len(builders) > 1 and not config:
        raise ValueError(f"{path} holds files of several types, {' and '.join(sorted(builders))}; keep one")
    source: dict[str, str | None] = {"path": str(path), "name": config}
    if path.is_file():
        # `data_files` is a pattern, so characters such as [ in the path must be escaped.
        source = {"path": builders.pop(), "data_files": glob.escape(str(path))}
    reader = load_dataset_builder(**source)
    if reader.name == "csv":
        return {
            str(split): _csv_dataset(files, reader.config.sep) for split, files in reader.config.data_files.items()
        }
    return load_dataset(**source, streaming=streaming)


def _csv_dataset(paths: Iterable[str], sep: str) -> Dataset:
    """Reads prompts, golds and ids as text, since `033` and `None` would change, and other columns as numbers if all
    their values are the same as text."""
    # With these arguments, every cell is text, and an empty cell is the empty text.
    frame = pd.concat([pd.read_csv(path, sep=sep, dtype=object, keep_default_na=False) for path in paths])
    schema = detect_schema(frame.columns, needs_gold=False)
    stays_text = columns_to_read(schema, frame.columns)
    for name in frame.columns.difference(stays_text):
        # NaN for a cell that is no number; `convert_dtypes` makes whole numbers integers, so that 3 is not 3.0.
        numbers = pd.to_numeric(frame[name], errors="coerce").convert_dtypes()
        is_same_as_text = numbers.astype(str) == frame[name]
        # A cell is NaN if there are several files, and its file does not have the column.
        is_empty = frame[name].isin(["", np.nan])
        if numbers.notna().any() and (is_same_as_text | is_empty).all():
            frame[name] = numbers
    return Dataset.from_pandas(frame, preserve_index=False)


def _default_split(splits: Splits, source: Source | None, purpose: Purpose | None) -> str | None:
    """Returns the split to read where the user named none; `None` if the data leaves the choice open."""
    if len(splits) == 1:
        return next(iter(splits))
    if source is None:
        return None
    # `leash filter` reads problems to train on, also of a source such as GSM8K, whose own split is for evaluation.
    return "train" if purpose == "train" else source.split


def _named_split(splits: Splits, field: str, split: str | None, name: str) -> Rows:
    """Returns the rows of a split, which the user named in the argument `field`."""
    if split is None or split not in splits:
        raise ValueError(
            f"{field} is {split!r}, but {name} has the splits {', '.join(splits)}; name one of them, or a folder with "
            "a file for each, such as train.jsonl and test.jsonl"
        )
    return splits[split]


def _read_rows(
    raw: Rows, name: str, needs_gold: bool, has_chat_template: bool = True, suffix: Suffix = "", **prompt_options: Any
) -> Rows:
    """Returns the rows of a split, with prompts by the rule of `as_conversation`, golds in `solution`, and their own
    columns. If a gold is needed, they also get an `id`."""
    # `features` maps columns to their types. Some streams do not state them; the first row then shows them.
    features = raw.features or Dataset.from_list([next(iter(raw))]).features
    schema = detect_schema(features, needs_gold)  # `None` if there is only a prompt
    types = _types_of_read_columns(features, schema, needs_gold=needs_gold, has_chat_template=has_chat_template)
    suffix_text = suffix if isinstance(suffix, str) else suffix(features)
    # for `_read_batch`; `prompt_options` has only `system_prompt`, if anything
    arguments = {
        "name": name,
        "schema": schema,
        "needs_gold": needs_gold,
        "has_chat_template": has_chat_template,
        "suffix": suffix_text,
        **prompt_options,
    }
    if isinstance(raw, IterableDataset):
        # `map` keeps the other columns of a stream. If the stream does not state its types, neither does the result.
        all_types = raw.features and Features({**raw.features, **types})
        stream = raw.map(_read_batch, with_indices=True, batched=True, fn_kwargs=arguments, features=all_types)
        _log_suffix_if_applied(stream, suffix_text)
        return stream
    needed = columns_to_read(schema, features)
    rows = raw.select_columns(needed).map(
        _read_batch,
        with_indices=True,
        batched=True,
        fn_kwargs=arguments,
        remove_columns=needed,
        features=Features(types),
        # The cache would not notice a change of this package's code, on which its key does not depend.
        load_from_cache_file=False,
        desc=f"reading {name}",
    )
    _log_suffix_if_applied(rows, suffix_text)
    others = [column for column in features if column not in types]
    if not others:
        return rows
    # `map` got only the columns that are needed. The others are put beside its result as they are on the disk, so they
    # are neither read nor copied.
    return concatenate_datasets([rows, raw.select_columns(others)], axis=1)


def _types_of_read_columns(
    features: Features, schema: Schema | None, needs_gold: bool, has_chat_template: bool
) -> dict[str, Any]:
    """Returns the types of the columns that `_read_row` makes."""
    types: dict[str, Any] = {}
    if needs_gold:
        types["id"] = TEXT_TYPE
    reads_prompt = schema is None or "prompt" in schema.columns
    if reads_prompt and not isinstance(features["prompt"], Value):
        types["prompt"] = features["prompt"]  # messages, which keep all their fields, such as calls of tools
    elif has_chat_template:
        types["prompt"] = [{"role": TEXT_TYPE, "content": TEXT_TYPE}]
    else:
        types["prompt"] = TEXT_TYPE
    if schema is not None:
        # A gold becomes text. If none is needed, numbers in a column `solution` still become text, but values of other
        # types, such as lists, stay as they are, for the user's own reward function.
        gold = features["solution"] if "solution" in schema.columns else TEXT_TYPE
        is_number = isinstance(gold, Value) and gold.dtype.startswith(("int", "float"))
        types["solution"] = TEXT_TYPE if needs_gold or is_number else gold
    return types


def _log_suffix_if_applied(rows: Rows, suffix: str) -> None:
    """Logs the suffix if the first prompt has it; prompts that are messages get none."""
    first = next(iter(rows), None)  # `None` if there are no rows
    if suffix and first is not None and contains_suffix(first["prompt"], suffix):
        log_suffix_once(suffix)


def _read_batch(
    batch: Mapping[str, list[Any]], indices: list[int], name: str, **arguments: Any
) -> dict[str, list[Any]]:
    """Applies `_read_row` to each row of a batch, which maps columns to lists."""
    rows = []
    # {"question": ["2 + 2?", "3 + 3?"], "answer": ["4", "6"]} has the rows ("2 + 2?", "4") and ("3 + 3?", "6").
    values_by_row = zip(*batch.values(), strict=True)
    for index, values in zip(indices, values_by_row, strict=True):
        row = dict(zip(batch, values, strict=True))
        try:
            rows.append(_read_row(row, default_id=f"{name}-{index}", **arguments))
        except ValueError as error:
            raise ValueError(f"{name}, row {index} (counted from 0): {error}") from error
    return {column: [row[column] for row in rows] for column in rows[0]}


def _read_row(
    row: Mapping[str, Any],
    default_id: str,
    schema: Schema | None,
    needs_gold: bool,
    has_chat_template: bool,
    suffix: str,
    **prompt_options: Any,
) -> dict[str, Any]:
    """Returns `prompt`, with `id` if a gold is needed, and with `solution` if the data has a schema."""
    columns: dict[str, Any] = {}
    if needs_gold:
        columns["id"] = row_id(row) or default_id
    # What `as_conversation` reads: the prompt, which is replaced below by the question of the schema, and images.
    row_to_ask = dict(row)
    if schema is not None:
        has_prompt = "prompt" in schema.columns
        if has_prompt and not isinstance(row["prompt"], str):
            has_chat_template = True  # so that a question which is taken out of messages becomes a message again
        try:
            # Without a suffix, which replaces it, the template that the data has around a question is kept.
            question, gold = schema.question_and_gold(row, keeps_template=not suffix)
        except (AttributeError, TypeError, ValueError) as error:
            if needs_gold or not has_prompt:
                raise ValueError(f"{', '.join(schema.columns)}: {error}") from error
            # The value cannot be read as a gold, but it may be a label or a list for the user's own reward function.
            columns["solution"] = row["solution"] if "solution" in schema.columns else None
        else:
            columns["solution"] = gold
            # The messages of a column `prompt` stay in `row_to_ask`, since `question` lacks some of their fields.
            if isinstance(question, str) or not has_prompt:
                row_to_ask["prompt"] = question
    return {**columns, **as_conversation(row_to_ask, suffix, has_chat_template, **prompt_options)}


def _without_repeats(problems: Dataset, name: str, keeps_repeats: bool = False) -> Dataset:
    """Drops repeats and contradictions unless the problems are a benchmark; a warning states their number."""
    # Hashes need less memory than prompts. Python's own `hash` suffices, as they are compared in this process only.
    hashes: list[int] = []
    for batch in problems.select_columns("prompt").iter(batch_size=10_000):
        hashes.extend(hash(str(prompt)) for prompt in batch["prompt"])
    # One row for each problem, with the columns `prompt_hash`, `solution` and, if there is one, `target_length`:
    # the same question with another target is no repeat.
    frame = pd.DataFrame({"prompt_hash": hashes})
    for column in {"solution", "target_length"}.intersection(problems.column_names):
        frame[column] = problems[column][:]
    is_repeat = frame.duplicated()  # of an earlier row; the first one is none
    is_contradicted = frame.groupby("prompt_hash")["solution"].transform("nunique") > 1
    # `rows` are the numbers of the rows to keep.
    rows = range(len(problems)) if keeps_repeats else np.flatnonzero(~(is_repeat | is_contradicted))
    kept = problems if len(rows) == len(problems) else problems.select(rows)
    if is_repeat.any() or is_contradicted.any():
        num_contradicted_prompts = frame["prompt_hash"][is_contradicted].nunique()
        logger.warning(
            f"{name}: {len(kept):,} problems of {len(problems):,} rows; {is_repeat.sum():,} repeats of prompt and "
            f"answer, {num_contradicted_prompts:,} prompts with different answers"
        )
    return _with_unique_ids(kept, name, rows)


def _with_unique_ids(problems: Dataset, name: str, rows: Iterable[int]) -> Dataset:
    """Returns the problems with unique ids: their own or, if these are missing or not unique, names with their row
    numbers in `rows`."""
    ids = problems["id"][:] if "id" in problems.column_names else []
    unique_ids = {value for value in ids if isinstance(value, str | int)}
    if len(unique_ids) == len(problems):
        return problems
    if ids:
        logger.warning(
            f"{name}: ids are not unique, or are neither text nor 64-bit integers, so {name}-ROW replaces them"
        )
        problems = problems.remove_columns("id")
    return problems.add_column("id", [f"{name}-{row}" for row in rows])
