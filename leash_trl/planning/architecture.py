"""Shapes of a dense decoder, read from its config.json, and the number of its parameters."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


QUERY_KEY_VALUE_BIAS = {"qwen2": True, "qwen3": False, "llama": False, "mistral": False}
"""Model types that the formulas hold for, and whether their query, key and value projections have a bias unasked."""

PAPER_MODELS: dict[str, dict[str, Any]] = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": {
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
    },
    "Qwen/Qwen3-4B-Thinking-2507": {
        "model_type": "qwen3",
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
}
"""The paper's models, so that planning them needs no download."""


@dataclass(frozen=True)
class Architecture:
    """
    Shapes of a decoder with gated feed-forward layers and RMS norms: Llama, Mistral, Qwen2, Qwen3.

    Args:
        hidden_size (`int`):
            Width of the residual stream, in elements.
        intermediate_size (`int`):
            Width of the feed-forward layer, in elements.
        num_layers (`int`):
            Number of decoder layers.
        num_heads (`int`):
            Number of query heads.
        num_kv_heads (`int`):
            Number of key and value heads.
        head_dim (`int`):
            Width of a head, in elements.
        vocab_size (`int`):
            Rows of the embedding.
        is_tied (`bool`):
            Whether the head is the embedding.
        num_biases (`int`):
            Bias elements of one layer.
        has_query_key_norm (`bool`):
            Whether queries and keys pass a norm of their own, as in Qwen3.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    is_tied: bool
    num_biases: int
    has_query_key_norm: bool

    @property
    def query_size(self) -> int:
        """Width of all query heads together, in elements."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together, in elements; values have the same."""
        return self.num_kv_heads * self.head_dim

    @property
    def linear_parameters(self) -> int:
        """Elements of one layer's matrices and biases."""
        attention = 2 * self.hidden_size * self.query_size + 2 * self.hidden_size * self.kv_size
        return attention + 3 * self.hidden_size * self.intermediate_size + self.num_biases

    @property
    def layer_parameters(self) -> int:
        """Elements of one layer, norms included."""
        norms = 2 * self.hidden_size + (2 * self.head_dim if self.has_query_key_norm else 0)
        return self.linear_parameters + norms

    @property
    def embedding_parameters(self) -> int:
        """Elements of the embedding, which are also those of the head."""
        return self.vocab_size * self.hidden_size

    @property
    def outer_parameters(self) -> int:
        """Elements outside the layers: embedding, last norm and, unless tied, head."""
        return self.embedding_parameters * (1 if self.is_tied else 2) + self.hidden_size

    @property
    def num_parameters(self) -> int:
        """Elements of the whole model.

        >>> read_architecture(PAPER_MODELS["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"]).num_parameters
        1777088000
        """
        return self.num_layers * self.layer_parameters + self.outer_parameters


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """
    The shapes that a config.json describes.

    Args:
        config (`Mapping[str, Any]`):
            Content of a model's config.json.

    Returns:
        `Architecture`: Its shapes, with the defaults of transformers for heads and tying.

    Raises:
        `ValueError`: If the model type is one that the formulas do not hold for, or a size is missing.
    """
    model_type = config.get("model_type")
    if model_type not in QUERY_KEY_VALUE_BIAS:
        raise ValueError(
            f"model_type is {model_type!r}, but the memory formulas hold for {', '.join(QUERY_KEY_VALUE_BIAS)}; give "
            "the config.json of a model of one of these types with --model_config"
        )
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    if missing := [name for name in sizes if not isinstance(config.get(name), int) or config[name] < 1]:
        raise ValueError(f"config.json has no positive {' and '.join(missing)}; give a whole one with --model_config")
    num_heads = config["num_attention_heads"]
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    head_dim = config.get("head_dim") or config["hidden_size"] // num_heads
    query_size, kv_size = num_heads * head_dim, num_kv_heads * head_dim
    num_biases = 0
    if QUERY_KEY_VALUE_BIAS[model_type] or config.get("attention_bias"):
        num_biases += query_size + 2 * kv_size
    if model_type in ("llama", "qwen3") and config.get("attention_bias"):
        num_biases += config["hidden_size"]
    if model_type == "llama" and config.get("mlp_bias"):
        num_biases += 2 * config["intermediate_size"] + config["hidden_size"]
    return Architecture(
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=config["vocab_size"],
        is_tied=bool(config.get("tie_word_embeddings", False)),
        num_biases=num_biases,
        has_query_key_norm=model_type == "qwen3",
    )
