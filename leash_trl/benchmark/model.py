"""Makes models with random weights by the name of their architecture, and counts the FLOPs of training them."""

import copy
from collections.abc import Callable, Sequence

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from leash_trl.gym import CHECKPOINT
from leash_trl.gym.tokenizer import build_tokenizer
from leash_trl.planning.plan import PAPER_MODELS


PROMPT_ROOM = 256  # tokens; the gym's prompts are far shorter


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
        config = AutoConfig.for_model(**PAPER_MODELS["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"])
    else:
        config = AutoConfig.from_pretrained(CHECKPOINT if name == "gym" else name)
    if config.vocab_size < (needed := len(build_tokenizer())):
        raise ValueError(f"model is {name!r} with a vocabulary of {config.vocab_size} tokens, but needs {needed}")
    config.max_position_embeddings = max(config.max_position_embeddings, max_length + PROMPT_ROOM)
    config.bos_token_id = config.eos_token_id = None
    config.pad_token_id = build_tokenizer().pad_token_id
    return config


def random_model(name: str, dtype: str, max_length: int, seed: int, device: torch.device) -> PreTrainedModel:
    """A model of [`model_config`] with seeded random weights, on `device`."""
    config = model_config(name, max_length)
    torch.manual_seed(seed)
    with device:
        return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))


def training_flops(config: PretrainedConfig) -> Callable[[Sequence[int]], float]:
    r"""
    A function from the lengths of rows, in tokens, to the FLOPs of one forward and backward pass over them without
    padding: $3 \sum_i (a T_i + b T_i^2 / 2)$, as the backward pass takes twice the forward pass.

    `FlopCounterMode` counts $a T + b T^2$ of the forward pass at two lengths, on the meta device. It counts the half
    of attention that the causal mask leaves out, which is halved here; and it sees nothing of the CPU's fused
    attention, so the model has transformers' `eager` attention. Recomputation for gradient checkpointing does not
    count, as in Appendix B of [PaLM](https://huggingface.co/papers/2204.02311).
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="eager")

    def forward_flops(length: int) -> int:
        ids = torch.ones(1, length, dtype=torch.long, device="meta")
        with FlopCounterMode(display=False) as counter:
            model(input_ids=ids, attention_mask=ids, use_cache=False)
        return counter.get_total_flops()

    length = 64
    once = forward_flops(length)
    b = (forward_flops(2 * length) - 2 * once) / (2 * length**2)
    a = once / length - b * length
    return lambda lengths: 3 * sum(a * length + b * length**2 / 2 for length in lengths)
