"""The length penalties of prime-rl, which keep the group's mean reward as their unit.

Code: [prime-rl](https://github.com/PrimeIntellect-ai/prime-rl), three generations of it. There is no paper.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from leash_trl.length_control.advantages import Scaling, group_advantages
from leash_trl.length_control.checked_values import check_choice, check_limit, check_range
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts


def linear_penalties(
    rewards: torch.Tensor, lengths: torch.Tensor, longest: torch.Tensor | float, weight: float
) -> torch.Tensor:
    r"""Price of every completion's length in reward units, non-negative for non-negative rewards.

    $$ w \, \bar r \, \frac{L_i}{L_{\max}} $$

    $\bar r$ is the mean reward of the prompt's scorable completions: a prompt that nobody solved pays nothing.

    Source: `src/prime_rl/orchestrator/algo/grpo.py` of prime-rl at 559b4477, and its forerunner of 2026-06-19.

    Args:
        rewards (`torch.Tensor` of shape `(P, G)`):
            Rewards before length, at least 0; NaN where unscorable.
        lengths (`torch.Tensor` of shape `(P, G)`):
            Completion lengths in tokens.
        longest (`torch.Tensor` of shape `(P, 1)` or `float`):
            $L_{\max}$ in tokens, of the prompt or of all.
        weight (`float`):
            $w$, dimensionless.

    Returns:
        `torch.Tensor` of shape `(P, G)`: Penalties in float64.

    Example:
        >>> linear_penalties(torch.tensor([[1.0, 0.0]]), torch.tensor([[50, 100]]), 100.0, 0.5).tolist()
        [[0.125, 0.25]]
    """
    return weight * rewards.nanmean(dim=1, keepdim=True) * lengths.double() / longest


def efficiency_bonuses(rewards: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    r"""Bonus of every best answer that is shorter than the mean of the best, in reward units.

    $$ r_i \, \mathrm{clip}\left(1 - \frac{L_i}{\bar L}, 0, 1\right) \quad \text{where } r_i = \max_j r_j $$

    Source: `_efficiency_length_shaping` of prime-rl at f8a146063.

    Args:
        rewards (`torch.Tensor` of shape `(P, G)`), lengths (`torch.Tensor` of shape `(P, G)`):
            Rewards before length, at least 0 and NaN where unscorable; lengths in tokens.

    Example:
        >>> efficiency_bonuses(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[10, 30, 10]])).tolist()
        [[0.5, 0.0, 0.0]]
    """
    is_best_PG = rewards == rewards.nan_to_num(-torch.inf).amax(dim=1, keepdim=True)
    lengths_PG = lengths.double()
    means_P1 = lengths_PG.where(is_best_PG, torch.nan).nanmean(dim=1, keepdim=True).clamp(min=1.0)
    return (rewards * (1.0 - lengths_PG / means_P1).clamp(0.0, 1.0)).where(is_best_PG, 0.0)


def length_weighted_advantages(shaped_rewards: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    r"""Shaped rewards less their length-weighted mean in each prompt, $\sum_j L_j r'_j / \sum_j L_j$; 0 where NaN.

    Source: option `length_weighted_baseline` of prime-rl between 7f7771388 and 0be5ac452.

    Args:
        shaped_rewards (`torch.Tensor` of shape `(P, G)`), lengths (`torch.Tensor` of shape `(P, G)`):
            Shaped rewards, NaN where unscorable; lengths in tokens.

    Example:
        >>> length_weighted_advantages(torch.tensor([[1.0, 0.0]]), torch.tensor([[10, 30]])).tolist()
        [[0.75, -0.25]]
    """
    tokens_PG = lengths.double().where(~torch.isnan(shaped_rewards), 0.0)
    totals_P1 = tokens_PG.sum(dim=1, keepdim=True).clamp(min=1.0)
    baselines_P1 = (shaped_rewards * tokens_PG).nansum(dim=1, keepdim=True) / totals_P1
    return (shaped_rewards - baselines_P1).nan_to_num(nan=0.0)


@dataclass
class PrimeRL(LengthControl):
    r"""prime-rl: correctness (1 or 0) less a share of the group's mean reward; advantage `reward - mean`, no std.

    Wrong answers pay as correct ones do. `scale_rewards` has no say.

    Use: to repeat prime-rl's runs; a prompt that is mostly failed pays little.

    Source: [prime-rl](https://github.com/PrimeIntellect-ai/prime-rl).

    Differs: prime-rl of today also charges 0.1 each for input tokens and turns, which are not visible here; where all
    completions of a prompt have as many of both, the advantage is the same.

    Args:
        variant (`str`, *optional*, defaults to `"head"`):
            `"head"` measures length by the prompt's longest completion (559b4477); `"june"` by
            `max_completion_length` (7f7771388 to 0be5ac452); `"april"` has a bonus for correct answers shorter than
            their mean and no penalty (f8a146063).
        weight (`float`, *optional*, defaults to `0.25`):
            Weight of the penalty, dimensionless; `"april"` has none.
        gate_by_correctness (`bool`, *optional*, defaults to `False`):
            Only correct answers pay; `"june"` only.
        length_weighted_baseline (`bool`, *optional*, defaults to `False`):
            Mean of the advantage weighted by length, so that it is zero over the tokens; `"june"` only.
    """

    name = "prime_rl"

    variant: Literal["head", "june", "april"] = "head"
    weight: float = 0.25
    gate_by_correctness: bool = False
    length_weighted_baseline: bool = False

    def __post_init__(self) -> None:
        check_choice(self, "variant", "head", "june", "april")
        check_range(self, "weight", 0)
        for name in ("gate_by_correctness", "length_weighted_baseline"):
            if getattr(self, name) and self.variant != "june":
                raise ValueError(f"{name} is an option of variant='june', but variant is {self.variant!r}")

    def check(self, target_length: int | None, max_completion_length: float, num_generations: int) -> None:
        """Raises `ValueError` where the penalty would be a share of a generation limit that is not there."""
        if self.variant == "june":
            check_limit(self, max_completion_length)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Correctness less the penalty, or plus the bonus; NaN where unscorable."""
        rewards_PG = rollouts.by_group(self.base_rewards(rollouts))
        lengths_PG = rollouts.by_group(rollouts.lengths)
        if self.variant == "april":
            return (rewards_PG + efficiency_bonuses(rewards_PG, lengths_PG)).flatten()
        longest: torch.Tensor | float = rollouts.max_completion_length
        if self.variant == "head":
            scorable_PG = lengths_PG.where(rollouts.by_group(rollouts.is_scorable), 0)
            longest = scorable_PG.amax(dim=1, keepdim=True).clamp(min=1)
        penalties_PG = linear_penalties(rewards_PG, lengths_PG, longest, self.weight)
        if self.gate_by_correctness:
            penalties_PG = penalties_PG * rewards_PG
        return (rewards_PG - penalties_PG).flatten()

    def advantages(
        self, shaped_rewards: torch.Tensor, rollouts: Rollouts, scale_rewards: Scaling, epsilon: float
    ) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Shaped reward less its group's mean; 0 where unscorable."""
        if self.length_weighted_baseline:
            by_group = rollouts.by_group
            return length_weighted_advantages(by_group(shaped_rewards), by_group(rollouts.lengths)).flatten()
        return group_advantages(shaped_rewards, rollouts.num_generations, "none", epsilon)
