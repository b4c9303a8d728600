"""LACONIC: LEASH's penalty on overshoot and its dual step, without clipping the shaped reward."""

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter
from leash_trl.length_control.leash import Leash


class Laconic(Leash):
    r"""LACONIC: correctness (1 or 0) minus lambda times the relative overshoot, unclipped; lambda adapts as in LEASH.

    $$ \tilde r_i = r_i - \lambda \max\left(0, \frac{L_i - B}{B}\right), \qquad
       \lambda \leftarrow \mathrm{clip}\left(\lambda + \eta \left(\frac{\bar L}{B} - 1\right), 0, \Lambda\right) $$

    Wrong answers above the budget $B$ are penalized like correct ones, so a wrong answer has its highest reward within
    the budget.

    Use: like LEASH, if wrong answers should become shorter too.

    Source: [LACONIC](https://huggingface.co/papers/2602.14468). The defaults are those of the released script for
    DeepSeek-R1-Distill-Qwen-1.5B with a budget of 1500 tokens
    ([Debugger001/Length-Aware-LLM](https://github.com/Debugger001/Length-Aware-LLM)).

    Differs: that script also subtracts 0.1 from every completion that reaches the generation limit and caps the
    penalty at 0.4. The paper's formula has neither; with the paper's limit of 4096 tokens and its $\Lambda$, the cap
    is never reached.

    Args:
        lambda_lr (`float`): Step size $\eta$ of the dual step.
        lambda_max (`float`): The paper's ceiling $\Lambda$ of the multiplier.
    """

    name = "laconic"
    paper = Paper("LACONIC: Length-Aware Constrained Reinforcement Learning for LLM", "2602.14468")

    lambda_init: float = hyperparameter(0.0, ge=0)
    lambda_lr: float = hyperparameter(0.002, ge=0)
    lambda_max: float = hyperparameter(0.1, ge=0)

    needs_correctness = LengthControl.needs_correctness
    base_rewards = LengthControl.base_rewards
    reward_warning = LengthControl.reward_warning

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return self.base_rewards(rollouts) - self.penalty(rollouts)
