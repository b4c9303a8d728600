"""The tensors of TRL's training batches: what is known of their rows, joining, cutting and scattering. Pure.

A batch is a dict of tensors whose first dimension is the row: prompts padded on the left, everything that belongs to
completions padded on the right.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch


PROMPT_FIELDS = frozenset({"prompt_ids", "prompt_mask"})
COMPLETION_FIELDS = frozenset(
    {
        "completion_ids",
        "completion_mask",
        "tool_mask",
        "old_per_token_logps",
        "ref_per_token_logps",
        "sampling_per_token_logps",
        "importance_sampling_ratio",
    }
)
WHOLE_FIELDS = frozenset({"num_items_in_batch"})
PADDING = {"importance_sampling_ratio": 1}
"""What fills columns beyond a completion where it is not 0: TRL sums the logarithm of ratios over all columns."""

FIELDS = PROMPT_FIELDS | COMPLETION_FIELDS | WHOLE_FIELDS | {"advantages"}
"""Fields whose layout is known here. A batch with others, such as images, is left as TRL has made it."""

LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Rotary positions whose frequencies follow the width of the batch."""

RELATIVE_MODELS = frozenset(
    {
        "cohere",
        "cohere2",
        "deepseek_v2",
        "deepseek_v3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm",
        "glm4",
        "gpt_oss",
        "granite",
        "llama",
        "mistral",
        "mixtral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "smollm3",
        "starcoder2",
    }
)
"""`model_type` of text models whose positions enter as differences only, each checked by a test. Others, such as those
with learned positions, temperatures by position, attention in chunks or unmasked recurrences, see the left edge."""

Batch = dict[str, torch.Tensor]


def loss_mask(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Tokens that enter the loss, of shape `(N, T)`: those of the model in completions that are not masked."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def row_facts(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Of each row: tokens of the prompt, of the completion, and in the loss, and whether its advantage is not zero.
    Shape `(N, 4)`, whole numbers."""
    facts = (
        batch["prompt_mask"].sum(dim=1),
        batch["completion_mask"].sum(dim=1),
        loss_mask(batch).sum(dim=1),
        batch["advantages"] != 0,
    )
    return torch.stack([fact.long() for fact in facts], dim=1)


def joined(batches: Sequence[Mapping[str, torch.Tensor]]) -> Batch:
    """All rows of batches that were split from one, in order."""
    first = batches[0]
    return {
        name: first[name] if name in WHOLE_FIELDS else torch.cat([batch[name] for batch in batches]) for name in first
    }


def rope_types(rope_parameters: Mapping[str, Any] | None) -> set[str]:
    """
    Kinds of rotary positions in a text configuration's `rope_parameters`, which may differ by type of layer.

    >>> sorted(rope_types({"full_attention": {"rope_type": "yarn"}, "sliding_attention": {"rope_type": "default"}}))
    ['default', 'yarn']
    """
    parameters = rope_parameters or {}
    if "rope_type" in parameters:
        return {parameters["rope_type"]}
    return {layer["rope_type"] for layer in parameters.values() if isinstance(layer, Mapping) and "rope_type" in layer}


def fitting_width(length: int, multiple_of: int | None = None) -> int:
    """Columns that hold a row; at least one, since TRL takes the last `-0` columns for all.

    >>> fitting_width(5, multiple_of=4)
    8
    """
    multiple = multiple_of or 1
    return max(1, -(-length // multiple)) * multiple


def cut(name: str, values: torch.Tensor, prompt_width: int, completion_width: int) -> torch.Tensor:
    """
    A field without the columns beyond these widths.

    A decoder's output does not depend on what stands to its right, nor, in `RELATIVE_MODELS`, on how far from the left
    edge a row begins.

    Args:
        name (`str`):
            Name of the field.
        values (`torch.Tensor`):
            Its values; of shape `(N, 1)`, they hold for whole completions and stay as they are.
        prompt_width (`int`), completion_width (`int`):
            Columns to keep.
    """
    if name in PROMPT_FIELDS:
        return values[:, -prompt_width:]
    return values[:, :completion_width] if name in COMPLETION_FIELDS else values


def scattered(values: Sequence[torch.Tensor], parts: Sequence[Sequence[int]], width: int) -> torch.Tensor:
    """
    Rows that were computed in parts, in their first order and padded with zeros.

    Args:
        values (`Sequence[torch.Tensor]`):
            For each part, a tensor of shape `(rows of the part, at most width)`.
        parts (`Sequence[Sequence[int]]`):
            Rows of each part; together they are 0 to N - 1.
        width (`int`):
            Columns of the result.

    Returns:
        `torch.Tensor` of shape `(N, width)`.

    Example:
        >>> scattered([torch.tensor([[5, 6]]), torch.tensor([[7]])], [[1], [0]], width=2)
        tensor([[7, 0],
                [5, 6]])
    """
    whole = values[0].new_zeros(sum(map(len, parts)), width)
    for value, part in zip(values, parts, strict=True):
        whole[list(part), : value.shape[1]] = value
    return whole
