"""Rollouts with what a method made of them."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from leash_trl.length_control.rollouts import Rollouts


@dataclass(frozen=True)
class ScoredRollouts:
    """N completions and their rewards, all `torch.Tensor` of shape `(N,)` in reward units, NaN where unscorable.

    Args:
        rollouts (`Rollouts`):
            The completions.
        base_rewards (`torch.Tensor` of shape `(N,)`):
            Rewards before length, on the method's own scale.
        penalty (`torch.Tensor` of shape `(N,)`):
            Penalty before any clip; negative where length earned a bonus.
        shaped_rewards (`torch.Tensor` of shape `(N,)`):
            What the advantages are made of.
    """

    rollouts: Rollouts
    base_rewards: torch.Tensor
    penalty: torch.Tensor
    shaped_rewards: torch.Tensor

    def columns(self) -> dict[str, torch.Tensor]:
        """What the completions table shows of each completion."""
        return {
            "length": self.rollouts.lengths,
            "penalty": self.penalty,
            "shaped_reward": self.shaped_rewards,
            "task_reward": self.rollouts.task_rewards,
        }

    def select(self, rows: torch.Tensor) -> "ScoredRollouts":
        """The given rows, which must be whole groups."""
        tensors: dict[str, Any] = {name: value[rows] for name, value in _tensors(self).items()}
        kept: dict[str, Any] = {name: value[rows] for name, value in _tensors(self.rollouts).items()}
        return dataclasses.replace(self, rollouts=dataclasses.replace(self.rollouts, **kept), **tensors)


def joined(parts: Sequence[ScoredRollouts]) -> ScoredRollouts:
    """Several batches as one; the generation limit is the first one's."""
    tensors: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts]) for name in _tensors(parts[0])}
    rollouts: dict[str, Any] = {
        name: torch.cat([getattr(part.rollouts, name) for part in parts]) for name in _tensors(parts[0].rollouts)
    }
    return dataclasses.replace(parts[0], rollouts=dataclasses.replace(parts[0].rollouts, **rollouts), **tensors)


def _tensors(record: Any) -> dict[str, torch.Tensor]:
    return {name: value for name, value in vars(record).items() if isinstance(value, torch.Tensor)}
