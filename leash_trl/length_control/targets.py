"""Determines the target of each prompt, applies the schedule, and writes it into the prompt for some methods."""

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from leash_trl.length_control.method import LengthControl, is_number


TARGET_COLUMN = "target_length"


def scheduled_target(schedule: str, milestones: Mapping[int, float], target_length: float, step: int) -> float:
    """Returns the target at a policy update, in tokens.

    Args:
        schedule (`str`): `"constant"` returns `target_length`, `"staged"` the value of the last milestone reached, and
            `"linear"` interpolates between milestones.
        milestones (`Mapping[int, float]`): Target in tokens after a number of policy updates.

    Example:
        >>> [scheduled_target("linear", {0: 100, 10: 50}, 50, step) for step in (0, 5, 10, 20)]
        [100.0, 75.0, 50, 50]
        >>> [scheduled_target("staged", {0: 100, 10: 50}, 50, step) for step in (0, 9, 10)]
        [100, 100, 50]
    """
    if schedule == "constant":
        return target_length
    steps = sorted(milestones)
    place = bisect_right(steps, step)
    start, end = steps[max(place - 1, 0)], steps[min(place, len(steps) - 1)]
    if schedule == "staged" or start == end:
        return milestones[start]
    share = (step - start) / (end - start)
    return milestones[start] + share * (milestones[end] - milestones[start])


def own_target(row: Mapping[str, Any]) -> float | None:
    """Returns the target in column `target_length` of a data set row, in tokens, or `None` if the row has none.

    Raises:
        `ValueError`: If the value is not a positive number.
    """
    target: float | None = row.get(TARGET_COLUMN)
    if target is None or target != target:
        return None
    if not (is_number(target) and target > 0):
        raise ValueError(f"a row has {TARGET_COLUMN}={target!r}, but must have a positive number of tokens, or None")
    return target


def check_target(target: float | None, method: LengthControl, generation_limit: float, num_generations: int) -> None:
    """Checks a target in tokens, of the run or of a prompt, and whether the method works with the run's settings.

    Raises:
        `ValueError`: If the target is missing, not positive or not below the generation limit, or if the method cannot
            work with it.
    """
    if target is None and method.target_use == "required":
        raise ValueError(f"target_length is None, but {method.name} needs a number of tokens, such as 4096")
    # a target at the generation limit makes sense only for methods that stop generation at the target
    cuts_there = type(method).generation_cap is not LengthControl.generation_cap
    most = generation_limit if cuts_there else math.nextafter(generation_limit, 0)
    if target is not None and not 0 < target <= (math.inf if method.target_use == "none" else most):
        limit = f"the {generation_limit} tokens of max_completion_length or generation_kwargs"
        bound = f"{'at most' if cuts_there else 'below'} {limit}"
        raise ValueError(f"target_length is {target:g}, but must be above 0 and {bound}")
    method.check(None if target is None else math.ceil(target), generation_limit, num_generations)


def check_length_of(length_of: str, thinking_end: str, method: LengthControl) -> None:
    """Raises `ValueError` if `length_of` is unknown, or the method cannot control it."""
    if length_of not in ("completion", "thinking"):
        raise ValueError(f"length_of is {length_of!r}, but must be 'completion' or 'thinking'")
    if not thinking_end.strip():
        raise ValueError(f"thinking_end is {thinking_end!r}, but must be the text that ends thinking, say '</think>'")
    if length_of == "thinking" and method.generation_cap(1.0) is not None:
        raise ValueError(f"length_of is 'thinking', but {method.name!r} truncates completions; set 'completion'")


def question_of(row: Mapping[str, Any]) -> int:
    """Returns a number in [0, 2**63) that identifies a row's prompt and images and is the same in every process and
    run.

    For a row without a prompt, it identifies the row.
    """
    prompt, images = row.get("prompt", row), row.get("images", row.get("image"))
    pictures = images if isinstance(images, list) or images is None else [images]
    text = json.dumps([prompt, pictures] if pictures else prompt, sort_keys=True, default=_content)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _content(value: Any) -> Any:
    """Returns a replacement for a value that JSON cannot hold. (The `repr` of an image contains its address in
    memory.)"""
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.getpalette(), _content(value.tobytes())
    if isinstance(value, np.ndarray | torch.Tensor):
        array = np.asarray(value)
        return str(array.dtype), array.shape, _content(array.tobytes())
    return hashlib.blake2b(value).hexdigest() if isinstance(value, bytes) else repr(value)


def with_suffix(prompt: Any, suffix: str) -> Any:
    """Returns a copy of the prompt with `suffix` appended to its text, or to its last message.

    Example:
        >>> with_suffix([{"role": "user", "content": "2 + 2?"}], " Think for 9 tokens.")
        [{'role': 'user', 'content': '2 + 2? Think for 9 tokens.'}]
    """
    if not suffix:
        return prompt
    if isinstance(prompt, str):
        return prompt + suffix
    *before, last = prompt
    is_text = isinstance(content := last["content"], str)
    return [*before, {**last, "content": content + (suffix if is_text else [{"type": "text", "text": suffix}])}]


def rows_with_targets(
    rows: Sequence[dict[str, Any]],
    method: LengthControl,
    current_target: float | None,
    target_length: float | None,
    generation_limit: float,
) -> tuple[list[dict[str, Any]], list[int], list[float]]:
    """Returns copies of the rows with the prompts that the model gets, their question numbers, and their targets in
    tokens, NaN for none.

    A row's own target has precedence over the method's `target_for`. Both are scaled in proportion to the schedule,
    but not beyond the generation limit.

    Args:
        rows (`Sequence[dict]`): Rows of the data set; they stay unchanged.
        current_target (`float`): The current target of the schedule in tokens.
        target_length (`float`): The configured target in tokens.
    """
    seen, questions, targets = [], [], []
    for row in rows:
        # TRL: GRPOTrainer._generate_and_score_completions reads images from these columns
        question, target = question_of(row), own_target(row)
        if target is None:
            target = method.target_for(question, target_length)
        if target is not None and current_target is not None and target_length is not None:
            target = min(target * current_target / target_length, max(target, generation_limit))
        suffix = method.prompt_suffix(target, generation_limit)
        seen.append({**row, "prompt": with_suffix(row["prompt"], suffix)} if suffix else dict(row))
        questions.append(question)
        targets.append(math.nan if target is None else target)
    return seen, questions, targets


def _plain(value: Any) -> Any:
    """Converts a value of any data set format to a plain Python value; NaN becomes `None`."""
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        value = value.tolist()
    return None if isinstance(value, float) and math.isnan(value) else value


def column_values(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], target_length: float | None
) -> dict[str, list[Any]]:
    """Returns the values of the columns that a method reads, one per row; `None` where a row has no value.

    In the column `target_length`, rows without their own target get the argument `target_length`.
    """
    columns = {name: [_plain(row.get(name)) for row in rows] for name in names}
    targets = {TARGET_COLUMN: [own_target(row) or target_length for row in rows]} if TARGET_COLUMN in names else {}
    return columns | targets
