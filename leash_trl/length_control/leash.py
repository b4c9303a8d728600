"""LEASH and its constant variant LEASH-C: Algorithm 1, each equation once.

Paper: [Leash: Adaptive Length Penalty and Reward Shaping](https://huggingface.co/papers/2512.21540).
"""

import math
from typing import Any

import torch

from leash_trl.length_control.dual import projected_ascent, violation
from leash_trl.length_control.rollouts import Rollouts


def relative_overshoot(lengths: torch.Tensor, target_length: int) -> torch.Tensor:
    r"""How far each completion is over the target, dimensionless.

    $$ \Delta_i = \max\left(0, \frac{L(y_i)}{L_t} - 1\right) $$

    Source: Algorithm 1, line 9. One-sided: a completion at or under the target has 0 and earns no bonus.

    Args:
        lengths (`torch.Tensor` of shape `(N,)`):
            Completion lengths in tokens.
        target_length (`int`):
            Target `L_t` in tokens.

    Returns:
        `torch.Tensor` of shape `(N,)`: Overshoot in float64, non-negative.

    Example:
        >>> relative_overshoot(torch.tensor([100, 200, 300]), 200).tolist()
        [0.0, 0.0, 0.5]
    """
    return (lengths.double() / target_length - 1.0).clamp(min=0.0)


def clip_reward(rewards: torch.Tensor) -> torch.Tensor:
    """Rewards clipped to [-1, 1], in reward units. Source: Algorithm 1, line 10. NaN stays NaN."""
    return rewards.clamp(-1.0, 1.0)


class Leash:
    r"""LEASH's reward shaping and its multiplier, moved by one dual step per policy update.

    $$ \tilde r_i = \mathrm{clip}(r_i - \lambda \Delta_i, -1, 1), \qquad
       \lambda \leftarrow \mathrm{clip}(\lambda + \alpha_\lambda \hat J_P, \lambda_{\min}, \lambda_{\max}) $$

    On the paper's scale of rewards, -1 and +1, a wrong answer sits on the lower clip and never feels its length.

    Differs: where several generation batches feed one policy update, they make one dual step on their pooled mean; the
    paper has one generation batch per update.

    Args:
        target_length (`int`):
            Target `L_t` in tokens.
        lambda_init (`float`):
            Multiplier before the first dual step.
        lambda_lr (`float`):
            Step size of the dual step; 0 freezes the multiplier (LEASH-C).
        lambda_min (`float`), lambda_max (`float`):
            Bounds of the multiplier.
    """

    name = "leash"

    def __init__(self, target_length: int, lambda_init: float, lambda_lr: float, lambda_min: float, lambda_max: float):
        self.target_length = target_length
        self.lam = lambda_init
        self._lr = lambda_lr
        self._bounds = (lambda_min, lambda_max)
        # Exact integers, so that the pooled mean does not depend on how the completions were split over batches.
        self._observed_length = 0
        self._observed_count = 0

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: The price of each completion's overshoot in reward units, non-negative."""
        return self.lam * relative_overshoot(rollouts.lengths, self.target_length)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Shaped rewards in [-1, 1]; NaN where the task reward is NaN."""
        return clip_reward(rollouts.task_rewards - self.penalty(rollouts))

    def observe(self, rollouts: Rollouts) -> None:
        """Adds the lengths of a training batch to the next dual step, those of unscorable completions included."""
        self._observed_length += int(rollouts.lengths.sum())
        self._observed_count += len(rollouts.lengths)

    def dual_step(self) -> None:
        """Moves the multiplier by everything observed since the last dual step; without observations it stays."""
        if self._observed_count == 0:
            return
        overshoot = violation(self._observed_length, self._observed_count, self.target_length)
        self.lam = projected_ascent(self.lam, overshoot, self._lr, *self._bounds)
        self._observed_length = self._observed_count = 0

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold: the multiplier. JSON keeps it to the last bit."""
        return {"lambda": self.lam}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes over a saved multiplier.

        Raises:
            `ValueError`: If `lambda` is missing, not a finite number or outside the configured bounds.
        """
        lam = state.get("lambda")
        minimum, maximum = self._bounds
        if isinstance(lam, bool) or not isinstance(lam, int | float) or not math.isfinite(lam):
            raise ValueError(f"the saved state holds lambda={lam!r}, which is not a finite number")
        if not minimum <= lam <= maximum:
            raise ValueError(
                f"the saved lambda={lam} lies outside [lambda_min, lambda_max] = [{minimum}, {maximum}]; widen the "
                "bounds to those of the run that saved it"
            )
        self.lam = float(lam)
        self._observed_length = self._observed_count = 0
