"""Loads problems to evaluate on or to filter, and rows to train on, from published data, files and the Hub."""

import glob
import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from datasets import Dataset, Features, IterableDataset, Value, concatenate_datasets, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError
from datasets.load import load_dataset_builder
from pyarrow import ArrowInvalid  # type: ignore[import-untyped]

from leash_trl.completions.prompts import TEMPLATE_COLUMN
from leash_trl.data.prompts import as_conversation, bare_question, contains_suffix, log_suffix_once
from leash_trl.data.reasoning_gym import load_reasoning_gym
from leash_trl.data.schemas import Schema, column_types, columns_to_read, detect_schema, row_id
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
    purpose: Purpose = "benchmark",
    *,
    split: str | None = None,
    limit: int | None = None,
    needs_gold: bool = True,
    **prompt_options: Any,
) -> Dataset:
    """Loads problems with the columns that TRL uses, and the columns of their source.

    In training data, repeated rows are dropped, and also all rows of a prompt that occurs with different answers,
    since it is not known which answer is correct; a warning states the number of such rows. Benchmarks keep every row,
    so that results are comparable with published ones.

    Args:
        reference (`str`): A named source, `NAME=PATH`, a path or a Hub id, as for
            [`~leash_trl.data.sources.parse_reference`].
        purpose (`str`): `"train"` or `"benchmark"`.
        split (`str`): Split to read; by default the only one. If a named source has several, the default is `train`
            for training and the split of the source for a benchmark; other data then has no default. A file has only
            the split `train`.
        limit (`int`): Number of problems to keep, from the start of the data set; at least 1, by default all.
        needs_gold (`bool`): Whether each row must have an answer. If not, as always for problems of reasoning-gym, all
            rows are kept, and golds are read as [`load_training_rows`] does.
        prompt_options: Arguments of [`~leash_trl.data.as_conversation`], which turns questions into prompts:
            `suffix`, `has_chat_template` and `system_prompt`. `suffix` may also be a function that returns the text
            for the columns of the data. The suffix that is appended is logged once.

    Returns:
        `Dataset`: Columns `id` (unique), `prompt` (messages; without a chat template, text stays text), `solution`
        (`str`; without `needs_gold` it may be of another type, `None` or missing), and the other columns of the
        source.

    Raises:
        `ValueError`: If the data set, split or schema is unknown, the data cannot be loaded, or a row lacks a required
            value.
    """
    # A negative limit would drop problems from the end.
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, but must be 1 or more; leave it out for all problems")
    parsed_reference = parse_reference(reference, field="reference")
    name = parsed_reference.name
    splits = load_splits(parsed_reference)  # such as {"train": Dataset, "test": Dataset}
    split = split or _default_split(splits, parsed_reference.source, purpose)
    raw = _named_split(splits, field="split", split=split, name=name)
    # Problems of reasoning-gym have this column, with which their reward function scores answers without a gold.
    needs_gold = needs_gold and "reasoning_gym" not in raw.column_names
    problems = _read_rows(raw, name, needs_gold=needs_gold, **prompt_options)
    if needs_gold and purpose == "train":
        problems = _without_repeats(problems, name)
    else:
        problems = _with_unique_ids(problems, name, rows=range(len(problems)))
    return problems.select(range(len(problems))[:limit])


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
    files, other Hub ids and mixtures keep all rows. If they have a column `prompt`, the suffix is appended to it. The
    gold of verl's column `reward_model` or slime's `label` is copied to `solution`; if such a column holds
    something else, for example a label for a reward function, `solution` is `None`.

    Args:
        data (`str` or `Mapping`): As for [`load_problems`], or the splits of a mixture.
        train_split (`str`), test_split (`str`): Splits to read; if `test_split` is `None`, so are the rows to evaluate
            on.
        streaming (`bool`): Whether files and data of the Hub are read during training. Repeated rows of a named source
            are then kept.
        config (`str`): Configuration on the Hub; by default that of the source.
        prompt_options: As for [`load_problems`].

    Raises:
        `ValueError`: If the data set, split or schema is unknown, the data cannot be loaded, a prompt is blank, or the
            rows to train on are the evaluation split of a benchmark.
    """
    if isinstance(data, str):
        reference = parse_reference(data, config)
        splits = load_splits(reference, streaming)
    else:
        reference = Reference("the mixture")  # a name for messages
        splits = data
    if _is_for_evaluation(reference.source, splits, train_split):
        raise ValueError(
            f"dataset_train_split is {train_split!r}, but {reference.name} is a benchmark for evaluation; name its "
            "train split, or train on other data"
        )
    train = _read_training_split(splits, reference, "dataset_train_split", train_split, **prompt_options)
    if test_split is None:
        return train, None
    return train, _read_training_split(splits, reference, "dataset_test_split", test_split, **prompt_options)


def _is_for_evaluation(source: Source | None, splits: Splits, split: str) -> bool:
    """Returns whether a split is the evaluation split of a benchmark."""
    if source is None or source.purpose != "benchmark":
        return False
    # Some benchmarks, such as GSM8K, also have a split to train on. If there is only one split, it is the one for
    # evaluation, whatever its name.
    return len(splits) == 1 or split == source.split


def _read_training_split(splits: Splits, reference: Reference, field: str, split: str, **prompt_options: Any) -> Rows:
    """Returns the rows of a split, which the user named in the argument `field`."""
    raw = _named_split(splits, field=field, split=split, name=reference.name)
    # the user's files, other Hub ids and mixtures
    if reference.source is None:
        return _read_rows(raw, reference.name, needs_gold=False, **prompt_options)
    if isinstance(raw, IterableDataset):
        logger.warning("%s is streamed, so repeated and contradictory rows are kept", reference.name)
        return _read_rows(raw, reference.name, needs_gold=False, **prompt_options)
    rows = _read_rows(raw, reference.name, needs_gold=True, **prompt_options)
    return _without_repeats(rows, reference.name)


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
        # the name of data that this package makes, such as "gym"; `None` for data on the Hub
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
    source = _folder_source(path, config) if path.is_dir() else _file_source(path)
    reader = load_dataset_builder(**source)
    if reader.name != "csv":
        return load_dataset(**source, streaming=streaming)
    # such as {"train": ["data/train-0.csv", "data/train-1.csv"]}
    files_by_split = reader.config.data_files
    return {str(split): _csv_dataset(files, reader.config.sep) for split, files in files_by_split.items()}


def _file_source(path: Path) -> dict[str, Any]:
    """Returns the arguments with which `load_dataset` reads a file."""
    builder = file_builder(path)
    if builder is None:
        raise ValueError(f"{path} ends in {path.suffix!r}, but must be a folder or end in {', '.join(FILE_BUILDERS)}")
    # `data_files` is a pattern, so characters such as [ in the path must be escaped.
    return {"path": builder, "data_files": glob.escape(str(path))}


def _folder_source(path: Path, config: str | None) -> dict[str, Any]:
    """Returns the arguments with which `load_dataset` reads a folder of files."""
    # The builders for the types of the files, such as {"json"}; a README, for example, has none.
    builders = {builder for builder in map(file_builder, path.iterdir()) if builder is not None}
    # Without a configuration, which may choose the files, `datasets` would silently read those of one type only.
    if len(builders) > 1 and not config:
        raise ValueError(f"{path} holds files of several types, {' and '.join(sorted(builders))}; keep one")
    return {"path": str(path), "name": config}


def _csv_dataset(paths: Iterable[str], sep: str) -> Dataset:
    """Reads prompts, golds and ids as text, since `033` and `None` would change. Another column becomes numbers if
    each cell is empty, or a number that would be written as in the file."""
    # With these arguments, every cell is text, and an empty cell is the empty text.
    frame = pd.concat([pd.read_csv(path, sep=sep, dtype=object, keep_default_na=False) for path in paths])
    schema = detect_schema(frame.columns, needs_gold=False)
    for name in frame.columns.difference(columns_to_read(schema, frame.columns)):
        numbers = _numbers_of(frame[name])
        if numbers is not None:
            frame[name] = numbers
    return Dataset.from_pandas(frame, preserve_index=False)


def _numbers_of(texts: pd.Series) -> pd.Series | None:
    """Returns a column of texts as numbers; `None` if it has no number, or if a text would change."""
    # A cell that is no number becomes NaN. `convert_dtypes` makes whole numbers integers, so that 3 is not 3.0.
    numbers = pd.to_numeric(texts, errors="coerce").convert_dtypes()
    is_same_as_text = numbers.astype(str) == texts
    # A cell is NaN if another file has the column, but the file of this row does not.
    is_empty = texts.isin(["", np.nan])
    is_unchanged = (is_same_as_text | is_empty).all()
    return numbers if is_unchanged and numbers.notna().any() else None


def _default_split(splits: Splits, source: Source | None, purpose: Purpose) -> str | None:
    """Returns the split to read where the user named none; `None` if the data leaves the choice open."""
    if len(splits) == 1:
        return next(iter(splits))
    if source is None:
        return None
    # `leash filter` reads problems to train on, also from a source such as GSM8K, whose own split is for evaluation.
    return "train" if purpose == "train" else source.split


def _named_split(splits: Splits, field: str, split: str | None, name: str) -> Rows:
    """Returns the rows of a split, which the user named in the argument `field`."""
    if split is None or split not in splits:
        raise ValueError(
            f"{field} is {split!r}, but {name} has the splits {', '.join(splits)}; name one of them, or a folder with "
            "a file for each, such as train.jsonl and test.jsonl"
        )
    return splits[split]


@dataclass(frozen=True)
class RowReader:
    """Makes prompt, gold and id of the rows of a data set.

    Args:
        name (`str`): Name of the data set, for ids and messages.
        schema (`Schema`): How questions and golds are read; `None` if the data has only prompts.
        needs_gold (`bool`): Whether each row must have an answer; if so, it also gets an `id`.
        suffix (`str`), has_chat_template (`bool`), system_prompt (`str`): Arguments of `as_conversation`.
    """

    name: str
    schema: Schema | None
    needs_gold: bool
    suffix: str
    has_chat_template: bool
    system_prompt: str | None

    @property
    def asks_prompt(self) -> bool:
        """Returns whether the questions are those of the column `prompt`."""
        return self.schema is None or "prompt" in self.schema.columns

    def types(self, features: Features) -> dict[str, Any]:
        """Returns the types of the columns that are made, for the types of the columns that are read."""
        types: dict[str, Any] = {}
        if self.needs_gold:
            types["id"] = TEXT_TYPE
        types["prompt"] = self._prompt_type(features)
        if self.schema is not None:
            types["solution"] = self._solution_type(self.schema, features)
        return types

    def _prompt_type(self, features: Features) -> Any:
        if self.asks_prompt and not isinstance(features["prompt"], Value):
            return features["prompt"]  # messages, which keep all their fields, such as calls of tools
        return [{"role": TEXT_TYPE, "content": TEXT_TYPE}] if self.has_chat_template else TEXT_TYPE

    def _solution_type(self, schema: Schema, features: Features) -> Any:
        if self.needs_gold or "solution" not in schema.columns:
            return TEXT_TYPE
        # For the user's own reward function, numbers become text, and values of other types, such as lists, are kept.
        gold = features["solution"]
        is_number = isinstance(gold, Value) and gold.dtype.startswith(("int", "float"))
        return TEXT_TYPE if is_number else gold

    def read_batch(self, batch: Mapping[str, list[Any]], indices: list[int]) -> dict[str, list[Any]]:
        """Applies `read_row` to each row of a batch, which maps columns to lists."""
        rows = []
        # {"question": ["2 + 2?", "3 + 3?"], "answer": ["4", "6"]} has the rows ("2 + 2?", "4") and ("3 + 3?", "6").
        values_by_row = zip(*batch.values(), strict=True)
        for index, values in zip(indices, values_by_row, strict=True):
            row = dict(zip(batch, values, strict=True))
            try:
                rows.append(self.read_row(row, default_id=f"{self.name}-{index}"))
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                raise ValueError(f"{self.name}, row {index} (counted from 0): {error}") from error
        return {column: [row[column] for row in rows] for column in rows[0]}

    def read_row(self, row: Mapping[str, Any], default_id: str) -> dict[str, Any]:
        """Returns `prompt`, with `id` if a gold is needed, and with `solution` if the data has a schema."""
        columns: dict[str, Any] = {}
        if self.needs_gold:
            columns["id"] = row_id(row) or default_id
        question = row.get("prompt")
        if self.schema is not None:
            question, columns["solution"] = self._question_and_gold(self.schema, row)
        # If the data had messages, their question becomes a message again even without a chat template.
        is_message = self.asks_prompt and not isinstance(row["prompt"], str)
        # `as_conversation` reads the prompt and the images of a row.
        row_to_ask = {**row, "prompt": question}
        prompt = as_conversation(row_to_ask, self.suffix, self.has_chat_template or is_message, self.system_prompt)
        return {**columns, **prompt}

    def _question_and_gold(self, schema: Schema, row: Mapping[str, Any]) -> tuple[Any, Any]:
        """Returns what to ask, as text or messages, and the value of the column `solution`."""
        try:
            question, gold = schema.read_row(row)
        except (AttributeError, TypeError, ValueError):
            if self.needs_gold or not self.asks_prompt:
                raise
            # The value cannot be read as a gold, but it may be a label or a list for the user's own reward function.
            return row["prompt"], row.get("solution")
        # A suffix replaces the template that the data has around a question.
        if self.suffix and schema.has_template and isinstance(question, str):
            question = bare_question(question)
        return question, gold


def _read_rows(
    raw: Rows,
    name: str,
    needs_gold: bool,
    suffix: Suffix = "",
    has_chat_template: bool = True,
    system_prompt: str | None = None,
) -> Rows:
    """Returns the rows of a split, with prompts by the rule of `as_conversation`, golds in `solution`, and their own
    columns. If a gold is needed, they also get an `id`."""
    features = column_types(raw)
    reader = RowReader(
        name,
        detect_schema(features, needs_gold),
        needs_gold=needs_gold,
        suffix=suffix if isinstance(suffix, str) else suffix(features),
        has_chat_template=has_chat_template,
        system_prompt=system_prompt,
    )
    rows = _read_stream(raw, reader) if isinstance(raw, IterableDataset) else _read_dataset(raw, reader)
    first = next(iter(rows), None)  # `None` if there are no rows
    # Prompts that are messages get no suffix.
    if reader.suffix and first is not None and contains_suffix(first["prompt"], reader.suffix):
        log_suffix_once(reader.suffix)
    return rows


def _read_stream(raw: IterableDataset, reader: RowReader) -> IterableDataset:
    """Applies the reader while the stream is read, and keeps the other columns."""
    # If the stream does not state its types, neither does the result.
    types = raw.features and Features({**raw.features, **reader.types(raw.features)})
    return raw.map(reader.read_batch, with_indices=True, batched=True, features=types)


def _read_dataset(raw: Dataset, reader: RowReader) -> Dataset:
    """Applies the reader, and puts the other columns beside the result as they are on the disk, so that these columns
    are neither read nor copied."""
    types = reader.types(raw.features)
    needed = columns_to_read(reader.schema, raw.column_names)
    rows = raw.select_columns(needed).map(
        reader.read_batch,
        with_indices=True,
        batched=True,
        remove_columns=needed,
        features=Features(types),
        # The cache would not notice a change of this package's code, on which its key does not depend.
        load_from_cache_file=False,
        desc=f"reading {reader.name}",
    )
    others = [column for column in raw.column_names if column not in types]
    if not others:
        return rows
    return concatenate_datasets([rows, raw.select_columns(others)], axis=1)


def _without_repeats(problems: Dataset, name: str) -> Dataset:
    """Drops repeated rows, and all rows of a prompt with different answers; a warning states their number."""
    frame = _compared_columns(problems)
    is_repeat = frame.duplicated()  # whether an earlier row is equal
    is_contradicted = frame.groupby("prompt_hash")["solution"].transform("nunique") > 1
    rows = np.flatnonzero(~(is_repeat | is_contradicted))  # the numbers of the rows to keep
    if len(rows) < len(problems):
        num_contradicted_prompts = frame["prompt_hash"][is_contradicted].nunique()
        logger.warning(
            f"{name}: {len(rows):,} problems of {len(problems):,} rows; {is_repeat.sum():,} repeats of prompt and "
            f"answer, {num_contradicted_prompts:,} prompts with different answers"
        )
    return _with_unique_ids(problems.select(rows), name, rows)


def _compared_columns(problems: Dataset) -> pd.DataFrame:
    """Returns the columns in which two rows of the same problem are equal: `prompt_hash`, of the prompt and of its
    arguments of the chat template, `solution` and, if there is one, `target_length`."""
    asked = problems.select_columns([name for name in ("prompt", TEMPLATE_COLUMN) if name in problems.column_names])
    # Hashes need less memory than prompts. Python's own `hash` suffices, as they are compared in this process only.
    hashes: list[int] = []
    for batch in asked.iter(batch_size=10_000):
        hashes.extend(hash(str(values)) for values in zip(*batch.values(), strict=True))
    frame = pd.DataFrame({"prompt_hash": hashes, "solution": problems["solution"][:]})
    # The same question with another target is no repeat.
    if "target_length" in problems.column_names:
        frame["target_length"] = problems["target_length"][:]
    return frame


def _with_unique_ids(problems: Dataset, name: str, rows: Iterable[int]) -> Dataset:
    """Returns the problems with unique ids: their own or, if these are missing, not unique, or neither text nor
    integers, `NAME-ROW` with their row numbers in `rows`."""
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
