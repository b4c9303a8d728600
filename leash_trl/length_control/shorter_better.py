"""ShorterBetter: the shortest correct answer of the group is the length that all its completions aim for."""

import torch

from leash_trl.length_control.method import LengthControl, Paper, Rollouts, hyperparameter


class ShorterBetter(LengthControl):
    r"""ShorterBetter: a weight for correctness less a price per token of distance to the shortest correct answer.

    $$ r_j = \alpha c_j - \beta \left| \ell_j - \ell^{SOL} \right|, \qquad
       \ell^{SOL} = \begin{cases} \min_{j: c_j = 1} \ell_j & \text{at least one is correct} \\
       \frac 1n \sum_j \ell_j & \text{otherwise} \end{cases} $$

    Wrong answers pay too, on both sides: one that is shorter than the shortest correct answer gains by being longer.

    Use: without a target, if every prompt should find its own shortest length; lengths fall without a floor.

    Source: [ShorterBetter](https://huggingface.co/papers/2504.21370); the
    [release](https://github.com/JingyangYi/ShorterBetter), `reward_manager/naive.py`, agrees and has the defaults; the
    paper also trains with $\alpha = 1$.

    Differs: the mean leaves out unscorable completions, which paper and release do not mention.

    Args:
        alpha (`float`): Reward $\alpha$ of a correct answer.
        beta (`float`): Price $\beta$ in reward units per token.
    """

    name = "shorter_better"
    paper = Paper(
        "ShorterBetter: Guiding Reasoning Models to Find Optimal Inference Length for Efficient Reasoning",
        "2504.21370",
        "Jingyang Yi and others",
    )
    needs_group = True

    alpha: float = hyperparameter(2.0, ge=0)
    beta: float = hyperparameter(0.001, ge=0)

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return self.alpha * rollouts.correctness

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
        is_correct_PG = rollouts.by_group(rollouts.is_correct)
        shortest_P1 = lengths_PG.where(is_correct_PG, torch.inf).amin(dim=1, keepdim=True)
        means_P1 = lengths_PG.nanmean(dim=1, keepdim=True)
        distances_PG = (lengths_PG - shortest_P1.where(shortest_P1 < torch.inf, means_P1)).abs()
        return self.base_rewards(rollouts) - self.beta * distances_PG.flatten()
