"""`GenerationBatch`: one generation batch, from its prompts to the rewards and advantages of all processes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from leash_trl.completions.facts import CompletionFacts
from leash_trl.length_control.advantages import group_has_signal
from leash_trl.length_control.rollouts import Rollouts, Score
from leash_trl.microbatching.batch_fields import Batch


@dataclass
class GenerationBatch:
    """One call of TRL's generation; the methods that the trainer overrides fill in its fields during the call.

    `rollouts` and `score` describe the completions of all processes, the other fields those of this process.

    Args:
        questions (`Sequence[int]`): Number that identifies the prompt of each completion and is the same in every run.
        targets (`Sequence[float]`): Target of the prompt of each completion in tokens; NaN if it has none.
        common_target (`float`): Target that all prompts of the run have at this step; NaN if they have others.
        columns (`Mapping[str, Sequence]`): Values of the data set columns that the method reads, one per completion.
        template_kwargs (`Sequence[Mapping]`): Arguments of the chat template for the prompt of each completion, in
            addition to those of the configuration.

    Attributes:
        prompt_ends (`Sequence[str]`): End of the prompt of each completion, after the chat template.
        facts (`Sequence[CompletionFacts]`): Sizes of each completion in tokens.
        lengths (`Sequence[float]`): What the target limits, of each completion, in the unit of `length_of`.
        generation_limit (`float`): Generation limit in tokens; infinite for no limit.
        rollouts ([`Rollouts`]), score ([`Score`]): The completions, and their shaped rewards and advantages.
        trl_batch (`dict[str, torch.Tensor]`): TRL's training batch.
        has_trl_advantages (`bool`): Whether TRL computed the advantages of the score, from each reward function apart.
    """

    questions: Sequence[int] = ()
    targets: Sequence[float] = ()
    common_target: float = math.nan
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    template_kwargs: Sequence[Mapping[str, Any]] = ()
    prompt_ends: Sequence[str] = ()
    facts: Sequence[CompletionFacts] = ()
    lengths: Sequence[float] = ()
    generation_limit: float = math.inf
    rollouts: Rollouts = None  # type: ignore[assignment]  # until there are rewards
    score: Score = None  # type: ignore[assignment]
    trl_batch: Batch = field(default_factory=dict)
    has_trl_advantages: bool = False

    @property
    def group_has_signal(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(P,)`: Whether each group of all processes has signal, which means that it changes
        the policy."""
        # rewards that are normalized apart can have advantages where their sums are equal
        rewards = self.score.advantages if self.has_trl_advantages else self.score.shaped
        return group_has_signal(rewards, self.score.advantages, self.rollouts.num_generations)
