"""Samples with transformers and drops completions from the batch when they end.

`generate` computes every row until the longest completion ends. Reasoning models have few very long completions, so
most of this work is wasted. Here, finished rows are dropped from the batch.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import LogitsProcessorList, PreTrainedModel, generation
from transformers.cache_utils import DynamicCache
from transformers.generation.utils import ALL_CACHE_NAMES

from leash_trl.engines.token_choice import TokenChoice, drawn_from_global_generator
from leash_trl.model_facts import merged_eos_token_ids


SHRINK_SHARE = 0.125  # finished rows are dropped above this share of the batch, since dropping copies the cache
CACHED_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}  # transformers' layer_types
CACHE_ARGUMENT = ALL_CACHE_NAMES[0]  # of a model's forward: "cache", before transformers 5.24 "past_key_values"

# settings of transformers' generation that rollouts cannot follow
UNSUPPORTED_SETTINGS = (
    # the next token is not drawn from the scores of one forward pass
    "do_sample",
    "num_beams",
    "constraints",
    "force_words_ids",
    "dola_layers",
    "use_mtp",
    "prompt_lookup_num_tokens",
    "assistant_early_exit",
    # the scores depend on values that transformers keeps for each row of a batch, which must not shrink
    "repetition_penalty",
    "encoder_repetition_penalty",
    "encoder_no_repeat_ngram_size",
    "guidance_scale",
    "watermarking_config",
    # completions begin, end or are counted otherwise
    "token_healing",
    "max_time",
    "num_return_sequences",
)


def check_cache(model: PreTrainedModel) -> None:
    """Raises `ValueError` if a model has no cache of keys and values, or also keeps other states, such as the
    recurrent states of Mamba or the convolutional states of LFM2, which cannot be dropped with a row."""
    # Only some models list a type for each of their layers, such as ["full_attention", "linear_attention"].
    layer_types = model.config.get_text_config(decoder=True).to_dict().get("layer_types") or ()
    # Stateful models, such as Mamba, carry a state from token to token instead of the keys and values of all tokens.
    is_cached = model._supports_default_dynamic_cache() and not model._is_stateful
    if not is_cached or not CACHED_LAYER_TYPES.issuperset(layer_types):
        raise ValueError(
            f"{type(model).__name__} keeps other states than keys and values, so the shrinking batch cannot sample "
            "from it: set rollout_func to null, or use the engine vllm"
        )


@dataclass
class GrowingCompletion:
    """The token ids of a completion that is being sampled, which ends with a token of `end_ids` or at `limit`."""

    end_ids: Collection[int]
    limit: int
    token_ids: list[int] = field(default_factory=list)
    has_ended: bool = False

    def append(self, token: int) -> None:
        """Appends a token. A completion that has ended ignores it, since it stays in the batch for a while."""
        if not self.has_ended:
            self.token_ids.append(token)
            self.has_ended = token in self.end_ids or len(self.token_ids) >= self.limit


@dataclass
class ShrinkingBatch:
    """The R of N completions that are still in the batch, with what the model has computed of them.

    Args:
        rows (`torch.Tensor` of shape `(R,)`): Indices of these completions among the N.
        tokens (`torch.Tensor` of shape `(R, T)`): Their prompts, padded on the left, and the tokens sampled so far.
        mask (`torch.Tensor` of shape `(R, T)`): 0 for padding, else 1.
        cache (`DynamicCache`): Keys and values of all tokens but the last.
    """

    rows: torch.Tensor
    tokens: torch.Tensor
    mask: torch.Tensor
    cache: DynamicCache

    @classmethod
    def of_prompts(cls, prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> "ShrinkingBatch":
        """Returns the batch of N prompts, of which nothing has been computed."""
        rows = torch.arange(len(prompts), device=device)
        unpadded = [torch.tensor(prompt, device=device) for prompt in prompts]
        ones = [torch.ones_like(prompt) for prompt in unpadded]
        tokens = pad_sequence(unpadded, batch_first=True, padding_value=pad_id, padding_side="left")
        mask = pad_sequence(ones, batch_first=True, padding_value=0, padding_side="left")
        return cls(rows, tokens, mask, DynamicCache())

    def append(self, next_tokens: torch.Tensor) -> None:
        """Appends one token to each completion; `next_tokens` has shape `(R,)`."""
        self.tokens = torch.cat([self.tokens, next_tokens[:, None]], dim=1)
        self.mask = pad(self.mask, (0, 1), value=1)

    def drop_ended(self, completions: Sequence[GrowingCompletion]) -> None:
        """Drops the completions that have ended, if they are more than `SHRINK_SHARE` of the batch; `completions` are
        all N."""
        has_ended = [completions[row].has_ended for row in self.rows.tolist()]
        if sum(has_ended) > SHRINK_SHARE * len(has_ended):
            # Indices in the batch of the completions to keep.
            indices = torch.tensor(has_ended, device=self.rows.device).logical_not().nonzero()[:, 0]
            self.cache.batch_select_indices(indices)
            self.rows = self.rows[indices]
            self.tokens = self.tokens[indices]
            self.mask = self.mask[indices]


def _logits(
    model: PreTrainedModel,
    batch: ShrinkingBatch,
    columns: slice,
    logits_to_keep: int | torch.Tensor,
) -> torch.Tensor:
    """Runs the model on some columns of the batch's tokens, adds them to the cache, and returns logits of shape
    `(R, positions, V)`; for `logits_to_keep`, see `forward` of transformers' models."""
    # Positions count from the first token that is not padding.
    positions = (batch.mask.cumsum(dim=1) - 1).clamp(min=0)
    output = model(
        input_ids=batch.tokens[:, columns],
        attention_mask=batch.mask[:, : columns.stop],
        position_ids=positions[:, columns],
        logits_to_keep=logits_to_keep,
        use_cache=True,
        **{CACHE_ARGUMENT: batch.cache},
    )
    logits: torch.Tensor = output.logits
    return logits


def _fill_cache(model: PreTrainedModel, batch: ShrinkingBatch) -> None:
    """Adds all tokens of the prompts to the cache, except for the last one of each.

    The last token is computed in a pass of its own. As a slice of a longer pass, its states would not be contiguous,
    and on a CPU torch would copy the matrix of the output layer for each row.
    """
    if batch.tokens.shape[1] > 1:
        no_positions = torch.empty(0, dtype=torch.long, device=model.device)
        _logits(model, batch, columns=slice(None, -1), logits_to_keep=no_positions)


@torch.no_grad()
def sample_tokens(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    end_ids: Sequence[Collection[int]],
    limits: Sequence[int],
    pad_id: int,
    warpers: LogitsProcessorList,
    choose: TokenChoice = drawn_from_global_generator,
) -> list[list[int]]:
    """Samples one completion for every prompt.

    Args:
        prompts (`Sequence[Sequence[int]]`): Token ids of N prompts, which are padded on the left with `pad_id`.
        end_ids (`Sequence[Collection[int]]` of length N): Tokens that end each completion.
        limits (`Sequence[int]` of length N): Maximum length of each completion in tokens, at least 1.
        warpers (`LogitsProcessorList`): Temperature, top-p and so on, applied to the logits.
        choose (`TokenChoice`): Chooses the tokens; by default they are drawn with torch's global generator.

    Returns:
        `list[list[int]]`: Token ids of N completions, including the token that ended each; a completion without such a
        token was truncated at its limit.

    Raises:
        `ValueError`: If the model keeps other states than keys and values.
    """
    check_cache(model)
    completions = [GrowingCompletion(ends, limit) for ends, limit in zip(end_ids, limits, strict=True)]
    batch = ShrinkingBatch.of_prompts(prompts, pad_id, model.device)
    _fill_cache(model, batch)
    while not all(completion.has_ended for completion in completions):
        # The cache holds all earlier tokens, so only the newest one of each row is computed.
        logits = _logits(model, batch, columns=slice(-1, None), logits_to_keep=1)
        scores = warpers(batch.tokens, logits[:, -1].float())
        next_tokens = choose(scores, batch.rows)
        for row, token in zip(batch.rows.tolist(), next_tokens.tolist(), strict=True):
            completions[row].append(token)
        batch.append(next_tokens)
        batch.drop_ended(completions)
    return [completion.token_ids for completion in completions]


def shrinking_rollout(prompts: list, trainer: Any) -> dict[str, Any]:
    """Samples with [`sample_tokens`] as TRL's `rollout_func`, from the same distribution as TRL's own generation, with
    less computation.

    As in TRL's generation, the model's own generation configuration applies where the trainer sets nothing, for
    example its `min_new_tokens`, `suppress_tokens` and `no_repeat_ngram_size`.

    Raises:
        `ValueError`: If the trainer uses vLLM, if the trainer or the model has a setting of `UNSUPPORTED_SETTINGS`, or
            if the model keeps other states than keys and values.
    """
    from trl.models import unwrap_model_for_generation  # here, since evaluation uses this file without TRL

    if trainer.use_vllm:
        raise ValueError(
            "rollout_func is shrinking_rollout, which would ignore use_vllm=True; remove use_vllm or rollout_func"
        )
    tokenizer = trainer.processing_class
    # TRL: GRPOTrainer._tokenize_prompts, so that `LeashGRPOTrainer` renders each prompt as its row says
    ids, _, _ = trainer._tokenize_prompts(prompts)
    padded = ShrinkingBatch.of_prompts(ids, tokenizer.pad_token_id, trainer.accelerator.device)
    with unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as model:

        def sample(
            _: PreTrainedModel,
            input_ids: torch.Tensor,
            *,
            logits_processor: LogitsProcessorList,
            generation_config: generation.GenerationConfig,
            **_others: Any,
        ) -> list[list[int]]:
            check_settings_supported(generation_config)
            return sample_tokens(
                model,
                ids,
                end_ids=[merged_eos_token_ids(generation_config.eos_token_id, tokenizer)] * len(ids),
                # In transformers, max_length includes the prompt and its padding.
                limits=[generation_config.max_length - input_ids.shape[1]] * len(ids),
                pad_id=tokenizer.pad_token_id,
                warpers=logits_processor,
            )

        # `generate` merges the settings of the trainer with the model's own, and calls `sample` with the result.
        completion_ids = model.generate(
            input_ids=padded.tokens,
            attention_mask=padded.mask,
            generation_config=trainer.generation_config,
            custom_generate=sample,
        )
    # TRL: GRPOTrainer._generate_single_turn returns no log-probabilities of transformers' generation either
    return {"prompt_ids": ids, "completion_ids": completion_ids, "logprobs": None}


def check_settings_supported(settings: generation.GenerationConfig) -> None:
    """Checks that generation has no setting that [`shrinking_rollout`] would ignore.

    Raises:
        `ValueError`: If a setting of `UNSUPPORTED_SETTINGS` has a value that changes sampling.
    """
    # A setting changes nothing if it has transformers' default. There are two exceptions: trainers always sample, and
    # transformers lists no default of token_healing.
    unchanging = {**settings._get_default_generation_params(), "do_sample": True, "token_healing": False}
    for name in UNSUPPORTED_SETTINGS:
        value = getattr(settings, name, None)
        if value is not None and value != unchanging.get(name):
            raise ValueError(
                f"rollout_func is shrinking_rollout, which cannot follow {name}={value!r}; remove {name} from the "
                "trainer's settings, its generation_kwargs or the model's generation_config.json, or set rollout_func "
                "to null"
            )
