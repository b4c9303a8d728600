"""Dynamic sampling (DAPO): in rounds of generation, new prompts replace groups without signal.

`DynamicSampling.sample` is the loop, and `DynamicSampling.draw_rows` chooses the new prompts. Every decision uses the
rewards of all processes, so that all processes decide the same.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

from leash_trl.errors import TrainingError
from leash_trl.length_control.rollouts import Rollouts, Score, concatenated, selected
from leash_trl.microbatching import batch_fields
from leash_trl.trainer.generation_batch import GenerationBatch
from leash_trl.trainer.questions import question_hash


if TYPE_CHECKING:
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


class DynamicSampling:
    """Samples batches in which new prompts replace groups without signal, and draws these prompts, the same on every
    process.

    New prompts are drawn from the end of the first epoch's order towards its start, and then from the end again. So no
    prompt is used twice until batches and replacements together have used the whole data set. A prompt of the current
    batch is drawn only if the data set has no other prompt.

    Args:
        dataset (`Dataset`): Training data with a length and with rows that can be indexed, so no streaming data set.
        args ([`LeashGRPOConfig`]): Configuration.
        accelerator (`Accelerator`), pad_token_id (`int`): Those of the trainer; the token fills the shorter of two
            generations.
        generate (`Callable`): Generates and scores one completion for each of the given rows of this process.
        score (`Callable`): Scores the completions of all processes again after some groups were replaced.

    Attributes:
        num_drawn (`int`): Number of prompts drawn so far, which a checkpoint saves.
    """

    def __init__(
        self,
        dataset: Any,
        args: "LeashGRPOConfig",
        *,
        accelerator: Accelerator,
        pad_token_id: int,
        generate: Callable[[list[dict[str, Any]]], GenerationBatch],
        score: Callable[[Rollouts], Score],
    ):
        self._accelerator = accelerator
        self._pad_token_id = pad_token_id
        self._generate = generate
        self._score = score
        self._dataset = dataset
        self._args = args
        self._order = list(range(len(dataset)))
        if args.shuffle_dataset:
            # TRL: RepeatSampler.__iter__ draws the order of the first epoch in the same way
            generator = torch.Generator().manual_seed(args.seed)
            self._order = torch.randperm(len(dataset), generator=generator).tolist()
        self.num_drawn = 0

    def sample(self, inputs: Sequence[dict[str, Any]]) -> tuple[GenerationBatch, list[GenerationBatch]]:
        """Generates a batch for the regular rows of this process, and then, in rounds, new groups for those without
        signal. Returns the batch to train on, in which new groups have replaced groups without signal, and all
        generations in order."""
        # `trained` is the batch in which groups are replaced, `generated` all that was generated for it.
        trained = self._generate(list(inputs))
        generated = [trained]
        for _ in range(self._args.dynamic_sampling_rounds):
            # One value for each group of all processes, ordered by process.
            has_signal = trained.group_has_signal
            if has_signal.all():
                break
            questions = torch.cat([part.rollouts.questions for part in generated])
            fresh = self._generate(self._fresh_rows(has_signal, without=questions.tolist()))
            generated.append(fresh)
            trained = self.refilled(trained, fresh)
        return trained, generated

    def _fresh_rows(self, has_signal: torch.Tensor, without: Collection[int]) -> list[dict[str, Any]]:
        """Returns rows of this process, each once per completion, for groups that replace those without signal."""
        num_processes = self._accelerator.num_processes
        # All processes must generate equally many groups, so each generates as many as the one that lacks most.
        num_lacking = (~has_signal).view(num_processes, -1).sum(dim=1)
        drawn = self.draw_rows(int(num_lacking.max()) * num_processes, without)
        rows = []
        for row in part_of_process(drawn, self._accelerator):
            # TRL generates one completion for each row it gets, so a group needs its row several times.
            rows += [row] * self._args.num_generations
        return rows

    def draw_rows(self, count: int, without: Collection[int] = ()) -> list[dict[str, Any]]:
        """Returns the next `count` rows. A question repeats, or is one of those in `without`, only if the data set has
        no other."""
        used_questions = set(without)
        num_skipped = 0
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            row = self._next_row()
            question = question_hash(row)
            # Once as many rows were skipped as the data set has, there are no other prompts, and prompts repeat.
            has_others = num_skipped < len(self._order)
            if question in used_questions and has_others:
                num_skipped += 1
            else:
                used_questions.add(question)
                rows.append(row)
        return rows

    def _next_row(self) -> dict[str, Any]:
        """Draws a row: first the last one of the order, then the one before it, and after the first row of the order
        the last one again."""
        self.num_drawn += 1
        row: dict[str, Any] = self._dataset[self._order[-self.num_drawn % len(self._order)]]
        return row

    def refilled(self, generation: GenerationBatch, fresh: GenerationBatch) -> GenerationBatch:
        """Returns a batch, scored again, in which groups of `fresh` with signal have replaced groups without signal of
        the same process.

        Raises:
            `TrainingError`: If the batch holds fields that cannot be indexed by row, such as images.
        """
        unknown = sorted(generation.trl_batch.keys() - batch_fields.SUPPORTED_FIELDS)
        if unknown:
            raise TrainingError(
                f"dynamic sampling cannot replace rows of {', '.join(unknown)}; set dynamic_sampling_rounds to 0"
            )
        num_processes = self._accelerator.num_processes
        has_signal = generation.group_has_signal.view(num_processes, -1)
        fresh_has_signal = fresh.group_has_signal.view(num_processes, -1)
        kept = kept_groups(has_signal, fresh_has_signal)

        group_size = generation.rollouts.num_generations
        groups_of_all = numbered_over_processes(kept, fresh_has_signal.shape[1]).flatten()
        both = concatenated([generation.rollouts, fresh.rollouts])
        rollouts = selected(both, rows_of_groups(groups_of_all, group_size))
        # TRL's batch has only the rows of this process.
        rows_of_process = rows_of_groups(kept[self._accelerator.process_index], group_size)
        joined = batch_fields.join_batches([generation.trl_batch, fresh.trl_batch], self._pad_token_id)
        batch = batch_fields.selected_rows(joined, rows_of_process)
        return replace(generation, rollouts=rollouts, score=self._score(rollouts), trl_batch=batch)


def part_of_process(values: Any, accelerator: Accelerator) -> Any:
    """Returns this process's slice of values that are ordered by process, with equally many for each process."""
    size = len(values) // accelerator.num_processes
    start = accelerator.process_index * size
    return values[start : start + size]


def kept_groups(has_signal: torch.Tensor, fresh_has_signal: torch.Tensor) -> torch.Tensor:
    """Returns the groups that each process trains on: as many as before, with fresh groups that have signal in place
    of groups that have none.

    Args:
        has_signal (`torch.Tensor` of shape `(processes, groups)`): Whether the groups of each process have signal.
        fresh_has_signal (`torch.Tensor` of shape `(processes, fresh groups)`): The same for the fresh groups of each
            process.

    Returns:
        `torch.Tensor` of shape `(processes, groups)`: Numbers of groups within each process; those of its fresh groups
            follow those of its other groups.

    Example:
        >>> kept_groups(torch.tensor([[True, False, False]]), torch.tensor([[False, True]])).tolist()
        [[0, 4, 2]]
    """
    num_groups = has_signal.shape[1]
    kept = torch.arange(num_groups).repeat(len(has_signal), 1)
    for process, kept_of_process in enumerate(kept):
        lacking = (~has_signal[process]).nonzero().flatten()
        spares = fresh_has_signal[process].nonzero().flatten() + num_groups
        num_replaced = min(len(lacking), len(spares))
        kept_of_process[lacking[:num_replaced]] = spares[:num_replaced]
    return kept


def numbered_over_processes(kept: torch.Tensor, num_fresh: int) -> torch.Tensor:
    """Renumbers the groups that [`kept_groups`] returned for a batch in which first the groups of all processes stand,
    one process after the other, and then the fresh groups of all, `num_fresh` of each process.

    >>> numbered_over_processes(torch.tensor([[0, 2], [3, 1]]), num_fresh=2).tolist()
    [[0, 4], [7, 3]]
    """
    num_processes, num_groups = kept.shape
    num_old = num_processes * num_groups
    old_numbers = torch.arange(num_old).view(num_processes, -1)
    fresh_numbers = torch.arange(num_old, num_old + num_processes * num_fresh).view(num_processes, -1)
    return torch.cat([old_numbers, fresh_numbers], dim=1).gather(1, kept)


def rows_of_groups(groups: torch.Tensor, group_size: int) -> torch.Tensor:
    """Returns the numbers of the rows of these groups; group 0 has the first `group_size` rows, and so on.

    >>> rows_of_groups(torch.tensor([2, 0]), group_size=2).tolist()
    [4, 5, 0, 1]
    """
    return (groups.unsqueeze(1) * group_size + torch.arange(group_size)).flatten()
