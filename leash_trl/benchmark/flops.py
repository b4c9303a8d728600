"""Model FLOPs of training, by formula: what the tokens need, not what an implementation spends on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ModelShape:
    """What the formula needs to know of a decoder.

    Args:
        matmul_parameters (`int`):
            Parameters that every token is multiplied with: all but the input embedding, which is looked up. A tied
            embedding counts, as the output layer.
        num_layers (`int`):
            Layers with attention.
        attention_width (`int`):
            Query heads times their size.
    """

    matmul_parameters: int
    num_layers: int
    attention_width: int


def shape_of(model: "PreTrainedModel") -> ModelShape:
    """The shape of a decoder with full attention in every layer."""
    config = model.config
    # several of transformers' configurations, Qwen2's among them, leave head_dim out
    head_size = config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads
    looked_up = 0 if config.tie_word_embeddings else model.get_input_embeddings().weight.numel()
    return ModelShape(
        matmul_parameters=sum(parameter.numel() for parameter in model.parameters()) - looked_up,
        num_layers=config.num_hidden_layers,
        attention_width=config.num_attention_heads * head_size,
    )


def training_flops(shape: ModelShape, lengths: Sequence[int]) -> int:
    r"""FLOPs of one forward and backward pass over rows without padding.

    $6 N \sum_i T_i + 6 L d \sum_i T_i^2$: two FLOPs per parameter and token forward, twice that backward; and two
    products of $T \times T$ by $d$ in each layer, of which the causal mask needs half.

    Source: Appendix B of [PaLM](https://huggingface.co/papers/2204.02311).

    Differs: PaLM counts the masked half of attention too ($12 L d T^2$). Recomputation for gradient checkpointing
    does not count, there as here.

    Args:
        shape (`ModelShape`):
            The model: N `matmul_parameters`, L `num_layers`, d `attention_width`.
        lengths (`Sequence[int]`):
            Tokens of each row, prompt and completion together.

    Example:
        >>> training_flops(ModelShape(matmul_parameters=100, num_layers=2, attention_width=4), [10, 20])
        42000
    """
    dense = 6 * shape.matmul_parameters * sum(lengths)
    attention = 6 * shape.num_layers * shape.attention_width * sum(length**2 for length in lengths)
    return dense + attention
