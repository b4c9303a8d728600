"""Samples with plain transformers and drops completions from the batch as they end.

`generate` computes every row until the longest ends and copies the complete KV cache for every token. With the skewed
lengths of reasoning models, most of this work is wasted. Here the batch shrinks, and the cache grows in place.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.cache_utils import Cache, DynamicLayer

from leash_trl.engines.eos import eos_token_ids
from leash_trl.engines.token_choice import TokenChoice, global_draw


SHRINK_SHARE = 0.125  # dropping rows copies the cache, so several rows are dropped at once
FIRST_CAPACITY = 64
CACHED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}  # transformers' layer_types


class GrowingLayer(DynamicLayer):
    """A cache layer that writes into spare room and doubles it when it is used up."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends the new states; returns views of all states so far."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers: list[torch.Tensor] = []
        length = self.get_seq_length()
        end = length + key_states.shape[-2]
        if not self._buffers or end > self._buffers[0].shape[-2]:
            self._grow((key_states, value_states), max(2 * end, FIRST_CAPACITY), length)
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., length:end, :] = states
        self.keys, self.values = (buffer[..., :end, :] for buffer in self._buffers)
        return self.keys, self.values

    def _grow(self, new: tuple[torch.Tensor, torch.Tensor], capacity: int, length: int) -> None:
        # keys and values may differ in width
        self._buffers = [like.new_empty(*like.shape[:-2], capacity, like.shape[-1]) for like in new]
        if length:
            for buffer, states in zip(self._buffers, (self.keys, self.values), strict=True):
                buffer[..., :length, :] = states

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the given rows."""
        super().batch_select_indices(indices)
        self._buffers = []


def get_warpers(
    temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0, min_p: float | None = None
) -> LogitsProcessorList:
    """The processors that turn logits into those to sample from, in transformers' order; only those with an effect."""
    warpers = LogitsProcessorList()
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(temperature))
    if top_k > 0:
        warpers.append(TopKLogitsWarper(top_k))
    if top_p < 1.0:
        warpers.append(TopPLogitsWarper(top_p))
    if min_p:
        warpers.append(MinPLogitsWarper(min_p))
    return warpers


def _left_padded(
    rows: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + [*row] for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def check_cache(model: PreTrainedModel) -> None:
    """Checks that a model keeps nothing but keys and values of its tokens, which is all that [`GrowingLayer`] holds.

    Raises:
        `ValueError`: If it has other layers, such as Mamba's recurrent and LFM2's convolutional ones.
    """
    layer_types = getattr(model.config.get_text_config(decoder=True), "layer_types", None) or ()
    if getattr(model, "_is_stateful", False) or not CACHED_LAYERS.issuperset(layer_types):
        raise _not_cached(model)


def _not_cached(model: PreTrainedModel) -> ValueError:
    return ValueError(
        f"{type(model).__name__} does not keep keys and values of all its layers and nothing else, so the shrinking "
        "batch cannot sample from it: in training, set rollout_func to null; in evaluation, use the engine vllm"
    )


@torch.no_grad()
def sample_tokens(
    model: PreTrainedModel,
    prompt_ids: Sequence[Sequence[int]],
    eos_ids: list[int],
    pad_id: int,
    max_new_tokens: int | Sequence[int],
    warpers: LogitsProcessorList,
    choose: TokenChoice = global_draw,
    stop_ids: Sequence[Collection[int]] | None = None,
    on_end: Callable[[int], object] | None = None,
) -> list[list[int]]:
    """Samples one completion for every prompt.

    Args:
        model (`PreTrainedModel`):
            Decoder to sample from.
        prompt_ids (`Sequence[Sequence[int]]`):
            Token ids of N prompts.
        eos_ids (`list[int]`):
            Tokens that end a completion.
        pad_id (`int`):
            Token that fills short prompts on the left.
        max_new_tokens (`int` or `Sequence[int]` of length N):
            Limit in tokens, one for all or one for each.
        warpers (`LogitsProcessorList`):
            From [`get_warpers`].
        choose (`TokenChoice`, *optional*):
            Chooses the tokens; defaults to a draw with torch's global generator.
        stop_ids (`Sequence[Collection[int]]` of length N, *optional*):
            Further tokens that end a completion, for each.
        on_end (`Callable`, *optional*):
            Called with the number of completions that just ended.

    Returns:
        `list[list[int]]`: N completions, EOS included; one without EOS was cut at `max_new_tokens`.

    Raises:
        `ValueError`: As [`check_cache`], and if the model has not written into its cache.
    """
    check_cache(model)
    device = model.device
    num_rows = len(prompt_ids)
    limits = torch.as_tensor(max_new_tokens, device=device).expand(num_rows)
    ids, mask = _left_padded(prompt_ids, pad_id, device)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    # repeated end tokens fill the shorter rows
    ends, _ = _left_padded([[*eos_ids, *stops] for stops in stop_ids or [()] * num_rows], eos_ids[0], device)
    lengths = limits.clone()
    completions = torch.full((num_rows, int(limits.max())), pad_id, device=device)
    rows = torch.arange(num_rows, device=device)
    is_live = torch.ones_like(rows, dtype=torch.bool)
    num_live = num_rows
    cache = Cache(layer_class_to_replicate=GrowingLayer)
    if device.type == "cpu" and ids.shape[1] > 1:
        # The last tokens go alone. Cut from a longer pass, their states are not contiguous, and torch then copies the
        # head's matrix for each row.
        model(
            input_ids=ids[:, :-1],
            attention_mask=mask[:, :-1],
            position_ids=positions[:, :-1],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=torch.empty(0, dtype=torch.long, device=device),
        )
        ids, positions = ids[:, -1:], positions[:, -1:]
    for position in range(completions.shape[1]):
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        if cache.get_seq_length() != mask.shape[1]:
            raise _not_cached(model)
        logits = output.logits[:, -1].float()
        tokens = choose(logits, warpers(ids, logits), rows, position)
        completions[rows[is_live], position] = tokens[is_live]
        has_ended = is_live & ((tokens[:, None] == ends[rows]).any(dim=1) | (limits[rows] == position + 1))
        lengths[rows[has_ended]] = position + 1
        is_live &= ~has_ended
        num_before, num_live = num_live, int(is_live.sum())
        if on_end and num_live < num_before:
            on_end(num_before - num_live)
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

    Args:
        prompts (`list`):
            Prompts of one process's share of the generation batch.
        trainer ([`~trl.GRPOTrainer`]):
            The trainer that calls this function.

    Raises:
        `ValueError`: As [`check_samples_plainly`].
    """
    from trl.models import unwrap_model_for_generation  # evaluation samples with this file and needs no TRL

    check_samples_plainly(trainer)
    # TRL: GRPOTrainer._tokenize_prompts applies the chat template as TRL's own generation does
    prompt_ids = trainer._tokenize_prompts(prompts)[0]
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:
        completion_ids = sample_tokens(
            model,
            prompt_ids,
            eos_token_ids(model, trainer.processing_class),
            trainer.processing_class.pad_token_id,
            trainer.max_completion_length,
            get_warpers(trainer.temperature, trainer.top_p, trainer.top_k, trainer.min_p),
        )
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None}


def check_samples_plainly(trainer: Any) -> None:
    """Checks that [`shrinking_rollout`] ignores no setting of a trainer.

    Raises:
        `ValueError`: If the trainer's generation settings go beyond temperature, top-p, top-k and min-p, it has no
            limit for completions, or it uses vLLM.
    """
    if trainer.use_vllm:
        raise ValueError(
            "rollout_func is shrinking_rollout, which samples with transformers, but use_vllm is True; leave out one "
            "of them"
        )
    if trainer.max_completion_length is None:
        raise ValueError("max_completion_length is None, but shrinking_rollout needs a limit; set it")
    if trainer.args.generation_kwargs or trainer.repetition_penalty != 1.0:
        raise ValueError(
            f"generation_kwargs={trainer.args.generation_kwargs} and repetition_penalty={trainer.repetition_penalty} "
            "have no effect on shrinking_rollout; leave them out, or leave rollout_func out"
        )
