"""Centre and spread of a group: mean and standard deviation, or median and median absolute deviation (MAD).

A single outlier moves the first two and does not move the others.
"""

import torch


# Makes the MAD of normal values their standard deviation: 1 / 0.6745, the upper quartile of the standard normal.
NORMAL_FACTOR = 1.4826
# Least MAD that means anything, as a share of the median
MIN_RELATIVE_MAD = 0.015


def mean_and_std(
    values: torch.Tensor, weights: torch.Tensor | None = None, correction: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Weighted mean and standard deviation of each group, in the unit of the values.

    $$ \bar v = \frac{\sum_i w_i v_i}{\sum_i w_i}, \qquad
       \sigma^2 = \frac{\sum_i w_i (v_i - \bar v)^2}{\sum_i w_i - c} $$

    Args:
        values (`torch.Tensor` of shape `(..., G)`):
            Values of groups; NaN does not count.
        weights (`torch.Tensor` of the same shape, *optional*):
            $w$, such as lengths; by default 1 each. Values of weight 0 do not count.
        correction (`int`, *optional*, defaults to `1`):
            $c$: 0 for the population, 1 for a sample.

    Returns:
        `torch.Tensor` and `torch.Tensor` of shape `(..., 1)`: Means and standard deviations in float64, 0 and 0 for a
        group without values; a single value has standard deviation 0.

    Example:
        >>> means, stds = mean_and_std(torch.tensor([[1.0, 3.0, 5.0, float("nan")]]))
        >>> means.item(), stds.item()
        (3.0, 2.0)
    """
    values = values.double()
    counted = (torch.ones_like(values) if weights is None else weights.double()).where(~torch.isnan(values), 0.0)
    totals = counted.sum(dim=-1, keepdim=True)
    means = (values * counted).nansum(dim=-1, keepdim=True) / totals.clamp(min=1.0)
    squares = ((values - means) ** 2 * counted).nansum(dim=-1, keepdim=True)
    return means, (squares / (totals - correction).clamp(min=1.0)).sqrt()


def robust_centre_and_spread(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Median of each group, and its MAD times 1.4826, in the unit of the values.

    $$ m = \operatorname{med}_i v_i, \qquad s = 1.4826 \operatorname{med}_i |v_i - m| $$

    Source: the modified z-score of Iglewicz and Hoaglin, as in NeMo-RL's `length_penalty.py` (pull request 3852).
    There a group has no outliers if its MAD is 0 or below 1.5 % of its median; so here its spread is infinite.

    Args:
        values (`torch.Tensor` of shape `(P, G)`):
            Values of P groups; NaN does not count.

    Returns:
        `torch.Tensor` and `torch.Tensor` of shape `(P, 1)`: Medians and spreads in float64, NaN for a group without
        values. The median of an even number of values is the mean of the two in the middle.

    Example:
        >>> centres, spreads = robust_centre_and_spread(torch.tensor([[100.0, 110.0, 120.0, 400.0, float("nan")]]))
        >>> centres.item(), round(spreads.item(), 3)
        (115.0, 14.826)
    """
    values_PG = values.double()
    centres_P1 = values_PG.nanquantile(0.5, dim=1, keepdim=True)
    deviations_P1 = (values_PG - centres_P1).abs().nanquantile(0.5, dim=1, keepdim=True)
    is_too_small_P1 = (deviations_P1 == 0) | (deviations_P1 < MIN_RELATIVE_MAD * centres_P1.abs())
    return centres_P1, (NORMAL_FACTOR * deviations_P1).masked_fill(is_too_small_P1, torch.inf)


def robust_scores(values: torch.Tensor) -> torch.Tensor:
    r"""Robust z-scores, dimensionless; positive above the median.

    $$ z_i = \frac{v_i - m}{s} $$

    Args:
        values (`torch.Tensor` of shape `(P, G)`):
            Values of P groups, such as lengths in tokens; NaN for those that do not count, such as unscorable ones.

    Returns:
        `torch.Tensor` of shape `(P, G)`: Scores in float64; NaN where the value is NaN, and 0 in a group whose MAD is
        0 or below 1.5 % of its median, see [`robust_centre_and_spread`].

    Example:
        >>> robust_scores(torch.tensor([[100.0, 110.0, 120.0, 400.0], [50.0, 50.0, 50.0, 90.0]])).round(decimals=2)
        tensor([[-1.0100, -0.3400,  0.3400, 19.2200],
                [ 0.0000,  0.0000,  0.0000,  0.0000]], dtype=torch.float64)
    """
    centres_P1, spreads_P1 = robust_centre_and_spread(values)
    return (values.double() - centres_P1) / spreads_P1
