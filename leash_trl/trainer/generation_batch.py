"""`GenerationBatch`: one generation batch, from its prompts to the rewards and advantages of all processes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator

from leash_trl.completions.facts import CompletionFacts
from leash_trl.errors import TrainingError
from leash_trl.length_control.advantages import AdvantageRule, has_signal
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts, Score, joined
from leash_trl.microbatching import batch_fields
from leash_trl.microbatching.batch_fields import Batch
from leash_trl.trainer.dynamic_sampling import kept_groups


class GeneratedCompletion(NamedTuple):
    """What is known of a completion before it has rewards, as one process sends it to all others.

    Args:
        question (`int`): Number that identifies its prompt and is the same in every run.
        target (`float`): Target of its prompt in tokens; NaN if it has none.
        facts ([`CompletionFacts`]): Its sizes in tokens.
        columns (`dict[str, Any]`): Values of the data set columns that the method reads.
    """

    question: int
    target: float
    facts: CompletionFacts
    columns: dict[str, Any]


@dataclass
class GenerationBatch:
    """One call of TRL's generation; the methods that the trainer overrides fill in its fields during the call.

    `rollouts` and `score` describe the completions of all processes, the other fields those of this process.

    Args:
        questions (`Sequence[int]`): Number that identifies the prompt of each completion and is the same in every run.
        targets (`Sequence[float]`): Target of the prompt of each completion in tokens; NaN if it has none.
        columns (`Mapping[str, Sequence]`): Values of the data set columns that the method reads, one per completion.

    Attributes:
        facts (`Sequence[CompletionFacts]`): Sizes of each completion in tokens.
        generation_limit (`float`): Generation limit in tokens; infinite for no limit.
        rollouts ([`Rollouts`]), score ([`Score`]): The completions, and their shaped rewards and advantages.
        batch (`dict[str, torch.Tensor]`): TRL's training batch.
    """

    questions: Sequence[int] = ()
    targets: Sequence[float] = ()
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    facts: Sequence[CompletionFacts] = ()
    generation_limit: float = math.inf
    rollouts: Rollouts = None  # type: ignore[assignment]  # until there are rewards
    score: Score = None  # type: ignore[assignment]
    batch: Batch = field(default_factory=dict)

    def completions(self) -> list[GeneratedCompletion]:
        """Returns what is known of each completion of this process."""
        completions = []
        for row, (question, target, facts) in enumerate(zip(self.questions, self.targets, self.facts, strict=True)):
            columns = {name: values[row] for name, values in self.columns.items()}
            completions.append(GeneratedCompletion(question, target, facts, columns))
        return completions

    @property
    def has_signal(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(P,)`: Whether each group of all processes has signal, which means that it changes
        the policy."""
        return has_signal(self.score.shaped, self.score.advantages, self.rollouts.num_generations)

    def followed_by(self, fresh: "GenerationBatch", num_processes: int, pad_token_id: int) -> "GenerationBatch":
        """Returns both as one. Each process must have equally many groups in `fresh`; they are appended to its
        own."""
        num_old = len(self.rollouts.lengths)
        num_fresh = len(fresh.rollouts.lengths)
        # the old completions of all processes come first, then the fresh ones; reorder them by process
        old_rows = torch.arange(num_old).view(num_processes, -1)
        fresh_rows = torch.arange(num_old, num_old + num_fresh).view(num_processes, -1)
        rows = torch.cat([old_rows, fresh_rows], dim=1).flatten()
        return replace(
            self,
            rollouts=joined([self.rollouts, fresh.rollouts], rows),
            score=joined([self.score, fresh.score], rows),
            batch=batch_fields.joined([self.batch, fresh.batch], pad_token_id),
        )

    def refilled(
        self, share: int, method: LengthControl, rule: AdvantageRule, accelerator: Accelerator
    ) -> "GenerationBatch":
        """Returns the first `share` groups of each process, scored again after groups without signal have been
        replaced by later groups that have signal.

        Raises:
            `TrainingError`: If the batch holds fields that cannot be indexed by row, such as images.
        """
        unknown_fields = sorted(self.batch.keys() - batch_fields.FIELDS)
        if unknown_fields:
            names = ", ".join(unknown_fields)
            raise TrainingError(
                f"dynamic sampling cannot replace rows of {names}; set dynamic_sampling_rounds and "
                "dynamic_sampling_oversample to 0"
            )
        num_processes = accelerator.num_processes
        has_signal = self.has_signal.view(num_processes, -1)  # one row per process
        num_groups = has_signal.shape[1]
        # numbers of groups within each process, of shape (num_processes, share)
        kept = torch.tensor([kept_groups(of_process, share) for of_process in has_signal.tolist()])
        first_group = num_groups * torch.arange(num_processes)
        kept_of_all = (kept + first_group.unsqueeze(1)).flatten()
        rollouts = joined([self.rollouts], self._rows(kept_of_all))
        # TRL's batch holds the completions of this process only
        local_rows = self._rows(kept[accelerator.process_index])
        batch = {}
        for name, values in self.batch.items():
            is_per_row = name not in batch_fields.WHOLE_FIELDS
            batch[name] = values[local_rows.to(values.device)] if is_per_row else values
        return replace(self, rollouts=rollouts, score=method.score(rollouts, rule), batch=batch)

    def _rows(self, groups: torch.Tensor) -> torch.Tensor:
        """Returns the rows of the completions of these groups."""
        group_size = self.rollouts.num_generations
        rows = groups.unsqueeze(1) * group_size + torch.arange(group_size)  # of shape (groups, group_size)
        return rows.flatten()
