"""What a model says before it is loaded: how many tokens it sees, by the kind of its rotary positions."""

import pytest
from transformers import FalconConfig, Gemma3TextConfig, GPT2Config, LlamaConfig, MambaConfig, MptConfig

from leash_trl.model_facts import context_length


LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = {"short_factor": [1.0] * 64, "long_factor": [4.0] * 64}


@pytest.mark.parametrize(
    ("kind", "length", "factor", "original", "more", "context"),
    [
        ("default", 32768, None, None, {}, 32768),
        ("linear", 4096, 4.0, None, {}, 16384),  # Vicuna 1.5 16k
        ("linear", 32768, 2.0, None, {}, 65536),
        ("dynamic", 4096, 2.0, None, {}, 8192),  # transformers stretches from max_position_embeddings on
        ("yarn", 32768, 4.0, 32768, {}, 131072),  # Qwen2.5's README, which leaves max_position_embeddings as it is
        ("yarn", 131072, 4.0, 32768, {}, 131072),  # a configuration that has been stretched as well
        ("yarn", 40960, 4.0, 32768, {}, 131072),  # Qwen3's README
        ("llama3", 131072, 32.0, 8192, LLAMA3, 131072),  # Llama 3.2, which sees half of 32 x 8192
        ("longrope", 131072, 32.0, 4096, LONGROPE, 131072),  # Phi 3
    ],
)
def test_each_kind_of_scaling_has_its_rule(kind, length, factor, original, more, context):
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": factor, "original_max_position_embeddings": original}
    given = {name: value for name, value in rope.items() if value is not None}
    assert context_length(LlamaConfig(max_position_embeddings=length, rope_parameters={**given, **more})) == context


def test_a_scaling_for_each_kind_of_layer_is_counted_already():
    linear = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}  # Gemma 3's
    layers = {"full_attention": linear, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    assert context_length(Gemma3TextConfig(max_position_embeddings=131072, rope_parameters=layers)) == 131072


@pytest.mark.parametrize(
    ("config", "context"),
    [(MambaConfig(), None), (MptConfig(), None), (FalconConfig(alibi=True), None), (GPT2Config(n_positions=512), 512)],
    ids=lambda value: type(value).__name__,
)
def test_slopes_and_recurrences_have_no_end_and_learned_positions_have(config, context):
    assert context_length(config) == context
