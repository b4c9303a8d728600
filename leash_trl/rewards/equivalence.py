"""math-verify's verdict on two expressions. Imported by worker processes only: it may take for ever."""

import functools
import logging

import sympy
from math_verify import parse, verify


logging.getLogger("math_verify").setLevel(logging.CRITICAL)

TYPICAL = (
    r"-\frac{3}{2}",
    r"2\sqrt{3} + 1",
    r"\left( 3, \frac{\pi}{2} \right)",
    r"(-\infty, 2) \cup [3, \infty)",
    "x^2 + 3x - 6",
    r"\begin{pmatrix} 1 \\ -2 \end{pmatrix}",
    r"x \in [-2, 7]",
    r"\{1 \pm \sqrt{5}, -2\}",
    "y = 2x + 3",
    r"\text{even}",
    r"\sin x",
    "1 - 12i",
)


@functools.lru_cache(maxsize=512)
def _values(expression: str) -> tuple[object, ...]:
    # Without math-verify's own time limits, which need the main thread's signals and do not fire on every input.
    return tuple(parse(expression, parsing_timeout=None))


def _gold_values(expression: str) -> tuple[object, ...]:
    """In a box where nothing else is found: math-verify then takes words, such as "no solution", for an expression."""
    return _values(expression) or _values(f"\\boxed{{{expression}}}")


def _is_undefined(values: tuple[object, ...]) -> bool:
    """Whether a value divides by zero: to math-verify 12:00 is such a value, and so equal to 3:00."""
    return any(isinstance(value, sympy.Basic) and value.has(sympy.zoo, sympy.nan) for value in values)


def is_readable(expression: str) -> bool:
    """Whether math-verify finds anything in a gold answer."""
    return bool(_gold_values(expression))


def are_equivalent(answer: str, gold: str) -> bool | None:
    r"""math-verify's verdict with its default settings.

    Args:
        answer (`str`), gold (`str`):
            Expressions of [`~leash_trl.rewards.answer.Answer`], such as `\boxed{34}`.

    Returns:
        `bool` or `None`: `None` where math-verify finds nothing in the gold. Values that are not defined, such as
        `\frac{1}{0}`, equal nothing.
    """
    gold_values, answer_values = _gold_values(gold), _values(answer)
    if not gold_values:
        return None
    if _is_undefined(gold_values) or _is_undefined(answer_values):
        return False
    return bool(verify(list(gold_values), list(answer_values), timeout_seconds=None))


def warm_up() -> None:
    """Compares a few expressions of every kind: the parser is several times slower the first time it meets one."""
    for expression in TYPICAL:
        are_equivalent(f"\\boxed{{{expression}}}", r"\boxed{\sqrt{2}}")
