"""LEASH's dual step: how far completions violate the constraint, and how its multiplier moves. Floats in and out."""

import math
from collections.abc import Sequence


def violation(lengths: Sequence[float], target_lengths: Sequence[float]) -> float:
    r"""Constraint violation of some completions, dimensionless: positive over budget, negative under it.

    $$ \hat J_P = \frac{1}{BG} \sum_{b,i} \left( \frac{L(y_{b,i})}{L_t} - 1 \right) $$

    Source: Algorithm 1, line 14, of [LEASH](https://huggingface.co/papers/2512.21540). Two-sided, unlike the penalty.

    Differs: the paper has one target for all prompts; here each completion has the target of its prompt.

    Args:
        lengths (`Sequence[float]`):
            Completion lengths in tokens.
        target_lengths (`Sequence[float]`):
            Target `L_t` of each in tokens; a completion whose target is NaN does not count.

    Returns:
        `float`: At least -1; `0.0` if every length equals its target, NaN if none has a target. The order of the
        completions does not change a single bit of it.

    Example:
        >>> violation([4096, 12288], [4096, 4096])
        1.0
    """
    pairs = zip(lengths, target_lengths, strict=True)
    overshoots = [length / target - 1.0 for length, target in pairs if not math.isnan(target)]
    return math.fsum(overshoots) / len(overshoots) if overshoots else math.nan


def projected_ascent(lam: float, violation: float, lr: float, minimum: float, maximum: float) -> float:
    r"""The multiplier after one projected gradient-ascent step, in reward units per unit of relative overshoot.

    $$ \lambda \leftarrow \mathrm{clip}(\lambda + \alpha_\lambda \hat J_P, \lambda_{\min}, \lambda_{\max}) $$

    Source: Algorithm 1, line 15, of [LEASH](https://huggingface.co/papers/2512.21540). `lr = 0` is LEASH-C.

    Args:
        lam (`float`):
            Multiplier before the step.
        violation (`float`):
            `J_P` of the batch, dimensionless.
        lr (`float`):
            Step size `alpha_lambda`.
        minimum (`float`), maximum (`float`):
            Bounds of the multiplier.

    Returns:
        `float`: The new multiplier, within `[minimum, maximum]`.

    Example:
        >>> projected_ascent(0.25, violation=1.0, lr=0.125, minimum=0.0, maximum=1.0)
        0.375
    """
    return min(max(lam + lr * violation, minimum), maximum)


def gate_level(violation: float, level: float, memory: float) -> float:
    r"""The level of a gate on the penalty, dimensionless: the gate is open, and the penalty on, where it is positive.

    $$ s \leftarrow \hat J_P + \rho \min(s, 0) $$

    A batch at or under the target closes the gate at once. Below 0 the level is a debt, which lengths over the target
    pay off before the gate opens again; batches under the target add to it, and a share $1 - \rho$ of it is forgotten
    with each step. So the noise of single batches does not open the gate while lengths are under the target.

    Source: ours. A sum that starts anew at 0 is that of CUSUM charts (Page, Continuous Inspection Schemes, 1954), here
    with a leak. What it mends is named by [Stooke et al.](https://huggingface.co/papers/2007.03964): a multiplier that
    only integrates overshoots and oscillates.

    Args:
        violation (`float`):
            `J_P` of the batch, dimensionless.
        level (`float`):
            `s` before the step; 0 at the start, when the sign of the violation alone counts.
        memory (`float`):
            `rho`, in [0, 1): 0 for a gate that follows the sign of each violation.

    Returns:
        `float`: The next level; never above the violation, and of its sign where the gate was open.

    Example:
        >>> gate_level(-0.25, level=0.5, memory=0.5)
        -0.25
        >>> gate_level(0.0625, level=-0.25, memory=0.5)
        -0.0625
    """
    return violation + memory * min(level, 0.0)
