"""One engine of `leash bench rollout`, in a process of its own: python -m leash_trl.benchmark.rollout_engines.

Every engine completes the same prompts, without an end token, each up to its own drawn length.
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
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
from leash_trl.benchmark.model import PROMPT_ROOM, num_parameters, random_model
from leash_trl.benchmark.settings import RolloutSettings
from leash_trl.engines.shrinking_batch import get_warpers, sample_tokens
from leash_trl.files import write_whole
from leash_trl.gym.dataset import gym_problems
from leash_trl.gym.tokenizer import build_tokenizer


NO_TOKEN = -1  # as an end token: none is ever sampled
PAGE_SIZE = 64  # tokens
Generate = Callable[[], list[int]]  # one round; the lengths of its completions


@dataclass(frozen=True)
class Work:
    """What every engine has to do.

    Args:
        settings (`RolloutSettings`):
            Model and lengths.
        device (`torch.device`):
            Where to do it.
        prompt_ids (`list[list[int]]`):
            Token ids of N prompts.
        limits (`list[int]`):
            Lengths of the N completions in tokens.
        pad_id (`int`):
            Token for padding.
    """

    settings: RolloutSettings
    device: torch.device
    prompt_ids: list[list[int]]
    limits: list[int]
    pad_id: int

    def model(self, device: torch.device) -> PreTrainedModel:
        """The model with its random weights."""
        settings = self.settings
        return random_model(settings.model, settings.dtype, settings.max_length, settings.seed, device).eval()

    def generation_config(self) -> GenerationConfig:
        """Plain sampling up to the longest completion."""
        return GenerationConfig(
            do_sample=True,
            top_k=0,
            max_new_tokens=max(self.limits),
            use_cache=True,  # the gym's configuration, made for training, says no
            pad_token_id=self.pad_id,
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
def generate_engine(work: Work) -> Iterator[Generate]:
    """transformers' `generate`: every row is computed until the longest ends."""
    model = work.model(work.device)
    tokenizer = build_tokenizer()
    batch = tokenizer.pad({"input_ids": work.prompt_ids}, padding_side="left", return_tensors="pt").to(work.device)
    width = batch["input_ids"].shape[1]
    limits = torch.tensor(work.limits, device=work.device)

    def generate() -> list[int]:
        criteria = StoppingCriteriaList([RowLimits(limits + width)])
        output = model.generate(**batch, generation_config=work.generation_config(), stopping_criteria=criteria)
        # past its limit a row goes on in the same batch, and nobody wants its tokens
        return limits.clamp(max=output.shape[1] - width).tolist()

    yield generate


@contextlib.contextmanager
def shrinking_engine(work: Work) -> Iterator[Generate]:
    """Our batch that drops rows as they end."""
    model = work.model(work.device)

    def generate() -> list[int]:
        completions = sample_tokens(model, work.prompt_ids, [NO_TOKEN], work.pad_id, work.limits, get_warpers())
        return [len(completion) for completion in completions]

    yield generate


def _continuous_config(work: Work) -> ContinuousBatchingConfig:
    if work.device.type == "cuda":
        return ContinuousBatchingConfig(seed=work.settings.seed)
    # its own guess takes half of the main memory for the cache and is slow on a CPU
    pages = [
        -(-(len(prompt) + limit) // PAGE_SIZE) + 1 for prompt, limit in zip(work.prompt_ids, work.limits, strict=True)
    ]
    return ContinuousBatchingConfig(
        page_size=PAGE_SIZE, num_blocks=sum(pages), max_batch_tokens=256, seed=work.settings.seed
    )


@contextlib.contextmanager
def continuous_engine(work: Work) -> Iterator[Generate]:
    """transformers' continuous batching with a paged cache."""
    model = work.model(work.device)
    with model.continuous_batching_context_manager(
        generation_config=work.generation_config(), continuous_batching_config=_continuous_config(work)
    ) as manager:

        def generate() -> list[int]:
            names = [
                manager.add_request(prompt, max_new_tokens=limit, eos_token_id=NO_TOKEN)
                for prompt, limit in zip(work.prompt_ids, work.limits, strict=True)
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


@contextlib.contextmanager
def vllm_engine(work: Work) -> Iterator[Generate]:
    """vLLM in this process, on the same weights by way of a folder."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # one process, so that its memory is seen
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        work.model(torch.device("cpu")).save_pretrained(folder)
        engine = LLM(
            model=folder,
            skip_tokenizer_init=True,
            dtype=work.settings.dtype,
            seed=work.settings.seed,
            max_model_len=work.settings.max_length + PROMPT_ROOM,
            enforce_eager=work.device.type == "cpu",
            enable_prefix_caching=False,  # rounds repeat their prompts
        )
    prompts = [{"prompt_token_ids": ids} for ids in work.prompt_ids]
    sampling = [SamplingParams(max_tokens=limit, ignore_eos=True, detokenize=False) for limit in work.limits]

    def generate() -> list[int]:
        outputs = engine.generate(prompts, sampling, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    yield generate


ENGINES: dict[str, Callable[[Work], AbstractContextManager[Generate]]] = {
    "generate": generate_engine,
    "shrinking": shrinking_engine,
    "continuous": continuous_engine,
    "vllm": vllm_engine,
}


def measure(settings: RolloutSettings, engine: str) -> dict[str, Any]:
    """Completion tokens per second of one engine, as a median over the rounds after the first, and its peak memory.

    Args:
        settings (`RolloutSettings`):
            What to generate.
        engine (`str`):
            A name of `ENGINES`.

    Raises:
        `ModuleNotFoundError`: If the engine is not installed.
        `RuntimeError`: If a completion has not the length that was asked for.
    """
    device, tokenizer = benchmark_device(), build_tokenizer()
    # without memory, which vLLM's own copy would come on top of
    blank = random_model(settings.model, settings.dtype, settings.max_length, settings.seed, torch.device("meta"))
    problems = gym_problems("train", settings.num_completions, seed=settings.seed)
    prompts = [tokenizer.encode(prompt[0]["content"]) for prompt in problems["prompt"]]
    limits = draw_lengths(settings.lengths, len(prompts), settings.max_length, settings.seed)
    memory = PeakMemory(device)
    seconds = []
    torch.manual_seed(settings.seed)
    with ENGINES[engine](Work(settings, device, prompts, limits, tokenizer.pad_token_id)) as generate:
        for _ in range(settings.steps + 1):
            start = now(device)
            lengths = generate()
            seconds.append(now(device) - start)
            if lengths != limits:
                raise RuntimeError(f"{engine} generated completions of {lengths} tokens, but was asked for {limits}")
        peak = memory.read()
    return {
        "seconds": statistics.median(seconds[1:]),
        "completion_tokens_per_second": sum(limits) / statistics.median(seconds[1:]),
        "peak_memory_bytes": peak,
        "peak_memory_kind": memory.kind,
        "device": device_name(device),
        "device_type": device.type,
        "num_parameters": num_parameters(blank),
        "mean_length": statistics.fmean(limits),
        "longest": max(limits),
        "rounds": seconds,
    }


def main() -> None:
    """Measures the engine that the command line names and writes the result as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("settings")
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("result", type=Path)
    arguments = parser.parse_args()
    try:
        result = measure(RolloutSettings.load(arguments.settings), arguments.engine)
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        result = {"missing": 'not installed; pip install "leash-trl[vllm]"'}
    write_whole(arguments.result, json.dumps(result))


if __name__ == "__main__":
    main()
