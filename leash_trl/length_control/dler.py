"""DLER: truncation as the only length penalty, advantages standardised over the whole batch.

Paper: [DLER: Doing Length pEnalty Right](https://huggingface.co/papers/2510.15110).
"""

from dataclasses import dataclass
from typing import Literal

import torch

from leash_trl.length_control.advantages import Scaling, group_advantages
from leash_trl.length_control.checked_values import check_choice, check_range
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts


def truncation_rewards(correctness: torch.Tensor, is_finished: torch.Tensor, factor: float = 0.0) -> torch.Tensor:
    r"""Correctness, times `factor` where the answer was not finished within the limit, in reward units.

    $$ R_i = \begin{cases} r_i & L_i \le L_t \\ 0 & L_i > L_t \end{cases} $$

    Source: section 3 of [DLER](https://huggingface.co/papers/2510.15110) for `factor` = 0; the authors' release
    (`stop_properly_penalty`) has 0.1.

    Example:
        >>> truncation_rewards(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([True, False, True])).tolist()
        [1.0, 0.0, 0.0]
    """
    return correctness.where(is_finished, factor * correctness)


def difficulty_limits(
    solve_rates: torch.Tensor, limits: torch.Tensor, easy_limit: float, threshold: float
) -> torch.Tensor:
    """DA-DLER: the limit of each completion in tokens, `easy_limit` where the solve rate is above the threshold.

    Source: section 3 of [DLER](https://huggingface.co/papers/2510.15110); at the threshold the full limit holds.

    Example:
        >>> difficulty_limits(torch.tensor([0.5, 0.75]), torch.tensor([4000.0, 4000.0]), 2000, 0.5).tolist()
        [4000.0, 2000.0]
    """
    return torch.where(solve_rates > threshold, limits.clamp(max=easy_limit), limits)


def standardised(values: torch.Tensor, weights: torch.Tensor, correction: int, epsilon: float) -> torch.Tensor:
    r"""Values less their weighted mean, over their weighted standard deviation plus `epsilon`, dimensionless.

    $$ \frac{v_i - \bar v}{\sigma + \epsilon}, \qquad \bar v = \frac{\sum_i w_i v_i}{\sum_i w_i}, \quad
       \sigma^2 = \frac{\sum_i w_i (v_i - \bar v)^2}{\sum_i w_i - c} $$

    Source: section 3 of [DLER](https://huggingface.co/papers/2510.15110) with equal weights and `correction` 0; the
    authors' release (`masked_whiten`) weighs by the tokens of each completion, with 1.

    Args:
        values (`torch.Tensor` of shape `(N,)`), weights (`torch.Tensor` of shape `(N,)`):
            Values, NaN where not to be counted, and their weights.
        correction (`int`):
            $c$: 0 for the population, 1 for a sample.
        epsilon (`float`):
            Added to the standard deviation.

    Example:
        >>> standardised(torch.tensor([3.0, -3.0, float("nan")]), torch.ones(3), 0, 0.0).tolist()
        [1.0, -1.0, nan]
    """
    counted = weights.double().where(~torch.isnan(values), 0.0)
    centred = values.double() - (values * counted).nansum() / counted.sum().clamp(min=1.0)
    variance = (centred**2 * counted).nansum() / (counted.sum() - correction).clamp(min=1.0)
    return centred / (variance.sqrt() + epsilon)


@dataclass
class DLER(LengthControl):
    r"""DLER: a correct answer counts only within the target; DA-DLER: within `easy_limit` where the prompt is easy.

    The target is the paper's limit, 4000 tokens there: set it once as `target_length`. The advantage is
    `reward - group mean`, standardised over the whole batch (the release: over its tokens); `scale_rewards` has no
    say. The paper also resamples groups without signal: that is the trainer's `dynamic_sampling_rounds`.

    Use: where the target may be a hard limit from the first step on; together with `dynamic_sampling_rounds`.

    Source: [DLER](https://huggingface.co/papers/2510.15110).

    Generation is cut at the target too, as in the paper. Where prompts have targets of their own, set
    `cut_generation: false`: what is longer than its target earns nothing either way.

    Args:
        variant (`str`, *optional*, defaults to `"paper"`):
            `"release"` leaves 0.1 of the reward of unfinished answers, weighs the standardisation by tokens, and adds
            0.1 to the advantage of every correct, finished answer.
        easy_limit (`int`, *optional*):
            Limit in tokens where the solve rate within the target is above `easy_threshold`; 2000 in the paper's
            DA-DLER. A target below it stays.
        easy_threshold (`float`, *optional*, defaults to `0.5`):
            Solve rate above which a prompt is easy, in [0, 1].
        cut_generation (`bool`, *optional*, defaults to `True`):
            Cut generation at the target, which saves time; otherwise it goes on to `max_completion_length`.
    """

    name = "dler"
    target_use = "required"
    needs_truncated = True

    variant: Literal["paper", "release"] = "paper"
    easy_limit: int | None = None
    easy_threshold: float = 0.5
    cut_generation: bool = True

    def __post_init__(self) -> None:
        check_choice(self, "variant", "paper", "release")
        check_range(self, "easy_limit", 1)
        check_range(self, "easy_threshold", 0, 1)

    def shape(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: 1 for answers correct within their limit, else 0; NaN where unscorable."""
        factor = 0.1 if self.variant == "release" else 0.0
        return truncation_rewards(rollouts.correctness, self._is_finished(rollouts, self.limits(rollouts)), factor)

    def _is_finished(self, rollouts: Rollouts, limits: torch.Tensor) -> torch.Tensor:
        """Whether each completion ended by itself and within its limit."""
        return ~rollouts.is_truncated & (rollouts.lengths <= limits)

    def limits(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: The limit of each completion in tokens."""
        limits = rollouts.target_lengths
        if self.easy_limit is None:
            return limits
        is_solved = truncation_rewards(rollouts.correctness, self._is_finished(rollouts, limits))
        solve_rates_P1 = rollouts.by_group(is_solved).nanmean(dim=1, keepdim=True)
        limits_PG = difficulty_limits(solve_rates_P1, rollouts.by_group(limits), self.easy_limit, self.easy_threshold)
        return limits_PG.flatten()

    def advantages(
        self, shaped_rewards: torch.Tensor, rollouts: Rollouts, scale_rewards: Scaling, epsilon: float
    ) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Advantages, standardised over the batch; 0 where unscorable."""
        centred = group_advantages(shaped_rewards, rollouts.num_generations, "none", epsilon)
        centred = centred.masked_fill(torch.isnan(shaped_rewards), torch.nan)
        if self.variant == "paper":
            return standardised(centred, torch.ones_like(centred), 0, epsilon).nan_to_num(nan=0.0)
        boosts = 0.1 * (shaped_rewards >= 1.0 - 1e-5).double()
        return (standardised(centred, rollouts.lengths, 1, epsilon) + boosts).nan_to_num(nan=0.0)

    def generation_cap(self, target_length: float | None) -> int | None:
        """The target, where generation is cut at it."""
        return int(target_length) if self.cut_generation and target_length is not None else None
