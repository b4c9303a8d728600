"""Widths, facts and joined rows by hand, and which models ignore padding on the left. Gradients test trimming."""

import pytest
import torch

from leash_trl.microbatching import batch_fields


def test_a_width_holds_at_least_one_column():
    assert batch_fields.fitting_width(0) == 1
    assert batch_fields.fitting_width(0, multiple_of=4) == 4


def test_facts_of_a_row_are_its_lengths_its_tokens_in_the_loss_and_whether_it_has_a_signal():
    batch = {
        "prompt_mask": torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]]),
        "completion_mask": torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]),
        "advantages": torch.tensor([0.0, 1.0]),
    }
    assert batch_fields.row_facts(batch).tolist() == [[1, 3, 3, 0], [2, 1, 1, 1]]
    batch["tool_mask"] = torch.tensor([[1, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    assert batch_fields.row_facts(batch).tolist() == [[1, 3, 2, 0], [2, 1, 1, 1]]


def test_joined_rows_are_padded_as_trl_pads_them():
    wide = {
        "prompt_ids": torch.tensor([[5, 6]]),
        "completion_ids": torch.tensor([[1, 2, 3]]),
        "importance_sampling_ratio": torch.tensor([[0.5, 0.75, 0.25]]),
        "advantages": torch.tensor([0.5]),
        "num_items_in_batch": torch.tensor(4),
    }
    narrow = {name: values[..., :1] if values.dim() else values for name, values in wide.items()}
    joined = batch_fields.join_batches([wide, narrow], pad_token_id=63)
    assert {name: values.tolist() for name, values in joined.items()} == {
        "prompt_ids": [[5, 6], [63, 5]],
        "completion_ids": [[1, 2, 3], [1, 63, 63]],
        "importance_sampling_ratio": [[0.5, 0.75, 0.25], [0.5, 1.0, 1.0]],
        "advantages": [0.5, 0.5],
        "num_items_in_batch": 4,
    }


# Sizes of a model that is computed in no time; a model type takes those that its configuration has.
SMALL = {
    "vocab_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "sliding_window": 6,
    # mixtures of experts
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    # latent attention
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    # linear attention
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}


@pytest.mark.parametrize("model_type", sorted(batch_fields.PADDING_INVARIANT_MODELS))
def test_relative_models_do_not_see_the_left_edge(model_type):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    default = AutoConfig.for_model(model_type)
    sizes = {name: size for name, size in SMALL.items() if hasattr(default, name)}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4)  # attention that is not flat, so that positions matter
        ids = torch.randint(3, 64, (1, 20))
        mask = torch.ones_like(ids)
        padding = torch.zeros(1, 5, dtype=torch.long)
        padded_ids = torch.cat([padding, ids], dim=1)
        padded_mask = torch.cat([padding, mask], dim=1)
        alone = model(input_ids=ids, attention_mask=mask).logits
        behind_padding = model(input_ids=padded_ids, attention_mask=padded_mask).logits[:, 5:]
        reversed_order = model(input_ids=ids.flip(1), attention_mask=mask).logits.flip(1)
    size = alone.abs().max()
    assert (alone - behind_padding).abs().max() < 1e-4 * size
    assert (alone - reversed_order).abs().max() > 1e-2 * size
