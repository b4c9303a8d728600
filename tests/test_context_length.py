"""What a model says before it is loaded: how many tokens it sees, by the kind of its rotary positions."""

import pytest
from transformers import Gemma3TextConfig, GPT2Config, LlamaConfig, MambaConfig, MptConfig

from leash_trl.model_facts import context_length


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"short_factor": [1.0] * 64, "long_factor": [4.0] * 64}


@pytest.mark.parametrize(
    ("rope_type", "length", "factor", "original_length", "factors", "context"),
    [
        ("linear", 4096, 4.0, None, {}, 16384),  # Vicuna 1.5 16k
        ("dynamic", 4096, 2.0, None, {}, 8192),  # transformers stretches from max_position_embeddings on
        ("yarn", 32768, 4.0, 32768, {}, 131072),  # Qwen2.5's README, which leaves max_position_embeddings as it is
        ("yarn", 131072, 4.0, 32768, {}, 131072),  # a configuration that has been stretched as well
        ("llama3", 131072, 32.0, 8192, LLAMA3, 131072),  # Llama 3.2, which sees half of 32 x 8192
        ("longrope", 131072, 32.0, 4096, LONGROPE, 131072),  # Phi 3
    ],
)
def test_each_kind_of_scaling_has_its_rule(rope_type, length, factor, original_length, factors, context):
    rope_parameters = {"rope_type": rope_type, "rope_theta": 1e4, "factor": factor, **factors}
    if original_length is not None:
        rope_parameters["original_max_position_embeddings"] = original_length
    config = LlamaConfig(max_position_embeddings=length, rope_parameters=rope_parameters)
    assert context_length(config) == context


def test_a_scaling_for_each_kind_of_layer_is_counted_already():
    rope_parameters = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = Gemma3TextConfig(max_position_embeddings=131072, rope_parameters=rope_parameters)
    assert context_length(config) == 131072


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (MambaConfig(), None),  # recurrences
        (MptConfig(), None),  # linear biases
        (GPT2Config(n_positions=512), 512),  # learned positions
    ],
    ids=lambda value: type(value).__name__,
)
def test_recurrences_and_linear_biases_have_no_limit_and_learned_positions_have(config, context):
    assert context_length(config) == context
