"""ALP: a penalty per token that grows with the solve rate of the prompt."""

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter


class ALP(LengthControl):
    r"""ALP: correctness (1 or 0) minus a penalty per token, proportional to the solve rate, for all answers.

    $$ r_i = c_i - \beta \cdot L_i \cdot \max(p, 1/K) $$

    $p$ is the share of correct answers among the $K$ answers to the prompt; a prompt without correct answers is
    treated as if it had one. The penalty is tiny. If all answers to a prompt are correct, dividing by the group's
    standard deviation nevertheless gives it full effect, provided that rewards are float64 and the epsilon is far
    below 1e-4.

    Use: to shorten easy prompts most and leave tokens to hard ones. It needs enough generations per prompt to estimate
    the solve rate.

    Source: Eq. (2) of [Just Enough Thinking](https://huggingface.co/papers/2506.05256), which we know from secondary
    sources; there is no official code.

    Differs: possibly, since the secondary sources do not say whether the penalty is per token or relative to a maximum
    length. In float32, 1e-7 has an effect only as a penalty per token.

    Args:
        beta (`float`): Penalty $\beta$ in reward units per token.
    """

    name = "alp"
    paper = Paper("Just Enough Thinking: Efficient Reasoning with Adaptive Length Penalties", "2506.05256")
    formula_from = "secondary sources"
    depends_on = "prompt"

    beta: float = hyperparameter(1e-7, ge=0)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        lowest_rate = 1.0 / rollouts.num_generations  # 1 / K
        rates_N = rollouts.solve_rates.clamp(min=lowest_rate)  # max(p, 1 / K)
        penalties_N = self.beta * rollouts.lengths.double() * rates_N
        return self.base_rewards(rollouts) - penalties_N
