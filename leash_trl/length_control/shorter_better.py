"""ShorterBetter: the shortest correct answer of the group is the length that all its completions aim for."""

import torch

from leash_trl.length_control.method import LengthControl, Paper, Rollouts, knob


def sample_optimal_lengths(is_correct: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    r"""Sample optimal length (SOL) of each prompt, in tokens.

    $$ \ell^{SOL}(G) = \begin{cases} \min_{j: c_j = 1} \ell_j & \text{at least one is correct} \\
       \frac 1n \sum_j \ell_j & \text{otherwise} \end{cases} $$

    Source: [ShorterBetter](https://huggingface.co/papers/2504.21370).

    Args:
        lengths (`torch.Tensor` of shape `(P, G)`): Completion lengths in tokens; NaN for a completion that does not
            count in its group.

    Returns:
        `torch.Tensor` of shape `(P, 1)`: Lengths in float64; NaN where no completion of the prompt counts.

    Example:
        >>> is_correct = torch.tensor([[True, True, False], [False, False, False]])
        >>> sample_optimal_lengths(is_correct, torch.tensor([[300, 200, 100], [300, 200, 100]])).tolist()
        [[200.0], [200.0]]
    """
    lengths = lengths.double()
    shortest_P1 = lengths.where(is_correct, torch.inf).amin(dim=1, keepdim=True)
    return shortest_P1.where(is_correct.any(dim=1, keepdim=True), lengths.nanmean(dim=1, keepdim=True))


class ShorterBetter(LengthControl):
    r"""ShorterBetter: a weight for correctness less a price per token of distance to the shortest correct answer.

    $$ r_j = \alpha c_j - \beta \left| \ell_j - \ell^{SOL}(G) \right| $$

    Wrong answers pay too, on both sides: one that is shorter than the shortest correct answer gains by being longer.
    If no answer is correct, all are drawn towards their mean length.

    Use: without a target, if every prompt should find its own shortest length; lengths fall without a floor.

    Source: [ShorterBetter](https://huggingface.co/papers/2504.21370), see [`sample_optimal_lengths`]; the
    [release](https://github.com/JingyangYi/ShorterBetter), `reward_manager/naive.py`, agrees.

    Differs: paper and release do not mention unscorable completions; here the mean leaves them out. The defaults are
    those of the release; the paper also trains with $\alpha = 1$.

    Args:
        alpha (`float`): Reward $\alpha$ of a correct answer.
        beta (`float`): Price $\beta$ in reward units per token.
    """

    name = "shorter_better"
    paper = Paper(
        "ShorterBetter: Guiding Reasoning Models to Find Optimal Inference Length for Efficient Reasoning",
        "2504.21370",
        "Jingyang Yi and Jiazheng Wang and Sida Li",
    )
    needs_group = True

    alpha: float = knob(2.0, least=0)
    beta: float = knob(0.001, least=0)

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return self.alpha * rollouts.correctness

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
        distances_PG = (lengths_PG - sample_optimal_lengths(rollouts.by_group(rollouts.is_correct), lengths_PG)).abs()
        return self.base_rewards(rollouts) - self.beta * distances_PG.flatten()
