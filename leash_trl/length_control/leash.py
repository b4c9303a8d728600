"""LEASH and its constant variant LEASH-C: the paper's Algorithm 1.

Paper: [Leash: Adaptive Length Penalty and Reward Shaping for Efficient Large Reasoning
Model](https://huggingface.co/papers/2512.21540).
"""

from dataclasses import dataclass
from typing import Any

import torch

from leash_trl.length_control.checked_values import (
    check_multiplier,
    is_count,
    is_number,
    saved_multiplier,
    saved_value,
)
from leash_trl.length_control.dual import projected_ascent
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts


def relative_overshoot(lengths: torch.Tensor, target_lengths: torch.Tensor | float) -> torch.Tensor:
    r"""How far each completion is over the target, dimensionless.

    $$ \Delta_i = \max\left(0, \frac{L(y_i)}{L_t} - 1\right) $$

    Source: Algorithm 1, line 9. One-sided: a completion at or under the target has 0 and earns no bonus.

    Args:
        lengths (`torch.Tensor` of shape `(N,)`):
            Completion lengths in tokens.
        target_lengths (`torch.Tensor` of shape `(N,)` or `float`):
            Target `L_t` in tokens.

    Returns:
        `torch.Tensor` of shape `(N,)`: Overshoot in float64, non-negative.

    Example:
        >>> relative_overshoot(torch.tensor([100, 200, 300]), 200).tolist()
        [0.0, 0.0, 0.5]
    """
    return (lengths.double() / target_lengths - 1.0).clamp(min=0.0)


def clip_reward(rewards: torch.Tensor) -> torch.Tensor:
    """Rewards clipped to [-1, 1], in reward units. Source: Algorithm 1, line 10. NaN stays NaN."""
    return rewards.clamp(-1.0, 1.0)


@dataclass
class Leash(LengthControl):
    r"""LEASH: the reward less lambda times the overshoot of the target; lambda follows the mean overshoot.

    $$ \tilde r_i = \mathrm{clip}(r_i - \lambda \Delta_i, -1, 1), \qquad
       \lambda \leftarrow \mathrm{clip}(\lambda + \alpha_\lambda \hat J_P, \lambda_{\min}, \lambda_{\max}) $$

    On the paper's scale of rewards, -1 and +1, a wrong answer sits on the lower clip and never feels its length.

    Use: to hold the mean length at a budget whose price is not known in advance; task rewards are -1 and +1.

    Source: Algorithm 1 of [LEASH](https://huggingface.co/papers/2512.21540).

    Differs: the paper has one generation batch per policy update. Several batches in one update make one dual step on
    their pooled mean, and so do a batch whose update mixed precision skipped and the next batch.

    Args:
        lambda_init (`float`, *optional*, defaults to `0.1`):
            Multiplier before the first dual step.
        lambda_lr (`float`, *optional*, defaults to `0.005`):
            Step size of the dual step; 0 freezes the multiplier (LEASH-C).
        lambda_min (`float`, *optional*, defaults to `0.0`), lambda_max (`float`, *optional*, defaults to `1.0`):
            Bounds of the multiplier.
    """

    name = "leash"
    authors = "Yanhao Li and Lu Ma and Jiaran Zhang and Lexiang Tang and Wentao Zhang and Guibo Luo"
    target_use = "required"
    uses_correctness = False
    needs_truncated = True

    lambda_init: float = 0.1
    lambda_lr: float = 0.005
    lambda_min: float = 0.0
    lambda_max: float = 1.0

    def __post_init__(self) -> None:
        check_multiplier(self)
        self.lam = self.lambda_init
        self._observed: list[list[float]] = []  # target and length in tokens of every completion since the last step

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        """Task rewards, clipped: apart from the clip, LEASH has no scale of its own."""
        return clip_reward(rollouts.task_rewards)

    def penalty(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: The price of each completion's overshoot before the clip, non-negative."""
        return self.lam * relative_overshoot(rollouts.lengths, rollouts.target_lengths)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Shaped rewards in [-1, 1]; NaN where the task reward is NaN."""
        return clip_reward(rollouts.task_rewards - self.penalty(rollouts))

    def reward_scale_problem(self, rollouts: Rollouts) -> str | None:
        """A warning if the scale of the task rewards is not the paper's -1 to +1; `None` if nothing shows it."""
        scores = rollouts.task_rewards[~torch.isnan(rollouts.task_rewards)]
        if (scores.abs() > 1).any():
            return (
                f"the weighted sum of the task rewards reaches {scores.abs().max().item():.3g}, but the shaped reward "
                "is clipped to [-1, 1]: what lies beyond teaches nothing; scale the rewards down with reward_weights"
            )
        if (scores == 0).any() and (scores >= 0).all():
            return (
                "wrong answers have task reward 0, so they pay for their length too and learn to fail fast; LEASH is "
                "meant for -1 and +1, as leash_trl.rewards.math_reward gives"
            )
        return None

    def observe(self, rollouts: Rollouts) -> None:
        """Adds the lengths of a training batch to the next dual step, those of unscorable completions included."""
        pairs = zip(rollouts.target_lengths.tolist(), rollouts.lengths.tolist(), strict=True)
        self._observed += [list(pair) for pair in pairs]

    def step(self) -> None:
        """Moves the multiplier by all batches observed since the last dual step; without any it stays."""
        if self._observed:
            target_lengths, lengths = zip(*self._observed, strict=True)
            self.lam = self.next_multiplier(self.violation(lengths, target_lengths))
            self._observed = []

    def next_multiplier(self, violation: float) -> float:
        """The multiplier after a dual step."""
        return projected_ascent(self.lam, violation, self.lambda_lr, self.lambda_min, self.lambda_max)

    def statistics(self) -> dict[str, float]:
        """The multiplier that the coming batch uses."""
        return {"lambda": self.lam}

    def state_dict(self) -> dict[str, Any]:
        """The multiplier, which JSON keeps to the last bit, and target and length of the completions that wait for a
        dual step, as after a skipped policy update."""
        return {"lambda": self.lam, "observed": list(self._observed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; in older ones a row holds target, tokens and number of completions."""
        self.lam = saved_multiplier(state, "lambda", self.lambda_min, self.lambda_max)
        needed = "rows of a target and a length in tokens"
        rows = saved_value({"observed": [], **state}, "observed", _are_observations, needed)
        self._observed = []
        for target, tokens, *completions in rows:
            count = completions[0] if completions else 1
            self._observed += [[target, tokens / count]] * count


@dataclass
class LeashC(Leash):
    r"""LEASH-C: LEASH with the multiplier frozen at `lambda_init`.

    Use: if a price is known to work, and as the control that shows what adapting it gains.

    Source: section 4 of [LEASH](https://huggingface.co/papers/2512.21540); 0.1 for the 1.5B, 0.2 for the 4B model.

    Args:
        lambda_init (`float`, *optional*, defaults to `0.1`):
            The multiplier.
        lambda_lr (`float`, *optional*, defaults to `0.0`):
            Must be 0.
    """

    name = "leash_c"

    lambda_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lambda_lr != 0:
            raise ValueError(f"lambda_lr is {self.lambda_lr}, but leash_c freezes lambda; use length_control='leash'")


def _are_observations(rows: Any) -> bool:
    return isinstance(rows, list) and all(
        isinstance(row, list)
        and len(row) in (2, 3)
        and all(map(is_number, row))
        and row[0] > 0 <= row[1]
        and (len(row) == 2 or (is_count(row[2]) and row[2] > 0))
        for row in rows
    )
