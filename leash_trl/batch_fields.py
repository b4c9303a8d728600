"""The tensors of TRL's training batches: what is known of their rows, joining, cutting and scattering. Pure.

A batch is a dict of tensors whose first dimension is the row: prompts padded on the left, everything that belongs to
completions padded on the right.
"""

from collections.abc import Iterable, Mapping, Sequence
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
FIELDS = PROMPT_FIELDS | COMPLETION_FIELDS | WHOLE_FIELDS | {"advantages"}
"""Fields whose layout is known here. A batch with others, such as images, is left as TRL has made it."""

LENGTH_FREE_ROPE = frozenset({"default", "linear", "llama3", "yarn", "proportional"})

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


def ignores_left_edge(rope_parameters: Mapping[str, Any] | None) -> bool:
    """
    Whether a model's output stays the same when padding on the left is cut off.

    Rotary positions enter as differences. Models with learned positions count from the left edge, and rotary scaling
    that follows the sequence length (`dynamic`, `longrope`) sees another length.

    Args:
        rope_parameters (`Mapping[str, Any]`, *optional*):
            `rope_parameters` of the model's text configuration: one set, or one for each type of layer.

    Example:
        >>> ignores_left_edge({"rope_type": "default", "rope_theta": 10000.0}), ignores_left_edge(None)
        (True, False)
    """
    if not rope_parameters:
        return False
    if "rope_type" in rope_parameters:
        return rope_parameters["rope_type"] in LENGTH_FREE_ROPE
    return all(isinstance(layer, Mapping) and ignores_left_edge(layer) for layer in rope_parameters.values())


def fitting_width(row_lengths: Iterable[int], multiple_of: int | None = None) -> int:
    """Columns that hold the longest row; at least one, since TRL takes the last `-0` columns for all.

    >>> fitting_width([3, 5], multiple_of=4)
    8
    """
    multiple = multiple_of or 1
    return max(1, -(-max(row_lengths) // multiple)) * multiple


def cut(name: str, values: torch.Tensor, prompt_width: int, completion_width: int) -> torch.Tensor:
    """
    A field without the columns beyond these widths.

    A decoder's output does not depend on what stands to its right, nor, with rotary positions, on how far from the
    left edge a row begins.

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
