"""DAPO's dynamic sampling: replaces groups without signal by fresh prompts, for a bounded number of rounds.

Each round decides from the rewards of all processes, so every process decides alike.
"""

from collections.abc import Collection, Mapping, Sized
from typing import Any

import torch

from leash_trl.length_control.targets import question_of
from leash_trl.microbatching import batch_fields


class PromptStream:
    """Rows of a data set, pass after pass, in an order that is the same on every process.

    The first pass goes backwards through the first epoch's order. So no prompt comes twice until batches and
    replacements together have used up the data set. Later passes are in seeded random order.

    Args:
        dataset (`Dataset`):
            Data set with a length and rows by index.
        seed (`int`):
            Seed of the run.
        is_shuffled (`bool`, *optional*, defaults to `True`):
            Whether epochs are in random order.
    """

    def __init__(self, dataset: Any, seed: int, is_shuffled: bool = True):
        self._dataset = dataset
        self._seed = seed
        self._is_shuffled = is_shuffled
        self._order: list[int] = []
        self._pass = -1
        self.position = 0

    def check(self) -> None:
        """Raises `ValueError` if the data set is a stream, which has no rows by index."""
        if not isinstance(self._dataset, Sized):
            raise ValueError(
                "dynamic_sampling_rounds draws training prompts at random, which a streamed data "
                "set does not allow; load it with dataset_streaming: false"
            )

    def _next(self) -> dict[str, Any]:
        number, index = divmod(self.position, len(self._dataset))
        if number != self._pass:
            self._order, self._pass = self._order_of(number), number
        self.position += 1
        return self._dataset[self._order[index]]

    def _order_of(self, number: int) -> list[int]:
        # TRL: RepeatSampler.__iter__ makes the first epoch's order in the same way
        size = len(self._dataset)
        if number == 0 and not self._is_shuffled:
            return list(range(size))[::-1]
        generator = torch.Generator().manual_seed(self._seed + number)
        return torch.randperm(size, generator=generator).flip(0).tolist()

    def draw(self, count: int, without: Collection[int] = ()) -> list[dict[str, Any]]:
        """
        The next rows; a question comes twice only if the data set has no others.

        Args:
            count (`int`):
                Number of rows.
            without (`Collection[int]`):
                Questions to skip, as `question_of` returns them.
        """
        rows: list[dict[str, Any]] = []
        used, num_passed_over = {*without}, 0
        while len(rows) < count:
            row = self._next()
            question = question_of(row)
            if question in used and num_passed_over < len(self._dataset):
                num_passed_over += 1
                continue
            used.add(question)
            rows.append(row)
        return rows


def groups_per_process(has_signal: torch.Tensor, num_processes: int) -> int:
    """Number of fresh groups that every process samples: as many as the process with the most dead groups needs.

    Args:
        has_signal (`torch.Tensor` of shape `(P,)`):
            Whether each group has signal, the groups of a process side by side.
        num_processes (`int`):
            Number of processes.

    Example:
        >>> groups_per_process(torch.tensor([True, False, False, False]), num_processes=2)
        2
    """
    return int((~has_signal).view(num_processes, -1).sum(dim=1).max())


def replacements(has_signal: torch.Tensor, is_fresh_alive: torch.Tensor, num_processes: int) -> list[int]:
    """Source of each group: a number below P is an old group, from P on a fresh group of the same process.

    Args:
        has_signal (`torch.Tensor` of shape `(P,)`):
            Whether each old group has signal, the groups of a process side by side.
        is_fresh_alive (`torch.Tensor` of shape `(F,)`):
            The same for the fresh groups.
        num_processes (`int`):
            Number of processes.

    Example:
        >>> replacements(torch.tensor([True, False, False]), torch.tensor([False, True]), num_processes=1)
        [0, 4, 2]
    """
    sources = list(range(len(has_signal)))
    share, fresh_share = len(has_signal) // num_processes, len(is_fresh_alive) // num_processes
    for process in range(num_processes):
        dead = [g for g in range(process * share, (process + 1) * share) if not has_signal[g]]
        alive = [f for f in range(process * fresh_share, (process + 1) * fresh_share) if is_fresh_alive[f]]
        for group, fresh in zip(dead, alive, strict=False):
            sources[group] = len(has_signal) + fresh
    return sources


def group_rows(groups: list[int], num_generations: int) -> torch.Tensor:
    """`torch.Tensor` of shape `(len(groups) * G,)`: All rows of these groups."""
    return torch.tensor([group * num_generations + i for group in groups for i in range(num_generations)])


def local_rows(
    sources: list[int], num_groups: int, fresh_share: int, process: int, num_processes: int, num_generations: int
) -> torch.Tensor:
    """Rows of this process's groups, counted through its old batch and then through its fresh batch.

    Args:
        sources (`list[int]`):
            From [`replacements`].
        num_groups (`int`):
            P, groups of all processes.
        fresh_share (`int`):
            Fresh groups that each process sampled.
        process (`int`), num_processes (`int`):
            Index of this process, and number of processes.
        num_generations (`int`):
            G, completions per prompt.

    Example:
        >>> local_rows([0, 5, 2, 3], 4, 1, process=1, num_processes=2, num_generations=1).tolist()
        [0, 1]
        >>> local_rows([0, 4, 2, 3], 4, 1, process=0, num_processes=2, num_generations=1).tolist()
        [0, 2]
    """
    share = num_groups // num_processes
    own = sources[process * share : (process + 1) * share]
    groups = [
        source - process * share if source < num_groups else source - num_groups - process * fresh_share + share
        for source in own
    ]
    return group_rows(groups, num_generations)


def merged_batch(
    old: Mapping[str, torch.Tensor], fresh: Mapping[str, torch.Tensor], rows: torch.Tensor, pad_token_id: int
) -> batch_fields.Batch:
    """One process's padded training batch, picked from the rows of `old` followed by those of `fresh`.

    Args:
        old (`Mapping`), fresh (`Mapping`):
            What TRL's `_generate_and_score_completions` returns: tensors of shape `(B,)` or `(B, T)`.
        rows (`torch.Tensor` of shape `(B,)`):
            Rows to keep.
        pad_token_id (`int`):
            The tokenizer's padding token.

    Raises:
        `ValueError`: If the batch holds fields that cannot be replaced row by row, such as images.
    """
    if unknown := sorted(old.keys() - batch_fields.FIELDS):
        raise ValueError(f"dynamic_sampling_rounds cannot replace {', '.join(unknown)} (images?); set it to 0")
    both = batch_fields.joined([old, fresh], pad_token_id)
    return {
        name: values if name in batch_fields.WHOLE_FIELDS else values[rows.to(values.device)]
        for name, values in both.items()
    }


def wasted_share(num_generated: int, num_kept: int) -> float:
    """Share of the generated completions that are not trained on."""
    return 1.0 - num_kept / num_generated
