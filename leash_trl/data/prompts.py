"""Prompts as conversations, so that the model's chat template, and with it the thinking block, applies."""

from typing import Any


# The authors' release appends this to every question.
BOXED_SUFFIX = " Please reason step by step, and put your final answer within \\boxed{}."


def as_conversation(row: dict[str, Any], suffix: str = BOXED_SUFFIX) -> dict[str, Any]:
    """A row whose string prompt has become one user message; for `Dataset.map`.

    Args:
        row (`dict`):
            Row with a string in column `prompt`.
        suffix (`str`, *optional*):
            Appended to the prompt, defaults to the instruction of the LEASH authors' release.

    Returns:
        `dict`: The new `prompt` column; other columns stay as they are under `Dataset.map`.

    Raises:
        `ValueError`: If the prompt is a conversation already.

    Example:
        >>> as_conversation({"prompt": "What is 2 + 2?"}, suffix=" Be brief.")
        {'prompt': [{'role': 'user', 'content': 'What is 2 + 2? Be brief.'}]}
    """
    prompt = row["prompt"]
    if not isinstance(prompt, str):
        raise ValueError(f"prompt is a {type(prompt).__name__}, but as_conversation and prompt_suffix are for strings")
    return {"prompt": [{"role": "user", "content": prompt + suffix}]}
