"""MAI's length penalty for correct answers, which grows with length and with the solve rate of the prompt."""

import torch

from leash_trl.length_control import LengthControl, Rollouts, hyperparameter
from leash_trl.length_control.rollouts import LEAST_LENGTH


def solve_rate_penalties(rewards: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    r"""`torch.Tensor` of shape `(P, G)`: Length penalty of each completion, dimensionless, in float64.

    $$ \rho \frac{L_i}{L_{\max}}, \qquad \rho = \frac{1}{G} \sum_j r_j $$

    $L_{\max}$ is the length of the prompt's longest completion. Rewards and lengths of NaN are ignored, and a
    completion whose length is NaN has a penalty of NaN.

    Example:
        >>> solve_rate_penalties(torch.tensor([[1.0, 0.0]]), torch.tensor([[100.0, 200.0]])).tolist()
        [[0.25, 0.5]]
    """
    rates_P1 = rewards.double().nanmean(dim=1, keepdim=True)  # rho
    longest_P1 = lengths.nan_to_num().amax(dim=1, keepdim=True).clamp(min=LEAST_LENGTH)  # L_max; NaN counts as 0
    return rates_P1 * lengths.double() / longest_P1


class MAI(LengthControl):
    r"""MAI: a correct answer earns 1 minus its relative length times the solve rate and a weight; a wrong one earns 0.

    $$ r'_i = c_i \left(1 - w \, \rho \, \frac{L_i}{\max_{j: c_j = 1} L_j}\right) $$

    $\rho$ is the share of correct completions among the scorable ones of the prompt, so the penalty is largest for
    easy prompts and small for hard ones. For the longest correct answer it is $w \rho$, whatever the length of wrong
    answers.

    Use: without a target, to shorten answers to easy prompts and leave hard prompts mostly alone.

    Source: `pass_rate_length_penalty_weight` of [NeMo-RL](https://github.com/NVIDIA-NeMo/RL/pull/3852), and
    [prime-rl #2829](https://github.com/PrimeIntellect-ai/prime-rl/pull/2829). Both call it MAI; we have not read the
    report that the name refers to, probably that of MAI-Thinking-1.

    Differs: NeMo-RL skips groups with rewards other than 0 and 1 and clips rewards at 0. Here, correctness is always 1
    or 0 and the weight is at most 1, so neither is needed. prime-rl's version is the method `prime_rl`, where wrong
    answers are penalized too, lengths are relative to the longest of all completions (earlier to the generation
    limit), and advantages are not divided by the standard deviation.

    Args:
        weight (`float`): Weight $w$ in reward units, in [0, 1]. The default is the value in NeMo-RL's tests; NeMo-RL
            itself has it off by default.
    """

    name = "mai"
    formula_from = "NeMo-RL and prime-rl"
    depends_on = "prompt"

    weight: float = hyperparameter(0.2, ge=0, le=1)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        rewards_N = self.base_rewards(rollouts)
        correct_lengths_PG = rollouts.by_group(rollouts.correct_lengths)
        penalties_PG = solve_rate_penalties(rollouts.by_group(rewards_N), correct_lengths_PG)
        penalties_N = penalties_PG.nan_to_num().flatten()  # all but correct answers have no penalty, which is NaN here
        return rewards_N - self.weight * penalties_N
