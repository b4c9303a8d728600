"""MAI's length penalty: the more often a prompt is solved, the more its long correct answers pay."""

import torch

from leash_trl.length_control.method import LengthControl, Rollouts, hyperparameter


def solve_rate_prices(rewards: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    r"""`torch.Tensor` of shape `(P, G)`: Price of each completion's length, dimensionless, in float64.

    $$ \rho \frac{L_i}{L_{\max}}, \qquad \rho = \frac{1}{G} \sum_j r_j $$

    $L_{\max}$ is the longest of the prompt. A reward of NaN does not count; a length of NaN pays nothing, as NaN, and
    does not count for the longest.

    Example:
        >>> solve_rate_prices(torch.tensor([[1.0, 0.0]]), torch.tensor([[100.0, 200.0]])).tolist()
        [[0.25, 0.5]]
    """
    longest_P1 = lengths.nan_to_num().amax(dim=1, keepdim=True).clamp(min=1)
    return rewards.double().nanmean(dim=1, keepdim=True) * lengths.double() / longest_P1


class MAI(LengthControl):
    r"""MAI: a correct answer earns 1 less a price for its relative length, times the solve rate; a wrong one 0.

    $$ r'_i = c_i \left(1 - w \, \rho \, \frac{L_i}{\max_{j: c_j = 1} L_j}\right) $$

    $\rho$ is the share of correct completions among the scorable ones of the prompt: easy prompts pay in full, hard
    ones little. The longest correct answer pays $w \rho$, however long wrong answers are.

    Use: without a target, to shorten what is easy and spare what is hard.

    Source: `pass_rate_length_penalty_weight` of [NeMo-RL](https://github.com/NVIDIA-NeMo/RL/pull/3852), and
    [prime-rl #2829](https://github.com/PrimeIntellect-ai/prime-rl/pull/2829). Both call it MAI; the report behind the
    name, probably that of MAI-Thinking-1, was not read.

    Differs: NeMo-RL passes over groups with rewards other than 0 and 1, and cuts rewards at 0. Here correctness is
    always 1 or 0, and the weight is at most 1, so there is nothing to cut. prime-rl's version is `prime_rl`: there
    wrong answers pay too, lengths are relative to the longest of all completions (in June to the generation limit),
    and advantages are not divided by the standard deviation.

    Args:
        weight (`float`): Weight $w$ in reward units, in [0, 1]. The default is that of NeMo-RL's tests, where it is
            off by default.
    """

    name = "mai"
    needs_group = True

    weight: float = hyperparameter(0.2, ge=0, le=1)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        rewards, by_group = self.base_rewards(rollouts), rollouts.by_group
        prices_PG = solve_rate_prices(by_group(rewards), by_group(rollouts.correct_lengths))
        return rewards - self.weight * prices_PG.nan_to_num().flatten()
