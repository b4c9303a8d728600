"""GRLC: group-relative length control, a zero-sum contest for brevity among the completions of a prompt."""

import torch

from leash_trl.length_control.advantages import places_in_range
from leash_trl.length_control.method import LengthControl, Paper, Rollouts, hyperparameter


def centred_weights(lengths: torch.Tensor) -> torch.Tensor:
    r"""How short each completion is within its group of shape `(P, G)`, dimensionless, with mean 0 over the group.

    $$ \tilde w_i = w_i - \frac{1}{G} \sum_j w_j, \qquad w_i = 1 - \frac{L_i - L_{\min}}{L_{\max} - L_{\min}} $$

    A length of NaN does not count in its group. In a group of equal lengths, of which the report is silent, it is 0.

    Source: section 3.3 of [Nemotron 3 Nano](https://huggingface.co/papers/2512.20848).

    Example:
        >>> centred_weights(torch.tensor([[500.0, 1500.0]])).tolist()
        [[0.5, -0.5]]
    """
    weights_PG = 1.0 - places_in_range(lengths)
    return weights_PG - weights_PG.nanmean(dim=1, keepdim=True)


class GRLC(LengthControl):
    r"""GRLC: correctness (1 or 0) plus a weight for being shorter than the group, correct or wrong.

    $$ r'_i = r_i + \lambda \tilde w_i, \qquad
       \tilde w_i = w_i - \frac{1}{G} \sum_j w_j, \qquad w_i = 1 - \frac{L_i - L_{\min}}{L_{\max} - L_{\min}} $$

    Use: to repeat Nemotron 3 Nano's length control, which needs no target.

    Source: section 3.3 of [Nemotron 3 Nano](https://huggingface.co/papers/2512.20848).

    Differs: the report weights the thinking and the answer separately, 0.5 each. Here only their sum is visible;
    nearly all of it is thinking, so it has the weight of the thinking. The bonus for the shortest of the best is left
    out, since its size is not published.

    Args:
        weight (`float`): Weight $\lambda$ in reward units.
    """

    name = "grlc"
    paper = Paper("Nemotron 3 Nano", "2512.20848")
    needs_group = True

    weight: float = hyperparameter(0.5, ge=0)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        weights_PG = centred_weights(rollouts.by_group(rollouts.scorable_lengths))
        return self.base_rewards(rollouts) + self.weight * weights_PG.flatten()
