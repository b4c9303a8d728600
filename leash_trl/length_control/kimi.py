"""Kimi k1.5: a length reward by place between the shortest and the longest answer to the same prompt."""

import torch

from leash_trl.length_control.advantages import places_in_range
from leash_trl.length_control.method import LengthControl, Paper, Rollouts, held, knob


def length_reward(is_correct: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    r"""Length reward of every completion, in reward units, in [-0.5, 0.5].

    $$ \lambda_i = 0.5 - \frac{L_i - L_{\min}}{L_{\max} - L_{\min}}, \qquad
       r_i = \begin{cases} \lambda_i & \text{correct} \\ \min(0, \lambda_i) & \text{wrong} \end{cases} $$

    Minimum and maximum are those of all completions of the prompt, correct and wrong. 0 if they are equal.

    Source: section 2.3.3 of [Kimi k1.5](https://huggingface.co/papers/2501.12599).

    Differs: the report does not mention unscorable completions; here minimum and maximum leave them out.

    Args:
        lengths (`torch.Tensor` of shape `(P, G)`): Completion lengths in tokens; NaN for a completion that does not
            count in its group.

    Returns:
        `torch.Tensor` of shape `(P, G)`: Length rewards in float64; without meaning for those left out.

    Example:
        >>> length_reward(torch.tensor([[True, True, False]]), torch.tensor([[100, 300, 200]])).tolist()
        [[0.5, -0.5, 0.0]]
    """
    places = places_in_range(lengths)
    rewards = torch.where(is_correct, 0.5 - places, (0.5 - places).clamp(max=0.0))
    return rewards.where((places > 0).any(dim=1, keepdim=True), 0.0)


class Kimi(LengthControl):
    r"""Kimi k1.5: correct answers (1, wrong 0) earn or pay by their place between the group's shortest and longest.

    Wrong answers pay too, but only in the longer half of the range.

    Use: without a target. Lengths compete within their group, so they fall without a floor; start late
    (`warmup_steps`).

    Source: section 2.3.3 of [Kimi k1.5](https://huggingface.co/papers/2501.12599), see [`length_reward`].

    Differs: the report gives neither weight nor warm-up length; 0.4 is the weight of LASER's port, and the default has
    no warm-up.

    Args:
        weight (`float`): Weight of the length reward, dimensionless.
        warmup_steps (`int`): Policy updates before the length reward is switched on.
    """

    name = "kimi"
    paper = Paper("Kimi k1.5: Scaling Reinforcement Learning with LLMs", "2501.12599")
    needs_group = True

    weight: float = knob(0.4, least=0)
    warmup_steps: int = knob(0, least=0)
    steps_done: int = held(int)

    def step(self) -> None:
        self.steps_done += 1

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        if self.steps_done < self.warmup_steps:
            return self.base_rewards(rollouts)
        lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
        rewards_PG = length_reward(rollouts.by_group(rollouts.is_correct), lengths_PG)
        return self.base_rewards(rollouts) + self.weight * rewards_PG.flatten()
