"""Dynamic sampling (DAPO): new prompts replace groups without signal, in later rounds or as extra groups of the batch.

`DynamicSampling.sample` is the loop, and `DynamicSampling.draw` chooses the new prompts. Every decision uses the
rewards of all processes, so that all processes decide the same.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from leash_trl.data.questions import question_of
from leash_trl.errors import TrainingError
from leash_trl.length_control.rollouts import Rollouts, Score, concatenated, selected
from leash_trl.microbatching import batch_fields
from leash_trl.trainer.generation_batch import GenerationBatch


if TYPE_CHECKING:
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


@dataclass(frozen=True)
class SampledBatch:
    """A batch to train on, and everything that was generated for it.

    Args:
        trained (`GenerationBatch`): The groups to train on, of which the `batch` holds those of this process.
        generated (`list[GenerationBatch]`): All generations, in order; without dynamic sampling, `trained` alone.
        statistics (`dict[str, float]`): Numbers to log, by key without the prefix `leash/`.
    """

    trained: GenerationBatch
    generated: list[GenerationBatch]
    statistics: dict[str, float] = field(default_factory=dict)


class DynamicSampling:
    """Samples batches in which new prompts replace groups without signal, draws these prompts, the same on every
    process, and tracks the share of groups with signal.

    An epoch contains every prompt, so a replacement is a prompt that either comes later in the epoch or was already
    trained on. In the order of the epoch, they are drawn from the outside to the inside:

    ```
    past batches        current batch    future batches
    a  b  c  d  e  f    g  h             i  j  k  l  m  n
    from_start -->                             <-- from_end
    ```

    In the first epoch, replacements come from the end (n, m, ...), and from the start only when nothing is left
    between the current batch and those drawn before: no prompt is used twice until batches and replacements together
    have used the whole data set. In later epochs, all prompts have been used before, and a replacement comes from the
    side on which more prompts are left. That is the prompt whose regular turn is farthest away: the end in the first
    half of the epoch, the start in the second half. A prompt of the current batch is drawn only if the data set has no
    other prompt.

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
        self._dataset = dataset
        self._args = args
        self._size = len(dataset)
        self._batch_size = args.generation_batch_size // args.num_generations  # prompts of all processes
        self.batches = 0
        self.epoch = 0
        self.from_end = 0
        self.from_start = 0
        self.alive = 0.0
        self.seen = 0.0

    def sample(
        self,
        inputs: Sequence[dict[str, Any]],
        generate: Callable[[list[dict[str, Any]]], GenerationBatch],
        score: Callable[[Rollouts], Score],
        accelerator: Accelerator,
        pad_token_id: int,
    ) -> SampledBatch:
        """Generates a batch with extra groups, and then in rounds new groups for those that have no signal.

        Args:
            inputs (`Sequence[dict]`): Regular rows of this process, each once per completion.
            generate (`Callable`): Generates and scores completions for the rows of this process.
            score (`Callable`): Scores completions of all processes again, when others have replaced some of them.
            accelerator (`Accelerator`): That of the trainer.
            pad_token_id (`int`): Token that fills the shorter of two generations.
        """
        args = self._args
        num_processes = accelerator.num_processes
        num_groups = len(inputs) // args.num_generations  # of this process
        num_extra = self.num_extra()
        regular_questions = gather_object([question_of(row) for row in inputs[:: args.num_generations]])
        extra_rows = self._fresh_rows(num_extra, without=regular_questions, accelerator=accelerator)
        generated = [generate([*inputs, *extra_rows])]
        trained = refilled(generated[0], num_groups, score=score, accelerator=accelerator)
        for _ in range(args.dynamic_sampling_rounds):
            is_alive = trained.has_signal
            if is_alive.all():
                break
            used_questions = set()
            for part in generated:
                used_questions.update(part.rollouts.questions.tolist())
            # all processes generate equally many groups: as many as the one that lacks most
            num_dead = (~is_alive).view(num_processes, -1).sum(dim=1)
            fresh_rows = self._fresh_rows(int(num_dead.max()), without=used_questions, accelerator=accelerator)
            generated.append(generate(fresh_rows))
            longer = appended(trained, generated[-1], num_processes=num_processes, pad_token_id=pad_token_id)
            trained = refilled(longer, num_groups, score=score, accelerator=accelerator)
        self.record(torch.cat([part.has_signal for part in generated]))
        num_generated = sum(len(part.rollouts.lengths) for part in generated)
        statistics = {
            "wasted_share": 1.0 - len(trained.rollouts.lengths) / num_generated,
            "extra_groups": num_extra * num_processes,
            "sampling_rounds": len(generated) - 1,
        }
        return SampledBatch(trained, generated, statistics)

    def num_extra(self) -> int:
        """Returns the number of groups that every process generates in addition to its share of the next batch."""
        share = self._batch_size // self._args.world_size
        most = math.ceil(self._args.dynamic_sampling_oversample * share)
        signal_share = self.alive / self.seen if self.seen else 1.0
        return extra_groups(share, signal_share, most)

    def record(self, has_signal: torch.Tensor) -> None:
        """Records which of all generated groups of a batch had signal, and ends the batch."""
        self.batches += 1
        self.alive = self.alive / 2 + int(has_signal.sum())
        self.seen = self.seen / 2 + len(has_signal)

    def _fresh_rows(self, count: int, without: Collection[int], accelerator: Accelerator) -> list[dict[str, Any]]:
        """Draws `count` new prompts for every process and returns this process's, each repeated once per
        completion."""
        of_all_processes = self.draw(count * accelerator.num_processes, without)
        rows = []
        for row in part_of_process(of_all_processes, accelerator):
            rows += [row] * self._args.num_generations
        return rows

    def draw(self, count: int, without: Collection[int] = ()) -> list[dict[str, Any]]:
        """Returns the next `count` rows. Questions repeat, or are among `without`, only if the data set has no
        others."""
        # TRL drops the last batch of an epoch if it is smaller
        batches_per_epoch = max(1, self._size // self._batch_size)
        epoch, batch_of_epoch = divmod(self.batches, batches_per_epoch)
        if epoch != self.epoch:
            self.epoch = epoch
            self.from_end = 0
            self.from_start = 0
        order = self._order()
        num_past = batch_of_epoch * self._batch_size
        used_questions = set(without)
        repeats_left = self._size  # after that, the data set has no other question
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            row = self._dataset[order[self._next_index(num_past)]]
            question = question_of(row)
            if question in used_questions and repeats_left > 0:
                repeats_left -= 1
            else:
                used_questions.add(question)
                rows.append(row)
        return rows

    def _order(self) -> list[int]:
        """Returns the rows of the data set in the order of the current epoch."""
        if not self._args.shuffle_dataset:
            return list(range(self._size))
        # TRL: RepeatSampler.__iter__ draws one permutation per epoch from one generator
        generator = torch.Generator().manual_seed(self._args.seed)
        for _ in range(self.epoch + 1):
            order = torch.randperm(self._size, generator=generator)
        return order.tolist()

    def _next_index(self, num_past: int) -> int:
        """Returns the index of the next prompt in the epoch's order, as the class describes; `num_past` prompts came
        before the current batch."""
        num_future = self._size - num_past - self._batch_size
        left_in_future = num_future - self.from_end
        left_in_past = num_past - self.from_start
        is_first_epoch = self.epoch == 0
        if left_in_future > 0 and (is_first_epoch or left_in_future >= left_in_past):
            self.from_end += 1
            return self._size - self.from_end
        index = self.from_start % self._size  # once past and future are used up, all prompts come again
        self.from_start += 1
        return index

    def state_dict(self) -> dict[str, Any]:
        """Returns the state in types that JSON can hold."""
        return {name: getattr(self, name) for name in self.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a state that [`state_dict`] returned, or part of one."""
        vars(self).update(state)


def part_of_process(values: Any, accelerator: Accelerator) -> Any:
    """Returns this process's slice of values that are ordered by process, with equally many for each process."""
    size = len(values) // accelerator.num_processes
    start = accelerator.process_index * size
    return values[start : start + size]


def appended(
    generation: GenerationBatch, fresh: GenerationBatch, num_processes: int, pad_token_id: int
) -> GenerationBatch:
    """Returns both as one. Each process must have equally many groups in `fresh`; they are appended to those that it
    has in `generation`."""
    num_rows = len(generation.rollouts.lengths)
    num_fresh = len(fresh.rollouts.lengths)
    # The values of all processes are ordered by process, and must be so again afterwards:
    # rows 0 1 | 2 3 and fresh rows 4 | 5 of two processes become 0 1 4 | 2 3 5
    rows_by_process = torch.arange(num_rows).view(num_processes, -1)
    fresh_by_process = torch.arange(num_rows, num_rows + num_fresh).view(num_processes, -1)
    order = torch.cat([rows_by_process, fresh_by_process], dim=1).flatten()
    return replace(
        generation,
        rollouts=selected(concatenated([generation.rollouts, fresh.rollouts]), order),
        score=selected(concatenated([generation.score, fresh.score]), order),
        batch=batch_fields.joined([generation.batch, fresh.batch], pad_token_id),
    )


def refilled(
    generation: GenerationBatch, num_groups: int, score: Callable[[Rollouts], Score], accelerator: Accelerator
) -> GenerationBatch:
    """Returns the first `num_groups` groups of each process, scored again after groups without signal have been
    replaced by later groups that have signal.

    Raises:
        `TrainingError`: If the batch holds fields that cannot be indexed by row, such as images.
    """
    unknown = sorted(generation.batch.keys() - batch_fields.FIELDS)
    if unknown:
        raise TrainingError(
            f"dynamic sampling cannot replace rows of {', '.join(unknown)}; set dynamic_sampling_rounds and "
            "dynamic_sampling_oversample to 0"
        )
    is_alive = generation.has_signal.view(accelerator.num_processes, -1)  # (processes, generated groups of each)
    num_processes, num_generated = is_alive.shape
    kept = torch.tensor([kept_groups(row, num_groups) for row in is_alive.tolist()])  # numbered within each process
    first_of_process = num_generated * torch.arange(num_processes).unsqueeze(1)
    kept_of_all = (kept + first_of_process).flatten()
    rollouts = selected(generation.rollouts, _rows(kept_of_all, generation.rollouts.num_generations))

    rows_of_process = _rows(kept[accelerator.process_index], generation.rollouts.num_generations)
    training_batch = {}
    for name, values in generation.batch.items():
        if name in batch_fields.WHOLE_FIELDS:
            training_batch[name] = values
        else:
            training_batch[name] = values[rows_of_process.to(values.device)]
    return replace(generation, rollouts=rollouts, score=score(rollouts), batch=training_batch)


def _rows(groups: torch.Tensor, group_size: int) -> torch.Tensor:
    """Returns the rows of the completions of these groups, group by group."""
    first_rows = groups.unsqueeze(1) * group_size
    return (first_rows + torch.arange(group_size)).flatten()


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
        deviation = math.sqrt(mean * (1 - signal_share))
        if mean + 0.5 - deviation >= num_groups:
            return extra
    return most


def kept_groups(is_alive: list[bool], count: int) -> list[int]:
    """Returns the groups that a process trains on: its first `count`, in which later groups with signal replace groups
    without.

    Example:
        >>> kept_groups([True, False, False, False, True], count=3)
        [0, 4, 2]
    """
    spares = [group for group in range(count, len(is_alive)) if is_alive[group]]
    kept = []
    for group in range(count):
        if not is_alive[group] and spares:
            kept.append(spares.pop(0))
        else:
            kept.append(group)
    return kept
