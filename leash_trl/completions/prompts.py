"""Appends text to a prompt, such as the instruction of a data set, a budget, an effort or the ending of an evaluation,
and reads the arguments with which the chat template renders the prompt of a row."""

from collections.abc import Mapping
from typing import Any


EFFORT_SUFFIX = " Effort: {effort}."
TEMPLATE_COLUMN = "chat_template_kwargs"  # as in TRL's `apply_chat_template`


def with_suffix(prompt: Any, suffix: str) -> Any:
    """Returns a copy of the prompt with `suffix` appended to its text, or to its last message; the prompt itself if
    `suffix` is empty.

    Example:
        >>> with_suffix([{"role": "user", "content": "2 + 2?"}], " Think for 9 tokens.")
        [{'role': 'user', 'content': '2 + 2? Think for 9 tokens.'}]
    """
    if not suffix:
        return prompt
    if isinstance(prompt, str):
        return prompt + suffix
    # The prompt is a conversation, a list of messages such as {"role": "user", "content": "2 + 2?"}.
    *earlier, last = prompt
    content = last["content"]
    if isinstance(content, str):
        return [*earlier, {**last, "content": content + suffix}]
    # The content of a message with images is a list of parts, such as {"type": "image"}.
    parts = [*content, {"type": "text", "text": suffix}]
    return [*earlier, {**last, "content": parts}]


def effort_text(effort: str, suffix: str | None = None, template_states_effort: bool = False) -> str:
    """Returns the text that states an effort in a prompt.

    Args:
        effort (`str`): Name of the effort.
        suffix (`str`): Text in which `{effort}` is replaced by the name; by default `EFFORT_SUFFIX`, or no text if
            the chat template states the effort.
        template_states_effort (`bool`): Whether the chat template states the effort, by arguments of its own.

    Raises:
        `ValueError`: If `suffix` has no `{effort}`.

    Example:
        >>> effort_text("low")
        ' Effort: low.'
    """
    if suffix is None:
        if template_states_effort:
            return ""
        suffix = EFFORT_SUFFIX
    if "{effort}" not in suffix:
        raise ValueError(f"effort_suffix is {suffix!r}, but must contain {{effort}}, so that prompts state the effort")
    return suffix.replace("{effort}", effort)


def template_arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the chat template for the prompt of a data set row, without entries that are `None`.
    Arrow adds such entries, also to mappings inside an argument, if other rows have them.

    Example:
        >>> template_arguments({"chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": None}})
        {'enable_thinking': False}
    """
    arguments: dict[str, Any] = _without_missing(row.get(TEMPLATE_COLUMN) or {})
    return arguments


def _without_missing(value: Any) -> Any:
    """Returns a value whose mappings, at any depth, have no entries that are `None`."""
    if isinstance(value, Mapping):
        return {name: _without_missing(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_without_missing(entry) for entry in value]
    return value
