"""Problems in TRL's columns from named sources, files, folders and the Hub, without repeats and contradictions."""

import csv
import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from datasets import Dataset, Features, IterableDataset, Value, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError
from huggingface_hub.errors import HfHubHTTPError
from pyarrow import ArrowInvalid  # type: ignore[import-untyped]

from leash_trl.data.prompts import BOXED_SUFFIX, as_conversation
from leash_trl.data.references import FILE_BUILDERS, Kind, Reference, parse_reference
from leash_trl.data.repeats import contradictory_prompts, digests, first_of_each
from leash_trl.data.schemas import (
    KEPT_COLUMNS,
    Schema,
    columns_to_read,
    detect_schema,
    find_schema,
    read_row,
    read_target,
    read_text,
)
from leash_trl.gym.dataset import load_gym


logger = logging.getLogger(__name__)

Rows: TypeAlias = Dataset | IterableDataset


@dataclass(frozen=True)
class LoadReport:
    """What became of the rows of one data set.

    Args:
        name (`str`):
            Short name of the data set.
        schema (`str`):
            How its rows were read.
        num_rows (`int`):
            Rows of the split.
        num_copies (`int`):
            Rows that copy another, by the columns that identify a row (DAPO-Math-17k: index and prompt).
        num_repeats (`int`):
            Further rows that repeat prompt, answer and target length of another.
        num_contradictory_prompts (`int`):
            Prompts that occur with different answers.
        num_contradictory_problems (`int`):
            Problems with such a prompt, repeats not counted again.
        num_problems (`int`):
            Problems that are left, before any limit. In a benchmark the above is counted and kept.
    """

    name: str
    schema: str
    num_rows: int
    num_copies: int
    num_repeats: int = 0
    num_contradictory_prompts: int = 0
    num_contradictory_problems: int = 0
    num_problems: int = 0

    def __str__(self) -> str:
        found = {
            "copies of a row": self.num_copies,
            "repeats of prompt and answer": self.num_repeats,
            "prompts with different answers": self.num_contradictory_prompts,
        }
        parts = [f"{count:,} {what}" for what, count in found.items() if count]
        return "; ".join([f"{self.name}: {self.num_problems:,} problems of {self.num_rows:,} rows", *parts])


def _csv_rows(path: Path) -> Dataset:
    """All columns as text: pandas would make numbers of `033` and nothing of `None`, which are answers."""
    with open(path, newline="", encoding="utf-8") as file:
        return Dataset.from_list(list(csv.DictReader(file)))


def _local_splits(path: Path, **options: Any) -> Mapping[str, Rows]:
    """Splits of a file (`train` alone), of a folder of files or of a folder that `save_to_disk` wrote."""
    if path.is_dir():
        is_saved = any((path / name).is_file() for name in ("state.json", "dataset_dict.json"))
        dataset = load_from_disk(str(path)) if is_saved else load_dataset(str(path), **options)
        return {"train": dataset} if isinstance(dataset, Dataset) else dataset
    if path.suffix not in FILE_BUILDERS:
        raise ValueError(f"{path} ends in {path.suffix!r}, must be a folder or end in {', '.join(FILE_BUILDERS)}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty; fill it or name another file")
    if path.suffix == ".csv":
        return {"train": _csv_rows(path)}
    return load_dataset(FILE_BUILDERS[path.suffix], data_files=str(path), **options)


def _hub_splits(reference: Reference, **options: Any) -> Mapping[str, Rows]:
    try:
        return load_dataset(reference.hub_id, reference.config, **options)
    except (OSError, HfHubHTTPError) as error:
        is_gated = "gated" in str(error) or (reference.source is not None and reference.source.is_gated)
        gate = f"; it is gated: accept its terms on the Hub's page of {reference.hub_id}, then run `hf auth login`"
        remedy = f"Check the id and the connection{gate if is_gated else ''}"
        raise ValueError(
            f"cannot load {reference.hub_id} from the Hub ({error}). {remedy}, or name a local copy"
            + (f" as {reference.name}=PATH" if reference.source else "")
        ) from error


@contextmanager
def named_files(name: object) -> Iterator[None]:
    """Names what `datasets` cannot read, where its own errors do not: `ValueError` for broken and empty files."""
    try:
        yield
    except (DatasetGenerationError, ArrowInvalid) as error:
        raise ValueError(f"{name} cannot be read: {error.__cause__ or error}") from error
    except StopIteration as error:
        raise ValueError(f"{name} holds an empty file; fill it or take it away") from error


def load_splits(reference: Reference, **options: Any) -> Mapping[str, Rows]:
    """The rows of a data set as they are, by split.

    Args:
        reference (`Reference`):
            The data set.
        options:
            Further arguments of `datasets.load_dataset`, such as `streaming=True`.

    Raises:
        `ValueError`: If it cannot be reached or read.
    """
    with named_files(reference.path or reference.hub_id):
        if reference.path is not None:
            return _local_splits(reference.path, **options)
        return _hub_splits(reference, **options) if reference.hub_id is not None else load_gym()


def _chosen_split(splits: Mapping[str, Dataset], wanted: str | None, reference: Reference) -> Dataset:
    """The split that was asked for, else the source's own, else the only one."""
    usual = reference.source.split if reference.source else None
    for name in (wanted,) if wanted is not None else (usual, *(splits if len(splits) == 1 else ())):
        if name in splits:
            return splits[name]
    raise ValueError(f"split is {wanted!r}, but {reference.name} has the splits {', '.join(splits)}; name one of them")


def _distinct_rows(raw: Dataset, schema: Schema) -> Sequence[int]:
    """Indices of the rows without copies; all rows where no columns tell."""
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
    """The ids of the source where they tell its problems apart, else `NAME-ROW` for all."""
    if len(set(problems["id"])) == len(problems):
        return problems
    logger.warning("%s: the ids of its rows are not unique, so its problems are called %s-ROW instead", name, name)
    return problems.map(
        lambda _, index: {"id": f"{name}-{rows[index]}"}, with_indices=True, load_from_cache_file=False
    )


def _without_repeats(
    problems: Dataset, rows: Sequence[int], is_benchmark: bool, report: LoadReport
) -> tuple[Dataset, Sequence[int], LoadReport]:
    """Problems, their rows and the report with its counts of repeats; a benchmark keeps what they count."""
    prompts = list(digests(problems, ["prompt"]))
    contradictory = contradictory_prompts(prompts, list(digests(problems, ["prompt", "solution"])))
    told_apart_by = [column for column in ("prompt", "solution", "target_length") if column in problems.column_names]
    distinct = first_of_each(digests(problems, told_apart_by))
    kept = [index for index in distinct if prompts[index] not in contradictory]
    report = replace(
        report,
        num_repeats=len(problems) - len(distinct),
        num_contradictory_prompts=len(contradictory),
        num_contradictory_problems=len(distinct) - len(kept),
    )
    if is_benchmark:
        return problems, rows, report
    return problems.select(kept), [rows[index] for index in kept], report


def _check_size(num_rows: int, named: Reference) -> None:
    if num_rows == 0:
        raise ValueError(f"{named.name} has no rows")
    expected = named.source.num_rows if named.source else None
    if named.is_benchmark and expected not in (None, num_rows):
        logger.warning("%s has %d rows, but is known to have %d", named.name, num_rows, expected)


def load_with_report(
    reference: str,
    *,
    split: str | None = None,
    suffix: str = BOXED_SUFFIX,
    limit: int | None = None,
    kind: Kind | None = None,
    has_chat_template: bool = True,
) -> tuple[Dataset, LoadReport]:
    """Problems as `load_problems` gives them, and what became of the rows they come from.

    Returns:
        `tuple[Dataset, LoadReport]`: Problems and counts.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, must be 1 or more")
    named = parse_reference(reference)
    raw = _chosen_split(load_splits(named), split, named)
    _check_size(len(raw), named)
    is_benchmark = named.is_benchmark if kind is None else kind == "benchmark"
    problems, report = _read_problems(raw, named.name, suffix, is_benchmark, has_chat_template)
    return problems.select(range(min(limit or len(problems), len(problems)))), report


def _read_problems(
    raw: Dataset, name: str, suffix: str, is_benchmark: bool, has_chat_template: bool
) -> tuple[Dataset, LoadReport]:
    schema = detect_schema(raw.column_names)
    rows = range(len(raw)) if is_benchmark else _distinct_rows(raw, schema)
    report = LoadReport(name, schema.name, num_rows=len(raw), num_copies=len(raw) - len(rows))
    problems = _read_rows(raw, rows, schema, name, suffix, has_chat_template)
    problems, rows, report = _without_repeats(problems, rows, is_benchmark, report)
    problems = _with_unique_ids(problems, rows, name)
    return problems, replace(report, num_problems=len(problems))


def _log(report: LoadReport) -> None:
    found = (report.num_copies, report.num_repeats, report.num_contradictory_prompts)
    logger.log(logging.WARNING if any(found) else logging.INFO, "%s", report)


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
    left out with all its rows, because at most one is right and nothing tells which. Benchmarks keep every row, so
    that their figures compare with those of others. All is counted, and logged as a warning where there is any.

    Args:
        reference (`str`):
            What `leash_trl.data.references.parse_reference` takes: a named source, `NAME=PATH`, a path or a Hub id.
        split (`str`, *optional*):
            Split to read, defaults to the source's own, else to the only one. A file has the split `train` alone.
        suffix (`str`, *optional*):
            Appended to questions, defaults to the instruction of the LEASH authors' release; `""` leaves them bare.
            Questions that end with it already, and prompts that are messages in TRL's form, stay as they are.
        limit (`int`, *optional*):
            Number of problems to keep, the first ones.
        kind (`str`, *optional*):
            `"train"` or `"benchmark"`, defaults to the named source's, and to `"train"` for files and Hub ids.
        has_chat_template (`bool`, *optional*, defaults to `True`):
            As for `as_conversation`.

    Returns:
        `Dataset`: Columns `id` (unique), `prompt` (messages, the last one the user's), `solution` (`str`), and
        `target_length`, `level`, `subject`, `difficulty`, `data_source` where the source has them.

    Raises:
        `ValueError`: If the data set, split or schema is not known, cannot be reached, or a row lacks what it needs.
    """
    problems, report = load_with_report(
        reference, split=split, suffix=suffix, limit=limit, kind=kind, has_chat_template=has_chat_template
    )
    _log(report)
    return problems


def training_rows(raw: Rows, name: str, suffix: str = BOXED_SUFFIX, has_chat_template: bool = True) -> Rows:
    """One split of training data, its prompts by the rule of [`~leash_trl.data.as_conversation`].

    Rows with a prompt keep all their columns, which reward functions may want, and none is left out, whatever other
    schemas they fit. Where the gold has another name (verl, slime), `solution` is added; it is `None` where what
    stands there is no gold, as a label for a reward function may be. Rows without a prompt become problems, as
    `load_problems` makes them.

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
        `ValueError`: If there are no rows, no known schema, or a row asks nothing.
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
            raise ValueError(f"{name} has columns {', '.join(columns)}, which are read as a whole; do not stream it")
        return raw.map(_as_training_row, **how)
    if len(raw) == 0:
        raise ValueError(f"{name} has no rows")
    if not keeps_rows:
        problems, report = _read_problems(raw, name, suffix, False, has_chat_template)
        _log(report)
        return problems
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
    """What a row of verl or slime asks, if it is text, and its gold; neither if the row only has such columns."""
    try:
        question, gold = detect_schema(row).read(row)
    except (ValueError, AttributeError):  # a label that is no gold, a reward_model that is no mapping
        return None, None
    return question if isinstance(question, str) else None, gold


def _training_features(raw: Rows, has_chat_template: bool) -> Features | None:
    """Types of the columns once prompts follow the rule, and golds and targets are what they are in problems; `None`
    where a stream does not say."""
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


def fingerprint(problems: Dataset) -> str:
    """Sixteen hexadecimal digits that change with any id, prompt, solution or the order of the problems.

    Args:
        problems (`Dataset`):
            Problems as `load_problems` gives them; other columns do not count.

    Returns:
        `str`: Start of the SHA-256 of ids, prompts and solutions.
    """
    sha = hashlib.sha256()
    for row in problems.select_columns(["id", "prompt", "solution"]):
        sha.update(json.dumps([row["id"], row["prompt"], row["solution"]], sort_keys=True).encode())
    return sha.hexdigest()[:16]
