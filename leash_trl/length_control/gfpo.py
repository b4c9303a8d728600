"""GFPO: samples more completions per prompt and trains only on the few best ones by length."""

from typing import Literal

import torch

from leash_trl.errors import TrainingError
from leash_trl.length_control import (
    AdvantageRule,
    LengthControl,
    Paper,
    Rollouts,
    group_advantages,
    hyperparameter,
)
from leash_trl.length_control.dual import clipped
from leash_trl.length_control.rollouts import LEAST_LENGTH


class GFPO(LengthControl):
    r"""GFPO: unchanged task rewards, but only the k shortest or most token-efficient completions have an advantage.

    $$ \hat A_i = \frac{r_i - \mu_S}{\sigma_S + \epsilon} \cdot \mathbb{I}(i \in S) $$

    The mean $\mu_S$ and the population standard deviation $\sigma_S$ are over the kept set $S$ only.

    Use: if sampling is cheap and the reward should stay unchanged. Raise `num_generations`, since only some
    completions are trained on.

    Source: section 3 and Algorithm 1 of [GFPO](https://huggingface.co/papers/2508.09726). The method suits graded
    rewards in [-1, 1]. With rewards of 0 and 1, token efficiency often keeps only correct answers, so that the model
    learns nothing; with negative rewards, it keeps the longer ones. Of equally good completions, the first ones are
    kept.

    Differs: the paper's variant that keeps fewer completions of easy prompts is not implemented. Unscorable
    completions are never kept.

    Args:
        metric (`str`): `"length"` keeps the shortest completions, `"token_efficiency"` those with the highest reward
            per token, $R / L$.
        num_kept (`int`): Number k of kept completions, less than `num_generations`. By default half of the completions
            of a prompt, from 2 to 8; the paper keeps up to 8 of 8, 16 and 24.
    """

    name = "gfpo"
    paper = Paper("Sample More to Think Less: Group Filtered Policy Optimization", "2508.09726")
    depends_on = "prompt"
    advantages_have_mean_zero = True

    metric: Literal["length", "token_efficiency"] = "length"
    num_kept: int | None = hyperparameter(None, ge=2)  # a single completion would have advantage 0

    def needs_correctness(self) -> str | None:
        return None

    def observe(self, rollouts: Rollouts) -> None:
        """Raises `TrainingError` if all completions of a prompt would be kept, which is GRPO."""
        if self.num_kept is not None and self.num_kept >= rollouts.num_generations:
            raise TrainingError(
                f"num_kept is {self.num_kept}, but must be less than num_generations={rollouts.num_generations}"
            )

    def is_kept(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: True for the completions to train on."""
        num_kept = self.num_kept or clipped(rollouts.num_generations // 2, 2, 8)
        rewards_PG = rollouts.by_group(rollouts.task_rewards)
        lengths_PG = rollouts.by_group(rollouts.lengths.double())
        # The completions of a prompt with the highest metric are kept: the shortest ones, or those with the highest
        # reward per token.
        metric_PG = -lengths_PG if self.metric == "length" else rewards_PG / lengths_PG.clamp(min=LEAST_LENGTH)
        # Completions without a reward come last, and are not kept even if fewer than k others are left.
        is_scorable_PG = ~torch.isnan(rewards_PG)
        metric_PG = metric_PG.where(is_scorable_PG, -torch.inf)
        best_first_PG = metric_PG.argsort(dim=1, descending=True, stable=True)
        # `argsort` of a permutation is its inverse. `best_first_PG` has the index of the completion at each rank, and
        # its inverse the rank of each completion, which is 0 for the best one.
        ranks_PG = best_first_PG.argsort(dim=1)
        is_kept_PG = (ranks_PG < num_kept) & is_scorable_PG
        return is_kept_PG.flatten()

    def advantages(self, rollouts: Rollouts, shaped: torch.Tensor, rule: AdvantageRule) -> torch.Tensor:
        """Computes advantages over the kept completions; the others have advantage 0."""
        # `group_advantages` leaves a reward of NaN out of mean and standard deviation, and gives it an advantage of 0.
        kept_rewards_N = shaped.masked_fill(~self.is_kept(rollouts), torch.nan)
        return group_advantages(
            kept_rewards_N, rollouts.num_generations, rule.scale_rewards, rule.epsilon, correction=0
        )
