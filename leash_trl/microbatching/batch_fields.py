"""The tensors of TRL's training batches: how rows are padded, and pure functions that join and trim them.

A batch is a dict of tensors whose first dimension is the row. Prompts are padded on the left, all fields of
completions on the right.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence


@dataclass(frozen=True)
class Padding:
    """How TRL pads the rows of a field: on the `"left"` or the `"right"`, and with which value."""

    side: str
    value: int | None = 0  # None is the tokenizer's padding token


PADDING_BY_FIELD = {
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

BATCH_LEVEL_FIELDS = frozenset({"num_items_in_batch"})
"""Fields with one value for the whole batch instead of one per row."""

SUPPORTED_FIELDS = frozenset(PADDING_BY_FIELD) | BATCH_LEVEL_FIELDS | {"advantages"}
"""Fields that this module can handle. A batch with other fields, such as images, is left unchanged."""

LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})
"""Types of rotary positions whose frequencies depend on the width of the batch."""

PADDING_INVARIANT_MODELS = frozenset(
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
"""`model_type` of text models, each checked by a test, whose output does not depend on the number of padding tokens on
the left. The output of models with learned positions, temperatures by position, chunked attention or unmasked
recurrences depends on it, so they are not listed here."""

Batch = dict[str, torch.Tensor]


def loss_mask(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the mask of shape `(N, T)` of the tokens in the loss: those that the model generated, in completions
    that are not masked."""
    mask = batch["completion_mask"]  # 0 for padding, and for all tokens of a masked completion
    if "tool_mask" in batch:
        mask = mask * batch["tool_mask"]  # 0 for tokens that a tool returned
    return mask


class RowFacts(NamedTuple):
    """What is known of the rows of a batch, with one value for each row.

    Args:
        prompt_lengths, completion_lengths, num_loss_tokens (`list[int]`): Tokens of the prompt, of the completion, and
            of the completion in the loss.
        has_signal (`list[int]`): 1 if the advantage is not 0, else 0.
    """

    prompt_lengths: list[int]
    completion_lengths: list[int]
    num_loss_tokens: list[int]
    has_signal: list[int]

    @property
    def affects_loss(self) -> list[bool]:
        """Whether each row adds to the loss: not if its advantage is 0, or if all its tokens are masked."""
        return [min(pair) > 0 for pair in zip(self.has_signal, self.num_loss_tokens, strict=True)]

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each row, in prompt and completion together."""
        return [sum(pair) for pair in zip(self.prompt_lengths, self.completion_lengths, strict=True)]


def row_facts(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Returns the [`RowFacts`] of a batch as the columns of a tensor of shape `(N, 4)`, in integers."""
    prompt_lengths = batch["prompt_mask"].sum(dim=1)
    completion_lengths = batch["completion_mask"].sum(dim=1)
    num_loss_tokens = loss_mask(batch).sum(dim=1)
    has_signal = batch["advantages"] != 0
    # The facts become the columns of one tensor, which is gathered over processes at once.
    facts = (prompt_lengths, completion_lengths, num_loss_tokens, has_signal)
    return torch.stack([fact.long() for fact in facts], dim=1)


def join_batches(batches: Sequence[Mapping[str, torch.Tensor]], pad_token_id: int) -> Batch:
    """Joins the rows of several batches with the same fields, padded to the widest; `BATCH_LEVEL_FIELDS` are taken
    from the first batch.

    Example:
        >>> ratios = [torch.tensor([[0.5]]), torch.tensor([[0.5, 2.0]])]
        >>> join_batches([{"importance_sampling_ratio": values} for values in ratios], 0)["importance_sampling_ratio"]
        tensor([[0.5000, 1.0000],
                [0.5000, 2.0000]])
    """
    return {name: _joined_field(name, [batch[name] for batch in batches], pad_token_id) for name in batches[0]}


def _joined_field(name: str, parts: Sequence[torch.Tensor], pad_token_id: int) -> torch.Tensor:
    """Returns the values of a field of several batches as one tensor."""
    if name in BATCH_LEVEL_FIELDS:
        return parts[0]
    if name not in PADDING_BY_FIELD:  # such as advantages, with one value for each row
        return torch.cat(list(parts))
    # The parts have different widths, so their rows are padded again, all to the widest.
    return pad_sequence(
        list(chain.from_iterable(parts)),
        batch_first=True,
        padding_value=padding_value(name, pad_token_id),
        padding_side=PADDING_BY_FIELD[name].side,
    )


def selected_rows(batch: Mapping[str, torch.Tensor], rows: torch.Tensor) -> Batch:
    """Returns some rows of a batch."""
    selected: Batch = {}
    for name, values in batch.items():
        selected[name] = values if name in BATCH_LEVEL_FIELDS else values[rows.to(values.device)]
    return selected


def padding_value(name: str, pad_token_id: int) -> int:
    """Returns the value that TRL pads a field with: `pad_token_id` for token ids, else that of `PADDING_BY_FIELD`."""
    value = PADDING_BY_FIELD[name].value
    return pad_token_id if value is None else value


def rope_types(rope_parameters: Mapping[str, Any] | None) -> set[str]:
    """Returns the types of rotary positions in a text configuration's `rope_parameters`, which may differ between
    layers.

    >>> sorted(rope_types({"full_attention": {"rope_type": "yarn"}, "sliding_attention": {"rope_type": "default"}}))
    ['default', 'yarn']
    """
    if not rope_parameters:
        return set()
    # The mapping holds either the parameters themselves, such as {"rope_type": "yarn", "factor": 4.0}, or those of the
    # types of layers, such as {"full_attention": {"rope_type": "yarn"}}.
    candidates = [rope_parameters]
    candidates += [value for value in rope_parameters.values() if isinstance(value, Mapping)]
    return {parameters["rope_type"] for parameters in candidates if "rope_type" in parameters}


def parts_of_similar_length(lengths: torch.Tensor, size: int) -> tuple[torch.Tensor, ...]:
    """Returns the rows of each part, of which all but the last have `size` rows, with the longest rows first.

    >>> parts_of_similar_length(torch.tensor([2, 9, 3, 8]), size=2)
    (tensor([1, 3]), tensor([2, 0]))
    """
    return torch.split(lengths.argsort(descending=True, stable=True), size)


def fitting_width(length: int, multiple_of: int | None = None) -> int:
    """Returns the number of columns for a row of this length, rounded up to a multiple of `multiple_of`. It is at
    least one, since TRL's slice of the last `-0` columns would be all columns.

    >>> fitting_width(5, multiple_of=4)
    8
    """
    multiple = multiple_of or 1
    num_multiples = max(1, math.ceil(length / multiple))
    return num_multiples * multiple


def trimmed_field(name: str, values: torch.Tensor, prompt_width: int, completion_width: int) -> torch.Tensor:
    """Trims a field of shape `(N, width)` to the width of its side; values of shape `(N,)` or `(N, 1)` stay unchanged.

    The output of a decoder does not depend on padding to the right, nor, in `PADDING_INVARIANT_MODELS`, on padding to
    the left.
    """
    if name not in PADDING_BY_FIELD:  # such as advantages, which have no columns for tokens
        return values
    # Only prompts are padded on the left, so their tokens are in the last columns.
    if PADDING_BY_FIELD[name].side == "left":
        return values[:, -prompt_width:]
    return values[:, :completion_width]
