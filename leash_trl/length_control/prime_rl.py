"""The length penalty of prime-rl, which is proportional to the group's mean reward."""

import torch

from leash_trl.length_control import LengthControl, Rollouts, hyperparameter
from leash_trl.length_control.mai import solve_rate_penalties


class PrimeRL(LengthControl):
    r"""prime-rl: correctness (1 or 0) minus a penalty times the group's mean; the advantage is `reward - mean`.

    $$ r'_i = r_i - w \, \bar r \, \frac{L_i}{L_{\max}} $$

    $\bar r$ is the mean reward of the prompt's scorable completions, so a prompt without a correct answer has no
    penalty. Correct and wrong answers are penalized alike. `scale_rewards` has no effect. $L_{\max}$ is the prompt's
    longest completion.

    Use: to reproduce runs of prime-rl. Prompts with few correct answers have a small penalty.

    Source: [prime-rl](https://github.com/PrimeIntellect-ai/prime-rl) at 559b4477.

    Differs: prime-rl also has a penalty of 0.1 each for input tokens and turns, which are not available here. If all
    completions of a prompt have the same number of both, the advantage is the same. Earlier versions of prime-rl had
    other penalties.

    Args:
        weight (`float`): Weight of the penalty, dimensionless.
    """

    name = "prime_rl"
    depends_on = "prompt"
    advantages_have_mean_zero = True
    scale_rewards = "none"

    weight: float = hyperparameter(0.25, ge=0)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        rewards_PG = rollouts.by_group(self.base_rewards(rollouts))
        lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
        penalties_PG = self.weight * solve_rate_penalties(rewards_PG, lengths_PG)
        return (rewards_PG - penalties_PG).flatten()
