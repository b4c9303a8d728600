"""GR3: group-relative reward rescaling, length as a divisor of the reward.

Paper: [GR3](https://huggingface.co/papers/2603.10535); code: [prime-rl](https://github.com/PrimeIntellect-ai/prime-rl).
"""

from dataclasses import dataclass

import torch

from leash_trl.length_control.advantages import Scaling, group_advantages
from leash_trl.length_control.checked_values import check_range
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts


def rescaled_rewards(rewards: torch.Tensor, lengths: torch.Tensor, alpha: float) -> torch.Tensor:
    r"""Rewards divided by a factor that grows with the length, in reward units.

    $$ r'_i = \frac{r_i}{1 + \alpha L_i / \bar L} $$

    $\bar L$ is the mean length of the prompt's scorable completions, right and wrong.

    Source: prime-rl at c1bbbf923, after [GR3](https://huggingface.co/papers/2603.10535).

    Args:
        rewards (`torch.Tensor` of shape `(P, G)`):
            Rewards before length, a row per prompt; NaN where unscorable.
        lengths (`torch.Tensor` of shape `(P, G)`):
            Completion lengths in tokens.
        alpha (`float`):
            Strength, dimensionless.

    Returns:
        `torch.Tensor` of shape `(P, G)`: Rewards in float64; 0 stays 0.

    Example:
        >>> rescaled_rewards(torch.tensor([[1.0, 0.0]]), torch.tensor([[100, 100]]), 1.0).tolist()
        [[0.5, 0.0]]
    """
    lengths_PG = lengths.double()
    means_P1 = lengths_PG.where(~torch.isnan(rewards), torch.nan).nanmean(dim=1, keepdim=True)
    return rewards / (1.0 + alpha * lengths_PG / means_P1.clamp(min=1.0))


@dataclass
class GR3(LengthControl):
    r"""GR3: correctness (1 or 0) divided by a factor of relative length; advantage `reward - mean`, no std.

    A wrong answer has 0 to divide and never feels its length. `scale_rewards` has no say.

    Use: without a target, where length must never outweigh correctness.

    Source: [GR3](https://huggingface.co/papers/2603.10535) as prime-rl had it at c1bbbf923, see [`rescaled_rewards`].

    Args:
        alpha (`float`, *optional*, defaults to `0.33`):
            Strength, dimensionless: an answer of mean length keeps `1 / (1 + alpha)` of its reward.
    """

    name = "gr3"

    alpha: float = 0.33

    def __post_init__(self) -> None:
        check_range(self, "alpha", 0)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Rescaled correctness in [0, 1]; NaN where unscorable."""
        rewards_PG = rollouts.by_group(self.base_rewards(rollouts))
        return rescaled_rewards(rewards_PG, rollouts.by_group(rollouts.lengths), self.alpha).flatten()

    def advantages(
        self, shaped_rewards: torch.Tensor, rollouts: Rollouts, scale_rewards: Scaling, epsilon: float
    ) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Shaped reward less its group's mean; 0 where unscorable."""
        return group_advantages(shaped_rewards, rollouts.num_generations, "none", epsilon)
