"""Shaped rewards to advantages, in float64: with an epsilon of 1e-8, float32 gives equal rewards up to 0.9."""

from typing import Literal

import torch


Scaling = Literal["group", "batch", "none"]  # what advantages are divided by, as TRL's `scale_rewards`


def _masked_std(values: torch.Tensor, is_valid: torch.Tensor) -> torch.Tensor:
    """Sample standard deviation (n - 1) over the last axis of the valid entries; 0 where fewer than two are valid."""
    counts = is_valid.sum(dim=-1, keepdim=True)
    means = values.where(is_valid, 0.0).sum(dim=-1, keepdim=True) / counts.clamp(min=1)
    squares = ((values - means) ** 2).where(is_valid, 0.0).sum(dim=-1, keepdim=True)
    return (squares / (counts - 1).clamp(min=1)).sqrt()


def has_signal(shaped_rewards: torch.Tensor, advantages: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Whether each prompt moves the policy at all: its completions differ in reward, and one has an advantage.

    Args:
        shaped_rewards (`torch.Tensor` of shape `(N,)`):
            Shaped rewards, the completions of a prompt side by side; NaN where a completion could not be scored.
        advantages (`torch.Tensor` of shape `(N,)`):
            Their advantages.
        num_generations (`int`):
            G, completions per prompt.

    Returns:
        `torch.Tensor` of shape `(P,)`: False where all scorable rewards are equal, fewer than two are scorable, or the
        method's rule gives all of them advantage 0.

    Example:
        >>> rewards = torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0, -1.0])
        >>> has_signal(rewards, torch.tensor([0.0, 0.0, 1.0, -1.0, 0.0, 0.0]), 2).tolist()
        [False, True, False]
    """
    shaped_PG = shaped_rewards.view(-1, num_generations)
    spread_P = shaped_PG.nan_to_num(-torch.inf).amax(dim=1) - shaped_PG.nan_to_num(torch.inf).amin(dim=1)
    largest_P = advantages.view(-1, num_generations).abs().amax(dim=1)
    # equal rewards may have advantages a little off 0, from rounding over a tiny deviation
    return (spread_P > 1e-12) & (largest_P > 1e-6)


def group_advantages(
    rewards: torch.Tensor, num_generations: int, scale_rewards: Scaling, epsilon: float
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
        centred_PG = centred_PG / (_masked_std(rewards_PG, is_valid_PG) + epsilon)
    elif scale_rewards == "batch":
        centred_PG = centred_PG / (_masked_std(rewards_PG.flatten(), is_valid_PG.flatten()) + epsilon)
    elif scale_rewards != "none":
        raise ValueError(f"scale_rewards is {scale_rewards!r}, but must be 'group', 'batch' or 'none'")
    return centred_PG.nan_to_num(nan=0.0).flatten()
