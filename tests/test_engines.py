"""The transformers engine: each completion from its own seed, whoever else is in the batch."""

import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from leash_trl.engines.checkpoint_path import checkpoint_path, missing_folder
from leash_trl.engines.engine import Generation, Request, SamplingSettings, check_lengths, finish_reason
from leash_trl.engines.eos import merged_eos_token_ids
from leash_trl.engines.token_choice import BLOCK_SIZE, SeededDraw, inverse_cdf
from leash_trl.engines.transformers_engine import TransformersEngine, context_length
from leash_trl.engines.vllm_engine import VllmEngine
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("max_new_tokens", 0),
    ],
)
def test_a_setting_out_of_its_range_is_named(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        SamplingSettings(**{field: value})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"prompt_ids": ()}, "prompt_ids is empty"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is 9223372036854775808"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_a_request_that_cannot_be_met_is_an_error(overrides, message):
    with pytest.raises(ValueError, match=message):
        Request(**{"prompt_ids": (1,), "seed": 2**63 - 1, "max_new_tokens": 1, **overrides})


def test_an_end_token_ends_before_a_stop_token_does():
    assert finish_reason([5, 1], [1], [1]) == "eos"
    assert finish_reason([5, 2], [1], [2]) == "stop"
    assert finish_reason([1, 2, 5], [1], [2]) == "length"


def test_the_same_call_gives_the_same_generations(engine, requests, generations):
    assert engine.generate(requests, FREE) == generations


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
    ("sampling", "greedy"),
    [
        (FREE, True),
        (SamplingSettings(temperature=0.0, top_p=0.5), False),
        (SamplingSettings(temperature=1.0, top_p=1.0, top_k=1), False),
    ],
)
def test_greedy_generation_is_that_of_generate(engine, requests, likeliest, sampling, greedy):
    ours = engine.generate(requests, sampling, greedy=greedy)
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


def test_probabilities_are_left_out_unless_asked_for(generations):
    assert all(generation.probabilities is None for generation in generations)


def test_torchs_global_generator_is_left_alone(engine, requests):
    before = torch.get_rng_state()
    engine.generate(requests[:2], FREE)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_prompt_and_limit_beyond_the_context_are_refused_before_work(engine):
    assert engine.max_length == 1024
    check_lengths([Request((3,) * 24, 0, 1000)], 1024)
    with pytest.raises(ValueError, match="prompt of 25 tokens the model's context of 1024 tokens holds 999"):
        engine.generate([Request((3,), 0, 1), Request((3,) * 25, 0, 1000)], FREE)
    check_lengths([Request((3,) * 25, 0, 10**6)], None)


@pytest.mark.parametrize("length", [1024, 2000])
def test_a_prompt_that_fills_the_context_is_not_told_to_lower_the_limit(length):
    message = (
        f"a prompt has {length} tokens, which the model's context of 1024 tokens cannot hold .*; leave the problem"
    )
    with pytest.raises(ValueError, match=message) as error:
        check_lengths([Request((3,) * length, 0, 1)], 1024)
    assert "max_new_tokens" not in str(error.value)
    # a token less leaves room for one
    with pytest.raises(ValueError, match="holds 1; lower max_new_tokens"):
        check_lengths([Request((3,) * 1023, 0, 2)], 1024)


@pytest.mark.parametrize("path", ["./nothere", ".nothere/model", "/nothere", "~/nothere", "a/b/c", "runs/nothere"])
@pytest.mark.parametrize("engine_class", [TransformersEngine.from_pretrained, VllmEngine])
def test_a_path_that_looks_local_is_no_such_folder(path, engine_class, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match=f"no such folder: '{path}'"):
        engine_class(path)


@pytest.mark.parametrize("engine_class", [TransformersEngine.from_pretrained, VllmEngine])
def test_the_folder_of_a_run_that_has_not_ended_names_its_last_checkpoint(engine_class, tmp_path):
    run = tmp_path / "run"
    for step in (2, 10):
        checkpoint = run / f"checkpoint-{step}"
        shutil.copytree(CHECKPOINT, checkpoint)
        (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": step}), encoding="utf-8")
    (run / "checkpoint-12").mkdir()  # the run was stopped here
    message = f"the folder '{run}' holds no model .*: name a checkpoint, such as {run}/checkpoint-10$"
    with pytest.raises(ValueError, match=message):
        engine_class(str(run))


def test_a_folder_without_a_model_is_an_error_with_a_remedy(tmp_path):
    with pytest.raises(ValueError, match=r"holds no model \(config.json or adapter_config.json\); name one that does"):
        checkpoint_path(str(tmp_path))


@pytest.mark.parametrize("path", ["owner/nothere", "nothere", "runs"])
def test_what_may_be_on_the_hub_is_not_called_a_folder(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert missing_folder(path) is None


def test_an_adapter_whose_base_is_elsewhere_names_the_base(tmp_path, monkeypatch):
    base = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    get_peft_model(base, LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "run")
    config = tmp_path / "run" / "adapter_config.json"
    fields = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**fields, "base_model_name_or_path": "runs/x/base"}), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    message = (
        "the base model 'runs/x/base' of the adapter 'run' cannot be loaded: no such folder: 'runs/x/base'; .* leash "
        "merge run --model_name_or_path BASE --output_dir DIR$"
    )
    with pytest.raises(ValueError, match=message):
        TransformersEngine.from_pretrained("run")


def test_a_model_that_the_hub_does_not_give_is_an_error():
    with pytest.raises(ValueError, match="the model 'owner/nothere' cannot be loaded"):
        TransformersEngine.from_pretrained("owner/nothere")


def test_the_context_is_the_configured_one_or_what_yarn_makes_of_it():
    assert context_length(LlamaConfig(max_position_embeddings=4096)) == 4096
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 4096}
    assert context_length(LlamaConfig(max_position_embeddings=4096, rope_parameters=rope)) == 16384


def test_memory_that_does_not_suffice_names_the_batch_size(engine, requests, monkeypatch):
    def out_of_memory(*args, **kwargs):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(engine.model, "forward", out_of_memory)
    with pytest.raises(ValueError, match=r"batch_size is 64.*lower batch_size"):
        engine.generate(requests, FREE)


def test_a_model_is_put_into_evaluation_mode(engine):
    engine.model.train()
    assert not TransformersEngine(engine.model, engine.tokenizer, batch_size=1).model.training


def test_a_batch_size_below_one_is_an_error(engine):
    with pytest.raises(ValueError, match="batch_size is 0"):
        TransformersEngine(engine.model, engine.tokenizer, batch_size=0)


def test_a_checkpoint_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no such folder"):
        TransformersEngine.from_pretrained(str(tmp_path / "nowhere"))


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


def test_nothing_asked_is_nothing_generated(engine):
    assert engine.generate([], FREE) == []


@given(
    probabilities=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30).filter(any),
    uniform=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=200, deadline=None)
def test_inverse_cdf_is_where_numpy_says_and_never_a_token_without_probability(probabilities, uniform):
    table = torch.tensor([probabilities], dtype=torch.float32)
    token = inverse_cdf(table, torch.tensor([uniform], dtype=torch.float64)).item()
    assert probabilities[token] > 0
    cumulated = np.cumsum(np.array(probabilities, dtype=np.float64))
    share = uniform * cumulated[-1]
    assert token == 0 or cumulated[token - 1] <= share
    assert share <= cumulated[token]


@pytest.mark.parametrize("probability", [0.1, 0.125, 0.3, 1e-30])
def test_the_greatest_draw_takes_the_last_token_that_has_probability(probability):
    table = torch.tensor([[probability] * 10 + [0.0]])
    assert inverse_cdf(table, torch.tensor([np.nextafter(1.0, 0.0)])).item() == 9


def test_a_draw_on_the_border_of_two_tokens_takes_the_later_one():
    table = torch.tensor([[0.0, 0.25, 0.0, 0.75]]).expand(3, 4)
    assert inverse_cdf(table, torch.tensor([0.0, 0.25, 0.2], dtype=torch.float64)).tolist() == [1, 3, 1]


def test_a_likely_token_does_not_swallow_unlikely_ones():
    # 2^-26 is below half a unit in the last place of float32 at 1, so sums in float32 would stand still
    table = torch.full((1, 2**10), 2.0**-26)
    table[0, 0] = 1.0
    total = 1 + (2**10 - 1) * 2.0**-26
    # a share of 1 + 1.5 * 2^-26 lies in the middle of the token at 2
    assert inverse_cdf(table, torch.tensor([(1 + 1.5 * 2.0**-26) / total], dtype=torch.float64)).item() == 2


def test_draws_follow_numpys_stream_across_blocks():
    draw = SeededDraw([11, 12])
    scores = torch.zeros(1, 1000)  # a thousand equally likely tokens: the token is the draw, to three digits
    expected = np.random.default_rng(12).random(BLOCK_SIZE + 3)
    for position in range(BLOCK_SIZE + 3):
        token = draw(scores, scores, torch.tensor([1]), position).item()
        assert abs(token - 1000 * expected[position]) <= 1.001


def test_a_generation_holds_no_probabilities_by_default():
    assert Generation([1], "eos").probabilities is None


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_vllm_that_is_not_installed_is_an_error_with_the_remedy():
    with pytest.raises(ValueError, match=r'pip install "leash-trl\[vllm\]"'):
        VllmEngine(str(CHECKPOINT))
