"""Models with random weights, and the FLOPs of training them."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig

from leash_trl.benchmark.model import model_config, random_model, training_flops


SIZES = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "vocab_size": 300,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "mistral"])
def test_flops_by_hand(model_type):
    width = 8 * 16
    layer = 64 * 2 * width + 64 * 2 * width // 4 + 3 * 64 * 176
    # 6 for each element of a matrix and token; two products of T x T by the width, of which the causal mask needs half
    expected = 6 * (3 * layer + 300 * 64) * (3 + 50) + 6 * 3 * width * (3**2 + 50**2)
    flops = training_flops(AutoConfig.for_model(model_type, **SIZES, pad_token_id=0))
    assert flops([3, 50]) == pytest.approx(expected, rel=1e-12)


def test_flops_of_the_paper_s_model():
    # PaLM's 6 N T + 6 L d T^2: all but the input embedding; biases and norms, which are not counted, are 1e-4 of it
    dense = 1_777_088_000 - 151936 * 1536
    flops = training_flops(model_config("r1-distill-1.5b", 32768))
    assert flops([8600]) == pytest.approx(6 * dense * 8600 + 6 * 28 * 1536 * 8600**2, rel=2e-4)


def test_counting_leaves_the_model_s_attention_as_it_is():
    model = random_model("gym", "float32", 64, 0, torch.device("cpu"))
    training_flops(model.config)
    assert model.config._attn_implementation == "sdpa"


def test_backward_takes_twice_the_forward_pass():
    model = random_model("gym", "float32", 64, 0, torch.device("cpu"))
    model.set_attn_implementation("eager")
    ids = torch.full((1, 48), 7)
    with FlopCounterMode(display=False) as forward:
        loss = model(ids).logits.sum()
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


def test_positions_suffice_for_the_longest_completion():
    assert model_config("gym", 512).max_position_embeddings == 1024
    assert model_config("gym", 4096).max_position_embeddings > 4096


def test_weights_follow_from_the_seed():
    cpu = torch.device("cpu")
    first, same, other = (random_model("gym", "float64", 64, seed, cpu).lm_head.weight for seed in (0, 0, 1))
    assert first.dtype == torch.float64
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_vocabulary_that_is_too_small_is_refused(tokenizer, tmp_path):
    config = model_config("gym", 64)
    config.vocab_size = 50
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"vocabulary of 50 tokens, but needs {len(tokenizer)}"):
        model_config(str(tmp_path / "config.json"), 64)
