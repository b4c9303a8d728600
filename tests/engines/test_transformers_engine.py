"""The transformers engine: each completion from its own seed, whoever else is in the batch."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from leash_trl.engines.engine import Request, SamplingSettings, check_lengths
from leash_trl.engines.eos import merged_eos_token_ids
from leash_trl.engines.transformers_engine import TransformersEngine
from leash_trl.gym import CHECKPOINT


LIMIT = 320
FREE = SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=LIMIT)


@pytest.fixture(scope="module")
def engine():
    return TransformersEngine.from_pretrained(str(CHECKPOINT), batch_size=64)


@pytest.fixture(scope="module")
def prompts_ids(engine, problems):
    prompts = list(problems["prompt"])[:24]
    return engine.tokenizer.apply_chat_template(prompts, add_generation_prompt=True, return_dict=False)


@pytest.fixture(scope="module")
def requests(prompts_ids):
    return [Request(tuple(ids), seed, LIMIT) for seed, ids in enumerate(prompts_ids)]


@pytest.fixture(scope="module")
def generations(engine, requests):
    return engine.generate(requests, FREE)


def test_the_defaults_are_the_papers():
    assert SamplingSettings() == SamplingSettings(temperature=0.6, top_p=0.95, top_k=0, max_new_tokens=32768)


def test_a_completion_does_not_depend_on_its_neighbours(engine, requests, generations):
    engine.batch_size = 7
    in_small_batches = engine.generate(requests, FREE)
    engine.batch_size = 64
    assert in_small_batches == generations
    assert engine.generate(requests[5:9][::-1], FREE) == generations[5:9][::-1]


def test_another_seed_gives_another_completion(engine, requests, generations):
    others = [Request(request.prompt_ids, request.seed + 1000, LIMIT) for request in requests]
    differing = sum(a != b for a, b in zip(engine.generate(others, FREE), generations, strict=True))
    assert differing > len(requests) / 2


def test_a_shorter_limit_gives_the_beginning_of_the_same_completion(engine, requests, generations):
    limits = [10 + 7 * index for index in range(len(requests))]
    short = [Request(request.prompt_ids, request.seed, limit) for request, limit in zip(requests, limits, strict=True)]
    for cut, whole, limit in zip(engine.generate(short, FREE), generations, limits, strict=True):
        assert cut.token_ids == whole.token_ids[:limit]
        assert cut.finish_reason == ("eos" if len(whole.token_ids) <= limit else "length")


def test_a_stop_token_ends_only_the_request_that_names_it(engine, requests, generations):
    end = engine.tokenizer.convert_tokens_to_ids("</think>")
    stops = [frozenset([end]) if index % 2 else frozenset() for index in range(len(requests))]
    stopping = [
        Request(request.prompt_ids, request.seed, LIMIT, stop) for request, stop in zip(requests, stops, strict=True)
    ]
    for stopped, whole, stop in zip(engine.generate(stopping, FREE), generations, stops, strict=True):
        if not stop:
            assert stopped == whole
        else:
            assert stopped.finish_reason == "stop"
            assert stopped.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]


def test_tokens_come_as_often_as_temperature_and_top_p_say(engine, prompts_ids):
    repeats = 2000
    prompt = [*prompts_ids[0], *engine.tokenizer.encode(" Take (a) ")[:-1]]
    with torch.no_grad():
        logits = engine.model(torch.tensor([prompt])).logits[0, -1]
    tempered = (logits / 6).softmax(dim=-1)
    # top-p keeps the likeliest tokens until their sum passes p
    order = tempered.argsort(descending=True)
    num_kept = int((tempered[order].cumsum(0) < 0.8).sum()) + 1
    expected = torch.zeros_like(tempered)
    expected[order[:num_kept]] = tempered[order[:num_kept]] / tempered[order[:num_kept]].sum()
    assert 1 < num_kept < len(tempered)
    hot = SamplingSettings(temperature=6.0, top_p=0.8, max_new_tokens=1)
    engine.batch_size = repeats
    rows = engine.generate([Request(tuple(prompt), seed, 1) for seed in range(repeats)], hot)
    engine.batch_size = 64
    counts = torch.bincount(torch.tensor([row.token_ids[0] for row in rows]), minlength=len(tempered))
    error = (expected * (1 - expected) / repeats).sqrt()
    assert ((counts / repeats - expected).abs() <= 5 * error + 1e-9).all()


@pytest.fixture(scope="module")
def likeliest(engine, requests):
    """What transformers' own `generate` gives for the requests."""
    rows = {"input_ids": [list(request.prompt_ids) for request in requests]}
    batch = engine.tokenizer.pad(rows, padding_side="left", return_tensors="pt")
    completions = engine.model.generate(**batch, do_sample=False, max_new_tokens=LIMIT)
    return completions[:, batch["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize(
    "sampling", [SamplingSettings(temperature=0.0, top_p=0.5), SamplingSettings(temperature=1.0, top_p=1.0, top_k=1)]
)
def test_greedy_generation_is_that_of_generate(engine, requests, likeliest, sampling):
    ours = engine.generate(requests, sampling)
    for mine, other in zip(ours, likeliest, strict=True):
        assert mine.token_ids == other[: len(mine.token_ids)]
        assert mine.finish_reason == "eos"


def test_probabilities_are_the_models_own_before_temperature_and_top_p(engine, requests):
    sharp = SamplingSettings(temperature=0.5, top_p=0.9)
    for request, generation in zip(
        requests[:6], engine.generate(requests[:6], sharp, with_probabilities=True), strict=True
    ):
        ids = torch.tensor([[*request.prompt_ids, *generation.token_ids]])
        with torch.no_grad():
            expected = engine.model(ids).logits[0, len(request.prompt_ids) - 1 : -1].softmax(dim=-1)
        chosen = expected.gather(1, torch.tensor(generation.token_ids)[:, None])[:, 0]
        assert generation.probabilities == pytest.approx(chosen.tolist(), rel=1e-3)


def test_torchs_global_generator_is_left_alone(engine, requests):
    before = torch.get_rng_state()
    engine.generate(requests[:2], FREE)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_prompt_and_limit_beyond_the_context_are_refused_before_work(engine):
    assert engine.max_length == 1024
    check_lengths([Request((3,) * 24, 0, 1000)], 1024)
    with pytest.raises(ValueError, match=r"max_new_tokens is 1000, .* holds 999"):
        engine.generate([Request((3,), 0, 1), Request((3,) * 25, 0, 1000)], FREE)
    with pytest.raises(ValueError, match=r"max_new_tokens is 1, .* holds 0"):
        check_lengths([Request((3,) * 2000, 0, 1)], 1024)
    check_lengths([Request((3,) * 25, 0, 10**6)], None)


def test_end_tokens_are_the_tokenizers_and_all_that_are_configured(tokenizer):
    end = tokenizer.eos_token_id
    assert merged_eos_token_ids([7, end, 8], tokenizer) == [end, 7, 8]
    assert merged_eos_token_ids(7, tokenizer) == [end, 7]
    assert merged_eos_token_ids(None, tokenizer) == [end]


def test_every_configured_end_token_ends_a_completion(requests):
    tokenizer = AutoTokenizer.from_pretrained(str(CHECKPOINT))
    model = AutoModelForCausalLM.from_pretrained(str(CHECKPOINT))
    think_end = tokenizer.convert_tokens_to_ids("</think>")
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, think_end]
    for generation in TransformersEngine(model, tokenizer, 64).generate(requests, FREE):
        assert generation.token_ids[-1] == think_end
        assert generation.finish_reason == "eos"
