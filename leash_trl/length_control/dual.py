"""The dual side of LEASH: how far the constraint is violated and how its multiplier moves. Floats in, floats out."""


def violation(total_length: int, count: int, target_length: int) -> float:
    r"""Constraint violation of a batch, dimensionless: positive over budget, negative under it.

    $$ \hat J_P = \frac{1}{BG} \sum_{b,i} \left( \frac{L(y_{b,i})}{L_t} - 1 \right) $$

    Source: Algorithm 1, line 14, of [LEASH](https://huggingface.co/papers/2512.21540). Two-sided, unlike the penalty.

    Args:
        total_length (`int`):
            Sum of the completion lengths of the batch in tokens.
        count (`int`):
            Number of completions, `B * G`. Must be positive.
        target_length (`int`):
            Target `L_t` in tokens.

    Returns:
        `float`: At least -1; `0.0` where the mean length is exactly the target.

    Raises:
        `ValueError`: If `count` is not positive.

    Example:
        >>> violation(total_length=32768, count=4, target_length=4096)
        1.0
    """
    if count <= 0:
        raise ValueError(f"count is {count}: the violation of an empty batch is not defined")
    return total_length / count / target_length - 1.0


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
        `float`: The new multiplier, on a bound where the step would leave `[minimum, maximum]`.

    Example:
        >>> projected_ascent(0.25, violation=1.0, lr=0.125, minimum=0.0, maximum=1.0)
        0.375
    """
    return min(max(lam + lr * violation, minimum), maximum)
