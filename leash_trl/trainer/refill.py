"""Dynamic sampling (DAPO): fresh prompts for groups without signal, in rounds or ahead of the need.

Extra groups that are generated together with a batch are its first round. Each round is decided from the rewards of
all processes, so every process decides alike.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from leash_trl.length_control.targets import question_of
from leash_trl.microbatching import batch_fields


if TYPE_CHECKING:
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


Values = TypeVar("Values", list[Any], torch.Tensor)


def share_of(values: Values, process: int, num_processes: int) -> Values:
    """The part of one process, of values that stand process after process, equally many for each.

    Args:
        values (`list` or `torch.Tensor`):
            Values of all processes.
        process (`int`), num_processes (`int`):
            Index of the process, and number of processes.

    Example:
        >>> share_of(["a", "b", "c", "d"], process=1, num_processes=2)
        ['c', 'd']
    """
    share = len(values) // num_processes
    return values[process * share : (process + 1) * share]


@dataclass(frozen=True)
class StreamPosition:
    """How far a [`PromptStream`] has come in an epoch.

    Args:
        epoch (`int`):
            The epoch, from 0.
        from_end (`int`), from_start (`int`):
            Prompts taken from the end and from the start of the epoch's order.
    """

    epoch: int = 0
    from_end: int = 0
    from_start: int = 0

    def next(self, size: int, num_past: int, batch_size: int) -> tuple[int, "StreamPosition"]:
        """Place of the next prompt in the epoch's order, and the position after it.

        Args:
            size (`int`):
                Prompts in the data set.
            num_past (`int`):
                Prompts that the epoch held before the current batch.
            batch_size (`int`):
                Prompts of the current batch.

        Example:
            >>> StreamPosition(epoch=1).next(size=10, num_past=2, batch_size=2)
            (9, StreamPosition(epoch=1, from_end=1, from_start=0))
            >>> StreamPosition(epoch=1).next(size=10, num_past=6, batch_size=2)
            (0, StreamPosition(epoch=1, from_end=0, from_start=1))
        """
        num_ahead = size - self.from_end - num_past - batch_size
        num_behind = num_past - self.from_start
        if num_ahead > 0 and (self.epoch == 0 or num_ahead >= num_behind):
            return size - 1 - self.from_end, replace(self, from_end=self.from_end + 1)
        return self.from_start % size, replace(self, from_start=self.from_start + 1)


class PromptStream:
    """Rows of a data set to replace groups with, the same on every process.

    An epoch holds every prompt, so a replacement is either one that the epoch still holds or one that was trained on
    before. In the first epoch we take the former, from the epoch's end, since nobody has seen them: no prompt comes
    twice until batches and replacements together have used up the data set. In later epochs all have been seen, and
    we take the prompt whose other visit is farther away: from the epoch's end in its first half, from its start in
    its second. None is in the current batch, unless the data set has no other prompt.

    Args:
        dataset (`Dataset`):
            Data set with a length and rows by index; a stream has neither.
        seed (`int`):
            Seed of the run.
        is_shuffled (`bool`, *optional*, defaults to `True`):
            Whether epochs are in random order.
        batch_size (`int`, *optional*, defaults to `1`):
            P, prompts of a generation batch over all processes.
    """

    def __init__(self, dataset: Any, seed: int, is_shuffled: bool = True, batch_size: int = 1):
        self._dataset = dataset
        self._size = len(dataset)
        self._seed = seed
        self._is_shuffled = is_shuffled
        self._batch_size = batch_size
        self._order: tuple[int, list[int]] = (-1, [])  # an epoch and its order
        self.position = StreamPosition()

    def _order_of(self, epoch: int) -> list[int]:
        # TRL: RepeatSampler.__iter__ draws one permutation per epoch from one generator
        if not self._is_shuffled:
            return list(range(self._size))
        generator = torch.Generator().manual_seed(self._seed)
        for _ in range(epoch):
            torch.randperm(self._size, generator=generator)
        return torch.randperm(self._size, generator=generator).tolist()

    def draw(self, count: int, without: Collection[int] = (), batch: int = 0) -> list[dict[str, Any]]:
        """The next rows; a question comes twice only if the data set has no others.

        Args:
            count (`int`):
                Number of rows.
            without (`Collection[int]`):
                Questions to skip, as `question_of` returns them.
            batch (`int`):
                Number of the current generation batch, from 0 in the first epoch and counted through all epochs.
        """
        epoch, index = divmod(batch, max(1, self._size // self._batch_size))  # TRL leaves out the last, smaller batch
        if epoch != self.position.epoch:
            self.position = StreamPosition(epoch)
        if epoch != self._order[0]:
            self._order = epoch, self._order_of(epoch)
        rows: list[dict[str, Any]] = []
        used, num_skipped = {*without}, 0
        while len(rows) < count:
            place, self.position = self.position.next(self._size, index * self._batch_size, self._batch_size)
            row = self._dataset[self._order[1][place]]
            question = question_of(row)
            if num_skipped < self._size and question in used:
                num_skipped += 1
                continue
            used.add(question)
            rows.append(row)
        return rows


class Refill:
    """Draws the fresh prompts of a run, and knows what share of its groups has signal.

    Args:
        dataset (`Dataset`):
            Training data.
        args ([`LeashGRPOConfig`]):
            Configuration.
    """

    def __init__(self, dataset: Any, args: "LeashGRPOConfig"):
        num_groups = args.generation_batch_size // args.num_generations
        self.stream = PromptStream(dataset, args.seed, args.shuffle_dataset, num_groups)
        self.num_batches = 0
        self._most_extra = math.ceil(args.dynamic_sampling_oversample * (num_groups // args.world_size))
        self._groups_per_process = num_groups // args.world_size
        self._alive, self._seen = 0.0, 0.0

    def num_extra(self) -> int:
        """Groups that every process generates on top of its share of the next batch."""
        return extra_groups(
            self._groups_per_process, self._alive / self._seen if self._seen else 1.0, self._most_extra
        )

    def record(self, has_signal: torch.Tensor) -> None:
        """Ends a batch of which all generated groups had signal or not; each batch counts half as much as the next."""
        self.num_batches += 1
        self._alive = self._alive / 2 + int(has_signal.sum())
        self._seen = self._seen / 2 + len(has_signal)

    def state_dict(self) -> dict[str, Any]:
        """The state in types of JSON."""
        place = vars(self.stream.position)
        return {"place": {**place}, "batches": self.num_batches, "alive": self._alive, "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what [`state_dict`] returned."""
        self.stream.position, self.num_batches = StreamPosition(**state["place"]), state["batches"]
        self._alive, self._seen = state["alive"], state["seen"]


def extra_groups(num_groups: int, signal_share: float, most: int) -> int:
    r"""Number of groups that a process should generate on top of its share of the batch.

    The fewest $E$ with $\mu + \frac12 - \sigma \ge P$, for the normal approximation of the number of live groups, so
    that they suffice in about five of six batches:

    $$ \mu = (P + E) m, \qquad \sigma^2 = (P + E) m (1 - m) $$

    Source: ours. DAPO and verl repeat rounds of a fixed size until enough groups have signal.

    Args:
        num_groups (`int`):
            $P$, groups of the process in the batch.
        signal_share (`float`):
            $m$, probability that a group has signal.
        most (`int`):
            Most extra groups.

    Example:
        >>> extra_groups(4, signal_share=0.75, most=8)
        3
    """
    for extra in range(most):
        mean = (num_groups + extra) * signal_share
        if mean + 0.5 - math.sqrt(mean * (1 - signal_share)) >= num_groups:
            return extra
    return most


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
    for process in range(num_processes):
        dead = [group for group in share_of(sources, process, num_processes) if not has_signal[group]]
        fresh = share_of(list(range(len(is_fresh_alive))), process, num_processes)
        for group, source in zip(dead, (f for f in fresh if is_fresh_alive[f]), strict=False):
            sources[group] = len(has_signal) + source
    return sources


def local_groups(sources: list[int], num_fresh: int, process: int, num_processes: int) -> list[int]:
    """The groups of one process, counted through its old groups and then through its fresh ones.

    Args:
        sources (`list[int]`):
            From [`replacements`].
        num_fresh (`int`):
            F, fresh groups of all processes.
        process (`int`), num_processes (`int`):
            Index of this process, and number of processes.

    Example:
        >>> local_groups([0, 5, 2, 3], num_fresh=2, process=0, num_processes=2)
        [0, 3]
    """
    old, fresh = len(sources) // num_processes, num_fresh // num_processes
    return [
        source - process * old if source < len(sources) else source - len(sources) - process * fresh + old
        for source in share_of(sources, process, num_processes)
    ]


def group_rows(groups: list[int], num_generations: int) -> torch.Tensor:
    """`torch.Tensor` of shape `(len(groups) * G,)`: All rows of these groups."""
    return torch.tensor([group * num_generations + i for group in groups for i in range(num_generations)])


def selected(batch: Mapping[str, torch.Tensor], rows: torch.Tensor) -> batch_fields.Batch:
    """The given rows of a process's padded training batch.

    Raises:
        `ValueError`: If the batch holds fields that cannot be taken row by row, such as images.
    """
    if unknown := sorted(batch.keys() - batch_fields.FIELDS):
        raise ValueError(
            f"dynamic sampling cannot replace {', '.join(unknown)} (images?); set dynamic_sampling_rounds and "
            "dynamic_sampling_oversample to 0"
        )
    return {
        name: values if name in batch_fields.WHOLE_FIELDS else values[rows.to(values.device)]
        for name, values in batch.items()
    }
