"""Models with random weights, by the name of their architecture."""

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, Qwen2Config

from leash_trl.gym import CHECKPOINT
from leash_trl.gym.tokenizer import build_tokenizer


PROMPT_ROOM = 256  # tokens; the gym's prompts are far shorter


def _r1_distill_1_5b() -> PretrainedConfig:
    # Source: config.json of deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
    return Qwen2Config(
        vocab_size=151936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        max_position_embeddings=131072,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        tie_word_embeddings=False,
    )


def model_config(name: str, max_length: int) -> PretrainedConfig:
    """Configuration of an architecture, with room for prompts and completions, and no end token.

    Args:
        name (`str`):
            `"gym"`, `"r1-distill-1.5b"`, or the path of a `config.json`.
        max_length (`int`):
            Longest completion in tokens.

    Raises:
        `ValueError`: If the vocabulary is smaller than that of the gym's tokenizer, which prompts are written in.
    """
    if name == "r1-distill-1.5b":
        config = _r1_distill_1_5b()
    else:
        config = AutoConfig.from_pretrained(CHECKPOINT if name == "gym" else name)
    if config.vocab_size < (needed := len(build_tokenizer())):
        raise ValueError(f"model is {name!r} with a vocabulary of {config.vocab_size} tokens, but needs {needed}")
    config.max_position_embeddings = max(config.max_position_embeddings, max_length + PROMPT_ROOM)
    config.bos_token_id = config.eos_token_id = None
    config.pad_token_id = build_tokenizer().pad_token_id
    return config


def num_parameters(model: PreTrainedModel) -> int:
    """Elements of all parameters; a tied embedding counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def random_model(name: str, dtype: str, max_length: int, seed: int, device: torch.device) -> PreTrainedModel:
    """A model of [`model_config`] with seeded random weights, on `device`."""
    config = model_config(name, max_length)
    torch.manual_seed(seed)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
