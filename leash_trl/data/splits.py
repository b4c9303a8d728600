"""Loads the unchanged rows of a file, a folder, a Hub data set or the gym, by split."""

import csv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from datasets import Dataset, IterableDataset, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError
from huggingface_hub.errors import HfHubHTTPError
from pyarrow import ArrowInvalid  # type: ignore[import-untyped]

from leash_trl.data.references import FILE_BUILDERS, Reference
from leash_trl.gym.dataset import load_gym


Rows: TypeAlias = Dataset | IterableDataset


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
    """Raises `ValueError` with the name of a broken or empty file, which the errors of `datasets` leave out."""
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
        `ValueError`: If the data set cannot be reached or read.
    """
    with named_files(reference.path or reference.hub_id):
        if reference.path is not None:
            return _local_splits(reference.path, **options)
        if reference.embedded is not None:
            return load_gym(reference.embedded)
        return _hub_splits(reference, **options)
