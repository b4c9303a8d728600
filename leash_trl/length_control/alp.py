"""ALP: a price per token that grows with how often the prompt is solved.

Paper: [Just Enough Thinking: Efficient Reasoning with Adaptive Length Penalties](https://huggingface.co/papers/2506.05256).
"""

from dataclasses import dataclass

import torch

from leash_trl.length_control.checked_values import check_range
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts


def adaptive_price(
    lengths: torch.Tensor, solve_rates: torch.Tensor, num_generations: int, beta: float
) -> torch.Tensor:
    r"""What its length costs every completion, in reward units, positive even where no answer of the prompt is right.

    $$ \beta \cdot L_i \cdot \max(p, 1/K) $$

    Source: Eq. (2) of [Just Enough Thinking](https://huggingface.co/papers/2506.05256), read in secondary sources:
    there is no official code, and that $\beta$ is a price per token is our reading, see [`ALP`].

    Args:
        lengths (`torch.Tensor` of shape `(N,)`):
            Completion lengths $L_i$ in tokens.
        solve_rates (`torch.Tensor` of shape `(N,)`):
            Share $p$ of right answers of each one's prompt.
        num_generations (`int`):
            Completions per prompt, $K$.
        beta (`float`):
            Reward units per token of a prompt that is always solved.

    Returns:
        `torch.Tensor` of shape `(N,)`: Prices in float64.

    Example:
        >>> adaptive_price(torch.tensor([100, 100]), torch.tensor([1.0, 0.0]), 4, beta=0.01).tolist()
        [1.0, 0.25]
    """
    return beta * lengths.double() * solve_rates.double().clamp(min=1.0 / num_generations)


@dataclass
class ALP(LengthControl):
    """ALP: correctness (0 or 1) less a price per token in proportion to the prompt's solve rate, right or wrong.

    The price is tiny, but where all answers of a prompt are right, dividing by the group's standard deviation brings
    it to full strength, as long as rewards are float64 and the epsilon is far below 1e-4.

    Use: to leave tokens to hard prompts: easy ones pay most. Needs enough generations per prompt to know which are
    easy.

    Source: Eq. (2) of [Just Enough Thinking](https://huggingface.co/papers/2506.05256), see [`adaptive_price`].

    Differs: maybe; secondary sources leave open whether the price is per token or per share of a maximum length. Only
    per token could 1e-7 be felt in float32.

    Args:
        beta (`float`, *optional*, defaults to `1e-07`):
            Price in reward units per token.
    """

    name = "alp"

    beta: float = 1e-7

    def __post_init__(self) -> None:
        check_range(self, "beta", 0)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Rewards, at most 1; NaN where unscorable."""
        price = adaptive_price(rollouts.lengths, rollouts.solve_rates, rollouts.num_generations, self.beta)
        return self.base_rewards(rollouts) - price
