"""Prompts that ask nothing. Pure; the data's readers and the trainer look for them alike."""

from collections.abc import Iterable
from typing import Any


def is_blank(prompt: Any) -> bool:
    """Whether a prompt asks nothing: it is missing, empty or blank, or its last message is.

    Args:
        prompt (`str` or `list[dict]`, *optional*):
            Text, or messages.

    Example:
        >>> is_blank(None), is_blank(" "), is_blank([]), is_blank([{"role": "user", "content": "?"}])
        (True, True, True, False)
    """
    last = prompt[-1].get("content") if prompt and isinstance(prompt, list) else prompt
    return not (last.strip() if isinstance(last, str) else last)


def check_not_blank(prompts: Iterable[Any]) -> None:
    """Sees to it that every prompt asks something.

    Args:
        prompts (`Iterable`):
            The column `prompt` of a data set.

    Raises:
        `ValueError`: If one does not; it names the first such row.
    """
    for row, prompt in enumerate(prompts):
        if is_blank(prompt):
            raise ValueError(f"row {row} (counted from 0) of the data set: {blank_problem(prompt)}")


def blank_problem(prompt: Any) -> str:
    """What is wrong with a blank prompt, and what to do about it."""
    return f"prompt is {prompt!r}, but must be text or messages with something in it; fill it or drop the row"
