"""Finds repeated and contradictory rows by short digests, so that 1.8 million rows need no list of their texts."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from datasets import Dataset


ROWS_PER_READ = 10_000


def _digest(values: dict[str, Any]) -> bytes:
    return hashlib.blake2b(json.dumps(values, sort_keys=True, default=str).encode(), digest_size=16).digest()


def digests(dataset: Dataset, columns: Sequence[str]) -> Iterator[bytes]:
    """One digest of some columns per row, in the order of the rows.

    Args:
        dataset (`Dataset`):
            Read a batch at a time.
        columns (`Sequence[str]`):
            Columns that count.
    """
    for batch in dataset.select_columns(list(columns)).with_format("arrow").iter(ROWS_PER_READ):
        yield from map(_digest, batch.to_pylist())


def first_of_each(row_digests: Iterable[bytes]) -> list[int]:
    """Indices of the rows that repeat no row before them.

    Example:
        >>> first_of_each([b"a", b"b", b"a", b"c"])
        [0, 1, 3]
    """
    first: dict[bytes, int] = {}
    for index, digest in enumerate(row_digests):
        first.setdefault(digest, index)
    return list(first.values())


def contradictory_prompts(prompts: Sequence[bytes], prompts_and_answers: Sequence[bytes]) -> set[bytes]:
    """Digests of the prompts that occur with more than one answer.

    Args:
        prompts (`Sequence[bytes]`):
            Digests of the prompts, one per row.
        prompts_and_answers (`Sequence[bytes]`):
            Digests of prompt and answer together, one per row.

    Example:
        >>> contradictory_prompts([b"p", b"p", b"q", b"q"], [b"p1", b"p2", b"q1", b"q1"])
        {b'p'}
    """
    num_answers = Counter(prompt for prompt, _ in set(zip(prompts, prompts_and_answers, strict=True)))
    return {prompt for prompt, count in num_answers.items() if count > 1}
