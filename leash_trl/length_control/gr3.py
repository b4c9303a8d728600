"""GR3, group-relative reward rescaling: divides the reward by a factor of relative length."""

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter
from leash_trl.length_control.rollouts import LEAST_LENGTH


class GR3(LengthControl):
    r"""GR3: divides correctness (1 or 0) by a factor of relative length; the advantage is `reward - mean`.

    $$ r'_i = \frac{r_i}{1 + \alpha L_i / \bar L} $$

    $\bar L$ is the mean length of the prompt's scorable completions, correct and wrong. Wrong answers have reward 0 at
    any length. `scale_rewards` has no effect.

    Use: without a target, if a correct answer must have a higher reward than a wrong one at any length.

    Source: [GR3](https://huggingface.co/papers/2603.10535) as in prime-rl at c1bbbf923.

    Args:
        alpha (`float`): Strength, dimensionless: an answer of mean length keeps `1 / (1 + alpha)` of its reward.
    """

    name = "gr3"
    paper = Paper("GR3", "2603.10535")
    formula_from = "prime-rl"
    depends_on = "prompt"
    advantages_have_mean_zero = True
    scale_rewards = "none"

    alpha: float = hyperparameter(0.33, ge=0)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
        means_P1 = lengths_PG.nanmean(dim=1, keepdim=True)
        relative_lengths_N = (lengths_PG / means_P1.clamp(min=LEAST_LENGTH)).flatten()  # L_i / mean length
        return self.base_rewards(rollouts) / (1.0 + self.alpha * relative_lengths_N)
