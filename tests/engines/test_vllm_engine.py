"""The vLLM engine beside the transformers engine, on the gym. Skipped without vLLM; `make test-vllm`."""

import os
from dataclasses import replace

import pytest


pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

# vLLM reads these when it is imported
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from leash_trl.engines.engine import Request, SamplingSettings  # noqa: E402
from leash_trl.engines.transformers_engine import TransformersEngine  # noqa: E402
from leash_trl.engines.vllm_engine import VllmEngine  # noqa: E402
from leash_trl.gym import CHECKPOINT  # noqa: E402
from leash_trl.gym.dataset import gym_problems  # noqa: E402


LIMIT = 320
FREE = SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=LIMIT)
GREEDY = SamplingSettings(temperature=0.0, max_new_tokens=LIMIT)


@pytest.fixture(scope="module")
def engine():
    return VllmEngine(str(CHECKPOINT), enforce_eager=True)


@pytest.fixture(scope="module")
def transformers_engine():
    return TransformersEngine.from_pretrained(str(CHECKPOINT), batch_size=512)


@pytest.fixture(scope="module")
def requests(engine):
    """Four for each of 64 prompts, with different seeds."""
    prompts = list(gym_problems("test", 64)["prompt"])
    rows = engine.tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=False)
    requests = []
    for ids in rows:
        for _ in range(4):
            requests.append(Request(tuple(ids), seed=len(requests), max_new_tokens=LIMIT))
    return requests


@pytest.fixture(scope="module")
def generations(engine, requests):
    return engine.generate(requests, FREE)


def test_both_engines_know_the_same_model(engine, transformers_engine):
    assert engine.eos_token_ids == transformers_engine.eos_token_ids
    assert engine.max_length == transformers_engine.max_length == 1024
    assert str(engine._llm.llm_engine.model_config.dtype) == "torch.float32"


def test_greedy_generations_are_those_of_transformers(engine, transformers_engine, requests):
    ours = engine.generate(requests[::4], GREEDY)
    theirs = transformers_engine.generate(requests[::4], GREEDY)
    num_different = 0
    for generation, expected in zip(ours, theirs, strict=True):
        if generation.token_ids == expected.token_ids:
            assert generation.is_truncated == expected.is_truncated
        else:
            num_different += 1
    # rounding may turn a token where two are about equally likely
    assert num_different <= 1


def test_a_completion_depends_on_prompt_and_seed_alone(engine, requests, generations):
    # on a CPU in float32, so that rounding does not depend on the neighbors
    assert engine.generate(requests, FREE) == generations
    assert engine.generate(requests[50:90], FREE) == generations[50:90]
    with_other_seeds = [replace(request, seed=request.seed + 10**6) for request in requests]
    assert engine.generate(with_other_seeds, FREE) != generations


def test_prompts_that_together_fill_several_batches_keep_their_seeds(engine, requests):
    long = [replace(request, prompt_ids=request.prompt_ids * 40, max_new_tokens=4) for request in requests[:32]]
    assert sum(len(request.prompt_ids) for request in long) > 2 * 4096  # of vLLM's tokens per step
    assert engine.generate(long, FREE)[-1] == engine.generate(long[-1:], FREE)[0]


def test_stops_and_limits_apply_to_their_request_alone(engine, requests, generations):
    think_end = engine.tokenizer.convert_tokens_to_ids("</think>")
    stopping = [replace(request, stop_token_ids=frozenset([think_end])) for request in requests[:8]]
    limited = [replace(request, max_new_tokens=5 + index) for index, request in enumerate(requests[:8])]
    together = engine.generate([*stopping, *limited], FREE)
    for index, whole in enumerate(generations[:8]):
        assert not whole.is_truncated
        assert whole.token_ids[-1] == engine.tokenizer.eos_token_id
        stopped = together[index]
        assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(think_end) + 1]
        assert not stopped.is_truncated
        cut = together[8 + index]
        assert cut.token_ids == whole.token_ids[: 5 + index]
        assert cut.is_truncated
