"""Kimi k1.5: a length reward by the position between the shortest and the longest answer to the same prompt."""

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter, state_field
from leash_trl.length_control.advantages import min_max_scaled


class Kimi(LengthControl):
    r"""Kimi k1.5: correctness (1 or 0) plus a length reward by the position between the group's shortest and longest.

    $$ r'_i = r_i + w \begin{cases} \lambda_i & \text{correct} \\ \min(0, \lambda_i) & \text{wrong} \end{cases}, \qquad
       \lambda_i = 0.5 - \frac{L_i - L_{\min}}{L_{\max} - L_{\min}} $$

    $L_{\min}$ and $L_{\max}$ are over all scorable completions of the prompt. $\lambda$ is 0 if they are equal.

    Use: without a target. Completions compete within their group, so lengths keep falling; set `warmup_steps` to start
    the length reward late.

    Source: section 2.3.3 of [Kimi k1.5](https://huggingface.co/papers/2501.12599).

    Differs: the report states neither the weight nor the length of the warm-up; 0.4 is the weight in LASER's
    implementation.

    Args:
        weight (`float`): Weight $w$ of the length reward, dimensionless.
        warmup_steps (`int`): Number of policy updates before the length reward is turned on.
    """

    name = "kimi"
    paper = Paper("Kimi k1.5: Scaling Reinforcement Learning with LLMs", "2501.12599")
    depends_on = "prompt"

    weight: float = hyperparameter(0.4, ge=0)
    warmup_steps: int = hyperparameter(0, ge=0)
    steps_done: int = state_field(int)

    def step(self) -> None:
        self.steps_done += 1

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        if self.steps_done < self.warmup_steps:
            return self.base_rewards(rollouts)
        # Position of each completion between the shortest (0) and the longest one (1) of its prompt. If all have the
        # same length, all positions are 0, and there is no length reward.
        positions_PG = min_max_scaled(rollouts.by_group(rollouts.scorable_lengths))
        has_range_P1 = (positions_PG > 0).any(dim=1, keepdim=True)
        # from 0.5 for the shortest to -0.5 for the longest
        lambdas_N = (0.5 - positions_PG).where(has_range_P1, 0.0).flatten()
        # A wrong answer earns nothing by being short.
        length_rewards_N = torch.where(rollouts.is_correct, lambdas_N, lambdas_N.clamp(max=0.0))
        return self.base_rewards(rollouts) + self.weight * length_rewards_N
