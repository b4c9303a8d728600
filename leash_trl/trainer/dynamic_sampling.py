"""Dynamic sampling (DAPO): in rounds of generation, new prompts replace groups without signal.

`DynamicSampling.sample` is the loop, and `DynamicSampling.draw_rows` chooses the new prompts. Every decision uses the
rewards of all processes, so that all processes decide the same.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator

from leash_trl.data.questions import question_hash
from leash_trl.errors import TrainingError
from leash_trl.length_control.rollouts import Rollouts, Score, concatenated, selected
from leash_trl.microbatching import batch_fields
from leash_trl.trainer.generation_batch import GenerationBatch


if TYPE_CHECKING:
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


class DynamicSampling:
    """Samples batches in which new prompts replace groups without signal, and draws these prompts, the same on every
    process.

    They are drawn from the end of the first epoch's order towards its start, and then from the end again. So no prompt
    is used twice until batches and replacements together have used the whole data set. A prompt of the current batch
    is drawn only if the data set has no other prompt.

    Args:
        dataset (`Dataset`): Training data with a length and with rows that can be indexed, so no streaming data set.
        args ([`LeashGRPOConfig`]): Configuration.
        accelerator (`Accelerator`), pad_token_id (`int`): Those of the trainer; the token fills the shorter of two
            generations.
        generate (`Callable`): Generates and scores completions for rows of this process, each once per completion.
        score (`Callable`): Scores completions of all processes again, when others have replaced some of them.

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
        """Generates a batch for the regular rows of this process, and then in rounds new groups for those that have no
        signal. Returns the groups to train on, of which `trl_batch` holds those of this process, and all generations
        in order."""
        num_processes = self._accelerator.num_processes
        # `trained` is the batch in which groups are replaced, `generated` all that was generated for it.
        trained = self._generate(list(inputs))
        generated = [trained]
        for _ in range(self._args.dynamic_sampling_rounds):
            # One value for each group of all processes, ordered by process.
            has_signal = trained.group_has_signal
            if has_signal.all():
                break
            # All processes must generate equally many groups, so each generates as many as the one that lacks most.
            num_replaced = int((~has_signal).view(num_processes, -1).sum(dim=1).max())
            questions = torch.cat([part.rollouts.questions for part in generated])
            drawn = self.draw_rows(num_replaced * num_processes, without=questions.tolist())
            # TRL generates one completion for each row it gets, so a group needs its row several times.
            fresh_rows = []
            for row in part_of_process(drawn, self._accelerator):
                fresh_rows += [row] * self._args.num_generations
            fresh = self._generate(fresh_rows)
            generated.append(fresh)
            trained = self.refilled(trained, fresh)
        return trained, generated

    def draw_rows(self, count: int, without: Collection[int] = ()) -> list[dict[str, Any]]:
        """Returns the next `count` rows. Questions repeat, or are among `without`, only if the data set has no
        others."""
        size = len(self._order)
        used_questions = set(without)
        num_skipped = 0
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            self.num_drawn += 1
            # The first draw takes the last row of the order, the second the one before it; after the first row of the
            # order, the last one follows again.
            row = self._dataset[self._order[-self.num_drawn % size]]
            question = question_hash(row)
            # Once as many rows as the data set has were skipped, it has no other prompts, and prompts repeat.
            has_others = num_skipped < size
            if question in used_questions and has_others:
                num_skipped += 1
            else:
                used_questions.add(question)
                rows.append(row)
        return rows

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
        group_size = generation.rollouts.num_generations
        num_rows = len(generation.rollouts.lengths)
        num_fresh_rows = len(fresh.rollouts.lengths)

        # Numbers of rows, of shape (processes, groups of each, group size). Those of `fresh` are counted on from the
        # others, as the rows of the two batches stand when they are concatenated below.
        rows = torch.arange(num_rows).view(num_processes, -1, group_size)
        fresh_rows = torch.arange(num_rows, num_rows + num_fresh_rows).view(num_processes, -1, group_size)
        groups = torch.cat([rows, fresh_rows], dim=1)
        # Of shape (processes, groups of each).
        has_signal = torch.cat(
            [generation.group_has_signal.view(num_processes, -1), fresh.group_has_signal.view(num_processes, -1)],
            dim=1,
        )
        # Each process keeps as many groups as it had. `kept`, of shape (processes, groups kept), numbers its groups.
        num_kept = rows.shape[1]
        kept = torch.tensor([kept_group_indices(of_process, num_kept) for of_process in has_signal.tolist()])

        processes = torch.arange(num_processes).unsqueeze(1)
        kept_rows = groups[processes, kept].flatten()
        rollouts = selected(concatenated([generation.rollouts, fresh.rollouts]), kept_rows)

        # TRL's batch has only the rows of this process, so they are numbered from 0 again.
        batch = batch_fields.join_batches([generation.trl_batch, fresh.trl_batch], self._pad_token_id)
        groups_of_process = torch.arange(groups[0].numel()).view(-1, group_size)
        kept_rows_of_process = groups_of_process[kept[self._accelerator.process_index]].flatten()
        for name in batch.keys() - batch_fields.BATCH_LEVEL_FIELDS:
            batch[name] = batch[name][kept_rows_of_process.to(batch[name].device)]
        return replace(generation, rollouts=rollouts, score=self._score(rollouts), trl_batch=batch)


def part_of_process(values: Any, accelerator: Accelerator) -> Any:
    """Returns this process's slice of values that are ordered by process, with equally many for each process."""
    size = len(values) // accelerator.num_processes
    start = accelerator.process_index * size
    return values[start : start + size]


def kept_group_indices(has_signal: list[bool], count: int) -> list[int]:
    """Returns the groups that a process trains on: its first `count`, in which later groups with signal have replaced
    groups without.

    Example:
        >>> kept_group_indices([True, False, False, False, True], count=3)
        [0, 4, 2]
    """
    # Groups from `count` on are the new ones.
    spares = [group for group in range(count, len(has_signal)) if has_signal[group]]
    kept = []
    for group in range(count):
        if not has_signal[group] and spares:
            kept.append(spares.pop(0))
        else:
            kept.append(group)
    return kept
