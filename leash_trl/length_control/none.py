"""No length control: plain GRPO, the baseline of every comparison."""

from dataclasses import dataclass

import torch

from leash_trl.length_control.method import LengthControl, Rollouts


@dataclass
class NoControl(LengthControl):
    """No length control: task rewards as they are, plain GRPO.

    Use: as the baseline of every comparison.
    """

    name = "none"
    uses_correctness = False

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: The task rewards."""
        return rollouts.task_rewards
