"""LACONIC: LEASH's price on overshoot and its dual step, with no clip on the shaped reward."""

import torch

from leash_trl.length_control.leash import Leash
from leash_trl.length_control.method import LengthControl, Paper, Rollouts, hyperparameter


class Laconic(Leash):
    r"""LACONIC: correctness (1 or 0) less the price of overshoot, unclipped; lambda follows the mean overshoot.

    $$ \tilde r_i = r_i - \lambda \max\left(0, \frac{L_i - B}{B}\right), \qquad
       \lambda \leftarrow \mathrm{clip}\left(\lambda + \eta \left(\frac{\bar L}{B} - 1\right), 0, \Lambda\right) $$

    Wrong answers over the budget pay as correct ones do; a wrong answer earns most by stopping within the budget.

    Use: as LEASH, if wrong answers should learn to stop too.

    Source: [LACONIC](https://huggingface.co/papers/2602.14468). The defaults are those of the released script for
    DeepSeek-R1-Distill-Qwen-1.5B with a budget of 1500 tokens
    ([Debugger001/Length-Aware-LLM](https://github.com/Debugger001/Length-Aware-LLM)).

    Differs: that script also takes 0.1 off every completion that hits the generation limit and caps the price at 0.4;
    the paper's formula has neither, and under its own limit of 4096 tokens and ceiling the cap is never reached.

    Args:
        lambda_lr (`float`): Step size $\eta$ of the dual step.
        lambda_max (`float`): The paper's ceiling $\Lambda$ of the multiplier.
    """

    name = "laconic"
    paper = Paper("LACONIC: Length-Aware Constrained Reinforcement Learning for LLM", "2602.14468")
    uses_correctness = True

    lambda_init: float = hyperparameter(0.0, ge=0)
    lambda_lr: float = hyperparameter(0.002, ge=0)
    lambda_max: float = hyperparameter(0.1, ge=0)

    base_rewards = LengthControl.base_rewards
    reward_scale_problem = LengthControl.reward_scale_problem

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        return self.base_rewards(rollouts) - self.penalty(rollouts)
