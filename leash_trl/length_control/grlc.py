"""GRLC: group-relative length control, a length reward with mean 0 over the completions of a prompt."""

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter
from leash_trl.length_control.advantages import min_max_scaled


def centered_weights(lengths: torch.Tensor) -> torch.Tensor:
    r"""`torch.Tensor` of shape `(P, G)`: Relative shortness of each completion, dimensionless, with mean 0 over the
    group.

    $$ \tilde w_i = w_i - \frac{1}{G} \sum_j w_j, \qquad w_i = 1 - \frac{L_i - L_{\min}}{L_{\max} - L_{\min}} $$

    A length of NaN is ignored in its group. In a group of equal lengths, which the report does not mention, the result
    is 0.

    Source: section 3.3 of [Nemotron 3 Nano](https://huggingface.co/papers/2512.20848).

    Example:
        >>> centered_weights(torch.tensor([[500.0, 1500.0]])).tolist()
        [[0.5, -0.5]]
    """
    weights_PG = 1.0 - min_max_scaled(lengths)  # w_i
    means_P1 = weights_PG.nanmean(dim=1, keepdim=True)
    return weights_PG - means_P1


class GRLC(LengthControl):
    r"""GRLC: correctness (1 or 0) plus a reward for being shorter than the group, for correct and wrong answers.

    $$ r'_i = r_i + \lambda \tilde w_i, \qquad
       \tilde w_i = w_i - \frac{1}{G} \sum_j w_j, \qquad w_i = 1 - \frac{L_i - L_{\min}}{L_{\max} - L_{\min}} $$

    Use: to reproduce the length control of Nemotron 3 Nano, which needs no target.

    Source: section 3.3 of [Nemotron 3 Nano](https://huggingface.co/papers/2512.20848).

    Differs: the report weights the thinking and the answer separately, with 0.5 each. Here, only the total length is
    available; since nearly all of it is thinking, it has the weight of the thinking. The bonus for the shortest of the
    best completions is left out, since its size is not published.

    Args:
        weight (`float`): Weight $\lambda$ in reward units.
    """

    name = "grlc"
    paper = Paper("Nemotron 3 Nano", "2512.20848")
    depends_on = "prompt"

    weight: float = hyperparameter(0.5, ge=0)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        weights_PG = centered_weights(rollouts.by_group(rollouts.scorable_lengths))
        return self.base_rewards(rollouts) + self.weight * weights_PG.flatten()
