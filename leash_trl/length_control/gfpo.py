"""GFPO: samples more completions per prompt and learns only from the best few by length."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from leash_trl.length_control.advantages import group_advantages
from leash_trl.length_control.method import (
    AdvantageRule,
    LengthControl,
    Paper,
    Rollouts,
    Score,
    hyperparameter,
    state_field,
)


MAX_GROUPS = 8192  # more than the paper's complete run of 100 steps with 64 prompts each
WARMUP_GROUPS = 64  # one batch of the paper: quartiles of fewer mean nothing


def num_kept_by_difficulty(mean_reward: float, quartiles: Sequence[float] | None, num_kept: int) -> int:
    """Completions of a prompt to keep: `num_kept` for the harder half of prompts, then 3/4 and 1/2 of that.

    Source: adaptive difficulty in [GFPO](https://huggingface.co/papers/2508.09726), which keeps 8, 8, 6 and 4.

    Args:
        mean_reward (`float`): Mean reward of the prompt's completions in reward units.
        quartiles (`Sequence[float]`): Those of such means so far; a mean on one belongs to the easier side. Without
            them every prompt is hard.

    Example:
        >>> [num_kept_by_difficulty(mean, (0.25, 0.5, 0.75), 8) for mean in (0.1, 0.3, 0.6, 0.9)]
        [8, 8, 6, 4]
    """
    if quartiles is None or mean_reward < quartiles[1]:
        return num_kept
    return math.ceil(num_kept * (0.75 if mean_reward < quartiles[2] else 0.5))


class GFPO(LengthControl):
    r"""GFPO: task rewards as they are, but only the k shortest or most token-efficient completions have an advantage.

    $$ \hat A_i = \frac{r_i - \mu_S}{\sigma_S + \epsilon} \cdot \mathbb{I}(i \in S) $$

    Mean and population standard deviation are those of the kept set $S$ alone.

    Use: if sampling is cheap: sample more per prompt, train on the shortest, and do not change the reward.

    Source: section 3 and Algorithm 1 of [GFPO](https://huggingface.co/papers/2508.09726). It suits graded rewards in
    [-1, 1]. With rewards of 0 and 1, token efficiency often keeps only correct answers, and the model learns nothing;
    with negative rewards, it keeps the longer ones. Ties go to the first.

    Differs: quartiles are exact, over the last 8192 prompts; the paper has a t-digest of all. They apply after 64
    prompts; the paper's warm-up is not known. Unscorable completions are never kept.

    Args:
        metric (`str`): `"length"` keeps the shortest, by $-L$; `"token_efficiency"` those with most reward per token,
            $R / L$.
        num_kept (`int`): k, fewer than `num_generations`. By default half of the completions of a prompt, from 2 to 8;
            the paper has up to 8 of 8, 16 and 24.
        adaptive (`bool`): Keep fewer completions of easy prompts, see [`num_kept_by_difficulty`].
    """

    name = "gfpo"
    paper = Paper("Sample More to Think Less: Group Filtered Policy Optimization", "2508.09726")
    own_advantages = "group"
    uses_correctness = False

    metric: Literal["length", "token_efficiency"] = "length"
    num_kept: int | None = hyperparameter(None, ge=2)  # one alone has no advantage
    adaptive: bool = False
    group_means: list[float] = state_field(list)

    def kept(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: True for the completions to learn from."""
        rewards_PG = rollouts.by_group(rollouts.task_rewards)
        num_kept = self.num_kept or min(max(2, rollouts.num_generations // 2), 8)
        means, quartiles = rewards_PG.nanmean(dim=1).tolist(), self.quartiles()
        num_kept_P = [max(2, num_kept_by_difficulty(mean, quartiles, num_kept)) for mean in means]
        lengths_PG = rollouts.by_group(rollouts.lengths.double())
        scores_PG = -lengths_PG if self.metric == "length" else rewards_PG / lengths_PG.clamp(min=1)
        is_scored_PG = ~torch.isnan(rewards_PG)
        order_PG = scores_PG.where(is_scored_PG, -torch.inf).argsort(dim=1, descending=True, stable=True)
        ranks_PG = order_PG.argsort(dim=1)
        return ((ranks_PG < torch.tensor(num_kept_P).unsqueeze(1)) & is_scored_PG).flatten()

    def quartiles(self) -> list[float] | None:
        """Quartiles of the mean rewards of earlier prompts; `None` during warm-up and without `adaptive`."""
        if not self.adaptive or len(self.group_means) < WARMUP_GROUPS:
            return None
        means = torch.tensor(self.group_means, dtype=torch.float64)
        return means.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()

    def score(self, rollouts: Rollouts, rule: AdvantageRule) -> Score:
        """Advantages over the kept completions; the others have 0."""
        score, size = super().score(rollouts, rule), rollouts.num_generations
        rewards = score.shaped.masked_fill(~self.kept(rollouts), torch.nan)
        advantages = group_advantages(rewards, size, rule.scale_rewards, rule.epsilon, correction=0)
        return replace(score, advantages=advantages)

    def observe(self, rollouts: Rollouts) -> None:
        if self.adaptive:
            means_P = rollouts.by_group(rollouts.task_rewards).nanmean(dim=1)
            self.group_means = (self.group_means + means_P[~torch.isnan(means_P)].tolist())[-MAX_GROUPS:]

    def statistics(self) -> dict[str, float]:
        return dict(zip(("reward_q25", "reward_q50", "reward_q75"), self.quartiles() or (), strict=False))
