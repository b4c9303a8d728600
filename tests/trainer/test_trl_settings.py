"""What the configurations of TRL's trainers say about groups, generation and advantages."""

import math

import pytest
from conftest import gym_tokenizer
from trl import GRPOConfig, RLOOConfig
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


def test_a_trainer_without_groups_has_groups_of_one(config):
    args = config(OnlineDPOConfig, per_device_train_batch_size=4)
    assert trl_settings.group_sizes(args) == (1, 1)
    assert trl_settings.completions_per_call(args) == 4


def test_groups_are_as_large_in_evaluation_unless_it_has_a_size_of_its_own(config):
    sizes = {"num_generations": 4, "per_device_train_batch_size": 8}
    assert trl_settings.group_sizes(config(GRPOConfig, **sizes)) == (4, 4)
    assert trl_settings.group_sizes(config(GRPOConfig, num_generations_eval=2, **sizes)) == (4, 2)


def test_a_call_has_the_completions_of_all_steps_of_a_generation(config):
    args = config(GRPOConfig, num_generations=4, per_device_train_batch_size=8, steps_per_generation=3)
    assert trl_settings.completions_per_call(args) == 24


def test_a_call_of_asynchronous_grpo_has_whole_groups(config):
    args = config(AsyncGRPOConfig, num_generations=4, per_device_train_batch_size=3)
    assert trl_settings.completions_per_call(args) % 4 == 0


@pytest.mark.parametrize(
    ("config_class", "fields", "limit"),
    [
        (GRPOConfig, {"max_completion_length": 24}, 24),
        (GRPOConfig, {"max_completion_length": None}, math.inf),
        (GRPOConfig, {"max_completion_length": None, "generation_kwargs": {"max_new_tokens": 12}}, 12),
        (GRPOConfig, {"max_completion_length": 24, "generation_kwargs": {"max_new_tokens": 12}}, 12),
        # vLLM calls it max_tokens
        (GRPOConfig, {"max_completion_length": 24, "use_vllm": True, "generation_kwargs": {"max_tokens": 12}}, 12),
        (GRPOConfig, {"max_completion_length": 24, "use_vllm": True, "generation_kwargs": {"max_new_tokens": 9}}, 24),
        (OnlineDPOConfig, {"max_new_tokens": 24}, 24),
    ],
)
def test_the_generation_limit_is_the_last_that_trl_passes_on(config_class, fields, limit, config):
    assert trl_settings.generation_limit(config(config_class, **fields)) == limit


@pytest.mark.parametrize(
    ("config_class", "fields", "kind"),
    [
        (GRPOConfig, {}, None),  # divides by a standard deviation
        (GRPOConfig, {"scale_rewards": "none"}, "centered"),
        (GRPOConfig, {"scale_rewards": False}, "centered"),
        (GRPOConfig, {"scale_rewards": "none", "multi_objective_aggregation": "normalize_then_sum"}, None),
        (RLOOConfig, {}, "leave_one_out"),
        (RLOOConfig, {"normalize_advantages": True}, None),
        (OnlineDPOConfig, {}, None),
    ],
)
def test_the_kind_of_advantage_is_read_from_the_configuration(config_class, fields, kind, config):
    assert trl_settings.advantage_kind(config(config_class, **fields)) == kind


def test_the_chat_template_shows_with_its_arguments_whether_it_opens_the_thinking(config):
    tokenizer = gym_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}{% if enable_thinking %}[THINK]{% endif %}"
    thinks = config(GRPOConfig, chat_template_kwargs={"enable_thinking": True})
    assert trl_settings.thinking_markers(thinks, tokenizer, "[/THINK]") == ThinkingMarkers("[/THINK]", is_opened=True)
    assert not trl_settings.thinking_markers(config(GRPOConfig), tokenizer, "[/THINK]").is_opened
