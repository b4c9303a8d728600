"""`GenerationBatch`: all that the trainer knows about one generation batch, from its prompts to its advantages."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from leash_trl.length_control.rollouts import Rollouts, ScoredRollouts, joined
from leash_trl.trainer import dynamic_sampling


@dataclass(frozen=True)
class GenerationBatch:
    """
    One generation batch. It starts with the prompts; each step of the trainer returns a batch with more fields set.

    `scored` and `advantages` belong to the N completions of all processes, the other fields to the n of this one.

    Args:
        questions (`Sequence[int]`):
            A number that identifies each completion's prompt, the same in every run.
        targets (`Sequence[float]`):
            Target of each completion's prompt in tokens, NaN for none.
        lengths (`Sequence[int]`):
            Tokens that the model generated, EOS included, padding and tool output excluded.
        is_truncated (`Sequence[bool]`):
            Whether each completion ended without an end token.
        generation_limit (`float`):
            Most tokens that a completion could have; infinite for no limit.
        columns (`Mapping[str, Sequence]`):
            Values, one per completion, of the data set columns that the method reads.
        scored (`ScoredRollouts`):
            The completions with the rewards that length control shaped.
        advantages (`torch.Tensor` of shape `(N,)`):
            Advantages of the shaped rewards, float64.
        prompt_ids (`Sequence[Sequence[int]]`):
            Tokens of each completion's prompt.
    """

    questions: Sequence[int]
    targets: Sequence[float]
    lengths: Sequence[int] = ()
    is_truncated: Sequence[bool] = ()
    generation_limit: float = math.inf
    columns: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    scored: ScoredRollouts = None  # type: ignore[assignment]  # until there are rewards
    advantages: torch.Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    prompt_ids: Sequence[Sequence[int]] = ()

    def generated(
        self,
        completion_ids: Sequence[Sequence[int]],
        tool_mask: Sequence[Sequence[int]] | None,
        end_ids: Collection[int],
        generation_limit: float,
        prompt_ids: Sequence[Sequence[int]] = (),
    ) -> "GenerationBatch":
        """The batch with the lengths of its completions.

        Args:
            completion_ids (`Sequence[Sequence[int]]`):
                Tokens of the n completions, tool output included.
            tool_mask (`Sequence[Sequence[int]]`, *optional*):
                1 for tokens of the model, 0 for tool output.
            end_ids (`Collection[int]`):
                Tokens that end a completion.
            generation_limit (`float`):
                Most tokens that a completion could have.
            prompt_ids (`Sequence[Sequence[int]]`, *optional*):
                Tokens of their prompts.
        """
        lengths = [len(ids) for ids in completion_ids] if tool_mask is None else [sum(mask) for mask in tool_mask]
        is_truncated = [ids[-1] not in end_ids for ids in completion_ids]
        return dataclasses.replace(
            self,
            lengths=lengths,
            is_truncated=is_truncated,
            generation_limit=generation_limit,
            prompt_ids=prompt_ids,
        )

    def rollouts(
        self,
        accelerator: Accelerator,
        task_rewards: torch.Tensor,
        correctness_rewards: torch.Tensor | None,
        num_generations: int,
    ) -> Rollouts:
        """The completions of all processes as methods see them, on the CPU.

        Args:
            accelerator ([`~accelerate.Accelerator`]):
                The trainer's.
            task_rewards (`torch.Tensor` of shape `(N,)`):
                Weighted sum of the task rewards.
            correctness_rewards (`torch.Tensor` of shape `(N,)`, *optional*):
                The reward that decides what is correct, if one reward decides it.
            num_generations (`int`):
                G, completions per prompt.
        """
        lengths, is_truncated, questions, targets = (
            accelerator.gather(torch.tensor(values, dtype=dtype, device=accelerator.device)).cpu()
            for values, dtype in (
                (self.lengths, torch.long),
                (self.is_truncated, torch.bool),
                (self.questions, torch.long),
                (self.targets, torch.float32),  # MPS has no float64
            )
        )
        return Rollouts(
            task_rewards=task_rewards,
            lengths=lengths,
            target_lengths=targets.double(),
            is_truncated=is_truncated,
            questions=questions,
            num_generations=num_generations,
            max_completion_length=self.generation_limit,
            correctness_rewards=correctness_rewards,
            columns={name: gather_object(list(values)) for name, values in self.columns.items()},
        )

    def with_replaced(self, fresh: "GenerationBatch", sources: list[int]) -> "GenerationBatch":
        """The batch after dynamic sampling: each group is one of this batch or, from P on, one of `fresh`."""
        return dataclasses.replace(self, scored=joined([self.scored, fresh.scored])).with_groups(sources)

    def with_groups(self, groups: list[int]) -> "GenerationBatch":
        """The batch with these groups only, in this order, without advantages."""
        rows = dynamic_sampling.group_rows(groups, self.scored.rollouts.num_generations)
        scored = self.scored.select(rows)
        return GenerationBatch((), (), generation_limit=self.generation_limit, scored=scored)
