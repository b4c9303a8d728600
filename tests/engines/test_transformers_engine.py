"""The transformers engine: each completion from its own seed, whoever else is in the batch."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from leash_trl.engines.engine import Request, SamplingSettings, check_lengths
from leash_trl.engines.transformers_engine import TransformersEngine
from leash_trl.gym import CHECKPOINT


LIMIT = 320
FREE = SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=LIMIT)


@pytest.fixture(scope="module")
def engine():
    return TransformersEngine.from_pretrained(str(CHECKPOINT), batch_size=64)


@pytest.fixture(scope="module")
def requests(engine, problems):
    prompts = list(problems["prompt"])[:24]
    rows = engine.tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=False)
    return [Request(tuple(ids), seed, LIMIT) for seed, ids in enumerate(rows)]


@pytest.fixture(scope="module")
def generations(engine, requests):
    return engine.generate(requests, FREE)


def test_a_completion_depends_on_its_seed_and_on_no_neighbor_or_global_generator(engine, requests, generations):
    global_generator = torch.get_rng_state()
    engine.batch_size = 7
    in_small_batches = engine.generate(requests, FREE)
    engine.batch_size = 64
    assert in_small_batches == generations
    assert engine.generate(requests[5:9][::-1], FREE) == generations[5:9][::-1]
    assert torch.equal(torch.get_rng_state(), global_generator)


def test_a_shorter_limit_gives_the_beginning_of_the_same_completion(engine, requests, generations):
    short = [replace(request, max_new_tokens=10 + 7 * index) for index, request in enumerate(requests)]
    for request, cut, whole in zip(short, engine.generate(short, FREE), generations, strict=True):
        assert cut.token_ids == whole.token_ids[: request.max_new_tokens]
        assert cut.is_truncated == (len(whole.token_ids) > request.max_new_tokens)


def test_a_stop_token_ends_only_the_request_that_names_it(engine, requests, generations):
    end = engine.tokenizer.convert_tokens_to_ids("</think>")
    stopping = []
    for index, request in enumerate(requests):
        stop_token_ids = frozenset([end]) if index % 2 == 1 else frozenset()
        stopping.append(replace(request, stop_token_ids=stop_token_ids))
    for request, stopped, whole in zip(stopping, engine.generate(stopping, FREE), generations, strict=True):
        if request.stop_token_ids:
            assert not stopped.is_truncated
            assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]
        else:
            assert stopped == whole


@pytest.mark.parametrize("narrow", [{"temperature": 1e-6}, {"top_p": 1e-6}, {"top_k": 1}])
def test_at_temperature_zero_the_likeliest_token_is_taken_as_with_the_narrowest_settings(
    narrow, engine, requests, generations
):
    greedy = engine.generate(requests, SamplingSettings(temperature=0.0, top_p=0.5))
    assert engine.generate(requests, replace(FREE, **narrow)) == greedy
    assert greedy != generations


def test_a_request_may_fill_the_context_and_not_more(engine):
    fits = Request((3,) * 24, seed=0, max_new_tokens=1000)
    exceeds = Request((3,) * 25, seed=0, max_new_tokens=1000)
    check_lengths([fits], max_length=1024)
    with pytest.raises(ValueError, match=r"max_new_tokens is 1000, .* holds 999"):
        engine.generate([fits, exceeds], FREE)
    with pytest.raises(ValueError, match=r"max_new_tokens is 1, .* holds 0"):
        check_lengths([Request((3,) * 2000, seed=0, max_new_tokens=1)], max_length=1024)
    check_lengths([Request((3,) * 25, seed=0, max_new_tokens=10**6)], max_length=None)


def test_every_configured_end_token_and_the_tokenizers_end_a_completion(tokenizer, requests):
    end = tokenizer.eos_token_id
    think_end = tokenizer.convert_tokens_to_ids("</think>")
    model = AutoModelForCausalLM.from_pretrained(str(CHECKPOINT))
    model.generation_config.eos_token_id = [end, think_end]
    engine = TransformersEngine(model, tokenizer, batch_size=64)
    assert engine.eos_token_ids == [end, think_end]
    for generation in engine.generate(requests, FREE):
        assert generation.token_ids[-1] == think_end
        assert not generation.is_truncated
