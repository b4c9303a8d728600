"""The vLLM engine beside the transformers engine, on the gym. Skipped without vLLM; `make test-vllm`."""

import os

import numpy as np
import pytest


pytest.importorskip("vllm")
pytestmark = pytest.mark.vllm

# vLLM reads these when it is imported
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

from leash_trl.engines.engine import Request, SamplingSettings  # noqa: E402
from leash_trl.engines.transformers_engine import TransformersEngine  # noqa: E402
from leash_trl.engines.vllm_engine import VllmEngine  # noqa: E402
from leash_trl.evaluation.decoding import Deer  # noqa: E402
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
    prompts = list(gym_problems("test", 64)["prompt"])
    ids = engine.tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=False)
    return [Request(tuple(row), 4 * index + k, LIMIT) for index, row in enumerate(ids) for k in range(4)]


@pytest.fixture(scope="module")
def generations(engine, requests):
    return engine.generate(requests, FREE)


def test_both_engines_know_the_same_model(engine, transformers_engine):
    assert engine.eos_token_ids == transformers_engine.eos_token_ids
    assert engine.max_length == transformers_engine.max_length == 1024
    assert str(engine._llm.llm_engine.model_config.dtype) == "torch.float32"


def test_greedy_generations_are_those_of_transformers(engine, transformers_engine, requests):
    ours, theirs = (one.generate(requests[::4], GREEDY) for one in (engine, transformers_engine))
    # rounding may turn a token where two are about equally likely
    assert sum(a == b for a, b in zip(ours, theirs, strict=True)) >= len(ours) - 1


def test_probabilities_are_those_of_transformers(engine, transformers_engine, requests):
    ours, theirs = (
        one.generate(requests[:4], GREEDY, with_probabilities=True) for one in (engine, transformers_engine)
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.token_ids == other.token_ids
        assert mine.probabilities == pytest.approx(other.probabilities, rel=1e-3)
    assert all(generation.probabilities is None for generation in engine.generate(requests[:2], FREE))


def test_a_completion_depends_on_prompt_and_seed_alone(engine, requests, generations):
    # on a CPU in float32, so that rounding does not depend on the neighbours
    assert engine.generate(requests, FREE) == generations
    assert engine.generate(requests[50:90], FREE) == generations[50:90]
    assert engine.generate(requests[50:90], FREE, is_continuation=True) == generations[50:90]
    others = [Request(request.prompt_ids, request.seed + 10**6, LIMIT) for request in requests]
    assert engine.generate(others, FREE) != generations


def test_prompts_that_together_fill_several_batches_keep_their_seeds(engine, requests):
    long = [Request(request.prompt_ids * 40, request.seed, 4) for request in requests[:32]]
    assert sum(len(request.prompt_ids) for request in long) > 2 * 4096  # of vLLM's tokens per step
    assert engine.generate(long, FREE)[-1] == engine.generate(long[-1:], FREE)[0]


def test_both_engines_sample_the_same_distribution(generations, transformers_engine, requests):
    theirs = transformers_engine.generate(requests, FREE)
    lengths, other_lengths = (
        np.array([len(generation.token_ids) for generation in run]) for run in (generations, theirs)
    )
    # completions of one prompt are alike: the error is that of the mean over prompts
    difference = (lengths - other_lengths).reshape(64, 4).mean(1)
    assert abs(difference.mean()) < 4 * difference.std(ddof=1) / 8


def test_end_and_stop_tokens_end_a_completion_and_are_part_of_it(engine, requests, generations):
    end = engine.tokenizer.convert_tokens_to_ids("</think>")
    stopping = [Request(request.prompt_ids, request.seed, LIMIT, frozenset([end])) for request in requests[:8]]
    for stopped, whole in zip(engine.generate(stopping, FREE), generations, strict=False):
        assert whole.finish_reason == "eos"
        assert whole.token_ids[-1] == engine.tokenizer.eos_token_id
        assert stopped.finish_reason == "stop"
        assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]


def test_limits_are_each_requests_own(engine, requests, generations):
    short = [Request(request.prompt_ids, request.seed, 5 + index) for index, request in enumerate(requests[:8])]
    for index, (cut, whole) in enumerate(zip(engine.generate(short, FREE), generations, strict=False)):
        assert cut.token_ids == whole.token_ids[: 5 + index]
        assert cut.finish_reason == "length"


def test_a_decoding_strategy_runs_on_it(engine, requests):
    prompts = [request.prompt_ids for request in requests[::4]]
    strategy = Deer(trial=" So the answer ", end_thinking=" So the answer is ", max_trial_tokens=4, boundary="Wait,")
    decoded = strategy.complete(engine, prompts, range(len(prompts)), FREE)
    assert decoded == strategy.complete(engine, prompts, range(len(prompts)), FREE)
    assert any(completion.num_generated_tokens > len(completion.token_ids) for completion in decoded)
    assert not any(completion.is_truncated for completion in decoded)
