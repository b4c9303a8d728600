"""LEAD: normalizes correctness and closeness to the prompt's own length separately, and adapts their weights."""

import math
from collections.abc import Sequence
from statistics import fmean, pvariance

import torch

from leash_trl.length_control import (
    AdvantageRule,
    LengthControl,
    Paper,
    Rollouts,
    group_advantages,
    hyperparameter,
    mean_and_std,
    standardized,
    state_field,
)


TINY = 1e-8  # added under the root and to each denominator, as in the release


def efficiency_rewards(
    is_correct: torch.Tensor, lengths: torch.Tensor, lower_bound: float, upper_bound: float
) -> torch.Tensor:
    r"""`torch.Tensor` of shape `(P, G)`: Closeness of every completion to the target length of its prompt, in [-1, 1],
    dimensionless, float64.

    $$ e_i = \max\left(-1, 1 - \frac{|L_i - L^*|}{L^*}\right), \qquad
       L^* = \mathrm{clip}(\text{mean length of the correct answers}, L_{\min}, B) $$

    $L^* = B$ for a prompt without a correct answer.

    Source: `lead_lstar_mode=max_sym` of the [release](https://github.com/CrazyMint/LEAD), which its training script
    uses and which its README says is the paper's.
    """
    lengths_PG = lengths.double()
    mean_correct_P1 = lengths_PG.where(is_correct, torch.nan).nanmean(dim=1, keepdim=True)  # NaN without a correct one
    targets_P1 = mean_correct_P1.nan_to_num(nan=upper_bound).clamp(min=lower_bound, max=upper_bound)  # L*
    relative_distances_PG = (lengths_PG - targets_P1).abs() / targets_P1
    return (1.0 - relative_distances_PG).clamp(min=-1.0)


def correctness_weight(
    correctness: Sequence[Sequence[float]], efficiency: Sequence[Sequence[float]], alpha: float
) -> float:
    r"""Returns the weight of correctness that this batch asks for (potential-scaled instability), in [0, 1].

    $$ w = \frac{D_c}{D_c + D_e}, \qquad D_k = \frac{v_k}{v_c + v_e} \, p_k^\alpha, \qquad
       v_k = \frac{\sigma_k}{|\mu_k|}, \qquad p_c = 1 - \mu_c, \qquad p_e = \frac{1 - \mu_e}{2} $$

    $\mu_k$ is the mean of the groups' means, $\sigma_k^2$ the mean of their variances plus the variance of their
    means.

    Source: phases 3 and 4 of `adv_estimator == 'lead'` in the [release](https://github.com/CrazyMint/LEAD), with its
    $10^{-8}$ under the root and in each denominator.

    Args:
        correctness (`Sequence[Sequence[float]]`): Mean and population variance of correctness (1 or 0) for each
            prompt.
        efficiency (`Sequence[Sequence[float]]`): The same for the efficiency rewards of correct answers, for each
            prompt that has correct answers.
        alpha (`float`): Exponent $\alpha$ of the distance to the best reward, dimensionless.
    """
    # There are two kinds of rewards, correctness (c) from 0 to 1 and efficiency (e) from -1 to 1, both passed as mean
    # and variance for each prompt, such as [[0.5, 0.25]]. `mu` is the mean of all, and `v` their standard deviation
    # relative to it.
    mu_c, v_c = _mean_and_relative_std(correctness)
    mu_e, v_e = _mean_and_relative_std(efficiency)
    # `p` is how far the mean is from the best reward, 1, as a share of the range of the rewards.
    p_c = 1.0 - mu_c
    p_e = (1.0 - mu_e) / 2.0
    # `D` is large for rewards that vary much and are far from the best. Correctness gets its share of the sum.
    v_sum = v_c + v_e + TINY
    D_c = v_c / v_sum * p_c**alpha
    D_e = v_e / v_sum * p_e**alpha
    return D_c / (D_c + D_e + TINY)


def _mean_and_relative_std(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    r"""Returns $\mu$, the mean of the groups' means, and $v = \sigma / |\mu|$; both are 0 without groups."""
    if not groups:
        return 0.0, 0.0
    # for each group, mean and variance of its rewards
    means = [mean for mean, _ in groups]
    variances = [variance for _, variance in groups]
    mu = fmean(means)
    # The variance of all rewards is the mean variance within the groups plus the variance between their means.
    sigma_squared = fmean(variances) + pvariance(means)
    v = math.sqrt(sigma_squared + TINY) / (abs(mu) + TINY)
    return mu, v


def _mean_and_variance_by_group(rewards_PG: torch.Tensor) -> list[list[float]]:
    """Returns mean and population variance of each group, ignoring NaN; groups without values are left out."""
    has_values_P = ~torch.isnan(rewards_PG).all(dim=1)
    means_P1, stds_P1 = mean_and_std(rewards_PG[has_values_P], correction=0)
    return torch.cat([means_P1, stds_P1**2], dim=1).tolist()


class LEAD(LengthControl):
    r"""LEAD: a weighted sum of two advantages, for correctness and closeness to the prompt's own length.

    $$ A_i = w_c A_{c,i} + (1 - w_c) A_{e,i}, \qquad w_c = \max(w, \lambda_{\min}), \qquad
       w \leftarrow \beta w + (1 - \beta) \hat w $$

    $A_c$ and $A_e$ are correctness $c_i$ (1 or 0) and efficiency $e_i = \max(-1, 1 - |L_i - L^*| / L^*)$, each
    normalized in its group, where $L^*$ is the mean length of the prompt's correct answers. $A$ is then standardized
    over the tokens of the batch, so a group of equal rewards does not have advantages of 0. `scale_rewards` has no
    effect. $\hat w$ is the weight that the last batch asks for, see [`correctness_weight`]; $w$ starts at 0.5. The
    shaped reward is $w_c c_i + (1 - w_c) e_i$.

    Correct answers shorter than the mean correct length are penalized like longer ones. If no answer is correct, $L^*$
    is $B$.

    Use: without a target, if lengths should stabilize and neither a weight nor a budget should be tuned.

    Source: `adv_estimator == 'lead'` of the [release](https://github.com/CrazyMint/LEAD) with the settings of its
    training script. We have read only the abstract of [LEAD](https://huggingface.co/papers/2605.09806).

    Differs: the release updates the weight before it applies it to the same batch; here, as in every method of this
    package, a batch is scored with the state before the batch.

    Args:
        lower_bound (`int`): $L_{\min}$, the smallest target in tokens.
        upper_bound (`int`): $B$, the largest target in tokens; `None` is the generation limit. Both $B$ and the limit
            are 8000 in the script.
        weight_min (`float`): $\lambda_{\min}$, the smallest weight of correctness.
        alpha (`float`): Exponent $\alpha$ of the distance to the best reward, dimensionless.
        beta (`float`): $\beta$, share of the old weight that is kept at each policy update; with 1, the weight is
            constant.
    """

    name = "lead"
    paper = Paper(
        "LEAD: Length-Efficient Adaptive and Dynamic Reasoning for Large Language Models",
        "2605.09806",
        "Songtao Wei and others",
    )
    formula_from = "the authors' release"
    depends_on = "batch"

    lower_bound: int = hyperparameter(1000, ge=1)
    upper_bound: int | None = hyperparameter(None, ge=1)
    weight_min: float = hyperparameter(0.3, ge=0, le=1)
    alpha: float = hyperparameter(1.0, ge=0)
    beta: float = hyperparameter(0.95, ge=0, le=1)
    weight: float = state_field(lambda: 0.5)
    # mean and variance of the rewards of each group observed since the last update, such as [[0.5, 0.25], [1.0, 0.0]]
    observed_correctness: list[list[float]] = state_field(list)
    observed_efficiency: list[list[float]] = state_field(list)

    def check(self, target_length: int | None, max_completion_length: float) -> None:
        # The target of a prompt, the mean length of its correct answers, is clipped to these bounds. For a prompt
        # without correct answers, the target is the upper bound, which must therefore be finite.
        upper_bound = self.upper_bound or max_completion_length
        if math.isinf(upper_bound):
            raise ValueError("upper_bound is None, but lead needs it where lengths have no limit; set upper_bound")
        if self.lower_bound > upper_bound:
            raise ValueError(
                f"lower_bound is {self.lower_bound}, but must not exceed upper_bound or limit, {upper_bound}"
            )

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return self._weighted_sum(rollouts.correctness, self._efficiency(rollouts))

    @property
    def _weight_of_correctness(self) -> float:
        return max(self.weight, self.weight_min)

    def _weighted_sum(self, of_correctness: torch.Tensor, of_efficiency: torch.Tensor) -> torch.Tensor:
        w_c = self._weight_of_correctness
        return w_c * of_correctness + (1.0 - w_c) * of_efficiency

    def _efficiency(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Efficiency $e_i$ of each completion; NaN where unscorable."""
        upper_bound = self.upper_bound or rollouts.max_completion_length
        lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
        is_correct_PG = rollouts.by_group(rollouts.is_correct)
        return efficiency_rewards(is_correct_PG, lengths_PG, self.lower_bound, upper_bound).flatten()

    def advantages(self, rollouts: Rollouts, shaped: torch.Tensor, rule: AdvantageRule) -> torch.Tensor:
        def normalized_in_group(rewards_N: torch.Tensor) -> torch.Tensor:
            return group_advantages(rewards_N, rollouts.num_generations, scale_rewards="group", epsilon=rule.epsilon)

        # advantages by correctness (c), and by the efficiency (e), which is the closeness to the prompt's target
        # length
        A_c_N = normalized_in_group(rollouts.correctness)
        A_e_N = normalized_in_group(self._efficiency(rollouts))
        advantages_N = self._weighted_sum(A_c_N, A_e_N).masked_fill(~rollouts.is_scorable, torch.nan)
        # The sum is standardized over the tokens of the batch: each completion counts as often as it has tokens.
        num_tokens_N = rollouts.completion_lengths.clamp(min=1)
        advantages_N = standardized(advantages_N, num_tokens_N, correction=1, epsilon=rule.epsilon)
        return advantages_N.nan_to_num(nan=0.0)

    def observe(self, rollouts: Rollouts) -> None:
        efficiency_of_correct_N = self._efficiency(rollouts).where(rollouts.is_correct, torch.nan)
        self.observed_correctness += _mean_and_variance_by_group(rollouts.by_group(rollouts.correctness))
        self.observed_efficiency += _mean_and_variance_by_group(rollouts.by_group(efficiency_of_correct_N))

    def step(self) -> None:
        # Both lists have mean and variance of the rewards of each prompt since the last update, such as [[0.5, 0.25]].
        # They are empty if this update reused the completions of an earlier one.
        if not self.observed_correctness:
            return
        batch_weight = correctness_weight(self.observed_correctness, self.observed_efficiency, self.alpha)
        self.weight = self.beta * self.weight + (1.0 - self.beta) * batch_weight
        self.observed_correctness = []
        self.observed_efficiency = []

    def statistics(self) -> dict[str, float]:
        return {"correctness_weight": self._weight_of_correctness}
