"""Prompts that ask nothing. The data's readers and the trainer look for them alike."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from datasets import Dataset


def is_blank(row: Mapping[str, Any]) -> bool:
    """Whether a row's prompt asks nothing: it is missing, empty or blank, or its last message is.

    Messages with pictures beside them, and a last message that calls tools, ask something without text.

    Args:
        row (`Mapping`):
            Row with text or messages in column `prompt`, and perhaps with `image` or `images`.

    Example:
        >>> [is_blank({"prompt": prompt}) for prompt in (None, " ", [], [{"role": "user", "content": "?"}])]
        [True, True, True, False]
    """
    prompt = row["prompt"]
    if not prompt or not isinstance(prompt, list):
        return _is_empty(prompt)
    if not _is_empty(prompt[-1].get("content")) or prompt[-1].get("tool_calls"):
        return False
    return not (row.get("images") or row.get("image"))


def _is_empty(content: Any) -> bool:
    return not (content.strip() if isinstance(content, str) else content)


def check_not_blank(dataset: "Dataset") -> None:
    """Sees to it that every prompt is text or messages, and asks something.

    Args:
        dataset (`Dataset`):
            Rows with a column `prompt`.

    Raises:
        `ValueError`: If one is or does not; it names the first such row.
    """
    for row, prompt in enumerate(dataset["prompt"]):
        # pictures take long to read
        if not _is_text_or_messages(prompt) or (is_blank({"prompt": prompt}) and is_blank(dataset[row])):
            raise ValueError(f"row {row} (counted from 0) of the data set: {blank_problem(prompt)}")


def _is_text_or_messages(prompt: Any) -> bool:
    return isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(part, dict) for part in prompt))


def blank_problem(prompt: Any) -> str:
    """What is wrong with a blank prompt, and what to do about it."""
    return f"prompt is {prompt!r}, but must be text or messages with something in it; fill it or drop the row"
