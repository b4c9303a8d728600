"""Samples completions with vLLM in this process, for evaluation."""

import math
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import find_adapter_config_file

from leash_trl.engines.checkpoint_path import checkpoint_path, missing_folder
from leash_trl.engines.engine import Generation, Request, SamplingSettings, check_lengths, finish_reason
from leash_trl.engines.eos import merged_eos_token_ids


if TYPE_CHECKING:
    from vllm import LLM, SamplingParams
    from vllm.outputs import CompletionOutput


def _load_vllm(**arguments: Any) -> "LLM":
    # One process schedules requests in the same order every time; with a second process, the arrival decides.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        from vllm import LLM
        from vllm.platforms import current_platform
    except ImportError as error:
        raise ValueError(
            f'the engine "vllm" needs vLLM, which cannot be imported ({error}): pip install "leash-trl[vllm]", or use '
            'the engine "transformers"'
        ) from error
    if current_platform.is_cpu():
        # A prompt cut in two takes its seed's random numbers back by an offset, which generators of a CPU do not have.
        arguments.setdefault("enable_chunked_prefill", False)
    return LLM(**arguments)


def sampling_params(
    request: Request,
    settings: SamplingSettings,
    eos_token_ids: Sequence[int],
    is_greedy: bool,
    with_probabilities: bool,
) -> "SamplingParams":
    """One request as vLLM's parameters. End tokens become stop tokens, since vLLM itself knows only one of them."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0.0 if is_greedy else settings.temperature,
        top_p=settings.top_p,
        top_k=settings.top_k,
        seed=request.seed,
        max_tokens=request.max_new_tokens,
        stop_token_ids=sorted({*eos_token_ids, *request.stop_token_ids}),
        logprobs=0 if with_probabilities else None,  # 0: of the chosen token only
        detokenize=False,
    )


def _progress(description: str) -> "bool | Callable[..., tqdm]":
    """The progress bar for vLLM; none if `TQDM_DISABLE` is set."""
    # vLLM divides by the running time of a bar, which a disabled bar does not have
    with tqdm(delay=1) as bar:
        if bar.disable:
            return False
    return lambda *rows, **options: tqdm(*rows, **{**options, "desc": description, "leave": False})


def _probabilities(output: "CompletionOutput") -> list[float] | None:
    if output.logprobs is None:
        return None
    return [
        math.exp(candidates[token_id].logprob)
        for token_id, candidates in zip(output.token_ids, output.logprobs, strict=True)
    ]


class VllmEngine:
    """An [`~leash_trl.engines.engine.Engine`] on `vllm.LLM`.

    The same call gives the same generations, also in a fresh process on the same machine: every request has its own
    seed, vLLM runs in this process (`VLLM_ENABLE_V1_MULTIPROCESSING=0`, unless the environment says otherwise), and a
    call starts with an empty prefix cache unless it continues earlier ones. As with transformers, rounding depends on
    which requests are computed together, so in another call a request may, rarely, get another completion; on
    supported GPUs vLLM's `VLLM_BATCH_INVARIANT=1` removes that too.

    Prompts are token ids of transformers' tokenizer, and vLLM never sees text, so both engines read and write alike.

    Args:
        path (`str`):
            Checkpoint: folder, name on the Hub, or `gym`, the embedded model.
        revision (`str`, *optional*):
            Branch, tag or commit on the Hub.
        dtype (`str`, *optional*, defaults to `"auto"`):
            Type of the weights, such as `"bfloat16"`; `"auto"` is the checkpoint's own, as in transformers, while
            vLLM's own `"auto"` turns float32 into bfloat16.
        tensor_parallel_size (`int`, *optional*, defaults to `1`):
            GPUs that share the model.
        gpu_memory_utilization (`float`, *optional*, defaults to `0.9`):
            Share of the GPU's memory to use, in (0, 1]; on a CPU, of the main memory, unless the environment variable
            `VLLM_CPU_KVCACHE_SPACE` gives GiB for the KV cache.
        max_model_len (`int`, *optional*):
            Tokens that prompt and completion may have together; defaults to the model's context.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the engine. Completions do not depend on it; they have their own seeds.
        **engine_kwargs:
            Further arguments of `vllm.LLM`, such as `enforce_eager=True`.

    Raises:
        `ValueError`: If vLLM is not installed, or there is no such checkpoint, or it is an adapter without its base.
    """

    name = "vllm"

    def __init__(
        self,
        path: str,
        revision: str | None = None,
        dtype: str = "auto",
        tensor_parallel_size: int = 1,
        gpu_memory_utilization: float = 0.9,
        max_model_len: int | None = None,
        seed: int = 0,
        **engine_kwargs: Any,
    ) -> None:
        path = checkpoint_path(path)
        try:
            if find_adapter_config_file(path, revision=revision) is not None:
                raise ValueError(
                    f"the model {path!r} is an adapter, which this engine does not take: leash merge makes a complete "
                    'model of it, or use the engine "transformers"'
                )
            self.tokenizer = AutoTokenizer.from_pretrained(path, revision=revision)
            config = AutoConfig.from_pretrained(path, revision=revision)
        except OSError as error:
            # checked only after the failure: a folder may have the name of an owner on the Hub
            raise ValueError(missing_folder(path) or f"the model {path!r} cannot be loaded: {error}") from error
        self._llm = _load_vllm(
            model=path,
            revision=revision,
            tokenizer_revision=revision,
            dtype=(config.get_text_config().dtype or dtype) if dtype == "auto" else dtype,
            tensor_parallel_size=tensor_parallel_size,
            gpu_memory_utilization=gpu_memory_utilization,
            max_model_len=max_model_len,
            seed=seed,
            **engine_kwargs,
        )
        model_config = self._llm.llm_engine.model_config
        configured = model_config.try_get_generation_config().get("eos_token_id")
        self.eos_token_ids = merged_eos_token_ids(configured, self.tokenizer)
        self.max_length: int | None = model_config.max_model_len

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

        Raises:
            `ValueError`: If a request does not fit into the model's context.
        """
        check_lengths(requests, self.max_length)
        if not is_continuation:
            self._llm.reset_prefix_cache()
        outputs = self._llm.generate(
            [{"prompt_token_ids": list(request.prompt_ids)} for request in requests],
            [
                sampling_params(request, settings, self.eos_token_ids, greedy, with_probabilities)
                for request in requests
            ],
            use_tqdm=_progress(description),
        )
        return [
            self._generation(output.outputs[0], request) for output, request in zip(outputs, requests, strict=True)
        ]

    def _generation(self, output: "CompletionOutput", request: Request) -> Generation:
        token_ids = list(output.token_ids)
        reason = finish_reason(token_ids, self.eos_token_ids, request.stop_token_ids)
        return Generation(token_ids, reason, _probabilities(output))
