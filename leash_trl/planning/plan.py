r"""Estimates the memory of one GPU during training and during generation, and suggests options that reduce it.

With $\Psi$ parameters on $N_d$ GPUs, the sizes of weights, gradients and optimizer state follow
[ZeRO](https://huggingface.co/papers/1910.02054), section 3.1 and figure 1; buffers of DDP, DeepSpeed and FSDP2 are
added. TRL loads weights in float32 unless `dtype` is set, and `bf16: true` then enables autocast, where the float32
weights are the only copy. DeepSpeed casts these weights to bfloat16 and keeps a float32 master copy. FSDP2 keeps
float32 shards and gathers them in bfloat16. With LoRA, only the adapter has gradients and optimizer state. QLoRA
stores the adapted matrices in 4 bits.

Activations are counted tensor by tensor, as in [Reducing Activation Recomputation in Large Transformer
Models](https://huggingface.co/papers/2205.05198), section 4, for transformers' Llama and Qwen layers, whose norms
compute in float32 and whose residual stream is float32 under autocast. `tests/planning` compares the estimates with
the tensors that autograd saves.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from leash_trl.model_paths import complete_model_path
from leash_trl.paths import existing_path


if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedConfig


# stored here so that planning for these models needs no download
PAPER_MODELS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("paper_models.json").read_text())
MODEL_TYPES = ("qwen2", "qwen3", "llama", "mistral")  # the formulas apply to these
GIB = 2**30
BFLOAT16_BYTES = 2  # of each element
FLOAT32_BYTES = 4
# Bytes per weight in 4 bits, with one float32 scale per 64 weights: [QLoRA](https://huggingface.co/papers/2305.14314)
QUANTIZED_BYTES = 0.5 + FLOAT32_BYTES / 64
RESERVED_SHARE = 0.05  # share of a GPU's memory reserved for the CUDA context, NCCL's buffers and fragmentation
TIGHT_SPARE_SHARE = 0.05  # share of the usable memory; if less remains, the estimate's error may exceed it
# Tile of logits that TRL's fused head computes at once: `TOKEN_CHUNK_SIZE`, `_CHUNKED_LOGPROB_CHUNK_SIZE`
HEAD_TILE_TOKENS = 4096
HEAD_TILE_COLUMNS = 32768
DEEPSPEED_BUCKET_ELEMENTS = 500_000_000  # elements; default of `reduce_bucket_size`
DEEPSPEED_LIVE_PARAMETERS = 1_000_000_000  # parameters gathered at once; default of `stage3_max_live_parameters`
VLLM_BATCHED_TOKENS = 4096  # positions per forward pass: `max_num_batched_tokens` in trl/generation


@dataclass(frozen=True)
class Architecture:
    """Sizes, in elements, of a decoder with gated feed-forward layers and RMS norms.

    `query_width` is the width of all query heads together, `kv_width` that of all key heads, which equals that of all
    value heads. `num_parameters` counts a tied head once. `adapter_parameters` counts the parameters that LoRA trains,
    and `quantized_parameters` those of the layers' matrices, which QLoRA quantizes.
    """

    config: "PreTrainedConfig"
    query_width: int
    kv_width: int
    layer_parameters: int
    num_parameters: int
    adapter_parameters: int
    quantized_parameters: int


def load_model_config(model: str, config_file: str | None) -> "PreTrainedConfig":
    """Loads the configuration in `config_file` or, without one, that of a model of the paper, a folder, the gym or the
    Hub."""
    from transformers import AutoConfig

    if config_file is None and model in PAPER_MODELS:
        return AutoConfig.for_model(**PAPER_MODELS[model])
    path = complete_model_path(model) if config_file is None else existing_path(config_file, "model_config")
    return AutoConfig.from_pretrained(path)


def read_architecture(config: "PreTrainedConfig", peft_config: "PeftConfig") -> Architecture:
    """Returns the sizes of a model and its adapter, counted on torch's meta device, which allocates no memory.

    Raises:
        `ValueError`: If the formulas do not apply to the model type.
    """
    if config.model_type not in MODEL_TYPES:
        raise ValueError(
            f"model_type is {config.model_type!r}, but must be one of {', '.join(MODEL_TYPES)}; check model_config"
        )
    import torch
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    # Tensors on the meta device have shapes, but no values, so the model takes no memory.
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        layer = model.model.layers[0]
        layer_parameters = sum(parameter.numel() for parameter in layer.parameters())
        # QLoRA quantizes the matrices of the layers, but neither their norms nor their biases, which are vectors.
        matrix_parameters = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() == 2)
        num_parameters = model.num_parameters()
        # The adapter comes last, since PEFT replaces modules of the model.
        adapter_parameters, _ = get_peft_model(model, peft_config).get_nb_trainable_parameters()
    return Architecture(
        config=config,
        query_width=layer.self_attn.q_proj.out_features,
        kv_width=layer.self_attn.k_proj.out_features,
        layer_parameters=layer_parameters,
        num_parameters=num_parameters,
        adapter_parameters=adapter_parameters,
        quantized_parameters=config.num_hidden_layers * matrix_parameters,
    )


@dataclass(frozen=True)
class Settings:
    """Settings of a run to plan. Fields that are not listed here have the same meaning as in a recipe.

    Args:
        gpu_memory (`float`): Memory of one GPU, in GiB.
        sharding (`str`): `none` (DDP), DeepSpeed's `zero1`, `zero2` or `zero3`, or `fsdp` (FSDP2).
        weight_dtype_bytes (`int`): Bytes per element of the weights as loaded: 4 (TRL's default), 2 with
            `dtype: bfloat16`.
        compute_dtype_bytes (`int`): Bytes per element in matrix products: 2 with `bf16`.
        groups_lengths (`bool`): Whether micro-batches are filled up to a number of tokens
            (`length_grouped_microbatches`).
        max_length (`int`): Tokens of the longest row, prompt included.
        max_completion_length (`int`): Tokens of the longest completion.
        vllm_mode (`str`): `colocate` or `server`; `None` if vLLM is not used.
    """

    architecture: Architecture
    num_gpus: int
    gpu_memory: float
    sharding: str
    weight_dtype_bytes: int
    compute_dtype_bytes: int
    gradient_checkpointing: bool
    beta: float
    use_peft: bool
    load_in_4bit: bool
    attn_implementation: str
    groups_lengths: bool
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int
    max_length: int
    max_completion_length: int
    vllm_mode: str | None
    vllm_gpu_memory_utilization: float
    vllm_enable_sleep_mode: bool
    vllm_tensor_parallel_size: int
    vllm_max_model_length: int

    @property
    def adapter_parameters(self) -> int:
        """Returns the number of the adapter's parameters; 0 if the model itself is trained."""
        return self.architecture.adapter_parameters if self.use_peft else 0

    @property
    def trained_parameters(self) -> int:
        """Returns the number of parameters that are trained: the adapter's, else the model's."""
        return self.adapter_parameters or self.architecture.num_parameters

    @property
    def microbatch_tokens(self) -> int:
        """Returns the number of positions in the largest micro-batch: `per_device_train_batch_size` times the maximum
        length of a row. Micro-batches that are grouped by length are not larger."""
        return self.per_device_train_batch_size * self.max_length

    @property
    def needs_mask(self) -> bool:
        """Returns whether attention keeps a mask of the largest micro-batch."""
        # A single row has padding only if it is not trimmed to its length. FlashAttention needs no mask.
        is_padded = self.per_device_train_batch_size > 1 or not self.groups_lengths
        return is_padded and "flash" not in self.attn_implementation

    @property
    def forward_weight_dtype_bytes(self) -> int:
        """Returns the bytes per element of the weights in the forward pass, before which DeepSpeed and FSDP2 cast
        them."""
        return self.weight_dtype_bytes if self.sharding == "none" else self.compute_dtype_bytes

    @property
    def is_autocast(self) -> bool:
        """Returns whether autocast casts the weights and inputs of matrix products in the forward pass."""
        return self.forward_weight_dtype_bytes != self.compute_dtype_bytes


def layer_activation_bytes(settings: Settings) -> int:
    """Returns the bytes that one layer keeps for the backward pass of the largest micro-batch.

    Each position has the following tensors:

    - two norms: the input in float32, the normalized input, and one float32 factor;
    - inputs of the matrix products; under autocast, each of the five products that read a norm casts its own copy;
    - queries, keys, values and output of attention, and the float32 log-sum; with a mask, `sdpa` repeats keys and
      values for each query head;
    - four tensors of the feed-forward layer: gate, activation of the gate, up projection, and product of the two;
    - norms of queries and keys (Qwen3): the input in float32, the normalized input, and a float32 factor per head.

    If attention needs a mask, each row has an additive mask of shape (length, length).
    """
    config = settings.architecture.config
    size = settings.compute_dtype_bytes
    weight_size = settings.forward_weight_dtype_bytes

    # All sizes are bytes per position.
    norm = (FLOAT32_BYTES + weight_size) * config.hidden_size + FLOAT32_BYTES  # input, output and factor
    norms = 2 * norm  # before attention, and before the feed-forward layer
    # Under autocast, each of the products q, k, v, gate and up casts its own copy of its input. Otherwise, the
    # products behind a norm share the output of the norm.
    num_inputs = 5 if settings.is_autocast else 2
    inputs = num_inputs * size * config.hidden_size
    feed_forward = 4 * size * config.intermediate_size  # gate, its activation, up projection and product
    return settings.microbatch_tokens * (norms + inputs + _attention_position_bytes(settings) + feed_forward)


def _attention_position_bytes(settings: Settings) -> int:
    """Returns the bytes that the attention of one layer keeps for each position."""
    architecture = settings.architecture
    config = architecture.config
    size = settings.compute_dtype_bytes

    queries_and_output = 2 * size * architecture.query_width
    key_size = architecture.query_width if settings.needs_mask else architecture.kv_width
    keys_and_values = 2 * size * key_size
    log_sum = FLOAT32_BYTES * config.num_attention_heads  # of the softmax of each query head
    mask = size * settings.max_length if settings.needs_mask else 0  # this position's row of the additive mask
    query_key_norms = 0
    if config.model_type == "qwen3":
        normalized_size = architecture.query_width + architecture.kv_width
        factors = FLOAT32_BYTES * (config.num_attention_heads + config.num_key_value_heads)
        query_key_norms = (FLOAT32_BYTES + size) * normalized_size + factors
    return queries_and_output + keys_and_values + log_sum + mask + query_key_norms


def weight_copy_bytes(settings: Settings, num_layers: int) -> int:
    """Returns the bytes of the bfloat16 copies that autocast keeps of the weights of `num_layers` layers.

    The norms are counted, too, although they are not cast; they are about 0.1 % of the parameters. Autocast keeps the
    copies until the end of the forward pass. Without gradient checkpointing, the graph keeps them until the layer's
    backward pass. The result is 0 if no weights are cast. With QLoRA, it is the size of one dequantized layer.

    Source: `cached_cast` in torch's aten/src/ATen/autocast_mode.cpp.
    """
    # Matrices in 4 bits are dequantized one at a time, so one layer is an upper bound.
    if settings.load_in_4bit:
        return settings.compute_dtype_bytes * settings.architecture.layer_parameters
    if not settings.is_autocast:
        return 0
    return BFLOAT16_BYTES * num_layers * settings.architecture.layer_parameters


def head_peak_bytes(settings: Settings) -> int:
    """Returns the peak bytes outside the layers: the last norm, token ids, and log-probabilities with their backward
    pass in TRL's fused head.

    The fused head holds one tile of logits, whose width does not depend on the vocabulary, a slice of the head's
    weights in the compute dtype, and the head's gradient in float32 and in the dtype of the weights. Each position
    adds the hidden state, its selection and its float32 gradient. With an adapter, the head has no gradient.

    Source: `ChunkedLogProbFunction` in trl/kernels.
    """
    config = settings.architecture.config
    hidden_size = config.hidden_size
    weight_size = settings.forward_weight_dtype_bytes

    tile = settings.compute_dtype_bytes * min(settings.microbatch_tokens, HEAD_TILE_TOKENS) * HEAD_TILE_COLUMNS
    head_slice = settings.compute_dtype_bytes * min(config.vocab_size, HEAD_TILE_COLUMNS) * hidden_size
    gradient = 0
    if not settings.adapter_parameters:
        # The gradient is accumulated in float32, then cast to the dtype of the weights if that is another.
        gradient_size = FLOAT32_BYTES if weight_size == FLOAT32_BYTES else FLOAT32_BYTES + weight_size
        gradient = gradient_size * config.vocab_size * hidden_size

    # The following sizes are bytes per position.
    last_norm = (FLOAT32_BYTES + weight_size) * hidden_size + FLOAT32_BYTES  # input, output and factor
    token_id = 8  # int64
    hidden_states = (2 * weight_size + FLOAT32_BYTES) * hidden_size
    return tile + head_slice + gradient + settings.microbatch_tokens * (last_norm + token_id + hidden_states)


def peak_activation_bytes(settings: Settings) -> int:
    """Returns the peak bytes of activations, including logits, of the largest micro-batch.

    With gradient checkpointing, the peak is the residual stream before each layer plus the largest of three sums: the
    copies of all weights that are trained, and three feed-forward tensors of the last layer, in the forward pass; the
    head's backward pass; one layer's activations, copies and gradients. The first two do not overlap, because autocast
    drops its copies before the backward pass begins. Without checkpointing, the peak is the activations and copies of
    all layers plus the larger of the head's backward pass and one layer's gradients: two of the feed-forward width and
    one of the hidden size per position. If attention needs a mask, a boolean mask is added.

    Source: section 5 of [Reducing Activation Recomputation in Large Transformer
    Models](https://huggingface.co/papers/2205.05198).
    """
    # one boolean for each pair of positions of a row
    mask = settings.microbatch_tokens * settings.max_length if settings.needs_mask else 0
    if settings.gradient_checkpointing:
        return mask + _checkpointed_peak_bytes(settings)
    num_layers = settings.architecture.config.num_hidden_layers
    all_layers = num_layers * layer_activation_bytes(settings) + weight_copy_bytes(settings, num_layers)
    return mask + all_layers + max(head_peak_bytes(settings), _layer_gradient_bytes(settings))


def _layer_gradient_bytes(settings: Settings) -> int:
    """Returns the bytes of the gradients that the backward pass of a layer holds at once: of two tensors of the
    feed-forward layer and one of the residual stream."""
    config = settings.architecture.config
    width = 2 * config.intermediate_size + config.hidden_size
    return settings.microbatch_tokens * settings.compute_dtype_bytes * width


def _checkpointed_peak_bytes(settings: Settings) -> int:
    """Returns the peak with gradient checkpointing, which keeps the input of each layer and computes the rest again,
    one layer at a time; see [`peak_activation_bytes`]."""
    config = settings.architecture.config
    num_layers = config.num_hidden_layers
    tokens = settings.microbatch_tokens
    residual_stream = num_layers * settings.forward_weight_dtype_bytes * config.hidden_size * tokens
    # Autocast caches only its copies of trained weights. With an adapter, copies of the frozen weights are freed after
    # use, so those of one layer are counted.
    num_cached = 1 if settings.adapter_parameters else num_layers
    feed_forward = 3 * settings.compute_dtype_bytes * config.intermediate_size * tokens
    last_layer_forward = feed_forward + weight_copy_bytes(settings, num_cached)
    one_layer_backward = (
        layer_activation_bytes(settings) + weight_copy_bytes(settings, 1) + _layer_gradient_bytes(settings)
    )
    return residual_stream + max(last_layer_forward, head_peak_bytes(settings), one_layer_backward)


class StateBytes(NamedTuple):
    """Bytes of one GPU that do not depend on the lengths of completions."""

    weights: float
    gradients: float
    optimizer: float
    buffers: float  # of communication


def state_sizes(settings: Settings) -> StateBytes:
    """Returns the bytes of weights, accumulated gradients, optimizer state and communication buffers.

    With QLoRA, the layers' matrices take 4 bits and their scales; embedding, head and norms are not quantized. An
    adapter is in float32, and is then all that is trained.
    """
    num_parameters = settings.architecture.num_parameters
    model = float(settings.forward_weight_dtype_bytes * num_parameters)
    # FSDP2 keeps its shards in float32, and casts weights when it gathers them.
    if settings.sharding == "fsdp":
        model = FLOAT32_BYTES * num_parameters
    if settings.load_in_4bit:
        model -= (settings.forward_weight_dtype_bytes - QUANTIZED_BYTES) * settings.architecture.quantized_parameters
    adapter = FLOAT32_BYTES * settings.adapter_parameters
    weights = model + adapter
    # If there is an adapter, only the adapter is trained and has gradients.
    gradients = adapter or model

    if settings.sharding == "none":
        return _ddp_state(settings, weights, gradients)
    if settings.sharding == "fsdp":
        return _fsdp_state(settings, weights, gradients)
    return _deepspeed_state(settings, weights, gradients)


def _ddp_state(settings: Settings, weights: float, gradients: float) -> StateBytes:
    """Returns the state with DDP. It copies the gradients into its buckets, because accelerate leaves
    `gradient_as_bucket_view` off. Gradients, buckets and AdamW's two moments have the dtype of the trained weights."""
    buckets = gradients if settings.num_gpus > 1 else 0.0
    return StateBytes(weights, gradients, optimizer=2 * gradients, buffers=buckets)


def _fsdp_state(settings: Settings, weights: float, gradients: float) -> StateBytes:
    """Returns the state with FSDP2, of which each GPU has an equal share. FSDP2 gathers embedding, head and two layers
    (it prefetches the next layer), and reduces the gradients of one group while it computes those of the next."""
    architecture = settings.architecture
    layer = architecture.layer_parameters
    outside_layers = architecture.num_parameters - architecture.config.num_hidden_layers * layer
    gathered_parameters = outside_layers + 2 * layer
    gathered_gradients = outside_layers + layer
    return StateBytes(
        weights=weights / settings.num_gpus,
        gradients=gradients / settings.num_gpus,
        optimizer=2 * FLOAT32_BYTES * settings.trained_parameters / settings.num_gpus,
        buffers=settings.forward_weight_dtype_bytes * (gathered_parameters + gathered_gradients),
    )


def _deepspeed_state(settings: Settings, weights: float, gradients: float) -> StateBytes:
    """Returns the state with DeepSpeed. All stages distribute AdamW's two moments, the master weights and their
    gradient over the GPUs, all in float32; `zero2` also the gradients, and `zero3` also the weights. DeepSpeed fills
    one bucket of gradients; `zero3` fills two, because it overlaps communication, and gathers parameters up to its
    limit."""
    size = settings.forward_weight_dtype_bytes
    buffers = size * min(settings.trained_parameters, DEEPSPEED_BUCKET_ELEMENTS)
    if settings.sharding != "zero1":
        gradients /= settings.num_gpus
    if settings.sharding == "zero3":
        weights /= settings.num_gpus
        live_parameters = min(settings.architecture.num_parameters, DEEPSPEED_LIVE_PARAMETERS)
        buffers = 2 * buffers + size * live_parameters
    # two moments, the master weights and their gradient
    optimizer = 4 * FLOAT32_BYTES * settings.trained_parameters / settings.num_gpus
    return StateBytes(weights, gradients, optimizer=optimizer, buffers=buffers)


def cache_bytes(settings: Settings, tokens: int, element_bytes: int) -> float:
    """Returns the bytes of the keys and values of `tokens` positions: per layer, two tensors (tokens, `kv_width`).

    Source: [PagedAttention](https://huggingface.co/papers/2309.06180), section 3, applied to grouped heads.
    """
    architecture = settings.architecture
    return 2.0 * architecture.config.num_hidden_layers * architecture.kv_width * element_bytes * tokens


def generation_cache_bytes(settings: Settings) -> float:
    """Returns the bytes of the cache of transformers' `generate` at full length; 0 with vLLM."""
    if settings.vllm_mode:
        return 0.0
    tokens = settings.steps_per_generation * settings.microbatch_tokens
    return cache_bytes(settings, tokens, settings.compute_dtype_bytes)


class VllmBytes(NamedTuple):
    """Bytes of colocated vLLM on one GPU.

    Args:
        reserved (`float`): Memory that vLLM reserves: `vllm_gpu_memory_utilization` of the GPU's total memory.
        weights_and_forward (`float`): Weights in bfloat16, and the largest forward pass.
        sequence_cache (`float`): Cache of the longest sequence.
    """

    reserved: float
    weights_and_forward: float
    sequence_cache: float


def vllm_sizes(settings: Settings) -> VllmBytes:
    """Returns the sizes, in bytes, of colocated vLLM on one GPU.

    The forward pass holds, for a batch of 4,096 positions, the hidden states, the residual and the two halves of the
    feed-forward layer, or, if this is more, the logits of all sequences in bfloat16 and three float32 tensors of that
    shape (logits, log-probabilities, sorted values).
    """
    config = settings.architecture.config
    num_shards = settings.vllm_tensor_parallel_size
    # GPUs that share a model by tensor parallelism generate all their completions together.
    num_sequences = settings.per_device_train_batch_size * settings.steps_per_generation * num_shards
    weights = BFLOAT16_BYTES * settings.architecture.num_parameters / num_shards
    # Elements of each position: hidden states and residual, then gate, up projection and product of the feed-forward
    # layer, which the GPUs share.
    width = 2 * config.hidden_size + 3 * config.intermediate_size / num_shards
    layer = VLLM_BATCHED_TOKENS * BFLOAT16_BYTES * width
    # One position of each sequence: the logits in bfloat16, and three tensors of the sampler in float32.
    logits = float(num_sequences * config.vocab_size * (BFLOAT16_BYTES + 3 * FLOAT32_BYTES))
    return VllmBytes(
        reserved=settings.vllm_gpu_memory_utilization * settings.gpu_memory * GIB,
        weights_and_forward=weights + max(layer, logits),
        sequence_cache=cache_bytes(settings, settings.vllm_max_model_length, element_bytes=BFLOAT16_BYTES)
        / num_shards,
    )


def num_vllm_sequences(settings: Settings) -> int:
    """Returns the number of sequences of maximum length that fit vLLM's cache; with 0, vLLM does not start."""
    vllm = vllm_sizes(settings)
    return max(0, int((vllm.reserved - vllm.weights_and_forward) // vllm.sequence_cache))


def memory_table(settings: Settings) -> pd.DataFrame:
    """Returns the bytes of each item in a GPU's memory, in the columns `training` and `generating`.

    Gradients are freed after each update (`zero_grad(set_to_none=True)`), so generation has none. A reference model
    is sharded like the policy. Without vLLM, transformers' `generate` caches the GPU's generation batch at full
    length.
    """
    state = state_sizes(settings)
    # TRL needs a reference model for the KL term, but with an adapter it turns the adapter off instead.
    has_reference_model = settings.beta and not settings.use_peft
    reference_model = state.weights if has_reference_model else 0.0
    reserved = vllm_sizes(settings).reserved if settings.vllm_mode == "colocate" else 0.0
    # bytes while training and while generating
    items = {
        "parameters": (state.weights, state.weights),
        "gradients": (state.gradients, 0.0),
        "optimizer state": (state.optimizer, state.optimizer),
        "communication buffers": (state.buffers, state.buffers),
        "reference model": (reference_model, reference_model),
        "activations": (float(peak_activation_bytes(settings)), 0.0),
        "vLLM": (0.0 if settings.vllm_enable_sleep_mode else reserved, reserved),
        "generation cache": (0.0, generation_cache_bytes(settings)),
    }
    return pd.DataFrame.from_dict(items, orient="index", columns=["training", "generating"])


def peak_bytes(settings: Settings) -> float:
    """Returns the total bytes of one GPU in the phase that takes more."""
    return float(memory_table(settings).sum().max())


def usable_bytes(settings: Settings) -> float:
    """Returns the usable bytes of one GPU: its memory without `RESERVED_SHARE`."""
    return settings.gpu_memory * GIB * (1 - RESERVED_SHARE)


def spare_bytes(settings: Settings) -> float:
    """Returns the usable bytes that remain at the higher of the two peaks; negative if the run does not fit."""
    return usable_bytes(settings) - peak_bytes(settings)


def misfit_reason(settings: Settings) -> str | None:
    """Returns why the run does not fit, with the largest item; `None` if both peaks fit and colocated vLLM starts."""
    if settings.vllm_mode == "colocate" and num_vllm_sequences(settings) == 0:
        return _vllm_misfit(settings)
    if spare_bytes(settings) >= 0:
        return None
    table = memory_table(settings) / GIB
    # The columns are "training" and "generating"; the one with the larger sum is named, with its largest row.
    phase = table.sum().idxmax()
    sizes = table[phase]
    return (
        f"{phase} takes {sizes.sum():.1f} GiB of {usable_bytes(settings) / GIB:.1f} GiB usable; the largest item is "
        f"{sizes.idxmax()} with {sizes.max():.1f} GiB"
    )


def _vllm_misfit(settings: Settings) -> str:
    """Returns why vLLM does not start, with the share of the GPU's memory with which it would."""
    vllm = vllm_sizes(settings)
    needed_share = (vllm.weights_and_forward + vllm.sequence_cache) / (settings.gpu_memory * GIB)
    # Rounded up to whole percent, such as 0.35.
    rounded_up = math.ceil(100 * needed_share) / 100
    return (
        f"vLLM has {vllm.reserved / GIB:.1f} GiB, but needs {vllm.weights_and_forward / GIB:.1f} GiB and "
        f"{vllm.sequence_cache / GIB:.1f} GiB for one sequence of {settings.vllm_max_model_length:,} tokens; "
        f"raise vllm_gpu_memory_utilization to {rounded_up}"
    )


def memory_saving_options(settings: Settings) -> list[dict[str, Any]]:
    """Returns options that may save memory, cheapest first, including options that are set already. Only the adapters
    change the policy update."""
    options: list[dict[str, Any]] = [{"gradient_checkpointing": True}, {"attn_implementation": "flash_attention_2"}]
    if settings.per_device_train_batch_size % 2 == 0:
        options.append(_half_the_rows(settings))
    options.append({"vllm_enable_sleep_mode": True})
    if settings.num_gpus > 1:
        options += [{"sharding": "zero2"}, {"sharding": "fsdp"}, {"sharding": "zero3"}]
    if settings.vllm_mode:
        options.append({"vllm_mode": "server"})
    return [*options, {"use_peft": True}, {"use_peft": True, "load_in_4bit": True}]


def _half_the_rows(settings: Settings) -> dict[str, Any]:
    """Returns the option of half the rows in twice as many micro-batches. The batches of an update and of a generation
    stay the same."""
    return {
        "per_device_train_batch_size": settings.per_device_train_batch_size // 2,
        "gradient_accumulation_steps": 2 * settings.gradient_accumulation_steps,
        "steps_per_generation": 2 * settings.steps_per_generation,
    }


def memory_table_lines(settings: Settings) -> list[str]:
    """Returns the lines of the table of memory items of one GPU, in GiB, with their sums."""
    # Items that take no memory in either phase are left out.
    table = memory_table(settings)
    table = table[table.any(axis=1)]
    table.loc["sum"] = table.sum()
    table.loc["usable"] = usable_bytes(settings)
    # With names of equal length, the columns are at the same place in all tables.
    table.index = table.index.str.ljust(30)
    cells = (table / GIB).map(lambda size: f"{size:.2f}" if size else "-")
    return cells.rename_axis("GiB per GPU", axis="columns").to_string(col_space=11).splitlines()


def batch_lines(settings: Settings, num_iterations: int) -> list[str]:
    """Returns lines with the sizes of the largest micro-batch, vLLM's cache and the generation batch, in tokens."""
    num_rows = settings.per_device_train_batch_size
    lines = [f"largest micro-batch: {settings.microbatch_tokens:,} tokens, {num_rows} x {settings.max_length:,}"]
    if settings.vllm_mode == "colocate":
        lines.append(
            f"vLLM holds {num_vllm_sequences(settings):,} sequences of {settings.vllm_max_model_length:,} tokens at "
            f"once, {vllm_sizes(settings).sequence_cache / GIB:.2f} GiB each"
        )
    return [*lines, _generation_batch_line(settings, num_iterations)]


def _generation_batch_line(settings: Settings, num_iterations: int) -> str:
    """Returns the line of the completions of all GPUs that are generated at once."""
    rows_of_all_gpus = settings.num_gpus * settings.per_device_train_batch_size
    num_generated = rows_of_all_gpus * settings.steps_per_generation
    num_updated = rows_of_all_gpus * settings.gradient_accumulation_steps  # in one policy update
    # policy updates per generation batch, which is used `num_iterations` times
    num_updates = num_iterations * num_generated / num_updated
    limit = settings.max_completion_length
    return (
        f"generation batch: {num_generated:,} completions, {num_updates:g} policy updates of {num_updated:,}; at most "
        f"{num_generated * limit:,} tokens, {limit:,} each"
    )


def verdict_lines(settings: Settings) -> list[str]:
    """Returns lines that state whether the run fits; if not, the reason, and options with the peak of each."""
    reason = misfit_reason(settings)
    if reason is not None:
        return [
            f"does not fit: {reason}",
            "options that save memory, each on its own:",
            *_option_lines(settings),
            "otherwise use more GPUs with --sharding fsdp, or GPUs with more memory",
        ]
    spare = spare_bytes(settings)
    if spare < TIGHT_SPARE_SHARE * usable_bytes(settings):
        return [f"fits, with only {spare / GIB:.1f} GiB to spare, by which the estimate may err"]
    return ["fits"]


def _option_lines(settings: Settings) -> list[str]:
    """Returns a line for each option that saves memory, with the peak that remains, and whether the run then fits."""
    lines = []
    # Each option is a set of arguments, such as {"use_peft": True, "load_in_4bit": True}.
    for option in memory_saving_options(settings):
        changed = replace(settings, **option)
        # An option that is set already, or saves nothing here, is left out.
        if spare_bytes(changed) <= spare_bytes(settings):
            continue
        # As on the command line, to be pasted: "--use_peft true --load_in_4bit true".
        words = " ".join(f"--{name} {str(value).lower()}" for name, value in option.items())
        line = f"  {words}: {peak_bytes(changed) / GIB:.1f} GiB"
        lines.append(line if misfit_reason(changed) else f"{line}, fits")
    return lines
