"""ALP: a price per token that grows with how often the prompt is solved."""

import torch

from leash_trl.length_control.method import LengthControl, Paper, Rollouts, hyperparameter


class ALP(LengthControl):
    r"""ALP: correctness (0 or 1) less a price per token in proportion to the prompt's solve rate, correct or wrong.

    $$ r_i = c_i - \beta \cdot L_i \cdot \max(p, 1/K) $$

    $p$ is the share of correct answers among the prompt's $K$; a prompt without any pays as if it had one. The price
    is tiny, but if all answers of a prompt are correct, dividing by the group's standard deviation brings it to full
    strength, as long as rewards are float64 and the epsilon is far below 1e-4.

    Use: to leave tokens to hard prompts: easy ones pay most. It needs enough generations per prompt to know which are
    easy.

    Source: Eq. (2) of [Just Enough Thinking](https://huggingface.co/papers/2506.05256), read in secondary sources:
    there is no official code.

    Differs: maybe; secondary sources leave open whether the price is per token or per share of a maximum length. In
    float32, 1e-7 has an effect only as a price per token.

    Args:
        beta (`float`): Price in reward units per token.
    """

    name = "alp"
    paper = Paper("Just Enough Thinking: Efficient Reasoning with Adaptive Length Penalties", "2506.05256")
    needs_group = True

    beta: float = hyperparameter(1e-7, ge=0)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        rates = rollouts.solve_rates.clamp(min=1.0 / rollouts.num_generations)
        return self.base_rewards(rollouts) - self.beta * rollouts.lengths.double() * rates
