"""DAPO's dynamic sampling: replaces groups without signal by other prompts, for a bounded number of rounds.

Each round decides from the rewards of all processes, so every process decides alike. How many groups are drawn before
the first round, and which of them stay, is in [`~leash_trl.trainer.signal_record`].
"""

from collections.abc import Callable, Collection, Mapping, Sequence, Sized
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
    its second. Either way the other visit is some batches away, as long as an epoch has fewer replacements than
    prompts. None is in the current batch, unless the data set has no other prompt.

    Args:
        dataset (`Dataset`):
            Data set with a length and rows by index.
        seed (`int`):
            Seed of the run.
        is_shuffled (`bool`, *optional*, defaults to `True`):
            Whether epochs are in random order.
        batch_size (`int`, *optional*, defaults to `1`):
            P, prompts of a generation batch over all processes.
        repeats (`int`, *optional*, defaults to `1`):
            Micro-steps for which the sampler repeats a generation batch.
    """

    def __init__(self, dataset: Any, seed: int, is_shuffled: bool = True, batch_size: int = 1, repeats: int = 1):
        self._dataset = dataset
        self._seed = seed
        self._is_shuffled = is_shuffled
        self._batch_size = batch_size
        self._repeats = repeats
        self._order: tuple[int, list[int]] = (-1, [])  # an epoch and its order
        self.position = StreamPosition()

    @classmethod
    def of_run(cls, dataset: Any, args: "LeashGRPOConfig") -> "PromptStream":
        """The stream of a run: `generation_batch_size // num_generations` prompts a batch, each batch repeated
        `steps_per_generation * num_iterations` times."""
        # TRL: GRPOTrainer._get_train_sampler computes both in the same way
        batch_size = args.generation_batch_size // args.num_generations
        repeats = args.steps_per_generation * args.num_iterations
        return cls(dataset, args.seed, args.shuffle_dataset, batch_size, repeats)

    def check(self) -> None:
        """Raises `ValueError` if the data set is a stream, which has no rows by index."""
        if not isinstance(self._dataset, Sized):
            raise ValueError(
                "dynamic sampling draws training prompts at random, which a streamed data set does not allow; load it "
                "with dataset_streaming: false"
            )

    @property
    def _batches_per_epoch(self) -> int:
        return max(1, len(self._dataset) // self._batch_size)  # TRL leaves out the last, smaller batch

    def batch_at(self, epoch: int, micro_step: int) -> int:
        """Number of the generation batch at a place of the sampler, as [`~PromptStream.draw`] takes it.

        Args:
            epoch (`int`), micro_step (`int`):
                The epoch, from 0, and the micro-step in it, from 0.

        Example:
            >>> PromptStream(range(12), seed=0, batch_size=4, repeats=2).batch_at(epoch=1, micro_step=5)
            5
        """
        return epoch * self._batches_per_epoch + micro_step // self._repeats

    def _order_of(self, epoch: int) -> list[int]:
        # TRL: RepeatSampler.__iter__ draws one permutation per epoch from one generator
        size = len(self._dataset)
        if not self._is_shuffled:
            return list(range(size))
        generator = torch.Generator().manual_seed(self._seed)
        for _ in range(epoch):
            torch.randperm(size, generator=generator)
        return torch.randperm(size, generator=generator).tolist()

    def draw(
        self,
        count: int,
        without: Collection[int] = (),
        batch: int = 0,
        passes_over: Callable[[int], bool] = lambda question: False,
    ) -> list[dict[str, Any]]:
        """
        The next rows; a question comes twice only if the data set has no others.

        Args:
            count (`int`):
                Number of rows.
            without (`Collection[int]`):
                Questions to skip, as `question_of` returns them.
            batch (`int`):
                Number of the current generation batch, from 0 in the first epoch and counted through all epochs.
            passes_over (`Callable[[int], bool]`):
                Whether to leave out a question this time.
        """
        size = len(self._dataset)
        epoch, index = divmod(batch, self._batches_per_epoch)
        if epoch != self.position.epoch:
            self.position = StreamPosition(epoch)
        if epoch != self._order[0]:
            self._order = epoch, self._order_of(epoch)
        rows: list[dict[str, Any]] = []
        used, num_passed_over = {*without}, 0
        while len(rows) < count:
            place, self.position = self.position.next(size, index * self._batch_size, self._batch_size)
            row = self._dataset[self._order[1][place]]
            question = question_of(row)
            if num_passed_over < size and (question in used or passes_over(question)):
                num_passed_over += 1
                continue
            used.add(question)
            rows.append(row)
        return rows

    def draw_share(self, share: int, process: int, num_processes: int, *args: Any) -> list[dict[str, Any]]:
        """One process's rows, if every process draws `share` rows; further arguments as for [`~PromptStream.draw`].

        Example:
            >>> stream = PromptStream([{"prompt": letter} for letter in "abcdef"], seed=0, is_shuffled=False)
            >>> stream.draw_share(2, process=1, num_processes=2)
            [{'prompt': 'd'}, {'prompt': 'c'}]
        """
        return share_of(self.draw(share * num_processes, *args), process, num_processes)


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
    groups = [
        source - process * share if source < num_groups else source - num_groups - process * fresh_share + share
        for source in share_of(sources, process, num_processes)
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
    _check_fields(old)
    return selected(batch_fields.joined([old, fresh], pad_token_id), rows)


def _check_fields(batch: Mapping[str, torch.Tensor]) -> None:
    if unknown := sorted(batch.keys() - batch_fields.FIELDS):
        raise ValueError(
            f"dynamic sampling cannot replace {', '.join(unknown)} (images?); set dynamic_sampling_rounds and "
            "dynamic_sampling_oversample to 0"
        )


def selected(batch: Mapping[str, torch.Tensor], rows: torch.Tensor) -> batch_fields.Batch:
    """The given rows of a batch; raises as [`merged_batch`]."""
    _check_fields(batch)
    return {
        name: values if name in batch_fields.WHOLE_FIELDS else values[rows.to(values.device)]
        for name, values in batch.items()
    }


def wasted_share(num_generated: int, num_kept: int) -> float:
    """Share of the generated completions that are not trained on."""
    return 1.0 - num_kept / num_generated


def zero_signal_share(has_signal: torch.Tensor) -> float:
    """Share of the groups without signal.

    Example:
        >>> zero_signal_share(torch.tensor([True, False, True, True]))
        0.25
    """
    return 1.0 - has_signal.double().mean().item()


def sampling_statistics(
    num_generated: Sequence[int], num_kept: int, extra_share: int, num_processes: int
) -> dict[str, float]:
    """What dynamic sampling cost, under the names of the log.

    Args:
        num_generated (`Sequence[int]`):
            Completions of the batch with its extra groups, and of each further round.
        num_kept (`int`):
            Completions that are trained on.
        extra_share (`int`):
            Extra groups of each process.
        num_processes (`int`):
            Number of processes.

    Example:
        >>> sampling_statistics([24, 8], num_kept=16, extra_share=1, num_processes=2)
        {'wasted_share': 0.5, 'extra_groups': 2, 'sampling_rounds': 1}
    """
    return {
        "wasted_share": wasted_share(sum(num_generated), num_kept),
        "extra_groups": extra_share * num_processes,
        "sampling_rounds": len(num_generated) - 1,
    }
