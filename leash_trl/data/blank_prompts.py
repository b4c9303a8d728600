"""Finds prompts that ask nothing, for the readers of data and for the trainer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any


if TYPE_CHECKING:
    from datasets import Dataset


def is_blank(row: Mapping[str, Any]) -> bool:
    """Whether a row's prompt asks nothing: it is missing, empty or blank, or its last message is.

    Messages with images, and a last message that calls tools, ask something without text.

    Args:
        row (`Mapping`):
            Row with text or messages in column `prompt`, and perhaps with `image` or `images`.

    Example:
        >>> [is_blank({"prompt": prompt}) for prompt in (None, " ", [], [{"role": "user", "content": "?"}])]
        [True, True, True, False]
    """
    content = row["prompt"]
    if content and isinstance(content, list):
        if content[-1].get("tool_calls") or row.get("images") or row.get("image"):
            return False
        content = content[-1].get("content")
    return not (content.strip() if isinstance(content, str) else content)


def check_not_blank(dataset: "Dataset") -> None:
    """Raises `ValueError` if a prompt is neither text nor messages, or asks nothing; it names the first such row."""
    for row, prompt in enumerate(dataset["prompt"]):
        is_messages = isinstance(prompt, list) and all(isinstance(part, dict) for part in prompt)
        # images take long to read
        if not (is_messages or isinstance(prompt, str)) or (is_blank({"prompt": prompt}) and is_blank(dataset[row])):
            raise ValueError(f"row {row} (counted from 0) of the data set: {blank_problem(prompt)}")


def blank_problem(prompt: Any) -> str:
    """The error text for a blank prompt, with its remedy."""
    return f"prompt is {prompt!r}, but must be text or messages with something in it; fill it or drop the row"
