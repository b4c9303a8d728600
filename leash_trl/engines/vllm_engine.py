"""Samples completions with vLLM in this process, for evaluation."""

import os
from collections.abc import Sequence
from typing import Any

from transformers import AutoConfig, AutoTokenizer

from leash_trl.engines.engine import Generation, Request, SamplingSettings, check_lengths, generations_of
from leash_trl.model_facts import merged_eos_token_ids
from leash_trl.model_paths import model_path


class VllmEngine:
    """An [`~leash_trl.engines.engine.Engine`] on `vllm.LLM`.

    The same call returns the same generations, also in another process on the same machine: every request has its own
    seed, vLLM runs in this process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`, unless the environment variable is set), and
    each call starts with an empty prefix cache. As with transformers, rounding depends on the requests that are
    computed together, so in rare cases a request gets another completion in another call. On supported GPUs, vLLM's
    `VLLM_BATCH_INVARIANT=1` avoids this.

    Prompts are passed as token ids of transformers' tokenizer, so both engines tokenize and decode text in the same
    way.

    Args:
        dtype (`str`): Type of the weights, such as `"bfloat16"`. `"auto"` is the type of the checkpoint, as in
            transformers; vLLM's own `"auto"` would convert float32 to bfloat16.
        engine_kwargs (`Any`): Further arguments of `vllm.LLM`, such as `enforce_eager=True`, or `max_model_len`, which
            defaults to the model's context. Its `seed` has no effect, since every completion has its own.

    Raises:
        `ImportError`: If vLLM is not installed.
        `OSError`: If the Hub has no such checkpoint, or it is an adapter, which `leash merge` can merge with its base.
        `ValueError`: If the path does not exist, or is a folder without a model.
    """

    def __init__(self, path: str, revision: str | None = None, dtype: str = "auto", **engine_kwargs: Any) -> None:
        # One process schedules requests in a fixed order; with a second process, the order depends on their arrival.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        from vllm import LLM
        from vllm.platforms import current_platform

        path = model_path(path)
        self.tokenizer = AutoTokenizer.from_pretrained(path, revision=revision)
        if dtype == "auto":
            # vLLM's own "auto" would convert float32 to bfloat16, so the type that the checkpoint states is passed.
            config = AutoConfig.from_pretrained(path, revision=revision).get_text_config()
            dtype = config.dtype or "auto"
        if current_platform.is_cpu():
            # For chunked prompts, vLLM resets the random generator by an offset, which generators on CPUs do not have.
            engine_kwargs = {"enable_chunked_prefill": False, **engine_kwargs}
        self._llm = LLM(path, revision=revision, tokenizer_revision=revision, dtype=dtype, **engine_kwargs)
        model_config = self._llm.llm_engine.model_config
        generation_config = model_config.try_get_generation_config()
        self.eos_token_ids = merged_eos_token_ids(generation_config.get("eos_token_id"), self.tokenizer)
        self.max_length: int | None = model_config.max_model_len

    def generate(self, requests: Sequence[Request], settings: SamplingSettings) -> list[Generation]:
        """Returns one generation per request, in their order; see [`~leash_trl.engines.engine.Engine.generate`].

        Raises:
            `ValueError`: If a request does not fit into the model's context.
        """
        check_lengths(requests, self.max_length)
        # A prompt that an earlier call left in the cache would not be computed again, which changes the rounding and,
        # in rare cases, a token.
        self._llm.reset_prefix_cache()
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(request.prompt_ids)} for request in requests],
            [self._sampling_params(request, settings) for request in requests],
            # vLLM divides by the elapsed time of its progress bar, which a disabled bar does not have
            use_tqdm="TQDM_DISABLE" not in os.environ,
        )
        # vLLM samples one completion for each prompt by default, and keeps its end token.
        completions = [list(output.outputs[0].token_ids) for output in outputs]
        return generations_of(requests, completions, self.eos_token_ids)

    def _sampling_params(self, request: Request, settings: SamplingSettings) -> Any:
        """Returns vLLM's settings of a request."""
        from vllm import SamplingParams

        return SamplingParams(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            seed=request.seed,
            max_tokens=request.max_new_tokens,
            # vLLM itself uses only one end token
            stop_token_ids=sorted(request.end_ids(self.eos_token_ids)),
            detokenize=False,
        )
