"""Samples with plain transformers and drops completions from the batch as they end.

`generate` computes every row until the longest ends and copies the complete KV cache for every token. With the skewed
lengths of reasoning models, most of this work is wasted. Here the batch shrinks, and the cache grows in place.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
from transformers import LogitsProcessorList, PreTrainedModel, generation
from transformers.cache_utils import Cache, DynamicLayer
from transformers.generation.utils import ALL_CACHE_NAMES

from leash_trl.engines.chat_template import prompt_ids
from leash_trl.engines.eos import eos_token_ids
from leash_trl.engines.token_choice import TokenChoice, global_draw


SHRINK_SHARE = 0.125  # dropping rows copies the cache, so several rows are dropped at once
FIRST_CAPACITY = 64
CACHED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}  # transformers' layer_types
CACHE = ALL_CACHE_NAMES[0]  # of forward: "cache", "past_key_values" before transformers 5.24


class GrowingLayer(DynamicLayer):
    """A cache layer that writes into spare room and doubles it when it is used up."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends the new states; returns views of all states so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = key_states[..., :0, :], value_states[..., :0, :]
            self._buffers = [self.keys, self.values]
        length = self.keys.shape[-2]
        end = length + key_states.shape[-2]
        if end > self._buffers[0].shape[-2]:
            room = (0, 0, 0, max(2 * end, FIRST_CAPACITY) - length)
            self._buffers = [torch.nn.functional.pad(states, room) for states in (self.keys, self.values)]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., length:end, :] = states
        self.keys, self.values = (buffer[..., :end, :] for buffer in self._buffers)
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the given rows."""
        super().batch_select_indices(indices)
        self._buffers = [self.keys, self.values]


def get_warpers(
    temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float | None = None
) -> LogitsProcessorList:
    """The processors that turn logits into those to sample from, in transformers' order; only those with an effect."""
    warpers = (
        (temperature != 1.0, generation.TemperatureLogitsWarper, temperature),
        (top_k > 0, generation.TopKLogitsWarper, top_k),
        (top_p < 1.0, generation.TopPLogitsWarper, top_p),
        (bool(min_p), generation.MinPLogitsWarper, min_p),
    )
    return LogitsProcessorList(warper(value) for has_effect, warper, value in warpers if has_effect)


def _left_padded(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + [*row] for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


@torch.no_grad()
def sample_tokens(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    eos_ids: list[int],
    pad_id: int,
    max_new_tokens: int | Sequence[int],
    warpers: LogitsProcessorList,
    choose: TokenChoice = global_draw,
    stop_ids: Sequence[Collection[int]] | None = None,
) -> list[list[int]]:
    """Samples one completion for every prompt.

    Args:
        prompts (`Sequence[Sequence[int]]`): Token ids of N prompts, which `pad_id` fills on the left.
        max_new_tokens (`int` or `Sequence[int]` of length N): Limit in tokens, one for all or one for each.
        choose (`TokenChoice`): Chooses the tokens; defaults to a draw with torch's global generator.
        stop_ids (`Sequence[Collection[int]]` of length N, *optional*): Further tokens that end a completion, for each.

    Returns:
        `list[list[int]]`: N completions, EOS included; one without EOS was cut at `max_new_tokens`.

    Raises:
        `ValueError`: If the model keeps anything but keys and values of its tokens, which is all that [`GrowingLayer`]
            holds, such as Mamba's recurrent and LFM2's convolutional states, or has no such cache.
    """
    layer_types = model.config.get_text_config(decoder=True).to_dict().get("layer_types") or ()
    is_cached = model._supports_default_dynamic_cache() and not model._is_stateful
    if not is_cached or not CACHED_LAYERS.issuperset(layer_types):
        raise ValueError(
            f"{type(model).__name__} does not keep keys and values of all its layers and nothing else, so the "
            "shrinking batch cannot sample from it: set rollout_func to null, or use the engine vllm"
        )
    device = model.device
    limits = torch.as_tensor(max_new_tokens, device=device).expand(len(prompts))
    ids, mask = _left_padded(prompts, pad_id, device)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    # repeated end tokens fill the shorter rows
    ends, _ = _left_padded([[*eos_ids, *stops] for stops in stop_ids or [()] * len(prompts)], eos_ids[0], device)
    lengths = limits.clone()
    completions = torch.full((len(prompts), int(limits.max())), pad_id, device=device)
    rows = torch.arange(len(prompts), device=device)
    is_live = torch.ones_like(rows, dtype=torch.bool)
    cache = Cache(layer_class_to_replicate=GrowingLayer)
    forward = partial(model, **{CACHE: cache}, use_cache=True)
    if device.type == "cpu" and ids.shape[1] > 1:
        # The last tokens go alone. Cut from a longer pass, their states are not contiguous, and torch then copies the
        # head's matrix for each row.
        before = {"input_ids": ids[:, :-1], "attention_mask": mask[:, :-1], "position_ids": positions[:, :-1]}
        forward(**before, logits_to_keep=torch.empty(0, dtype=torch.long, device=device))
        ids, positions = ids[:, -1:], positions[:, -1:]
    for position in range(completions.shape[1]):
        output = forward(input_ids=ids, attention_mask=mask, position_ids=positions, logits_to_keep=1)
        logits = output.logits[:, -1].float()
        tokens = choose(warpers(ids, logits), rows, position)
        completions[rows[is_live], position] = tokens[is_live]
        has_ended = is_live & ((tokens[:, None] == ends[rows]).any(dim=1) | (limits[rows] == position + 1))
        lengths[rows[has_ended]] = position + 1
        is_live &= ~has_ended
        num_live = int(is_live.sum())
        if not num_live:
            break
        ids, positions = tokens[:, None], positions[:, -1:] + 1
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        if len(rows) - num_live > SHRINK_SHARE * len(rows):
            cache.batch_select_indices(is_live.nonzero()[:, 0])
            ids, positions, mask, rows = ids[is_live], positions[is_live], mask[is_live], rows[is_live]
            is_live = is_live[is_live]
    return [row[:length] for row, length in zip(completions.tolist(), lengths.tolist(), strict=True)]


def shrinking_rollout(prompts: list, trainer: Any) -> dict[str, Any]:
    """TRL's `rollout_func` over [`sample_tokens`]: the same distribution as TRL's own generation, less work.

    Raises:
        `ValueError`: As [`check_samples_plainly`].
    """
    from trl.models import unwrap_model_for_generation  # evaluation samples with this file and needs no TRL

    check_samples_plainly(trainer)
    tokenizer, limit = trainer.processing_class, trainer.max_completion_length
    options = {"tools": trainer.tools or None, "chat_template": trainer.chat_template, **trainer.chat_template_kwargs}
    ids = prompt_ids(tokenizer, prompts, **options)
    warpers = get_warpers(trainer.temperature, trainer.top_p, trainer.top_k, trainer.min_p)
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        ends = eos_token_ids(model, tokenizer)
        completion_ids = sample_tokens(model, ids, ends, tokenizer.pad_token_id, limit, warpers)
    return {"prompt_ids": ids, "completion_ids": completion_ids, "logprobs": None}


def check_samples_plainly(trainer: Any) -> None:
    """Checks that [`shrinking_rollout`] ignores no setting of a trainer.

    Raises:
        `ValueError`: If the trainer uses vLLM, or its generation settings go beyond temperature, top-p, top-k and
            min-p.
    """
    if trainer.use_vllm or trainer.args.generation_kwargs or trainer.repetition_penalty != 1.0:
        raise ValueError(
            "rollout_func is shrinking_rollout, which samples with transformers and on which "
            f"use_vllm={trainer.use_vllm}, generation_kwargs={trainer.args.generation_kwargs} and "
            f"repetition_penalty={trainer.repetition_penalty} have no effect; leave them out, or leave it out"
        )
