"""Text at the end of a prompt: the instruction of a data set, a budget, an effort, the ending of an evaluation."""

from typing import Any


EFFORT_SUFFIX = " Effort: {effort}."


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
    *earlier, last = prompt
    content = last["content"]
    if isinstance(content, str):
        return [*earlier, {**last, "content": content + suffix}]
    parts = [*content, {"type": "text", "text": suffix}]  # of a message with images
    return [*earlier, {**last, "content": parts}]


def effort_suffix(effort: str, suffix: str = EFFORT_SUFFIX) -> str:
    """Returns `suffix` with `{effort}` replaced by the name of the effort; raises `ValueError` if it has no
    `{effort}`.

    Example:
        >>> effort_suffix("low")
        ' Effort: low.'
    """
    if "{effort}" not in suffix:
        raise ValueError(f"effort_suffix is {suffix!r}, but must contain {{effort}}, so that prompts state the effort")
    return suffix.replace("{effort}", effort)
