"""The length penalty of prime-rl, measured in the group's mean reward."""

from dataclasses import replace

import torch

from leash_trl.length_control.mai import solve_rate_prices
from leash_trl.length_control.method import AdvantageRule, LengthControl, Rollouts, Score, hyperparameter


class PrimeRL(LengthControl):
    r"""prime-rl: correctness (1 or 0) less a share of the group's mean reward; advantage `reward - mean`, no std.

    $$ r'_i = r_i - w \, \bar r \, \frac{L_i}{L_{\max}} $$

    $\bar r$ is the mean reward of the prompt's scorable completions: a prompt without a correct answer pays nothing.
    Wrong answers pay as correct ones do. `scale_rewards` has no effect.

    Use: to repeat prime-rl's runs; a prompt with few correct answers pays little.

    $L_{\max}$ is the prompt's longest completion.

    Source: [prime-rl](https://github.com/PrimeIntellect-ai/prime-rl) at 559b4477.

    Differs: prime-rl also charges 0.1 each for input tokens and turns, which are not visible here. If all completions
    of a prompt have the same number of both, the advantage is the same. Its earlier versions had other penalties.

    Args:
        weight (`float`): Weight of the penalty, dimensionless.
    """

    name = "prime_rl"
    needs_group = True
    own_advantages = "group"

    weight: float = hyperparameter(0.25, ge=0)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        rewards_PG = rollouts.by_group(self.base_rewards(rollouts))
        lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
        return (rewards_PG - self.weight * solve_rate_prices(rewards_PG, lengths_PG)).flatten()

    def score(self, rollouts: Rollouts, rule: AdvantageRule) -> Score:
        return super().score(rollouts, replace(rule, scale_rewards="none"))
