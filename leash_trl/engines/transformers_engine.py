"""Samples completions with plain transformers, for evaluation on any device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft import PeftConfig
from tqdm.auto import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LogitsProcessorList,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from leash_trl.checkpoints.completeness import ADAPTER_FILE
from leash_trl.engines.checkpoint_path import checkpoint_path, missing_folder
from leash_trl.engines.engine import Generation, Request, SamplingSettings, check_lengths, finish_reason
from leash_trl.engines.eos import eos_token_ids
from leash_trl.engines.shrinking_batch import check_cache, get_warpers, sample_tokens
from leash_trl.engines.token_choice import RecordedChoice, SeededDraw, TokenChoice, likeliest


def context_length(config: PreTrainedConfig) -> int | None:
    """Tokens that prompt and completion may have together; `None` if a model's configuration does not say.

    YaRN and similar scalings extend the configured number if `rope_parameters` says so.
    """
    text_config = config.get_text_config().to_dict()
    length: int | None = text_config.get("max_position_embeddings")
    rope = text_config.get("rope_parameters") or {}
    if length is None or not {"factor", "original_max_position_embeddings"} <= rope.keys():
        return length
    return max(length, int(rope["factor"] * rope["original_max_position_embeddings"]))


class TransformersEngine:
    """An [`~leash_trl.engines.engine.Engine`] on a transformers model, with a batch that shrinks.

    Every completion draws from its own stream, so it depends on model, prompt, settings and seed. Its neighbours in
    the batch only change the rounding of the logits, which now and then changes a token, more often in bfloat16. The
    same call on the same machine gives the same generations.

    Args:
        model (`PreTrainedModel`):
            Model to sample from, on its device; the engine puts it into evaluation mode.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        batch_size (`int`):
            Completions generated at once.

    Raises:
        `ValueError`: If `batch_size` is not positive, or the model keeps more than keys and values.
    """

    name = "transformers"

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, but must be at least 1")
        check_cache(model)
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.eos_token_ids = eos_token_ids(model, tokenizer)
        self.max_length = context_length(model.config)

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        revision: str | None = None,
        dtype: str = "auto",
        batch_size: int = 128,
    ) -> "TransformersEngine":
        """An engine for a checkpoint, on the first GPU, or on the CPU if there is none.

        Args:
            path (`str`):
                Folder, name on the Hub, or `gym`, the embedded model.
            revision (`str`, *optional*):
                Branch, tag or commit on the Hub.
            dtype (`str`, *optional*, defaults to `"auto"`):
                Type of the weights, such as `"bfloat16"`; `"auto"` is the checkpoint's own.
            batch_size (`int`, *optional*, defaults to `128`):
                Completions generated at once.

        Raises:
            `ValueError`: If there is no such checkpoint, or `batch_size` is not positive.
        """
        path = checkpoint_path(path)
        try:
            model = AutoModelForCausalLM.from_pretrained(path, revision=revision, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(path, revision=revision)
        except OSError as error:
            # checked only after the failure: a folder may have the name of an owner on the Hub
            raise ValueError(missing_folder(path) or _loading_failure(path, error)) from error
        return cls(model.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer, batch_size)

    def generate(
        self,
        requests: Sequence[Request],
        settings: SamplingSettings,
        *,
        greedy: bool = False,
        with_probabilities: bool = False,
        is_continuation: bool = False,
        description: str = "sampling",
    ) -> list[Generation]:
        """One generation per request, in their order; see [`~leash_trl.engines.engine.Engine.generate`].

        It keeps nothing between calls, so `is_continuation` has no effect.

        Raises:
            `ValueError`: If a request exceeds the model's context, or a batch the GPU's memory.
        """
        check_lengths(requests, self.max_length)
        is_greedy = greedy or settings.temperature == 0
        warpers = get_warpers(*(() if is_greedy else (settings.temperature, settings.top_p, settings.top_k)))
        generations: list[Generation] = []
        with tqdm(total=len(requests), desc=description, unit="completion", leave=False) as progress:
            for start in range(0, len(requests), self.batch_size):
                batch = requests[start : start + self.batch_size]
                try:
                    generations += self._generate_batch(batch, warpers, is_greedy, with_probabilities, progress.update)
                except torch.OutOfMemoryError as error:
                    raise ValueError(
                        f"batch_size is {self.batch_size}, but that many completions of up to "
                        f"{max(request.max_new_tokens for request in batch)} tokens do not fit into the GPU's memory; "
                        "lower batch_size (--engine_batch_size of leash eval) or max_new_tokens"
                    ) from error
        return generations

    def _generate_batch(
        self,
        requests: Sequence[Request],
        warpers: LogitsProcessorList,
        is_greedy: bool,
        with_probabilities: bool,
        on_end: Callable[[int], object],
    ) -> list[Generation]:
        limits = [request.max_new_tokens for request in requests]
        choice: TokenChoice = likeliest if is_greedy else SeededDraw([request.seed for request in requests])
        recorded = RecordedChoice(choice, limits, self.model.device) if with_probabilities else None
        rows = sample_tokens(
            self.model,
            [request.prompt_ids for request in requests],
            self.eos_token_ids,
            self.eos_token_ids[0],
            limits,
            warpers,
            choose=recorded or choice,
            stop_ids=[sorted(request.stop_token_ids) for request in requests],
            on_end=on_end,
        )
        probabilities = recorded.up_to_the_end_of(rows) if recorded else [None] * len(rows)
        return [
            Generation(row, finish_reason(row, self.eos_token_ids, request.stop_token_ids), chosen)
            for row, request, chosen in zip(rows, requests, probabilities, strict=True)
        ]


@dataclass(frozen=True)
class Completion:
    """One sampled completion: its text, its length in tokens (EOS included), and whether the limit cut it off."""

    text: str
    length: int
    is_truncated: bool


def sample(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[dict[str, str]]],
    num_samples: int,
    max_new_tokens: int,
    batch_size: int = 128,
    seed: int = 0,
    description: str = "sampling",
) -> list[list[Completion]]:
    """Samples `num_samples` completions for every prompt at temperature 1, as in training.

    Args:
        model (`PreTrainedModel`), tokenizer (`PreTrainedTokenizerBase`):
            Model to sample from, and its tokenizer with a chat template.
        prompts (`list[list[dict[str, str]]]`):
            Conversations that end with a user message.
        num_samples (`int`):
            Completions per prompt.
        max_new_tokens (`int`):
            Limit in tokens; a completion without EOS by then is truncated.
        batch_size (`int`):
            Completions sampled at once.
        seed (`int`):
            Seed of torch's global generator, set once at the start.
        description (`str`):
            Label of the progress bar.

    Returns:
        `list[list[Completion]]`: One list of `num_samples` completions per prompt.
    """
    torch.manual_seed(seed)
    model.eval()
    eos_ids = eos_token_ids(model, tokenizer)
    warpers = get_warpers()
    rows = [prompt for prompt in prompts for _ in range(num_samples)]
    completions: list[Completion] = []
    for start in tqdm(range(0, len(rows), batch_size), desc=description, unit="batch", leave=False):
        prompt_ids = tokenizer.apply_chat_template(
            rows[start : start + batch_size], add_generation_prompt=True, return_dict=False
        )
        for ids in sample_tokens(model, prompt_ids, eos_ids, tokenizer.pad_token_id, max_new_tokens, warpers):
            text = tokenizer.decode(ids, skip_special_tokens=True)
            completions.append(Completion(text, len(ids), ids[-1] not in eos_ids))
    return [completions[start : start + num_samples] for start in range(0, len(completions), num_samples)]


def _loading_failure(path: str, error: OSError) -> str:
    if not (Path(path) / ADAPTER_FILE).is_file():
        return f"the model {path!r} cannot be loaded: {error}"
    base = str(PeftConfig.from_pretrained(path).base_model_name_or_path)
    return (
        f"the base model {base!r} of the adapter {path!r} cannot be loaded: {missing_folder(base) or error}; run this "
        f"in the folder where it was trained, or make a complete model with leash merge {path} --model_name_or_path "
        "BASE --output_dir DIR"
    )
