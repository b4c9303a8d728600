"""What one call of TRL's generation leaves: its completions and, once they have rewards, a batch to train on."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from leash_trl.completions.facts import CompletionFacts
from leash_trl.completions.thinking import ThinkingMarkers
from leash_trl.length_control.advantages import group_has_signal
from leash_trl.length_control.rollouts import Rollouts, Score
from leash_trl.microbatching.batch_fields import Batch


@dataclass(frozen=True)
class Completions:
    """The completions of this process before they have rewards.

    Args:
        facts (`Sequence[CompletionFacts]`): Sizes of each completion in tokens.
        markers (`Sequence[ThinkingMarkers]`): Where the thinking of each completion begins and ends.
        may_think (`Sequence[bool]`): False for a completion whose row turns the thinking off in its prompt.
        generation_limit (`float`): Generation limit in tokens; infinite for no limit.
    """

    facts: Sequence[CompletionFacts]
    markers: Sequence[ThinkingMarkers]
    may_think: Sequence[bool]
    generation_limit: float


@dataclass(frozen=True)
class GenerationBatch:
    """Completions with rewards and advantages.

    Args:
        rollouts ([`Rollouts`]), score ([`Score`]): The completions of all processes, and their shaped rewards and
            advantages.
        trl_batch (`dict[str, torch.Tensor]`): TRL's training batch, with the completions of this process.
        may_think (`bool`): Whether any completion of this process may think.
        has_trl_advantages (`bool`): Whether TRL computed the advantages of the score, from each reward function apart.
    """

    rollouts: Rollouts
    score: Score
    trl_batch: Batch
    may_think: bool = True
    has_trl_advantages: bool = False

    @property
    def group_has_signal(self) -> torch.Tensor:
        """`torch.Tensor` of shape `(P,)`: Whether each group of all processes has signal, which means that it changes
        the policy."""
        # If TRL normalizes each reward function apart, completions with equal sums of rewards can have different
        # advantages.
        rewards = self.score.advantages if self.has_trl_advantages else self.score.shaped
        return group_has_signal(rewards, self.score.advantages, self.rollouts.num_generations)
