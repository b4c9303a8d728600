"""LACONIC: LEASH's price on overshoot and its dual step, with no clip on the shaped reward.

Paper: [LACONIC: Length-Aware Constrained Reinforcement Learning for LLM](https://huggingface.co/papers/2602.14468).
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from leash_trl.length_control.leash import Leash
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts


def shaped_rewards(base_rewards: torch.Tensor, penalties: torch.Tensor) -> torch.Tensor:
    r"""Rewards less the price of length, in reward units.

    $$ \tilde r_i = r_i - \lambda \max\left(0, \frac{L_i - B}{B}\right) $$

    Source: section 3 of [LACONIC](https://huggingface.co/papers/2602.14468), read through the README of the release.

    Args:
        base_rewards (`torch.Tensor` of shape `(N,)`):
            Rewards before length; NaN where unscorable.
        penalties (`torch.Tensor` of shape `(N,)`):
            Multiplier times relative overshoot, non-negative.

    Returns:
        `torch.Tensor` of shape `(N,)`: Rewards without a lower bound: wrong answers pay for their length too.

    Example:
        >>> shaped_rewards(torch.tensor([1.0, 0.0]), torch.tensor([0.25, 0.5])).tolist()
        [0.75, -0.5]
    """
    return base_rewards - penalties


@dataclass
class Laconic(Leash):
    r"""LACONIC: correctness (1 or 0) less the price of overshoot, unclipped, and one dual step per policy update.

    $$ \lambda \leftarrow \mathrm{clip}\left(\lambda + \eta \left(\frac{\bar L}{B} - 1\right), 0, \Lambda\right) $$

    Wrong answers over the budget pay as correct ones do; a wrong answer earns most by stopping within the budget.

    Use: as LEASH, where wrong answers should learn to stop too.

    Source: [LACONIC](https://huggingface.co/papers/2602.14468). The defaults are those of the released script for
    DeepSeek-R1-Distill-Qwen-1.5B with a budget of 1500 tokens
    ([Debugger001/Length-Aware-LLM](https://github.com/Debugger001/Length-Aware-LLM)).

    Differs: that script also takes 0.1 off every completion that hits the generation limit and caps the price at 0.4;
    the paper's formula has neither, and under its own limit of 4096 tokens and ceiling the cap is never reached.

    Args:
        lambda_init (`float`, *optional*, defaults to `0.0`):
            Multiplier before the first dual step.
        lambda_lr (`float`, *optional*, defaults to `0.002`):
            Step size $\eta$ of the dual step.
        lambda_min (`float`, *optional*, defaults to `0.0`), lambda_max (`float`, *optional*, defaults to `0.1`):
            Bounds of the multiplier; the upper one is the paper's ceiling $\Lambda$.
    """

    name: ClassVar[str] = "laconic"
    owns_scale: ClassVar[bool] = True

    lambda_init: float = 0.0
    lambda_lr: float = 0.002
    lambda_max: float = 0.1

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: 1 where correct, 0 where not, NaN where unscorable."""
        return rollouts.correctness

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Shaped rewards, at most 1 and unbounded below; NaN where unscorable."""
        return shaped_rewards(self.base_rewards(rollouts), self.penalty(rollouts))

    def reward_scale_problem(self, rollouts: Rollouts) -> str | None:
        """`None`: the method has a scale of its own."""
        return LengthControl.reward_scale_problem(self, rollouts)
