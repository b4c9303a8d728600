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


def pi_multiplier(
    violation: float,
    integral: float,
    gains: tuple[float, float],
    ceiling_gain: float,
    minimum: float,
    maximum: float,
) -> tuple[float, float]:
    r"""The multiplier of a PI controller on the violation, and its integral, which does not wind up.

    $$ \lambda = \mathrm{clip}(K_p e + I,\ \lambda_{\min},\ \min(\lambda_{\max}, K_c e)), \qquad
       I \leftarrow \mathrm{clip}(I + K_i e,\ \lambda_{\min},\ \lambda_{\max}) $$

    The ceiling $K_c e$ takes the multiplier down with the violation, to its minimum when the target is met, however
    large the integral has become; the integral itself stays, for when lengths rise again. It does not move while a
    bound holds the multiplier and the violation pushes it further out.

    Source: ours. Conditional integration and limits on the control signal are textbook anti-windup (Astrom and
    Hagglund, PID Controllers, section 3.5); PID on Lagrange multipliers:
    [Stooke et al.](https://huggingface.co/papers/2007.03964). Within the bounds and the ceiling, the integral moves as
    LEASH's multiplier does.

    Args:
        violation (`float`):
            `e` of the batch, dimensionless.
        integral (`float`):
            `I`, in reward units.
        gains (`tuple[float, float]`):
            `K_p` and `K_i`, in reward units per unit of violation.
        ceiling_gain (`float`):
            `K_c`, in reward units per unit of violation; infinite for no ceiling.
        minimum (`float`), maximum (`float`):
            Bounds of multiplier and integral.

    Returns:
        `tuple[float, float]`: The multiplier and the next integral, both within the bounds.

    Example:
        >>> pi_multiplier(0.5, integral=0.25, gains=(0.5, 0.25), ceiling_gain=2.0, minimum=0.0, maximum=1.0)
        (0.5, 0.375)
        >>> pi_multiplier(0.125, integral=0.75, gains=(0.5, 0.25), ceiling_gain=2.0, minimum=0.0, maximum=1.0)
        (0.25, 0.75)
    """
    proportional, integrating = gains
    ceiling = max(minimum, min(maximum, ceiling_gain * violation)) if violation > 0 else minimum
    wanted = proportional * violation + integral
    pushes_outwards = (wanted > ceiling and violation > 0) or (wanted < minimum and violation < 0)
    if not pushes_outwards:
        integral = min(max(integral + integrating * violation, minimum), maximum)
    return min(max(wanted, minimum), ceiling), integral
