"""LASER: a step-shaped bonus for correct answers within the target."""

from dataclasses import dataclass

import torch

from leash_trl.length_control.method import LengthControl, Paper, knob
from leash_trl.length_control.rollouts import Rollouts


WRONG_SCORE, MALFORMED_SCORE = -0.5, -1.0


@dataclass
class Laser(LengthControl):
    r"""LASER: 1 for a correct answer and a bonus on top within the target; wrong answers do not feel their length.

    $$ r(y) = C(y) + \alpha \cdot \mathbb{I}(R) \cdot \mathbb{I}(L(y) \le L_T) $$

    Use: for shorter answers where they come easily: long correct answers only lose the bonus, so nothing holds the
    mean length.

    Source: sections 2 to 4 of [LASER](https://huggingface.co/papers/2505.15612), and the
    [release](https://github.com/hkust-nlp/Laser) with its `format_reward`: $C$ is 1 for a correct answer, -0.5 for a
    wrong one, and -1 for a wrong one without an end. The released targets are 2048, 4096 and 8192.

    Differs: the release gives -1 to answers without a box or without closed thinking. Rollouts do not show the text;
    a wrong answer that was truncated stands for them.

    Args:
        alpha (`float`, *optional*, defaults to `0.5`):
            The bonus in reward units.
    """

    name = "laser"
    paper = Paper("Learn to Reason Efficiently with Adaptive Length-based Reward Shaping", "2505.15612")
    target_use = "required"

    alpha: float = knob(0.5, least=0)

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: $C$: 1, -0.5 or -1; NaN where unscorable."""
        wrong = torch.where(rollouts.is_truncated, MALFORMED_SCORE, WRONG_SCORE).double()
        return torch.where(rollouts.is_correct, 1.0, wrong).masked_fill(~rollouts.is_scorable, torch.nan)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Scores with the bonus; NaN where unscorable."""
        return self._with_bonus(rollouts, rollouts.target_lengths)

    def _with_bonus(self, rollouts: Rollouts, target_lengths: torch.Tensor) -> torch.Tensor:
        is_rewarded = rollouts.is_correct & (rollouts.lengths <= target_lengths)
        return self.base_rewards(rollouts) + self.alpha * is_rewarded.double()
