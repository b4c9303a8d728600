"""Measures one engine of `leash bench rollout`, in its own process: python -m leash_trl.benchmark.rollout_engines.

The engines are what a recipe can generate with where there is no vLLM: nothing said is transformers' `generate`,
`rollout_func: leash_trl.engines.shrinking_batch.shrinking_rollout` our shrinking batch, and
`use_transformers_continuous_batching: true` transformers' continuous batching. Every engine completes the same
prompts, without an end token, each up to its own drawn length.
"""

import contextlib
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from leash_trl.benchmark.device import PeakMemory, benchmark_device, device_name, now
from leash_trl.benchmark.lengths import draw_lengths
from leash_trl.benchmark.model import random_model
from leash_trl.benchmark.settings import RolloutSettings
from leash_trl.engines.shrinking_batch import get_warpers, sample_tokens
from leash_trl.files import write_whole
from leash_trl.gym.dataset import gym_problems
from leash_trl.gym.tokenizer import build_tokenizer


NO_TOKEN = -1  # as an end token: none is ever sampled
PAGE_SIZE = 64  # tokens
Generate = Callable[[], list[int]]  # one round; the lengths of its completions
Prompts = Sequence[list[int]]  # token ids of N prompts


def generation_config(limits: Sequence[int], pad_id: int) -> GenerationConfig:
    """Plain sampling up to the longest completion."""
    return GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=max(limits),
        use_cache=True,  # the gym's configuration, made for training, says no
        pad_token_id=pad_id,
        eos_token_id=None,
    )


class RowLimits(StoppingCriteria):
    """Ends every row of a batch at its own length, as an end token would.

    Args:
        limits (`torch.Tensor` of shape `(N,)`):
            Lengths in tokens, prompt included.
    """

    def __init__(self, limits: torch.Tensor) -> None:
        self.limits = limits

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """Which rows have ended."""
        return self.limits <= input_ids.shape[1]


@contextlib.contextmanager
def generate_engine(model: PreTrainedModel, prompts: Prompts, limits: list[int], pad_id: int) -> Iterator[Generate]:
    """transformers' `generate`: every row is computed until the longest ends."""
    batch = build_tokenizer().pad({"input_ids": prompts}, padding_side="left", return_tensors="pt").to(model.device)
    width = batch["input_ids"].shape[1]
    ends = torch.tensor(limits, device=model.device)

    def generate() -> list[int]:
        criteria = StoppingCriteriaList([RowLimits(ends + width)])
        config = generation_config(limits, pad_id)
        output = model.generate(**batch, generation_config=config, stopping_criteria=criteria)
        # past its limit a row goes on in the same batch, and nobody wants its tokens
        return ends.clamp(max=output.shape[1] - width).tolist()

    yield generate


@contextlib.contextmanager
def shrinking_engine(model: PreTrainedModel, prompts: Prompts, limits: list[int], pad_id: int) -> Iterator[Generate]:
    """Our batch that drops rows as they end."""

    def generate() -> list[int]:
        return [len(ids) for ids in sample_tokens(model, prompts, [NO_TOKEN], pad_id, limits, get_warpers())]

    yield generate


@contextlib.contextmanager
def continuous_engine(model: PreTrainedModel, prompts: Prompts, limits: list[int], pad_id: int) -> Iterator[Generate]:
    """transformers' continuous batching with a paged cache."""
    cache = {}
    if model.device.type == "cpu":
        # its own guess takes half of the main memory for the cache and is slow on a CPU
        pages = [-(-(len(prompt) + limit) // PAGE_SIZE) + 1 for prompt, limit in zip(prompts, limits, strict=True)]
        cache = {"page_size": PAGE_SIZE, "num_blocks": sum(pages), "max_batch_tokens": 256}
    with model.continuous_batching_context_manager(
        generation_config=generation_config(limits, pad_id),
        continuous_batching_config=ContinuousBatchingConfig(seed=torch.initial_seed() % 2**32, **cache),
    ) as manager:

        def generate() -> list[int]:
            names = [
                manager.add_request(prompt, max_new_tokens=limit, eos_token_id=NO_TOKEN)
                for prompt, limit in zip(prompts, limits, strict=True)
            ]
            lengths: dict[str, int] = {}
            while len(lengths) < len(names):
                result = manager.get_result(timeout=1)
                if result is None and not manager.is_running():
                    raise RuntimeError("continuous batching ended before its requests; its log says why")
                if result is not None and result.is_finished():
                    lengths[result.request_id] = len(result.generated_tokens)
            return [lengths[name] for name in names]

        yield generate


ENGINES: dict[str, Callable[[PreTrainedModel, Prompts, list[int], int], AbstractContextManager[Generate]]] = {
    "generate": generate_engine,
    "shrinking": shrinking_engine,
    "continuous": continuous_engine,
}


def measure(settings: RolloutSettings, engine: str) -> dict[str, Any]:
    """Completion tokens per second of one engine, as a median over the rounds after the first, and its peak memory.

    Args:
        settings (`RolloutSettings`):
            What to generate.
        engine (`str`):
            A name of `ENGINES`.

    Raises:
        `RuntimeError`: If a completion has not the length that was asked for.
    """
    device, tokenizer = benchmark_device(), build_tokenizer()
    problems = gym_problems("train", settings.num_completions, seed=settings.seed)
    prompts = [tokenizer.encode(prompt[0]["content"]) for prompt in problems["prompt"]]
    limits = draw_lengths(settings.lengths, len(prompts), settings.max_length, settings.seed)
    name, memory = settings.model_name_or_path, PeakMemory(device)
    model = random_model(name, settings.dtype, settings.max_length, settings.seed, device).eval()
    seconds = []
    torch.manual_seed(settings.seed)
    with ENGINES[engine](model, prompts, limits, tokenizer.pad_token_id) as generate:
        for _ in range(settings.steps + 1):
            start = now(device)
            lengths = generate()
            seconds.append(now(device) - start)
            if lengths != limits:
                raise RuntimeError(f"{engine} generated completions of {lengths} tokens, but was asked for {limits}")
        peak = memory.read_gib()
    return {
        "seconds": statistics.median(seconds[1:]),
        "completion_tokens_per_second": sum(limits) / statistics.median(seconds[1:]),
        "peak_memory_gib": peak,
        "peak_memory_kind": memory.kind,
        "device": device_name(device),
        "mean_length": statistics.fmean(limits),
        "longest": max(limits),
        "rounds": seconds,
    }


if __name__ == "__main__":
    given, name, folder = sys.argv[1:]
    write_whole(Path(folder, f"{name}.json"), json.dumps(measure(RolloutSettings(**json.loads(given)), name)))
