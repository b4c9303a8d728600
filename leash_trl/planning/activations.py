r"""Bytes that the forward pass of a decoder keeps for its backward pass, tensor by tensor.

The method is that of [Reducing Activation Recomputation in Large Transformer
Models](https://huggingface.co/papers/2205.05198), section 4: count what each operation saves. Its 34 bytes per
position and unit of width are GPT's in half precision with dropout; the numbers here are those of transformers' Llama
and Qwen layers, whose norms compute in float32, and which under autocast keep a float32 residual stream.
`tests/test_plan_memory.py` compares them with what autograd really saves.
"""

from leash_trl.planning.architecture import Architecture
from leash_trl.planning.micro_batches import MicroBatch


FLOAT32 = 4
HEAD_TOKENS = 4096
HEAD_COLUMNS = 32768
"""Tile of logits that TRL's fused head computes at a time: `TOKEN_CHUNK_SIZE`, `_CHUNKED_LOGPROB_CHUNK_SIZE`."""


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
    """Bytes of the weights' bfloat16 copies that autocast holds for `num_layers` layers; 0 where nothing is cast.

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


def head_bytes(architecture: Architecture, tokens: float, weight_bytes: int, compute_bytes: int) -> float:
    """
    Peak bytes of log-probabilities and their backward pass with TRL's fused head: no logits of the whole micro-batch.

    A tile of logits, which is as wide for a small vocabulary, the head's slice in the computing dtype, the head's
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
