r"""Computes the paper's task reward for mathematics: +1 for an answer equivalent to the reference answer, else -1."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from leash_trl.completions.thinking import DEFAULT_MARKERS, ThinkingMarkers
from leash_trl.rewards.grader.answer import completion_text
from leash_trl.rewards.grader.grading import grade


def _reference_answer_text(index: int, solution: Any) -> str:
    """Returns a reference answer as text; a missing answer becomes empty text, which cannot be compared."""
    # Scalars of NumPy and torch, such as `np.float64(7.0)`, are arrays without dimensions.
    is_scalar_array = getattr(solution, "ndim", None) == 0
    value: Any = solution.item() if is_scalar_array else solution
    # pandas writes NaN where a row has no answer.
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    # The exact type is compared, because `True` is an instance of `int`, too, but no answer.
    if isinstance(value, str) or type(value) in (int, float):
        return str(value)
    raise ValueError(
        f"solution of completion {index} is {value!r:.200}, but must be text or a number; give each row one answer "
        "with Dataset.map"
    )


def math_reward(
    completions: list,
    solution: list[str | float | None],
    log_metric: Callable[[str, float], None] | None = None,
    lenient: bool = False,
    thinking_markers: ThinkingMarkers | Sequence[ThinkingMarkers] = DEFAULT_MARKERS,
    **kwargs: object,
) -> list[float | None]:
    r"""Returns +1 if the final answer is equivalent to the solution, -1 if not, and `None` if this is undecided.

    [`~leash_trl.rewards.grader.grading`] decides equivalence by value if both answers can be parsed, else with
    math-verify, which runs in a [`~leash_trl.rewards.grader.pool.GraderPool`] with a time limit and can be called from
    any thread. TRL ignores samples whose reward is `None`. Source: Eq. (2) of
    [LEASH](https://huggingface.co/papers/2512.21540).

    Args:
        completions (`list[str]` or `list[list[dict[str, str]]]`): Completions as texts or messages. The answer is
            the last `\boxed{}` after the thinking, else the last `Answer: ...`.
        solution (`list[str | float | None]`): Reference answers, with or without dollar signs or `\boxed{}`. `None`
            and NaN stand for a missing answer, which makes the completion unscorable.
        log_metric (`callable`): The trainer's function, which logs `grader/unscorable_share`, the share of completions
            whose reward is `None`; `None` to log nothing.
        lenient (`bool`): Whether an answer in an `<answer>` tag, or an unmarked one such as a trailing number, counts.
        thinking_markers ([`~leash_trl.completions.thinking.ThinkingMarkers`]): Where the thinking ends, and whether
            the chat template begins it in the prompt, as that of R1-Distill does: a completion without an end of
            thinking then has no answer. [`~leash_trl.LeashGRPOTrainer`], [`~leash_trl.LengthControlledReward`] and
            `leash eval` pass a list with the markers of each completion to every reward function that has a parameter
            of this name.

    Raises:
        `ValueError`: If a reference answer has another type, such as a list.
        `RuntimeError`: If no worker of the grader has ever started, for example because math-verify is missing.

    Example:
        >>> math_reward(["<think>...</think>It is \\boxed{07}.", "It is 7."], solution=["7", "7"])
        [1.0, -1.0]
    """
    references = [_reference_answer_text(index, answer) for index, answer in enumerate(solution)]
    texts = [completion_text(completion) for completion in completions]
    grades = grade(texts, references, lenient=lenient, thinking_markers=thinking_markers)
    # `is_correct` is `True`, `False`, or `None` if this is undecided, for example without a reference answer.
    if log_metric is not None and grades:
        log_metric("grader/unscorable_share", sum(grade.is_correct is None for grade in grades) / len(grades))
    # `True` becomes 1.0 and `False` becomes -1.0.
    return [None if grade.is_correct is None else 2.0 * grade.is_correct - 1.0 for grade in grades]


def lenient_math_reward(
    completions: list,
    solution: list[str | float | None],
    thinking_markers: ThinkingMarkers | Sequence[ThinkingMarkers] = DEFAULT_MARKERS,
    **kwargs: Any,
) -> list[float | None]:
    """[`math_reward`] that also accepts answers in an `<answer>` tag and bare answers, as in "So it is 12."."""
    # A column of the data set may be called `lenient`, too, and would then be passed twice.
    kwargs["lenient"] = True
    return math_reward(completions, solution, thinking_markers=thinking_markers, **kwargs)
