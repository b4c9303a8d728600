"""Sampling that drops completions as they end: the same distribution as transformers' own, less work."""

import pytest
import torch
import transformers
from peft import LoraConfig

from leash_trl import LeashGRPOTrainer, shrinking_rollout
from leash_trl.engines import shrinking_batch
from leash_trl.engines.shrinking_batch import sample_tokens
from leash_trl.engines.token_choice import likeliest_tokens
from leash_trl.gym import CHECKPOINT
from leash_trl.rewards import math_reward


pytestmark = pytest.mark.filterwarnings("error:.*past_key_values:FutureWarning")


@pytest.fixture(scope="module")
def model():
    return transformers.AutoModelForCausalLM.from_pretrained(str(CHECKPOINT)).eval()


@pytest.fixture(scope="module")
def prompts(problems, session_tokenizer):
    return session_tokenizer.apply_chat_template(
        list(problems["prompt"])[:24], add_generation_prompt=True, return_dict=False
    )


def random_model(kind, **fields):
    defaults = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
    }
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(kind, **(defaults | fields))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.25)
    return model


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("gemma3_text", {"sliding_window": 8, "head_dim": 8}),
        ("gpt2", {"n_embd": 32, "n_layer": 4, "n_head": 4}),
        (
            "deepseek_v3",  # keys are wider than values
            {
                "kv_lora_rank": 8,
                "q_lora_rank": 8,
                "qk_nope_head_dim": 4,
                "qk_rope_head_dim": 4,
                "v_head_dim": 4,
                "first_k_dense_replace": 4,
                "num_key_value_heads": 4,
            },
        ),
    ],
)
def test_windows_tied_weights_and_narrow_values_change_nothing(kind, fields):
    model = random_model(kind, **fields)
    prompts = [torch.randint(3, 64, (length,)).tolist() for length in (1, 3, 30, 9, 17, 2)]
    ends = [*range(1, 9)]
    ours = sample_tokens(
        model, prompts, [ends] * 6, [40] * 6, 0, transformers.LogitsProcessorList(), choose=likeliest_tokens
    )
    for prompt, mine in zip(prompts, ours, strict=True):
        alone = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=40, eos_token_id=ends)
        assert mine == alone[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("mamba", {}),
        ("lfm2", {"layer_types": ["conv", "full_attention"] * 2}),
    ],
)
def test_a_model_that_keeps_more_than_keys_and_values_is_an_error(kind, fields):
    model = random_model(kind, **fields)
    with pytest.raises(ValueError, match="rollout_func"):
        sample_tokens(model, [[5, 6]], [[1]], [4], 0, transformers.LogitsProcessorList())


@pytest.mark.parametrize("width", [1, None])
def test_the_heads_input_is_never_cut_from_a_longer_pass(width, model, tokenizer, prompts):
    """States that are cut are not contiguous, and on a CPU torch then copies the head's matrix for each row: two
    gigabytes for 32 rows of a model of 135 million parameters."""
    seen = []
    hook = model.lm_head.register_forward_pre_hook(lambda head, given: seen.append(given[0]))
    try:
        prompts = [prompt[:width] for prompt in prompts]
        completions = sample_tokens(
            model, prompts, [[tokenizer.eos_token_id]] * 24, [4] * 24, 0, transformers.LogitsProcessorList()
        )
    finally:
        hook.remove()
    assert 0 < sum(states.shape[:2].numel() for states in seen) <= 4 * len(prompts)
    assert all(states.stride(0) == states.stride(1) * states.shape[1] for states in seen if states.numel())
    assert len(completions) == len(prompts)


def test_a_rollout_has_the_trainers_settings_and_the_tokens_that_trl_makes_of_prompts(make_trainer, problems):
    trainer = make_trainer(generation_kwargs=None, top_k=1)
    for prompts in (problems["prompt"][:3], ["1 +2", "3"]):
        made = shrinking_rollout(prompts, trainer)
        assert made["prompt_ids"] == trainer._tokenize_prompts(prompts)[0]
        for ids, completion in zip(made["prompt_ids"], made["completion_ids"], strict=True):
            alone = trainer.model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24)
            assert completion == alone[0, len(ids) :].tolist()


@pytest.fixture
def make_gym_trainer(make_args, problems):
    """Factory of trainers on the gym's model, whose own generation configuration has some settings."""

    def make(own_settings, peft_config=None, **overrides):
        args = make_args(**{"generation_kwargs": None, "max_completion_length": 64, **overrides})
        trainer = LeashGRPOTrainer(str(CHECKPOINT), math_reward, args, problems, peft_config=peft_config)
        for name, value in own_settings.items():
            setattr(trainer.model.generation_config, name, value)
        return trainer

    return make


def generated_by_trl(trainer, prompts):
    ids, _, _ = trainer._tokenize_prompts(prompts)
    completion_ids, _ = trainer._generate_single_turn(ids, None, {}, trainer.num_generations)
    return completion_ids


def generated_by_us(trainer, prompts):
    return shrinking_rollout(prompts, trainer)["completion_ids"]


def test_tokens_are_drawn_as_trl_draws_them(make_gym_trainer, problems, monkeypatch):
    monkeypatch.setattr(shrinking_batch, "SHRINK_SHARE", 1.0)  # the draws are the same as long as no row is dropped
    trainer = make_gym_trainer({}, temperature=1.5, min_p=0.05)
    torch.manual_seed(0)
    theirs = generated_by_trl(trainer, problems["prompt"][:16])
    torch.manual_seed(0)
    assert generated_by_us(trainer, problems["prompt"][:16]) == theirs


FOLLOWED = {
    "min_new_tokens": 60,
    "no_repeat_ngram_size": 3,
    "forced_eos_token_id": 0,
    "exponential_decay_length_penalty": (5, 1.3),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_the_models_own_configuration_sets_is_followed_though_rows_are_dropped(name, make_gym_trainer, problems):
    prompts = problems["prompt"][:32]
    trainer = make_gym_trainer({name: FOLLOWED[name]}, top_k=1)
    theirs = generated_by_trl(trainer, prompts)
    assert theirs != generated_by_trl(make_gym_trainer({}, top_k=1), prompts)
    assert generated_by_us(trainer, prompts) == theirs


@pytest.mark.parametrize(
    "changes",
    [
        {"generation_kwargs": {"no_repeat_ngram_size": 4}},  # comes before the model's own configuration
        {"peft_config": LoraConfig(r=2)},  # the configuration is that of the adapter's base
    ],
    ids=["generation_kwargs", "adapter"],
)
def test_the_configuration_is_followed_as_trl_follows_it_with(changes, make_gym_trainer, problems):
    trainer = make_gym_trainer({"no_repeat_ngram_size": 2}, top_k=1, **changes)
    assert generated_by_us(trainer, problems["prompt"][:8]) == generated_by_trl(trainer, problems["prompt"][:8])


@pytest.mark.parametrize(
    ("own_settings", "settings"),
    [
        ({"num_beams": 2}, {}),
        ({"guidance_scale": 1.5}, {}),
        ({}, {"generation_kwargs": {"do_sample": False}}),
        ({}, {"repetition_penalty": 1.2}),
    ],
    ids=str,
)
def test_settings_that_it_cannot_follow_are_an_error(own_settings, settings, make_gym_trainer, problems):
    (name,) = own_settings or settings.get("generation_kwargs") or settings
    with pytest.raises(ValueError, match=rf"\A.*{name}=.*\Z"):
        generated_by_us(make_gym_trainer(own_settings, **settings), problems["prompt"][:2])


def test_vllm_beside_it_is_an_error(make_trainer):
    trainer = make_trainer()
    trainer.use_vllm = True
    with pytest.raises(ValueError, match="use_vllm=True"):
        shrinking_rollout(["1 +2"], trainer)
