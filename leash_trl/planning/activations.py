r"""Computes the bytes that a decoder's forward pass keeps for its backward pass, tensor by tensor.

The method is that of [Reducing Activation Recomputation in Large Transformer
Models](https://huggingface.co/papers/2205.05198), section 4: count what each operation saves. Its 34 bytes per
position and unit of width are GPT's in half precision with dropout; the numbers here are those of transformers' Llama
and Qwen layers, whose norms compute in float32, and which under autocast keep a float32 residual stream.
`tests/test_plan_memory.py` compares them with what autograd really saves.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash_trl.engines.checkpoint_path import complete_model_path


if TYPE_CHECKING:
    from transformers import PreTrainedConfig


MODEL_TYPES = ("qwen2", "qwen3", "llama", "mistral")
"""Model types that the formulas hold for."""

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
"""Sizes of the paper's models, so that planning and measuring them needs no download."""

FLOAT32 = 4
HEAD_TOKENS = 4096
HEAD_COLUMNS = 32768
"""Tile of logits that TRL's fused head computes at a time: `TOKEN_CHUNK_SIZE`, `_CHUNKED_LOGPROB_CHUNK_SIZE`."""


@dataclass(frozen=True)
class Architecture:
    """
    Shapes of a decoder with gated feed-forward layers and RMS norms, in elements.

    Args:
        hidden_size (`int`), intermediate_size (`int`), vocab_size (`int`):
            Width of the residual stream and of the feed-forward layer, and rows of the embedding.
        num_layers (`int`), num_heads (`int`), num_kv_heads (`int`), head_dim (`int`):
            Decoder layers, query heads, key and value heads of each, and the width of a head.
        has_query_key_norm (`bool`):
            Whether queries and keys pass a norm of their own, as in Qwen3.
        linear_parameters (`int`):
            Elements of one layer's matrices and biases.
        layer_parameters (`int`):
            Elements of one layer, norms included.
        num_parameters (`int`):
            Elements of the complete model; a tied head counts once.
    """

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_query_key_norm: bool
    linear_parameters: int
    layer_parameters: int
    num_parameters: int

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; values have the same."""
        return self.num_kv_heads * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        """Elements of the embedding, which are also those of the head."""
        return self.vocab_size * self.hidden_size

    @property
    def outer_parameters(self) -> int:
        """Elements outside the layers: embedding, last norm and, unless tied, head."""
        return self.num_parameters - self.num_layers * self.layer_parameters


def load_model_config(model: str, config_file: str | None) -> "PreTrainedConfig":
    """
    A model's configuration: the given file, a folder's, one of the paper's models, the gym's or the Hub's.

    Raises:
        `ValueError`: If there is none to be had, or it describes no model.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    if config_file is None and model in PAPER_MODELS and not Path(model).is_dir():
        return AutoConfig.for_model(**PAPER_MODELS[model])
    try:
        if config_file is not None and not Path(config_file).is_file():
            raise FileNotFoundError("no such file")
        return AutoConfig.from_pretrained(config_file or complete_model_path(model))
    except (OSError, ValueError, StrictDataclassError) as error:
        place = f"--model_config {config_file}" if config_file else f"model_name_or_path {model!r}"
        raise ValueError(
            f"{place}: {' '.join(str(error).split())}; give the model's config.json with --model_config FILE"
        ) from error


def read_architecture(config: "PreTrainedConfig") -> Architecture:
    """
    The shapes of the model that a configuration describes, counted on torch's meta device, which holds no data.

    Raises:
        `ValueError`: If the formulas do not hold for the model type.
    """
    if config.model_type not in MODEL_TYPES:
        raise ValueError(
            f"model_type is {config.model_type!r}, but the memory formulas hold for {', '.join(MODEL_TYPES)}; give "
            "the config.json of a model of one of these types with --model_config"
        )
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)

    def count(module: torch.nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    layer = model.model.layers[0]
    return Architecture(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=layer.self_attn.head_dim,
        has_query_key_norm=config.model_type == "qwen3",
        linear_parameters=sum(count(part) for part in layer.modules() if isinstance(part, torch.nn.Linear)),
        layer_parameters=count(layer),
        num_parameters=count(model),
    )


@dataclass(frozen=True)
class MicroBatch:
    """The largest micro-batch of a GPU.

    Args:
        tokens (`int`):
            Positions that it computes, padding included.
        length (`int`):
            Positions of its longest row.
        is_padded (`bool`):
            Whether a row may be shorter than the longest, and so need an attention mask.
    """

    tokens: int
    length: int
    is_padded: bool


def layer_bytes_per_token(
    architecture: Architecture, weight_bytes: int, compute_bytes: int, repeats_kv: bool = False
) -> int:
    """
    Bytes that one layer keeps per position.

    Args:
        architecture (`Architecture`):
            Shapes of the model.
        weight_bytes (`int`):
            Bytes per element of weights and residual stream in the forward pass, 4 or 2.
        compute_bytes (`int`):
            Bytes per element of matrix products: 2 in bfloat16, with autocast if weights have 4.
        repeats_kv (`bool`, *optional*, defaults to `False`):
            Whether keys and values are kept once per query head: `sdpa` does so when there is a mask.

    Returns:
        `int`: Bytes per position, of the sum over

        - two norms: input in float32, normalised input, one float32 factor;
        - inputs of the matrix products; under autocast each of the five that read a norm casts its own copy;
        - queries, keys, values and output of attention and its float32 log-sum;
        - four tensors of the feed-forward layer: gate, its activation, up, and their product;
        - with norms of queries and keys: their input in float32, normalised, and a float32 factor per head.
    """
    hidden, query, kv = architecture.hidden_size, architecture.query_size, architecture.kv_size
    casts = weight_bytes != compute_bytes
    norms = 2 * ((FLOAT32 + weight_bytes) * hidden + FLOAT32)
    inputs = (5 if casts else 2) * compute_bytes * hidden
    attention = 2 * compute_bytes * query + 2 * compute_bytes * (query if repeats_kv else kv)
    attention += FLOAT32 * architecture.num_heads
    feed_forward = 4 * compute_bytes * architecture.intermediate_size
    query_key_norms = 0
    if architecture.has_query_key_norm:
        heads = architecture.num_heads + architecture.num_kv_heads
        query_key_norms = (FLOAT32 + compute_bytes) * (query + kv) + FLOAT32 * heads
    return norms + inputs + attention + feed_forward + query_key_norms


def layer_bytes(
    architecture: Architecture, batch: MicroBatch, weight_bytes: int, compute_bytes: int, keeps_mask: bool
) -> float:
    """Bytes that one layer keeps for a micro-batch: its positions', and with `sdpa` and padding an additive mask of
    length x length per row."""
    masks = keeps_mask and batch.is_padded
    mask = compute_bytes * batch.tokens * batch.length if masks else 0.0
    return batch.tokens * layer_bytes_per_token(architecture, weight_bytes, compute_bytes, masks) + mask


def outer_bytes_per_token(architecture: Architecture, weight_bytes: int) -> int:
    """Bytes kept per position outside the layers: the last norm and the token's id. What the head keeps is
    `head_bytes`."""
    return (FLOAT32 + weight_bytes) * architecture.hidden_size + FLOAT32 + 8


def cast_bytes(architecture: Architecture, num_layers: int, weight_bytes: int, compute_bytes: int) -> int:
    """Bytes of the weights' bfloat16 copies that autocast holds for `num_layers` layers; 0 if nothing is cast.

    Autocast keeps the copies until the forward pass ends, and without checkpointing the graph keeps them until the
    layer's backward pass. Source: `cached_cast` in torch's aten/src/ATen/autocast_mode.cpp.
    """
    if weight_bytes == compute_bytes:
        return 0
    return compute_bytes * num_layers * architecture.linear_parameters


def backward_bytes_per_token(architecture: Architecture, compute_bytes: int) -> int:
    """Bytes per position of the gradients that live at once while one layer goes backward: two of the feed-forward
    layer's width and one of a matrix product's input."""
    return compute_bytes * (2 * architecture.intermediate_size + architecture.hidden_size)


def head_bytes(architecture: Architecture, tokens: int, weight_bytes: int, compute_bytes: int) -> float:
    """
    Peak bytes of log-probabilities and their backward pass with TRL's fused head, which holds a tile of logits.

    The tile, which is as wide for a small vocabulary, the head's slice in the computing dtype, the head's
    gradient in float32, and per position the hidden state, its selection and its float32 gradient. Source:
    `ChunkedLogProbFunction` in trl/kernels.
    """
    tile = compute_bytes * min(tokens, HEAD_TOKENS) * HEAD_COLUMNS
    head_slice = compute_bytes * min(architecture.vocab_size, HEAD_COLUMNS) * architecture.hidden_size
    # summed in float32, then cast to the weights' dtype
    gradient = (FLOAT32 + (weight_bytes if weight_bytes != FLOAT32 else 0)) * architecture.embedding_parameters
    return tile + head_slice + gradient + tokens * (2 * weight_bytes + FLOAT32) * architecture.hidden_size


def checkpointed_peak(
    architecture: Architecture, batch: MicroBatch, weight_bytes: int, compute_bytes: int, keeps_mask: bool
) -> float:
    """
    Most bytes that a micro-batch holds at once with gradient checkpointing.

    The residual stream before each layer, and the largest of: the copies of all weights and the last layer's three
    feed-forward tensors in the forward pass; the head's backward pass; one layer's activations, copies and gradients.
    The first two do not overlap: autocast has dropped its copies when the backward pass begins. Source: section 5
    of [Reducing Activation Recomputation in Large Transformer Models](https://huggingface.co/papers/2205.05198).
    """
    stream = architecture.num_layers * weight_bytes * architecture.hidden_size * batch.tokens
    mask = batch.tokens * batch.length if keeps_mask and batch.is_padded else 0.0
    forward = 3 * compute_bytes * architecture.intermediate_size * batch.tokens
    forward += cast_bytes(architecture, architecture.num_layers, weight_bytes, compute_bytes)
    head = head_bytes(architecture, batch.tokens, weight_bytes, compute_bytes)
    head += batch.tokens * outer_bytes_per_token(architecture, weight_bytes)
    layer = layer_bytes(architecture, batch, weight_bytes, compute_bytes, keeps_mask)
    layer += cast_bytes(architecture, 1, weight_bytes, compute_bytes)
    layer += batch.tokens * backward_bytes_per_token(architecture, compute_bytes)
    return stream + mask + max(forward, head, layer)


def kept_peak(
    architecture: Architecture, batch: MicroBatch, weight_bytes: int, compute_bytes: int, keeps_mask: bool
) -> float:
    """Most bytes that a micro-batch holds at once without gradient checkpointing: everything that all layers keep,
    and the larger of the head's backward pass and one layer's gradients."""
    kept = architecture.num_layers * layer_bytes(architecture, batch, weight_bytes, compute_bytes, keeps_mask)
    kept += cast_bytes(architecture, architecture.num_layers, weight_bytes, compute_bytes)
    mask = batch.tokens * batch.length if keeps_mask and batch.is_padded else 0.0
    head = head_bytes(architecture, batch.tokens, weight_bytes, compute_bytes)
    head += batch.tokens * outer_bytes_per_token(architecture, weight_bytes)
    gradients = batch.tokens * backward_bytes_per_token(architecture, compute_bytes)
    return kept + mask + max(head, gradients)
