"""ShorterBetter: the length of the shortest correct answer is the target for all answers to the prompt."""

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter


class ShorterBetter(LengthControl):
    r"""ShorterBetter: correctness minus a penalty per token of distance to the length of the shortest correct answer.

    $$ r_j = \alpha c_j - \beta \left| \ell_j - \ell^{SOL} \right|, \qquad
       \ell^{SOL} = \begin{cases} \min_{j: c_j = 1} \ell_j & \text{at least one is correct} \\
       \frac 1n \sum_j \ell_j & \text{otherwise} \end{cases} $$

    Wrong answers are penalized too, and in both directions: one that is shorter than the shortest correct answer earns
    more by being longer.

    Use: without a target, if every prompt should find its own shortest length. Lengths keep falling.

    Source: [ShorterBetter](https://huggingface.co/papers/2504.21370); the
    [release](https://github.com/JingyangYi/ShorterBetter), `reward_manager/naive.py`, agrees with the paper and is the
    source of the defaults; the paper also trains with $\alpha = 1$.

    Differs: the mean leaves out unscorable completions, which the paper and the release do not mention.

    Args:
        alpha (`float`): Reward $\alpha$ of a correct answer.
        beta (`float`): Penalty $\beta$ in reward units per token.
    """

    name = "shorter_better"
    paper = Paper(
        "ShorterBetter: Guiding Reasoning Models to Find Optimal Inference Length for Efficient Reasoning",
        "2504.21370",
        "Jingyang Yi and others",
    )
    depends_on = "prompt"

    alpha: float = hyperparameter(2.0, ge=0)
    beta: float = hyperparameter(0.001, ge=0)

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return self.alpha * rollouts.correctness

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        lengths_PG = rollouts.by_group(rollouts.scorable_lengths)  # NaN where unscorable
        is_correct_PG = rollouts.by_group(rollouts.is_correct)
        shortest_P1 = lengths_PG.where(is_correct_PG, torch.inf).amin(dim=1, keepdim=True)
        means_P1 = lengths_PG.nanmean(dim=1, keepdim=True)
        has_correct_P1 = is_correct_PG.any(dim=1, keepdim=True)
        # l^SOL, the length that all answers to a prompt should have: that of its shortest correct answer, or the mean
        # if none is correct.
        targets_P1 = shortest_P1.where(has_correct_P1, means_P1)
        distances_PG = (lengths_PG - targets_P1).abs()
        return self.base_rewards(rollouts) - self.beta * distances_PG.flatten()
