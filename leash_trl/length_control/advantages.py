"""Turns shaped rewards into advantages, in float64.

In float32 and with an epsilon of 1e-8, rounding errors can give a group of equal rewards advantages of up to 0.9.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from leash_trl.length_control.rollouts import LEAST_LENGTH


Scaling = Literal["group", "batch", "none"]  # standard deviation that advantages are divided by, as in TRL
ROUNDING_ERROR = 1e-12  # shaped rewards that differ by no more than this are equal
NEGLIGIBLE_ADVANTAGE = 1e-6  # may be rounding errors divided by a tiny standard deviation


def mean_and_std(
    values: torch.Tensor, weights: torch.Tensor | None = None, correction: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Returns the weighted mean and standard deviation of each group, in the unit of the values.

    $$ \bar v = \frac{\sum_i w_i v_i}{\sum_i w_i}, \qquad
       \sigma^2 = \frac{\sum_i w_i (v_i - \bar v)^2}{\sum_i w_i - c} $$

    Args:
        values (`torch.Tensor` of shape `(..., G)`): Values of groups; NaN is ignored.
        weights (`torch.Tensor` of the same shape): Weights $w$, such as lengths; 1 each by default.
        correction (`int`): $c$: 0 for the population standard deviation, 1 for that of a sample.

    Returns:
        Two `torch.Tensor` of shape `(..., 1)`, float64; both are 0 for a group without values.

    Example:
        >>> means, stds = mean_and_std(torch.tensor([[1.0, 3.0, 5.0, float("nan")]]))
        >>> means.item(), stds.item()
        (3.0, 2.0)
    """
    values = values.double()  # (..., G): the last axis holds the values of one group
    if weights is None:
        weights = torch.ones_like(values)
    # A value of NaN has no weight. Its product with a weight is still NaN, so products are summed by `nansum`.
    weights = weights.double().where(~torch.isnan(values), 0.0)
    # Sums over a group have shape (..., 1). The clamps of the denominators avoid 0 / 0 in a group without values, and
    # in one with a single value if `correction` is 1.
    total_weights = weights.sum(dim=-1, keepdim=True)
    means = (values * weights).nansum(dim=-1, keepdim=True) / total_weights.clamp(min=1.0)
    sums_of_squares = ((values - means) ** 2 * weights).nansum(dim=-1, keepdim=True)
    variances = sums_of_squares / (total_weights - correction).clamp(min=1.0)
    return means, variances.sqrt()


def min_max_scaled(lengths: torch.Tensor) -> torch.Tensor:
    r"""`torch.Tensor` of shape `(P, G)`: Relative position of each length between its group's shortest and longest, in
    [0, 1].

    $$ \frac{L_i - L_{\min}}{L_{\max} - L_{\min}} $$

    It is 0 in a group of equal lengths. A length of NaN is ignored in its group, and its position is NaN.
    """
    lengths_PG = lengths.double()
    shortest_P1 = lengths_PG.nan_to_num(nan=torch.inf).amin(dim=1, keepdim=True)
    longest_P1 = lengths_PG.nan_to_num(nan=-torch.inf).amax(dim=1, keepdim=True)
    ranges_P1 = (longest_P1 - shortest_P1).clamp(min=LEAST_LENGTH)  # no 0 / 0 where all lengths are equal
    return (lengths_PG - shortest_P1) / ranges_P1


def standardized(
    values: torch.Tensor, weights: torch.Tensor | None = None, *, correction: int, epsilon: float
) -> torch.Tensor:
    r"""Returns $(v_i - \bar v) / (\sigma + \epsilon)$ along the last axis; for the arguments, see [`mean_and_std`].

    Example:
        >>> standardized(torch.tensor([3.0, -3.0, float("nan")]), correction=0, epsilon=0.0).tolist()
        [1.0, -1.0, nan]
    """
    means, stds = mean_and_std(values, weights, correction=correction)
    return (values.double() - means) / (stds + epsilon)


def group_has_signal(shaped_rewards: torch.Tensor, advantages: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Returns whether each prompt changes the policy: if its completions differ in reward and some advantage is not 0.

    Returns:
        `torch.Tensor` of shape `(P,)`, for values of shape `(N,)`; a reward of NaN is ignored.

    Example:
        >>> rewards = torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, -1.0])
        >>> group_has_signal(rewards, torch.tensor([0.0, 0.0, 1.0, -1.0, 0.0, 0.0]), 2).tolist()
        [False, True, False]
    """
    shaped_PG = shaped_rewards.view(-1, num_generations)
    # P prompts with G completions each. NaN, which stands for no reward, is replaced by an infinity that can be
    # neither the highest nor the lowest reward of a group.
    highest_P = shaped_PG.nan_to_num(nan=-torch.inf).amax(dim=1)
    lowest_P = shaped_PG.nan_to_num(nan=torch.inf).amin(dim=1)
    largest_advantage_P = advantages.view(-1, num_generations).abs().amax(dim=1)
    # Both thresholds are above rounding errors, which a tiny standard deviation can turn into large advantages.
    differs_P = highest_P - lowest_P > ROUNDING_ERROR
    return differs_P & (largest_advantage_P > NEGLIGIBLE_ADVANTAGE)


def group_advantages(
    rewards: torch.Tensor,
    num_generations: int,
    scale_rewards: Scaling,
    epsilon: float,
    correction: int = 1,
) -> torch.Tensor:
    r"""Returns group-relative advantages, dimensionless (in reward units for `scale_rewards="none"`).

    $$ \hat A_{b,i} = \frac{\tilde r_{b,i} - \mu_b}{\sigma_b + \epsilon} $$

    Source: Algorithm 1, line 11, of [LEASH](https://huggingface.co/papers/2512.21540), with `epsilon` = 1e-8. The
    paper does not say which standard deviation it uses; we use that of a sample (n - 1), as TRL and the authors'
    release do.

    Args:
        rewards (`torch.Tensor` of shape `(N,)`): Shaped rewards; NaN where unscorable.
        scale_rewards (`str`): Standard deviation to divide by: that of the `"group"`, that of the `"batch"`, or
            `"none"`.
        epsilon (`float`): Added to the standard deviation, in reward units.
        correction (`int`): 1 for the standard deviation of a sample, 0 for that of the population.

    Returns:
        `torch.Tensor` of shape `(N,)`: Advantages in float64; 0 where unscorable.

    Example:
        >>> group_advantages(torch.tensor([1.0, 1.0, -1.0, -1.0]), 4, "none", 1e-8).tolist()
        [1.0, 1.0, -1.0, -1.0]
    """
    rewards_PG = rewards.double().view(-1, num_generations)  # one row for each of P prompts
    means_P1, stds_P1 = mean_and_std(rewards_PG, correction=correction)
    advantages_PG = rewards_PG - means_P1
    if scale_rewards == "group":
        advantages_PG = advantages_PG / (stds_P1 + epsilon)
    elif scale_rewards == "batch":
        _, batch_std = mean_and_std(rewards_PG.flatten(), correction=correction)
        advantages_PG = advantages_PG / (batch_std + epsilon)
    # An unscorable completion has a reward of NaN, which mean and standard deviation ignore; its advantage is 0.
    return advantages_PG.nan_to_num(nan=0.0).flatten()


@dataclass(frozen=True)
class AdvantageRule:
    """The rule by which the run turns shaped rewards into advantages, in float64.

    Args:
        scale_rewards (`str`), epsilon (`float`): As for [`group_advantages`].
    """

    scale_rewards: Scaling = "group"
    epsilon: float = 1e-8

    def __call__(self, shaped_rewards: torch.Tensor, num_generations: int) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Advantages; 0 where the shaped reward is NaN."""
        return group_advantages(shaped_rewards, num_generations, self.scale_rewards, self.epsilon)


DEFAULT_RULE = AdvantageRule()  # advantages as LeashGRPOTrainer normalizes them by default
