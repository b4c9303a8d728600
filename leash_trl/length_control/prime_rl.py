"""The length penalties of prime-rl, three generations of them, measured in the group's mean reward."""

from dataclasses import replace
from typing import Literal

import torch

from leash_trl.length_control.mai import solve_rate_prices
from leash_trl.length_control.method import AdvantageRule, LengthControl, Rollouts, Score, hyperparameter


class PrimeRL(LengthControl):
    r"""prime-rl: correctness (1 or 0) less a share of the group's mean reward; advantage `reward - mean`, no std.

    $$ r'_i = r_i - w \, \bar r \, \frac{L_i}{L_{\max}} $$

    $\bar r$ is the mean reward of the prompt's scorable completions: a prompt without a correct answer pays nothing.
    Wrong answers pay as correct ones do. `scale_rewards` has no effect.

    Use: to repeat prime-rl's runs; a prompt with few correct answers pays little.

    Source: [prime-rl](https://github.com/PrimeIntellect-ai/prime-rl).

    Differs: prime-rl of today also charges 0.1 each for input tokens and turns, which are not visible here. If all
    completions of a prompt have the same number of both, the advantage is the same.

    Args:
        variant (`str`): $L_{\max}$ is the prompt's longest completion for `"head"` (559b4477) and
            `max_completion_length` for `"june"` (7f7771388 to 0be5ac452). `"april"` has no penalty, but a bonus for
            correct answers shorter than their mean, $r_i \, \mathrm{clip}(1 - L_i / \bar L, 0, 1)$ (f8a146063).
        weight (`float`): Weight of the penalty, dimensionless; `"april"` has none.
        gate_by_correctness (`bool`): Only correct answers pay; prime-rl has it in June only.
        length_weighted_baseline (`bool`): Weights the mean that is subtracted by length, $\sum_j L_j r'_j / \sum_j
            L_j$, so that advantages sum to zero over the tokens; prime-rl has it in June only.
    """

    name = "prime_rl"
    needs_group = True

    variant: Literal["head", "june", "april"] = "head"
    weight: float = hyperparameter(0.25, ge=0)
    gate_by_correctness: bool = False
    length_weighted_baseline: bool = False

    @property
    def own_advantages(self) -> Literal["group", True]:  # type: ignore[override]
        return True if self.length_weighted_baseline else "group"

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        rewards_PG = rollouts.by_group(self.base_rewards(rollouts))
        lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
        if self.variant == "april":
            means_P1 = lengths_PG.where(rewards_PG == 1, torch.nan).nanmean(dim=1, keepdim=True).clamp(min=1.0)
            bonuses_PG = rewards_PG * (1.0 - lengths_PG / means_P1).clamp(0.0, 1.0)
            return (rewards_PG + bonuses_PG.where(rewards_PG != 0, 0.0)).flatten()
        longest = rollouts.max_completion_length if self.variant == "june" else None
        penalties_PG = self.weight * solve_rate_prices(rewards_PG, lengths_PG, longest)
        if self.gate_by_correctness:
            penalties_PG = penalties_PG * rewards_PG
        return (rewards_PG - penalties_PG).flatten()

    def score(self, rollouts: Rollouts, rule: AdvantageRule) -> Score:
        baseline = "length_weighted" if self.length_weighted_baseline else "mean"
        return super().score(rollouts, replace(rule, scale_rewards="none", reward_baseline=baseline))
