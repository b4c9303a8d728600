"""LEASH's dual step: the violation of the length constraint and the update of the multiplier, on Python floats."""

import math
from collections.abc import Sequence


def mean_violation(lengths: Sequence[float], target_lengths: Sequence[float]) -> float:
    r"""Returns the constraint violation of some completions, dimensionless: positive above the target, negative below.

    $$ \hat J_P = \frac{1}{BG} \sum_{b,i} \left( \frac{L(y_{b,i})}{L_t} - 1 \right) $$

    Source: Algorithm 1, line 14, of [LEASH](https://huggingface.co/papers/2512.21540). It is two-sided, unlike the
    penalty.

    Differs: the paper has one target for all prompts; here each completion has the target of its prompt.

    Completions whose target is NaN are ignored; the result is NaN if all are. The result does not depend on the order
    of the completions, not even in its last bit.

    Example:
        >>> mean_violation([4096, 12288], [4096, 4096])
        1.0
    """
    overshoots = []
    for length, target in zip(lengths, target_lengths, strict=True):
        if not math.isnan(target):  # NaN stands for no target
            overshoots.append(length / target - 1.0)
    if not overshoots:
        return math.nan
    # `fsum` rounds only once, so that the result does not depend on the order of the completions.
    return math.fsum(overshoots) / len(overshoots)


def projected_ascent(lam: float, violation: float, lr: float, minimum: float, maximum: float) -> float:
    r"""Returns the multiplier after one projected gradient-ascent step, in reward units per unit of relative
    overshoot.

    $$ \lambda \leftarrow \mathrm{clip}(\lambda + \alpha_\lambda \hat J_P, \lambda_{\min}, \lambda_{\max}) $$

    Source: Algorithm 1, line 15, of [LEASH](https://huggingface.co/papers/2512.21540). `lr = 0` is LEASH-C.

    Example:
        >>> projected_ascent(0.25, violation=1.0, lr=0.125, minimum=0.0, maximum=1.0)
        0.375
    """
    return clipped(lam + lr * violation, minimum, maximum)


def clipped(value: float, minimum: float, maximum: float) -> float:
    """Returns the value between the two bounds that is nearest to a value."""
    return min(max(value, minimum), maximum)
