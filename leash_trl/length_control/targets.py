"""Checks targets, applies their schedule, and reads the target of a data set row."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from leash_trl.errors import TrainingError
from leash_trl.length_control.fields import is_number
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.rollouts import Rollouts


TARGET_COLUMN = "target_length"


def scheduled_target(schedule: str, milestones: Mapping[int, float], target_length: float, step: int) -> float:
    """Returns the target at a policy update, in what `length_of` counts.

    Args:
        schedule (`str`): `"constant"` returns `target_length`, `"staged"` the value of the last milestone reached, and
            `"linear"` interpolates between milestones.
        milestones (`Mapping[int, float]`): Target after a number of policy updates.

    Example:
        >>> [scheduled_target("linear", {0: 100, 10: 50}, 50, step) for step in (0, 5, 10, 20)]
        [100.0, 75.0, 50.0, 50.0]
        >>> [scheduled_target("staged", {0: 100, 10: 50}, 50, step) for step in (0, 9, 10)]
        [100, 100, 50]
    """
    if schedule == "constant":
        return target_length
    steps = sorted(milestones)  # numbers of policy updates, such as [0, 100] of {0: 8192, 100: 4096}
    if schedule == "linear":
        # before the first and after the last milestone, `interp` returns the target of that milestone
        return float(np.interp(step, steps, [milestones[milestone] for milestone in steps]))
    # The target of a staged schedule is that of the last milestone reached, and of the first one until it is reached.
    num_reached = bisect_right(steps, step)
    current = max(num_reached - 1, 0)
    return milestones[steps[current]]


def plain_value(value: Any) -> Any:
    """Returns a value of a data set row of any format as a plain Python value; `None` for NaN, with which tables say
    that a value is missing.

    Example:
        >>> [plain_value(value) for value in (np.int64(12), torch.tensor(0.5), "low", math.nan)]
        [12, 0.5, 'low', None]
    """
    if isinstance(value, np.generic | np.ndarray | torch.Tensor):
        value = value.tolist()
    is_missing = isinstance(value, float) and math.isnan(value)
    return None if is_missing else value


def scaled_target(target: float, scheduled: float, target_length: float, largest_length: float) -> float:
    """Returns a prompt's target from the data set, multiplied by `scheduled / target_length`, the ratio of the
    schedule's current target to the configured one. It is not raised beyond the largest length that a completion can
    have.

    Example:
        >>> [scaled_target(target, scheduled=100, target_length=50, largest_length=150) for target in (30, 80, 200)]
        [60.0, 150, 200]
    """
    in_proportion = target * scheduled / target_length
    # A target that is above the largest length already is not lowered to it.
    upper_bound = max(target, largest_length)
    return min(in_proportion, upper_bound)


def row_target(row: Mapping[str, Any]) -> float | None:
    """Returns the target in column `target_length` of a data set row, or `None` if the row has none.

    Raises:
        `ValueError`: If the value is not a positive number.
    """
    target: float | None = plain_value(row.get(TARGET_COLUMN))
    if target is None:
        return None
    if not (is_number(target) and target > 0):
        raise ValueError(f"a row has {TARGET_COLUMN}={target!r}, but must have a positive number, or None")
    return target


def limits_generation(method: LengthControl) -> bool:
    """Returns whether the method, with its hyper-parameters, lowers the generation limit of training batches."""
    return method.generation_cap(1.0) is not None  # whether there is a limit does not depend on the target


def check_target(target: float | None, method: LengthControl, generation_limit: float) -> None:
    """Checks a target of the run or of a prompt, and whether the method works with the run's settings.

    Raises:
        `ValueError`: If the target is missing, not a positive number or not below the generation limit, or if the
            method cannot work with it.
    """
    if target is None:
        if method.target_use == "required":
            raise ValueError(f"target_length is None, but {method.name} needs one, such as 4096")
        method.check(None, generation_limit)
        return
    if not (is_number(target) and target > 0):
        raise ValueError(f"target_length is {target!r}, but must be a number above 0, such as 4096")
    if method.target_use != "none":
        _check_within_limit(target, method, generation_limit)
    method.check(math.ceil(target), generation_limit)


def _check_within_limit(target: float, method: LengthControl, generation_limit: float) -> None:
    """Raises `ValueError` if no completion could be longer than the target, so that it would have no effect."""
    # A target at the generation limit has an effect only if the method itself stops generation there.
    may_be_limit = limits_generation(method)
    if target < generation_limit or (may_be_limit and target == generation_limit):
        return
    bound = "at most" if may_be_limit else "below"
    raise ValueError(
        f"target_length is {target:g}, but must be {bound} the {generation_limit} tokens of max_completion_length "
        "or generation_kwargs"
    )


def check_thinking_ends(rollouts: Rollouts, thinking_end: str) -> None:
    """Raises `TrainingError` if no completion of a run's first batch can have ended its thinking with the text
    `thinking_end`, which is then not the model's. The lengths of the batch are those of the thinking."""
    # `lengths` are those of the thinking, in tokens. If the thinking never ends, its length is that of the completion.
    has_thinking_N = rollouts.lengths > 0
    has_answer_N = rollouts.completion_lengths > rollouts.lengths
    # A truncated completion without an answer says nothing: its thinking may have ended later.
    may_have_ended_N = has_thinking_N & (has_answer_N | rollouts.is_truncated)
    if not may_have_ended_N.any():
        raise TrainingError(
            f"thinking_end is {thinking_end!r}, but none of the first {len(rollouts.lengths)} completions has it; set "
            "the text that ends the thinking of this model, or length_of to 'completion'"
        )


def check_method_supports_cost(length_of: str, counts_tokens: bool, method: LengthControl) -> None:
    """Raises `ValueError` if the method cannot control this cost. A method that truncates completions can control only
    the length of whole completions, and one that asks for a length in the prompt only tokens."""
    # `length_of` names what is counted, such as the tokens of the thinking; generation can only be stopped by all
    # tokens.
    if length_of != "completion" and limits_generation(method):
        raise ValueError(f"length_of is {length_of!r}, but {method.name!r} truncates completions; set 'completion'")
    # The text that the method appends to a prompt is empty if the method asks for no length, for any target, such as
    # 1.
    if not counts_tokens and method.prompt_suffix(1.0, math.inf):
        raise ValueError(
            f"length_of is {length_of!r}, but {method.name!r} asks for a number of tokens in the prompt; use another "
            "length_control, such as 'leash'"
        )
