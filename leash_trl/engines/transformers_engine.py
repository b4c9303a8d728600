"""Samples completions with transformers, for evaluation on any device."""

from collections.abc import Sequence

import torch
from tqdm.auto import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from leash_trl.engines.cudnn_attention import avoid_faulty_cudnn_attention
from leash_trl.engines.engine import Generation, Request, SamplingSettings, check_lengths, generations_of
from leash_trl.engines.shrinking_batch import sample_tokens
from leash_trl.engines.token_choice import SeededDraw, TokenChoice, likeliest_tokens
from leash_trl.model_facts import context_length, eos_token_ids
from leash_trl.model_paths import model_path


class TransformersEngine:
    """An [`~leash_trl.engines.engine.Engine`] on a transformers model that drops finished completions from its
    batches.

    Every completion has its own stream of random numbers, so it depends only on model, prompt, settings and seed. The
    rest of the batch changes only the rounding of the logits, which changes a token in rare cases, more often in
    bfloat16. The same call on the same machine returns the same generations. At most `batch_size` completions are
    generated at once.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_size: int) -> None:
        avoid_faulty_cudnn_attention()
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
        """Loads a checkpoint on the first GPU, or on the CPU if there is none.

        Raises:
            `OSError`: If the Hub has no such checkpoint, or it is an adapter whose base cannot be found.
            `ValueError`: If the path does not exist, or is a folder without a model.
        """
        path = model_path(path)
        model = AutoModelForCausalLM.from_pretrained(path, revision=revision, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(path, revision=revision)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(model.to(device), tokenizer, batch_size)

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Generation]:
        """Returns one generation per request, in their order; see [`~leash_trl.engines.engine.Engine.generate`].

        Raises:
            `ValueError`: If a request exceeds the model's context, or the model keeps other states than keys and
                values.
        """
        check_lengths(requests, self.max_length)
        completions: list[list[int]] = []
        starts = range(0, len(requests), self.batch_size)
        for start in tqdm(starts, desc="sampling", unit="batch", leave=False):
            completions.extend(self._sampled_batch(requests[start : start + self.batch_size], settings))
        return generations_of(requests, completions, self.eos_token_ids)

    def _sampled_batch(self, requests: Sequence[Request], settings: SamplingSettings) -> list[list[int]]:
        """Returns the token ids of one completion per request, which are sampled together."""
        is_greedy = settings.temperature == 0
        choose: TokenChoice = likeliest_tokens if is_greedy else SeededDraw([request.seed for request in requests])
        return sample_tokens(
            self.model,
            [request.prompt_ids for request in requests],
            end_ids=[request.end_ids(self.eos_token_ids) for request in requests],
            limits=[request.max_new_tokens for request in requests],
            pad_id=self.eos_token_ids[0],  # attention masks padding, so any token serves
            warpers=self._warpers(settings),
            choose=choose,
        )

    def _warpers(self, settings: SamplingSettings) -> LogitsProcessorList:
        """Returns the processors that scale the logits by the temperature and remove tokens by top-p and top-k."""
        config = GenerationConfig(
            do_sample=True,
            temperature=settings.temperature or 1.0,  # 0 means the most likely token, which no temperature changes
            top_p=settings.top_p,
            top_k=settings.top_k,
        )
        processors: LogitsProcessorList = self.model._get_logits_processor(config, input_ids_seq_length=0)
        return processors
