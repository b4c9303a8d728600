"""SmartThinker: penalizes correct answers longer than the length at which the prompt is solved best."""

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, mean_and_std


# Two variances of lengths are taken as equal if they differ by less than this share of the squared mean length. It is
# above the rounding error of a variance in float64, and does not depend on the unit of the lengths.
EQUAL_VARIANCES = 1e-12
# Share of the longest excess that is added to the denominator of the coefficient, so that rounding leaves no correct
# answer below the mean of its group.
TINY = 1e-6


def optimal_lengths(lengths: torch.Tensor, is_correct: torch.Tensor) -> torch.Tensor:
    r"""`torch.Tensor` of shape `(P, 1)`: Length in tokens at which an answer to each prompt is most likely correct, if
    the lengths of all and of correct answers are normally distributed.

    $$ l^{opt} = \mathrm{clip}\left(\frac{\sigma_c^2 \mu - \sigma^2 \mu_c}{\sigma_c^2 - \sigma^2}, l_{\min}, l_{\max}
       \right) \text{ if } \sigma_c < \sigma, \text{ else } l_{\min} $$

    $\mu$ and $\sigma$ are the mean and the standard deviation (of the population) of all lengths of the prompt,
    $\mu_c$ and $\sigma_c$ of those of correct answers.

    Args:
        lengths (`torch.Tensor` of shape `(P, G)`): Lengths in tokens; NaN is ignored.
        is_correct (`torch.Tensor` of shape `(P, G)`): Whether each answer is correct.

    Example:
        >>> optimal_lengths(torch.tensor([[100, 200, 300, 400]]), torch.tensor([[True, True, False, False]])).item()
        125.0
    """
    # The lengths of all answers to a prompt, and those of its correct ones, are each taken as normally distributed. An
    # answer is most likely correct at the length where the density of correct ones is highest relative to that of all.
    means_P1, stds_P1 = mean_and_std(lengths, correction=0)
    # Correctness is the weight, which leaves wrong answers out.
    correct_means_P1, correct_stds_P1 = mean_and_std(lengths, is_correct, correction=0)
    variances_P1 = stds_P1**2
    correct_variances_P1 = correct_stds_P1**2
    shortest_P1 = lengths.double().nan_to_num(nan=torch.inf).amin(dim=1, keepdim=True)
    longest_P1 = lengths.double().nan_to_num(nan=-torch.inf).amax(dim=1, keepdim=True)
    # extremum of the ratio of the two densities, where the derivative of its logarithm is 0
    weighted_P1 = correct_variances_P1 * means_P1 - variances_P1 * correct_means_P1
    peaks_P1 = weighted_P1 / (correct_variances_P1 - variances_P1)
    # The extremum is a maximum only if the lengths of correct answers vary less than those of all answers.
    has_peak_P1 = variances_P1 - correct_variances_P1 > EQUAL_VARIANCES * means_P1**2
    return peaks_P1.clamp(shortest_P1, longest_P1).where(has_peak_P1, shortest_P1)


class SmartThinker(LengthControl):
    r"""SmartThinker: correctness (1 or 0) minus a penalty that leaves the longest correct answer at its group's mean.

    $$ r_i = c_i - \Lambda e_i, \qquad e_i = c_i \max(0, l_i - l^{opt}), \qquad
       \Lambda = \frac{1 - \bar c}{\max_j e_j - \bar e} $$

    $\bar c$ is the solve rate of the prompt, $\bar e$ the mean excess of all its answers, and $l^{opt}$ the length at
    which an answer is most likely correct ([`optimal_lengths`]). The penalty is the largest with which no correct
    answer has a negative advantage: the reward of the longest one is the mean of the group. A prompt with correct
    answers only has no penalty. Wrong answers earn 0 at any length.

    Use: without a target, if no correct answer may have a negative advantage. Prompts that are solved
    every time are not shortened.

    Source: `src/workers/reward_manager/SmartThinker.py` of the authors'
    [release](https://github.com/SJTU-RTEAS/SmartThinker); of [the paper](https://huggingface.co/papers/2603.08000), we
    have read the abstract.

    Differs: if the variances of the lengths of all and of correct answers are equal, the release takes the longest
    length of the prompt for $l^{opt}$ if correct answers are shorter than the mean, and the shortest otherwise; here,
    it is the shortest in both cases. Unscorable completions, which the release does not have, are left out. The
    release adds 1e-6 tokens to the denominator of $\Lambda$; here, it is a millionth of the longest excess. The
    release divides advantages by the standard deviation of the group; here, `scale_rewards` applies.
    """

    name = "smart_thinker"
    paper = Paper(
        "SmartThinker: Progressive Chain-of-Thought Length Calibration for Efficient Large Language Model Reasoning",
        "2603.08000",
        "Chenzhi Hu and Qinzhe Hu and Yuhang Xu and Junyi Chen and Ruijie Wang and Shengzhong Liu and Jianxin Li and "
        "Fan Wu and Guihai Chen",
        {"booktitle": "Proceedings of the 43rd International Conference on Machine Learning", "year": "2026"},
    )
    formula_from = "the authors' release"
    depends_on = "prompt"

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
        is_correct_PG = rollouts.by_group(rollouts.is_correct)
        is_scorable_PG = rollouts.by_group(rollouts.is_scorable)
        # e: tokens by which a correct answer is longer than the length at which the prompt is solved best; 0 for a
        # wrong one
        excess_PG = (lengths_PG - optimal_lengths(lengths_PG, is_correct_PG)).clamp(min=0.0)
        excess_PG = excess_PG.where(is_correct_PG, 0.0)
        mean_excess_P1, _ = mean_and_std(excess_PG.where(is_scorable_PG, torch.nan))
        longest_excess_P1 = excess_PG.amax(dim=1, keepdim=True)
        # all completions of a prompt have its solve rate, so one column is enough
        error_rates_P1 = 1.0 - rollouts.by_group(rollouts.solve_rates)[:, :1]
        # Lambda, the penalty per token of excess with which the longest correct answer earns the mean of its group
        coefficients_P1 = error_rates_P1 / ((1 + TINY) * longest_excess_P1 - mean_excess_P1)
        # There is no penalty without a wrong answer, a solve rate, or a correct answer that is too long.
        has_penalty_P1 = (error_rates_P1 > 0) & (longest_excess_P1 > 0)
        penalties_PG = coefficients_P1.where(has_penalty_P1, 0.0) * excess_PG
        return self.base_rewards(rollouts) - penalties_PG.flatten()
