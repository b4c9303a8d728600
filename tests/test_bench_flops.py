"""Model FLOPs by formula, and the models they are counted for."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from leash_trl.benchmark.flops import ModelShape, shape_of, training_flops
from leash_trl.benchmark.model import model_config, random_model


META = torch.device("meta")


def test_training_flops_by_hand():
    # dense: 6 * 1000 * (3 + 5) = 48000; attention: 6 * 2 layers * 8 wide * (9 + 25) = 3264
    assert training_flops(ModelShape(1000, num_layers=2, attention_width=8), [3, 5]) == 48000 + 3264


def test_r1_distill_has_the_published_size():
    model = random_model("r1-distill-1.5b", "bfloat16", 32768, 0, META)
    # 28 layers of 46,797,824; input and output embeddings of 151936 * 1536; the last norm
    assert sum(p.numel() for p in model.parameters()) == 28 * 46_797_824 + 2 * 151936 * 1536 + 1536 == 1_777_088_000
    assert shape_of(model) == ModelShape(1_777_088_000 - 151936 * 1536, num_layers=28, attention_width=12 * 128)


def test_a_tied_embedding_counts_as_the_output_layer():
    model = random_model("gym", "float32", 64, 0, META)
    assert shape_of(model).matmul_parameters == sum(p.numel() for p in model.parameters())
    assert shape_of(model).attention_width == 3 * 32


def test_the_formula_agrees_with_torch_s_count():
    # attention without its causal saving, which torch counts in full: 12 L d T^2, so half of it is added here
    model = random_model("gym", "float32", 64, 0, torch.device("cpu"))
    model.set_attn_implementation("eager")
    shape, length = shape_of(model), 48
    with FlopCounterMode(display=False) as counter:
        model(torch.full((1, length), 7)).logits.sum().backward()
    masked_half = 6 * shape.num_layers * shape.attention_width * length**2
    # torch leaves out norms, which the parameters hold
    assert counter.get_total_flops() == pytest.approx(training_flops(shape, [length]) + masked_half, rel=0.01)


def test_positions_suffice_for_the_longest_completion():
    assert model_config("gym", 512).max_position_embeddings == 1024
    assert model_config("gym", 4096).max_position_embeddings > 4096


def test_weights_follow_from_the_seed():
    cpu = torch.device("cpu")
    first, same, other = (random_model("gym", "float64", 64, seed, cpu).lm_head.weight for seed in (0, 0, 1))
    assert first.dtype == torch.float64
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_a_vocabulary_that_is_too_small_is_refused(tmp_path):
    config = model_config("gym", 64)
    config.vocab_size = 50
    config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="vocabulary of 50 tokens, but needs 116"):
        model_config(str(tmp_path / "config.json"), 64)
