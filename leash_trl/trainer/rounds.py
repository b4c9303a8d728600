"""`Round`: one generation of completions, from its prompts to the rewards and advantages of all processes."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from leash_trl.length_control.advantages import AdvantageRule, has_signal
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts, Score, joined
from leash_trl.microbatching import batch_fields
from leash_trl.microbatching.batch_fields import Batch
from leash_trl.trainer import refill


@dataclass
class Round:
    """One call of TRL's generation. The hooks inside that call fill in what they see.

    `rollouts` and `score` belong to the N completions of all processes, the rest to the n of this one.

    Args:
        questions (`Sequence[int]`):
            A number that identifies each completion's prompt, the same in every run.
        targets (`Sequence[float]`):
            Target of each completion's prompt in tokens, NaN for none.
        columns (`Mapping[str, Sequence]`):
            Values, one per completion, of the data set columns that the method reads.

    Attributes:
        lengths (`Sequence[int]`):
            Tokens that the model generated, EOS included, padding and tool output excluded.
        is_truncated (`Sequence[bool]`):
            Whether each completion ended without an end token.
        prompt_ids (`Sequence[Sequence[int]]`):
            Tokens of each completion's prompt.
        generation_limit (`float`):
            Most tokens that a completion could have; infinite for no limit.
        rollouts ([`Rollouts`]), score ([`Score`]):
            The completions, and what length control makes of them.
        batch (`dict[str, torch.Tensor]`):
            TRL's training batch.
    """

    questions: Sequence[int] = ()
    targets: Sequence[float] = ()
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    lengths: Sequence[int] = ()
    is_truncated: Sequence[bool] = ()
    prompt_ids: Sequence[Sequence[int]] = ()
    generation_limit: float = math.inf
    rollouts: Rollouts = None  # type: ignore[assignment]  # until there are rewards
    score: Score = None  # type: ignore[assignment]
    batch: Batch = field(default_factory=dict)

    def generated(
        self,
        prompt_ids: Sequence[Sequence[int]],
        completion_ids: Sequence[Sequence[int]],
        tool_mask: Sequence[Sequence[int]] | None,
        end_ids: Collection[int],
        generation_limit: float,
    ) -> None:
        """Notes what was generated.

        Args:
            prompt_ids (`Sequence[Sequence[int]]`), completion_ids (`Sequence[Sequence[int]]`):
                Tokens of the n prompts and completions, tool output included.
            tool_mask (`Sequence[Sequence[int]]`, *optional*):
                1 for tokens of the model, 0 for tool output.
            end_ids (`Collection[int]`):
                Tokens that end a completion.
            generation_limit (`float`):
                Most tokens that a completion could have.
        """
        self.lengths = [len(ids) for ids in completion_ids] if tool_mask is None else [sum(mask) for mask in tool_mask]
        self.is_truncated = [ids[-1] not in end_ids for ids in completion_ids]
        self.prompt_ids, self.generation_limit = prompt_ids, generation_limit

    def gathered(
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

    @property
    def has_signal(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(P,)`: Whether each group of all processes moves the policy."""
        return has_signal(self.score.shaped, self.score.advantages, self.rollouts.num_generations)

    def split(self, num_extra: int, num_processes: int) -> tuple["Round", "Round"]:
        """The round without the last `num_extra` groups of each process, and a round of these."""
        size = self.rollouts.num_generations
        places = list(range(len(self.rollouts.lengths) // size // num_processes))
        first = places[: len(places) - num_extra]
        return self._part(first, len(places), num_processes), self._part(
            places[len(first) :], len(places), num_processes
        )

    def _part(self, own: list[int], share: int, num_processes: int) -> "Round":
        """These groups of each process's `share`."""
        size = self.rollouts.num_generations
        everywhere = [process * share + group for process in range(num_processes) for group in own]
        rows = refill.group_rows(everywhere, size)
        batch = refill.selected(self.batch, refill.group_rows(own, size))
        return replace(self, rollouts=self.rollouts.select(rows), score=self.score.select(rows), batch=batch)

    def refilled(
        self,
        fresh: "Round",
        method: LengthControl,
        rule: AdvantageRule,
        process: int,
        num_processes: int,
        pad_token_id: int,
    ) -> "Round":
        """The round in which live groups of `fresh` have taken the places of dead ones, scored anew.

        Args:
            fresh (`Round`):
                Equally many groups of each process.
            method ([`LengthControl`]), rule ([`AdvantageRule`]):
                As for the round itself.
            process (`int`), num_processes (`int`):
                Index of this process, and number of processes.
            pad_token_id (`int`):
                The tokenizer's padding token.
        """
        size, is_fresh_alive = self.rollouts.num_generations, fresh.has_signal
        sources = refill.replacements(self.has_signal, is_fresh_alive, num_processes)
        own = refill.local_groups(sources, len(is_fresh_alive), process, num_processes)
        batch = refill.selected(
            batch_fields.joined([self.batch, fresh.batch], pad_token_id), refill.group_rows(own, size)
        )
        rows = refill.group_rows(sources, size)
        rollouts = joined([self.rollouts, fresh.rollouts]).select(rows)
        cut = joined([self.score, fresh.score]).select(rows).cut
        score = replace(method.score(rollouts, rule), cut=cut)  # what was cut has its second reward already
        return replace(self, rollouts=rollouts, score=score, batch=batch)
