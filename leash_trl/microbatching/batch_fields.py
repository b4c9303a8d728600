"""The tensors of TRL's training batches: how rows are padded, and pure functions that join, trim and scatter them.

A batch is a dict of tensors whose first dimension is the row. Prompts are padded on the left, all fields of
completions on the right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Padding:
    """How TRL pads the rows of a field: on the `"left"` or the `"right"`, and with which value."""

    side: str
    value: int | None = 0  # None is the tokenizer's padding token


PADDING = {
    "prompt_ids": Padding("left", None),
    "prompt_mask": Padding("left"),
    "completion_ids": Padding("right", None),
    "completion_mask": Padding("right"),
    "tool_mask": Padding("right", 1),
    "old_per_token_logps": Padding("right"),
    "ref_per_token_logps": Padding("right"),
    "sampling_per_token_logps": Padding("right"),
    # 1 is neutral, since TRL sums the logarithm of ratios over all columns
    "importance_sampling_ratio": Padding("right", 1),
}
"""Fields with one column per token."""

WHOLE_FIELDS = frozenset({"num_items_in_batch"})
FIELDS = frozenset({*PADDING, *WHOLE_FIELDS, "advantages"})
"""Fields that this module can handle. A batch with other fields, such as images, is left unchanged."""

LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Types of rotary positions whose frequencies depend on the width of the batch."""

_RELATIVE_NAMES = (
    "cohere cohere2 deepseek_v2 deepseek_v3 gemma gemma2 gemma3_text glm glm4 gpt_oss granite llama mistral mixtral "
    "olmo2 phi3 qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next smollm3 starcoder2"
)
RELATIVE_MODELS = frozenset(_RELATIVE_NAMES.split())
"""`model_type` of text models, each checked by a test, whose output does not depend on the number of padding tokens on
the left. It does with learned positions, temperatures by position, chunked attention or unmasked recurrences."""

Batch = dict[str, torch.Tensor]


def loss_mask(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the mask of shape `(N, T)` of the tokens in the loss: those that the model generated, in completions
    that are not masked."""
    mask = batch["completion_mask"]
    return mask * batch["tool_mask"] if "tool_mask" in batch else mask


def row_facts(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns, for each row, the numbers of tokens in the prompt, in the completion and in the loss, and whether its
    advantage is not 0. The shape is `(N, 4)`, in integers."""
    counts = [mask.sum(dim=1) for mask in (batch["prompt_mask"], batch["completion_mask"], loss_mask(batch))]
    return torch.stack([fact.long() for fact in (*counts, batch["advantages"] != 0)], dim=1)


def joined(batches: Sequence[Mapping[str, torch.Tensor]], pad_token_id: int) -> Batch:
    """Joins the rows of several batches with the same fields, padded to the widest; `WHOLE_FIELDS` are taken from the
    first batch.

    Example:
        >>> ratios = [torch.tensor([[0.5]]), torch.tensor([[0.5, 2.0]])]
        >>> joined([{"importance_sampling_ratio": values} for values in ratios], 0)["importance_sampling_ratio"]
        tensor([[0.5000, 1.0000],
                [0.5000, 2.0000]])
    """
    first = batches[0]
    return {
        name: first[name]
        if name in WHOLE_FIELDS
        else torch.cat(_same_width(name, [batch[name] for batch in batches], pad_token_id))
        for name in first
    }


def _same_width(name: str, parts: Sequence[torch.Tensor], pad_token_id: int) -> list[torch.Tensor]:
    if name not in PADDING:
        return [*parts]
    width = max(part.shape[1] for part in parts)
    is_left, value = PADDING[name].side == "left", padding_value(name, pad_token_id)
    missing = [width - part.shape[1] for part in parts]
    return [
        torch.nn.functional.pad(part, (columns, 0) if is_left else (0, columns), value=value)
        for part, columns in zip(parts, missing, strict=True)
    ]


def padding_value(name: str, pad_token_id: int) -> int:
    """Returns the padding value of a field."""
    value = PADDING[name].value
    return pad_token_id if value is None else value


def rope_types(rope_parameters: Mapping[str, Any] | None) -> set[str]:
    """Returns the types of rotary positions in a text configuration's `rope_parameters`, which may differ between
    layers.

    >>> sorted(rope_types({"full_attention": {"rope_type": "yarn"}, "sliding_attention": {"rope_type": "default"}}))
    ['default', 'yarn']
    """
    parameters = rope_parameters or {}
    layers = [parameters, *(layer for layer in parameters.values() if isinstance(layer, Mapping))]
    return {layer["rope_type"] for layer in layers if "rope_type" in layer}


def fitting_width(length: int, multiple_of: int | None = None) -> int:
    """Returns the number of columns for a row, which is at least one, since TRL's slice of the last `-0` columns would
    be all columns.

    >>> fitting_width(5, multiple_of=4)
    8
    """
    multiple = multiple_of or 1
    return max(1, -(-length // multiple)) * multiple


def cut(name: str, values: torch.Tensor, prompt_width: int, completion_width: int) -> torch.Tensor:
    """Trims a field to these widths; values of shape `(N, 1)` stay unchanged.

    The output of a decoder does not depend on padding to the right, nor, in `RELATIVE_MODELS`, on padding to the left.
    """
    if name not in PADDING:
        return values
    return values[:, -prompt_width:] if PADDING[name].side == "left" else values[:, :completion_width]


def scattered(values: Sequence[torch.Tensor], parts: Sequence[Sequence[int]], width: int) -> torch.Tensor:
    """Returns the rows of all parts in their original order, with shape `(N, width)`, padded with zeros.

    Example:
        >>> scattered([torch.tensor([[5, 6]]), torch.tensor([[7]])], [[1], [0]], width=2)
        tensor([[7, 0],
                [5, 6]])
    """
    whole = values[0].new_zeros(sum(map(len, parts)), width)
    for value, part in zip(values, parts, strict=True):
        whole[list(part), : value.shape[1]] = value
    return whole
