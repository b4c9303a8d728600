"""Formats a few completions of a batch as a Markdown table for TensorBoard, with their text escaped."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


USUAL_COUNT = 4  # completions if the recipe sets no number; TRL's console then shows all of them
MAX_CHARACTERS = 2000  # of one cell


def completion_sample(logs: Mapping[str, Any], count: int | None) -> str:
    """Completions of the last batch as a Markdown table: prompt, completion, rewards, further columns, advantage.

    They are spread evenly over the batch, so that they answer different prompts. Nothing is drawn at random: that
    would change the generators that training uses.

    Args:
        logs (`Mapping[str, Any]`):
            TRL's `GRPOTrainer._logs`: `prompt`, `completion` and `advantages` of N completions, and by column name
            `rewards` and `extra`.
        count (`int`, *optional*):
            Completions to show; all if there are fewer, 4 if `None`.

    Returns:
        `str`: The table; empty if there is nothing to show.
    """
    columns = {
        "prompt": logs["prompt"],
        "completion": logs["completion"],
        **logs["rewards"],
        **logs["extra"],
        "advantage": logs["advantages"],
    }
    rows = _spread(len(logs["prompt"]), USUAL_COUNT if count is None else count)
    if not rows:
        return ""
    lines = [[_escaped(name) for name in columns], ["---"] * len(columns)]
    lines += [[_cell(values[row]) for values in columns.values()] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _spread(size: int, count: int) -> list[int]:
    count = max(0, min(size, count))
    return [place * size // count for place in range(count)]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float):
        return _escaped(f"{value:.4g}" if isinstance(value, float) else str(value))
    return _escaped(_shortened(value if isinstance(value, str) else _text(value)))


def _text(value: Any) -> str:
    """A conversation, or a value that a reward function logged, as text."""
    if isinstance(value, Sequence) and all(isinstance(message, Mapping) for message in value):
        return "\n".join(f"{message.get('role')}: {_content(message)}" for message in value)
    return str(value)


def _content(message: Mapping[str, Any]) -> str:
    parts = (value for name, value in message.items() if name != "role" and value is not None)
    return "\n".join(_plain(parts))


def _plain(parts: Iterable[Any]) -> Iterable[str]:
    for part in parts:
        yield part if isinstance(part, str) else json.dumps(part, ensure_ascii=False, default=str)


def _shortened(text: str) -> str:
    """The text; of a long one its two ends and the number of characters between them."""
    left_out = len(text) - MAX_CHARACTERS
    if left_out <= 0:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n[... {left_out:,} characters left out ...]\n{text[-half:]}"


def _escaped(text: str) -> str:
    """The text in Markdown: characters with a meaning there or in HTML become numeric character references."""
    escaped = "".join(char if char.isalnum() or char in " .,;" else f"&#{ord(char)};" for char in text)
    return escaped.replace("&#10;", "<br>")
