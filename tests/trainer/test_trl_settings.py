"""What the configurations of TRL's trainers say about groups, generation and advantages."""

import math
from types import SimpleNamespace

import pytest
from conftest import gym_tokenizer
from trl import GRPOConfig
from trl.experimental.async_grpo import AsyncGRPOConfig
from trl.experimental.online_dpo import OnlineDPOConfig

from leash_trl.completions.thinking import ThinkingMarkers
from leash_trl.trainer import trl_settings


@pytest.fixture
def config(tmp_path):
    """Factory of configurations of any class."""

    def make(config_class, **fields):
        return config_class(str(tmp_path), use_cpu=True, bf16=False, **fields)

    return make


BATCH = {"num_generations": 4, "per_device_train_batch_size": 8}


@pytest.mark.parametrize(
    ("config_class", "fields", "sizes"),
    [
        (GRPOConfig, {**BATCH, "steps_per_generation": 3}, (4, 4, 24)),
        (GRPOConfig, {**BATCH, "num_generations_eval": 2}, (4, 2, 8)),
        (AsyncGRPOConfig, {"num_generations": 4, "per_device_train_batch_size": 3}, (4, 4, 12)),
        (OnlineDPOConfig, {"per_device_train_batch_size": 4}, (1, 1, 4)),  # which has no groups
    ],
)
def test_group_sizes_in_training_and_evaluation_and_completions_of_a_call(config_class, fields, sizes, config):
    model = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=2))
    settings = trl_settings.run_settings(config(config_class, **fields), model, gym_tokenizer(), "</think>")
    assert (settings.num_generations, settings.num_generations_eval, settings.completions_per_call) == sizes


@pytest.mark.parametrize(
    ("config_class", "fields", "limit"),
    [
        (GRPOConfig, {"max_completion_length": 24}, 24),
        (GRPOConfig, {"max_completion_length": None}, math.inf),
        (GRPOConfig, {"max_completion_length": 24, "generation_kwargs": {"max_new_tokens": 12}}, 12),
        # vLLM calls it max_tokens
        (GRPOConfig, {"max_completion_length": 24, "use_vllm": True, "generation_kwargs": {"max_tokens": 12}}, 12),
        (GRPOConfig, {"max_completion_length": 24, "use_vllm": True, "generation_kwargs": {"max_new_tokens": 9}}, 24),
        (OnlineDPOConfig, {"max_new_tokens": 24}, 24),
    ],
)
def test_the_generation_limit_is_the_last_that_trl_passes_on(config_class, fields, limit, config):
    assert trl_settings.generation_limit(config(config_class, **fields)) == limit


def test_the_chat_template_shows_with_its_arguments_whether_it_opens_the_thinking(config):
    tokenizer = gym_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{% if enable_thinking %}[THINK]{% endif %}"
    thinks = config(GRPOConfig, chat_template_kwargs={"enable_thinking": True})
    assert trl_settings.thinking_markers(thinks, tokenizer, "[/THINK]") == ThinkingMarkers(
        "[/THINK]", begins_in_thinking=True
    )
    assert not trl_settings.thinking_markers(config(GRPOConfig), tokenizer, "[/THINK]").begins_in_thinking
