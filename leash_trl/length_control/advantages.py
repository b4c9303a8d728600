"""Turns shaped rewards into advantages, in float64: with an epsilon of 1e-8, float32 gives equal rewards up to 0.9."""

from typing import Literal

import torch


Scaling = Literal["group", "batch", "none"]  # what advantages are divided by, as TRL's `scale_rewards`


def _std(values: torch.Tensor, correction: int = 1) -> torch.Tensor:
    """Standard deviation over the last axis without NaN, divided by n - `correction`; 0 for too few values."""
    counts = (~torch.isnan(values)).sum(dim=-1, keepdim=True)
    means = values.nansum(dim=-1, keepdim=True) / counts.clamp(min=1)
    squares = ((values - means) ** 2).nansum(dim=-1, keepdim=True)
    return (squares / (counts - correction).clamp(min=1)).sqrt()


def standardised(values: torch.Tensor, weights: torch.Tensor, correction: int, epsilon: float) -> torch.Tensor:
    r"""Values minus their weighted mean, over their weighted standard deviation plus `epsilon`, dimensionless.

    $$ \frac{v_i - \bar v}{\sigma + \epsilon}, \qquad \bar v = \frac{\sum_i w_i v_i}{\sum_i w_i}, \quad
       \sigma^2 = \frac{\sum_i w_i (v_i - \bar v)^2}{\sum_i w_i - c} $$

    Args:
        values (`torch.Tensor`), weights (`torch.Tensor` of the same shape):
            Values and their weights, compared along the last axis; values of weight 0, and NaN, do not count.
        correction (`int`):
            $c$: 0 for the population, 1 for a sample.
        epsilon (`float`):
            Added to the standard deviation.

    Example:
        >>> standardised(torch.tensor([3.0, -3.0, float("nan")]), torch.ones(3), 0, 0.0).tolist()
        [1.0, -1.0, nan]
    """
    counted = weights.double().where(~torch.isnan(values), 0.0)
    totals = counted.sum(dim=-1, keepdim=True)
    centred = values.double() - (values * counted).nansum(dim=-1, keepdim=True) / totals.clamp(min=1.0)
    variances = (centred**2 * counted).nansum(dim=-1, keepdim=True) / (totals - correction).clamp(min=1.0)
    return centred / (variances.sqrt() + epsilon)


def has_signal(shaped_rewards: torch.Tensor, advantages: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Whether each prompt moves the policy: its completions differ in reward, and at least one has an advantage.

    Args:
        shaped_rewards (`torch.Tensor` of shape `(N,)`):
            Shaped rewards, the completions of a prompt side by side; NaN where a completion could not be scored.
        advantages (`torch.Tensor` of shape `(N,)`):
            Their advantages.
        num_generations (`int`):
            G, completions per prompt.

    Returns:
        `torch.Tensor` of shape `(P,)`: False if all scorable rewards are equal, fewer than two are scorable, or the
        method gives all of them advantage 0.

    Example:
        >>> rewards = torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, -1.0])
        >>> has_signal(rewards, torch.tensor([0.0, 0.0, 1.0, -1.0, 0.0, 0.0]), 2).tolist()
        [False, True, False]
    """
    shaped_PG = shaped_rewards.view(-1, num_generations)
    spread_P = shaped_PG.nan_to_num(-torch.inf).amax(dim=1) - shaped_PG.nan_to_num(torch.inf).amin(dim=1)
    largest_P = advantages.view(-1, num_generations).abs().amax(dim=1)
    # advantages of equal rewards may be slightly off 0: rounding errors divided by a tiny deviation
    return (spread_P > 1e-12) & (largest_P > 1e-6)


def group_advantages(
    rewards: torch.Tensor, num_generations: int, scale_rewards: Scaling, epsilon: float, correction: int = 1
) -> torch.Tensor:
    r"""Group-relative advantages, dimensionless (in reward units for `scale_rewards="none"`).

    $$ \hat A_{b,i} = \frac{\tilde r_{b,i} - \mu_b}{\sigma_b + \epsilon} $$

    Source: Algorithm 1, line 11, of [LEASH](https://huggingface.co/papers/2512.21540), with `epsilon` = 1e-8. The
    paper does not say which standard deviation; this is the sample one (n - 1), as in TRL and in the authors'
    release.

    Args:
        rewards (`torch.Tensor` of shape `(N,)`):
            Shaped rewards, the completions of a prompt side by side; NaN where a completion could not be scored.
        num_generations (`int`):
            G, completions per prompt; N is a multiple of it.
        scale_rewards (`str`):
            `"group"` divides by the group's standard deviation, `"batch"` by that of all rewards, `"none"` not at all.
        epsilon (`float`):
            Added to the standard deviation, in reward units.
        correction (`int`, *optional*, defaults to `1`):
            1 for the sample standard deviation, 0 for that of the population.

    Returns:
        `torch.Tensor` of shape `(N,)`: Advantages in float64; 0 for unscorable completions and in groups of equal
        rewards.

    Example:
        >>> group_advantages(torch.tensor([1.0, 1.0, -1.0, -1.0]), 4, "none", 1e-8).tolist()
        [1.0, 1.0, -1.0, -1.0]
    """
    rewards_PG = rewards.double().view(-1, num_generations)
    is_valid_PG = ~torch.isnan(rewards_PG)
    counts_P1 = is_valid_PG.sum(dim=1, keepdim=True).clamp(min=1)
    centred_PG = rewards_PG - rewards_PG.nansum(dim=1, keepdim=True) / counts_P1
    if scale_rewards == "group":
        centred_PG = centred_PG / (_std(rewards_PG, correction) + epsilon)
    elif scale_rewards == "batch":
        centred_PG = centred_PG / (_std(rewards_PG.flatten(), correction) + epsilon)
    elif scale_rewards != "none":
        raise ValueError(f"scale_rewards is {scale_rewards!r}, but must be 'group', 'batch' or 'none'")
    return centred_PG.nan_to_num(nan=0.0).flatten()
