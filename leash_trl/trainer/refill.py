"""Dynamic sampling (DAPO): fresh prompts for groups without signal, in rounds or ahead of the need.

Each round is decided from the rewards of all processes, so every process decides alike.
"""

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch

from leash_trl.length_control.targets import question_of


if TYPE_CHECKING:
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


class Refill:
    """Draws rows to replace groups with, the same on every process, and knows what share of all groups has signal.

    An epoch holds every prompt, so a replacement is either one that the epoch still holds or one that was trained on
    before. In the first epoch we take the former, from the epoch's end, since nobody has seen them: no prompt comes
    twice until batches and replacements together have used up the data set. In later epochs all have been seen, and
    we take the prompt whose other visit is farther away: from the epoch's end in its first half, from its start in
    its second. None is in the current batch, unless the data set has no other prompt.

    Args:
        dataset (`Dataset`): Training data with a length and rows by index; a stream has neither.
        args ([`LeashGRPOConfig`]): Configuration.

    Attributes:
        batches (`int`): Generation batches that are done, through all epochs.
        epoch (`int`): Epoch of the last draw, from 0.
        from_end (`int`), from_start (`int`): Prompts taken from the end and from the start of that epoch's order.
        alive (`float`), seen (`float`): Groups with signal, and all groups; each batch counts half as much as the
            next.
    """

    state = ("batches", "epoch", "from_end", "from_start", "alive", "seen")

    def __init__(self, dataset: Any, args: "LeashGRPOConfig"):
        self._dataset, self._args, self._size = dataset, args, len(dataset)
        self._batch_size = args.generation_batch_size // args.num_generations  # prompts of all processes
        self.batches = self.epoch = self.from_end = self.from_start = 0
        self.alive = self.seen = 0.0

    def num_extra(self) -> int:
        """Groups that every process generates on top of its share of the next batch."""
        share = self._batch_size // self._args.world_size
        most = math.ceil(self._args.dynamic_sampling_oversample * share)
        return extra_groups(share, self.alive / self.seen if self.seen else 1.0, most)

    def record(self, has_signal: torch.Tensor) -> None:
        """Ends a batch of which all generated groups had signal or not."""
        self.batches += 1
        self.alive = self.alive / 2 + int(has_signal.sum())
        self.seen = self.seen / 2 + len(has_signal)

    def draw(self, count: int, without: Collection[int] = ()) -> list[dict[str, Any]]:
        """The next `count` rows; a question, even one of `without`, comes twice only if the data set has no others."""
        # TRL leaves out the last, smaller batch
        epoch, batch = divmod(self.batches, max(1, self._size // self._batch_size))
        if epoch != self.epoch:
            self.epoch, self.from_end, self.from_start = epoch, 0, 0
        order, used = self._order(), {*without}
        most_repeats = self._size  # after so many, the data set has no other question
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            row = self._dataset[order[self._next_place(batch * self._batch_size)]]
            question = question_of(row)
            if question in used and most_repeats > 0:
                most_repeats -= 1
            else:
                used.add(question)
                rows.append(row)
        return rows

    def _order(self) -> list[int]:
        # TRL: RepeatSampler.__iter__ draws one permutation per epoch from one generator
        generator = torch.Generator().manual_seed(self._args.seed)
        orders = [torch.randperm(self._size, generator=generator) for _ in range(self.epoch + 1)]
        return orders[-1].tolist() if self._args.shuffle_dataset else list(range(self._size))

    def _next_place(self, num_past: int) -> int:
        """Place of the next prompt in the epoch's order, of which `num_past` came before the current batch."""
        num_future = self._size - num_past - self._batch_size
        left_in_future, left_in_past = num_future - self.from_end, num_past - self.from_start
        if left_in_future > 0 and (self.epoch == 0 or left_in_future >= left_in_past):
            self.from_end += 1
            return self._size - self.from_end
        place = self.from_start % self._size
        self.from_start += 1
        return place

    def state_dict(self) -> dict[str, Any]:
        """The state in types of JSON."""
        return {name: getattr(self, name) for name in self.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what [`state_dict`] returned, or a part of it."""
        vars(self).update(state)


def extra_groups(num_groups: int, signal_share: float, most: int) -> int:
    r"""Number of groups that a process should generate on top of its share of the batch.

    The fewest $E$ with $\mu + \frac12 - \sigma \ge P$, for the normal approximation of the number of live groups, so
    that they suffice in about five of six batches:

    $$ \mu = (P + E) m, \qquad \sigma^2 = (P + E) m (1 - m) $$

    Source: ours. DAPO and verl repeat rounds of a fixed size until enough groups have signal.

    Args:
        num_groups (`int`): $P$, groups of the process in the batch.
        signal_share (`float`): $m$, probability that a group has signal.
        most (`int`): Most extra groups.

    Example:
        >>> extra_groups(4, signal_share=0.75, most=8)
        3
    """
    for extra in range(most):
        mean = (num_groups + extra) * signal_share
        if mean + 0.5 - math.sqrt(mean * (1 - signal_share)) >= num_groups:
            return extra
    return most


def kept_groups(is_alive: list[bool], count: int) -> list[int]:
    """The groups that a process trains on: its first `count`, dead ones replaced by live ones of those behind.

    Example:
        >>> kept_groups([True, False, False, False, True], count=3)
        [0, 4, 2]
    """
    fresh = iter([group for group in range(count, len(is_alive)) if is_alive[group]])
    return [group if is_alive[group] else next(fresh, group) for group in range(count)]
