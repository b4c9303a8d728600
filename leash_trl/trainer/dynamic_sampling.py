"""Dynamic sampling (DAPO): new prompts replace groups without signal, in later rounds or as extra groups of the batch.

Every decision uses the rewards of all processes, so that all processes decide the same.
"""

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch

from leash_trl.data.questions import question_of


if TYPE_CHECKING:
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


class DynamicSampling:
    """Draws the rows that replace groups without signal, the same on every process, and tracks the share of groups
    with signal.

    An epoch contains every prompt, so a replacement is a prompt that either comes later in the epoch or was already
    trained on. In the first epoch, replacements are taken from the end of the epoch's order: no prompt is used twice
    until batches and replacements together have used the whole data set. In later epochs, all prompts have been used
    before, and a replacement is the prompt whose regular turn is farthest away: from the end of the order in the first
    half of the epoch, from its start in the second half. A prompt of the current batch is drawn only if the data set
    has no other prompt.

    Args:
        dataset (`Dataset`): Training data with a length and with rows that can be indexed, so no streaming data set.
        args ([`LeashGRPOConfig`]): Configuration.

    Attributes:
        batches (`int`): Number of generation batches done, over all epochs.
        epoch (`int`): Epoch of the last draw, from 0.
        from_end (`int`), from_start (`int`): Number of prompts drawn from the end and from the start of that epoch's
            order.
        alive (`float`), seen (`float`): Running numbers of groups with signal and of all groups, in which each batch
            has half the weight of the next.
    """

    state = ("batches", "epoch", "from_end", "from_start", "alive", "seen")

    def __init__(self, dataset: Any, args: "LeashGRPOConfig"):
        self._dataset, self._args, self._size = dataset, args, len(dataset)
        self._batch_size = args.generation_batch_size // args.num_generations  # prompts of all processes
        self.batches = self.epoch = self.from_end = self.from_start = 0
        self.alive = self.seen = 0.0

    def num_extra(self) -> int:
        """Returns the number of groups that every process generates in addition to its share of the next batch."""
        share = self._batch_size // self._args.world_size
        most = math.ceil(self._args.dynamic_sampling_oversample * share)
        return extra_groups(share, self.alive / self.seen if self.seen else 1.0, most)

    def record(self, has_signal: torch.Tensor) -> None:
        """Records which of all generated groups of a batch had signal, and ends the batch."""
        self.batches += 1
        self.alive = self.alive / 2 + int(has_signal.sum())
        self.seen = self.seen / 2 + len(has_signal)

    def draw(self, count: int, without: Collection[int] = ()) -> list[dict[str, Any]]:
        """Returns the next `count` rows. Questions repeat, or are among `without`, only if the data set has no
        others."""
        # TRL drops the last batch of an epoch if it is smaller
        epoch, batch = divmod(self.batches, max(1, self._size // self._batch_size))
        if epoch != self.epoch:
            self.epoch, self.from_end, self.from_start = epoch, 0, 0
        order, used = self._order(), {*without}
        repeats_left = self._size  # after that, the data set has no other question
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            row = self._dataset[order[self._next_place(batch * self._batch_size)]]
            question = question_of(row)
            if question in used and repeats_left > 0:
                repeats_left -= 1
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
        """Returns the index of the next prompt in the epoch's order; `num_past` prompts came before the current
        batch."""
        num_future = self._size - num_past - self._batch_size
        left_in_future, left_in_past = num_future - self.from_end, num_past - self.from_start
        if left_in_future > 0 and (self.epoch == 0 or left_in_future >= left_in_past):
            self.from_end += 1
            return self._size - self.from_end
        place = self.from_start % self._size
        self.from_start += 1
        return place

    def state_dict(self) -> dict[str, Any]:
        """Returns the state in types that JSON can hold."""
        return {name: getattr(self, name) for name in self.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that [`state_dict`] returned, or part of one."""
        vars(self).update(state)


def extra_groups(num_groups: int, signal_share: float, most: int) -> int:
    r"""Returns the number of groups that a process should generate in addition to its share of the batch.

    This is the smallest $E$ with $\mu + \frac12 - \sigma \ge P$, where $\mu$ and $\sigma$ are the mean and the
    standard deviation of the number of groups with signal. By the normal approximation, there are then enough of them
    in about five of six batches:

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
    """Returns the groups that a process trains on: its first `count`, in which later groups with signal replace groups
    without.

    Example:
        >>> kept_groups([True, False, False, False, True], count=3)
        [0, 4, 2]
    """
    fresh = iter([group for group in range(count, len(is_alive)) if is_alive[group]])
    return [group if is_alive[group] else next(fresh, group) for group in range(count)]
