"""Dynamic sampling (DAPO): in rounds of generation, new prompts replace groups without signal.

`DynamicSampling.sample` is the loop, and `DynamicSampling.draw` chooses the new prompts. Every decision uses the
rewards of all processes, so that all processes decide the same.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

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
    """Samples batches in which new prompts replace groups without signal, and draws these prompts, the same on every
    process.

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
    """

    state = ("batches", "epoch", "from_end", "from_start")

    def __init__(self, dataset: Any, args: "LeashGRPOConfig"):
        self._dataset = dataset
        self._args = args
        self._size = len(dataset)
        self._batch_size = args.generation_batch_size // args.num_generations  # prompts of all processes
        self.batches = 0
        self.epoch = 0
        self.from_end = 0
        self.from_start = 0

    def sample(
        self,
        inputs: Sequence[dict[str, Any]],
        generate: Callable[[list[dict[str, Any]]], GenerationBatch],
        score: Callable[[Rollouts], Score],
        accelerator: Accelerator,
        pad_token_id: int,
    ) -> SampledBatch:
        """Generates a batch, and then in rounds new groups for those that have no signal.

        Args:
            inputs (`Sequence[dict]`): Regular rows of this process, each once per completion.
            generate (`Callable`): Generates and scores completions for the rows of this process.
            score (`Callable`): Scores completions of all processes again, when others have replaced some of them.
            accelerator (`Accelerator`): That of the trainer.
            pad_token_id (`int`): Token that fills the shorter of two generations.
        """
        trained = generate(list(inputs))
        generated = [trained]
        for _ in range(self._args.dynamic_sampling_rounds):
            is_alive = trained.has_signal
            if is_alive.all():
                break
            # all processes generate equally many groups: as many as the one that lacks most
            num_dead = int((~is_alive).view(accelerator.num_processes, -1).sum(dim=1).max())
            questions = torch.cat([part.rollouts.questions for part in generated])
            drawn = self.draw(num_dead * accelerator.num_processes, without=questions.tolist())
            fresh_rows = []
            for row in part_of_process(drawn, accelerator):
                fresh_rows += [row] * self._args.num_generations
            fresh = generate(fresh_rows)
            generated.append(fresh)
            trained = refilled(trained, fresh, score=score, accelerator=accelerator, pad_token_id=pad_token_id)
        self.batches += 1
        num_generated = sum(len(part.rollouts.lengths) for part in generated)
        statistics = {
            "wasted_share": 1.0 - len(trained.rollouts.lengths) / num_generated,
            "sampling_rounds": len(generated) - 1,
        }
        return SampledBatch(trained, generated, statistics)

    def draw(self, count: int, without: Collection[int] = ()) -> list[dict[str, Any]]:
        """Returns the next `count` rows. Questions repeat, or are among `without`, only if the data set has no
        others."""
        # TRL drops the last batch of an epoch if it is smaller
        batches_per_epoch = max(1, self._size // self._batch_size)
        epoch, batch_of_epoch = divmod(self.batches, batches_per_epoch)
        if epoch != self.epoch:  # its order is another one, from which nothing has been drawn
            self.epoch = epoch
            self.from_end = 0
            self.from_start = 0
        order = self._order()
        num_past = batch_of_epoch * self._batch_size  # prompts of earlier batches
        num_future = self._size - num_past - self._batch_size  # prompts of later batches
        used_questions = set(without)
        num_skipped = 0
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            row = self._dataset[order[self._next_index(num_past, num_future)]]
            question = question_of(row)
            has_others = num_skipped < self._size  # else the draws have passed every prompt of the data set
            if question in used_questions and has_others:
                num_skipped += 1
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

    def _next_index(self, num_past: int, num_future: int) -> int:
        """Draws from one of the two ends of the epoch's order, and returns the index there."""
        left_at_end = num_future - self.from_end
        left_at_start = num_past - self.from_start
        # only in the first epoch are future prompts new, so that past ones have to wait until none is left
        prefers_end = self.epoch == 0 or left_at_end >= left_at_start
        if left_at_end > 0 and prefers_end:
            self.from_end += 1
            return self._size - self.from_end
        # when nothing is left at the start either, it goes on into the current batch, and finally from the start again
        index = self.from_start % self._size
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


def refilled(
    generation: GenerationBatch,
    fresh: GenerationBatch,
    score: Callable[[Rollouts], Score],
    accelerator: Accelerator,
    pad_token_id: int,
) -> GenerationBatch:
    """Returns a batch, scored again, in which groups of `fresh` with signal have replaced groups without signal of
    the same process.

    Raises:
        `TrainingError`: If the batch holds fields that cannot be indexed by row, such as images.
    """
    unknown = sorted(generation.batch.keys() - batch_fields.FIELDS)
    if unknown:
        raise TrainingError(
            f"dynamic sampling cannot replace rows of {', '.join(unknown)}; set dynamic_sampling_rounds to 0"
        )
    num_processes = accelerator.num_processes
    group_size = generation.rollouts.num_generations
    num_rows = len(generation.rollouts.lengths)
    num_fresh_rows = len(fresh.rollouts.lengths)

    # of shape (processes, groups of each, group size): the rows of all processes, those of `fresh` behind the others
    rows = torch.arange(num_rows).view(num_processes, -1, group_size)
    fresh_rows = torch.arange(num_rows, num_rows + num_fresh_rows).view(num_processes, -1, group_size)
    groups = torch.cat([rows, fresh_rows], dim=1)
    # of shape (processes, groups of each)
    has_signal = torch.cat(
        [generation.has_signal.view(num_processes, -1), fresh.has_signal.view(num_processes, -1)], dim=1
    )
    num_kept = rows.shape[1]
    kept = torch.tensor([kept_groups(of_process, num_kept) for of_process in has_signal.tolist()])

    processes = torch.arange(num_processes).unsqueeze(1)
    kept_rows = groups[processes, kept].flatten()
    rollouts = selected(concatenated([generation.rollouts, fresh.rollouts]), kept_rows)

    batch = batch_fields.joined([generation.batch, fresh.batch], pad_token_id)
    groups_of_process = torch.arange(groups[0].numel()).view(-1, group_size)
    kept_rows_of_process = groups_of_process[kept[accelerator.process_index]].flatten()
    for name in batch.keys() - batch_fields.WHOLE_FIELDS:
        batch[name] = batch[name][kept_rows_of_process.to(batch[name].device)]
    return replace(generation, rollouts=rollouts, score=score(rollouts), batch=batch)


def kept_groups(is_alive: list[bool], count: int) -> list[int]:
    """Returns the groups that a process trains on: its first `count`, in which later groups with signal have replaced
    groups without.

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
