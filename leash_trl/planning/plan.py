r"""Plans a run's memory: bytes of one GPU while it trains and while it generates, and what would make it fit.

With $\Psi$ parameters on $N_d$ GPUs, weights, gradients and optimizer state follow
[ZeRO](https://huggingface.co/papers/1910.02054), section 3.1 and figure 1, with what the engines that TRL runs on add.
TRL loads weights in float32 unless `dtype` says otherwise, and `bf16: true` then means autocast: one copy in float32
is both weights and master. DeepSpeed turns the same weights into bfloat16 and makes its own master copy; FSDP2 keeps
float32 shards and gathers bfloat16. With LoRA only the adapter has gradients and optimizer state, QLoRA holds the
matrices under it in 4 bits.

Activations are counted tensor by tensor, as in [Reducing Activation Recomputation in Large Transformer
Models](https://huggingface.co/papers/2205.05198), section 4, with the numbers of transformers' Llama and Qwen layers,
whose norms compute in float32, and which under autocast keep a float32 residual stream. `tests/planning` compares
them with what autograd really saves.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash_trl.run_folder import complete_model_path


if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedConfig


# so that planning and measuring them needs no download
PAPER_MODELS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("paper_models.json").read_text())
MODEL_TYPES = ("qwen2", "qwen3", "llama", "mistral")  # that the formulas hold for
GIB = 2**30
BFLOAT16, FLOAT32 = 2, 4
# Bytes of a weight in 4 bits, with a float32 scale for each 64: [QLoRA](https://huggingface.co/papers/2305.14314)
QUANTISED = 0.5 + FLOAT32 / 64
HEADROOM = 0.05  # share of a GPU that is left free: CUDA context, NCCL's buffers, fragments
TIGHT_SHARE = 0.05  # of the usable memory; to have less left is within the estimate's error
# Tile of logits that TRL's fused head computes at a time: `TOKEN_CHUNK_SIZE`, `_CHUNKED_LOGPROB_CHUNK_SIZE`
HEAD_TOKENS, HEAD_COLUMNS = 4096, 32768
DEEPSPEED_BUCKET = 500_000_000  # elements of `reduce_bucket_size`, whose default the recipes keep
DEEPSPEED_LIVE_PARAMETERS = 1_000_000_000  # `stage3_max_live_parameters`, gathered at once
VLLM_BATCHED_TOKENS = 4096  # positions at a time: `max_num_batched_tokens` in trl/generation


@dataclass(frozen=True)
class Architecture:
    """A decoder with gated feed-forward layers and RMS norms; all numbers count elements.

    The sizes are the widths of all query heads together, and of all key heads, as of all value heads. A tied head
    counts once. The adapter is what LoRA trains in the model's place; the layers' matrices are what QLoRA quantizes.
    """

    config: "PreTrainedConfig"
    query_size: int
    kv_size: int
    layer_parameters: int
    num_parameters: int
    adapter_parameters: int
    quantized_parameters: int


def load_model_config(model: str, config_file: str | None) -> "PreTrainedConfig":
    """A model's configuration: the given file, a folder's, one of the paper's models, the gym's or the Hub's."""
    from transformers import AutoConfig

    if config_file is None and model in PAPER_MODELS and not Path(model).is_dir():
        return AutoConfig.for_model(**PAPER_MODELS[model])
    return AutoConfig.from_pretrained(config_file or complete_model_path(model))


def read_architecture(config: "PreTrainedConfig", peft_config: "PeftConfig") -> Architecture:
    """The sizes of a model and its adapter, counted on torch's meta device, which holds no data.

    Raises:
        `ValueError`: If the formulas do not hold for the model type.
    """
    if config.model_type not in MODEL_TYPES:
        raise ValueError(
            f"model_type is {config.model_type!r}, but must be one of {', '.join(MODEL_TYPES)}; see --model_config"
        )
    import torch
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        layer, num_parameters = model.model.layers[0], model.num_parameters()
        widths = layer.self_attn.q_proj.out_features, layer.self_attn.k_proj.out_features
        layer_parameters = sum(parameter.numel() for parameter in layer.parameters())
        matrices = sum(parameter.numel() for parameter in layer.parameters() if parameter.dim() == 2)
        adapter = get_peft_model(model, peft_config).get_nb_trainable_parameters()[0]
    quantized = config.num_hidden_layers * matrices
    return Architecture(config, *widths, layer_parameters, num_parameters, adapter, quantized)


@dataclass(frozen=True)
class Settings:
    """One run to plan. Fields that a recipe has mean what they mean there; the others:

    Args:
        gpu_memory (`float`): Memory of one GPU, in GiB.
        sharding (`str`): How training is distributed: `none` (DDP), DeepSpeed's `zero1`, `zero2`, `zero3`, or `fsdp`
            (FSDP2).
        weight_bytes (`int`), compute_bytes (`int`): Bytes per element of the weights as loaded, 4, TRL's default, or 2
            with `dtype: bfloat16`; and of matrix products, 2 with `bf16`.
        groups_lengths (`bool`): Whether micro-batches are filled by tokens: `length_grouped_microbatches`, unless
            other settings forbid it.
        max_length (`int`), max_completion_length (`int`): Tokens of the longest row, prompt included, and of the
            longest completion.
        vllm_mode (`str`): `None` without vLLM.
    """

    architecture: Architecture
    num_gpus: int
    gpu_memory: float
    sharding: str
    weight_bytes: int
    compute_bytes: int
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
        """Parameters that are trained in the model's place; 0 if the model itself is trained."""
        return self.use_peft * self.architecture.adapter_parameters

    @property
    def tokens(self) -> int:
        """Positions of the largest micro-batch: as many rows as one has on average, all of the greatest length, to
        which TRL pads each; none that is filled by tokens is larger."""
        return self.per_device_train_batch_size * self.max_length

    @property
    def needs_mask(self) -> bool:
        """Whether attention keeps a mask of the largest micro-batch; one of a single row that is trimmed has no
        padding."""
        is_padded = self.per_device_train_batch_size > 1 or not self.groups_lengths
        return is_padded and "flash" not in self.attn_implementation

    @property
    def forward_weight_bytes(self) -> int:
        """Bytes per element of the weights that the forward pass reads: the engines that shard cast them first. Where
        they differ from `compute_bytes`, autocast casts weights and inputs of matrix products."""
        return self.weight_bytes if self.sharding == "none" else self.compute_bytes


def layer_bytes(settings: Settings) -> int:
    """Bytes that one layer keeps for the backward pass of the largest micro-batch: for each position the sum over

    - two norms: input in float32, normalized input, one float32 factor;
    - inputs of the matrix products; under autocast each of the five that read a norm casts its own copy;
    - queries, keys, values and output of attention and its float32 log-sum; with a mask, `sdpa` repeats keys and
      values for each query head;
    - four tensors of the feed-forward layer: gate, its activation, up, and their product;
    - with norms of queries and keys, as in Qwen3: their input in float32, normalized, and a float32 factor per head;

    and where it needs a mask an additive one of length x length for each row.
    """
    config, query, kv = settings.architecture.config, settings.architecture.query_size, settings.architecture.kv_size
    size, heads = settings.compute_bytes, config.num_attention_heads
    norms = 2 * ((FLOAT32 + settings.forward_weight_bytes) * config.hidden_size + FLOAT32)
    inputs = (5 if settings.forward_weight_bytes != size else 2) * size * config.hidden_size
    attention = 2 * size * query + 2 * size * (query if settings.needs_mask else kv) + FLOAT32 * heads
    feed_forward = 4 * size * config.intermediate_size
    query_key_norms = (FLOAT32 + size) * (query + kv) + FLOAT32 * (heads + config.num_key_value_heads)
    query_key_norms *= config.model_type == "qwen3"
    mask = size * settings.max_length if settings.needs_mask else 0
    return settings.tokens * (norms + inputs + attention + feed_forward + query_key_norms + mask)


def cast_bytes(settings: Settings, num_layers: int) -> int:
    """Bytes of the weights' bfloat16 copies that autocast holds for `num_layers` layers; 0 if nothing is cast.

    The norms, which are not cast, are one parameter in a thousand. Autocast keeps the copies until the forward pass
    ends, and without checkpointing the graph keeps them until the layer's backward pass. Source: `cached_cast` in
    torch's aten/src/ATen/autocast_mode.cpp.
    """
    if settings.load_in_4bit:  # a matrix is made whole for its product only, so one layer is an upper bound
        return settings.compute_bytes * settings.architecture.layer_parameters
    is_cast = settings.forward_weight_bytes != settings.compute_bytes
    return is_cast * BFLOAT16 * num_layers * settings.architecture.layer_parameters


def head_bytes(settings: Settings) -> int:
    """Peak bytes outside the layers: of the last norm and the tokens' ids, and of log-probabilities and their backward
    pass with TRL's fused head, which holds a tile of logits.

    The tile, which is as wide for a small vocabulary, the head's slice in the computing dtype, the head's gradient
    in float32, then cast to the weights' dtype, and per position the hidden state, its selection and its float32
    gradient. An adapter leaves the head without a gradient. Source: `ChunkedLogProbFunction` in trl/kernels.
    """
    config, size, tokens = settings.architecture.config, settings.forward_weight_bytes, settings.tokens
    vocabulary, hidden = config.vocab_size, config.hidden_size
    tile = settings.compute_bytes * min(tokens, HEAD_TOKENS) * HEAD_COLUMNS
    head_slice = settings.compute_bytes * min(vocabulary, HEAD_COLUMNS) * hidden
    trained = 0 if settings.adapter_parameters else vocabulary
    gradient = (FLOAT32 + (size if size != FLOAT32 else 0)) * trained * hidden
    outer = (FLOAT32 + size) * hidden + FLOAT32 + 8
    return tile + head_slice + gradient + tokens * (outer + (2 * size + FLOAT32) * hidden)


def activation_peak(settings: Settings) -> int:
    """Most bytes of activations, logits included, that the largest micro-batch holds at once.

    With gradient checkpointing these are the residual stream before each layer, and the largest of: the copies of all
    weights and the last layer's three feed-forward tensors in the forward pass; the head's backward pass; one layer's
    activations, copies and gradients. The first two do not overlap: autocast has dropped its copies when the backward
    pass begins. Without, everything that all layers keep, and the larger of the head's backward pass and one layer's
    gradients: two of the feed-forward layer's width and one of a matrix product's input. Source: section 5 of
    [Reducing Activation Recomputation in Large Transformer Models](https://huggingface.co/papers/2205.05198).
    """
    config, tokens, size = settings.architecture.config, settings.tokens, settings.compute_bytes
    num_layers, layer = config.num_hidden_layers, layer_bytes(settings)
    mask = tokens * settings.max_length if settings.needs_mask else 0
    head = head_bytes(settings)
    gradients = tokens * size * (2 * config.intermediate_size + config.hidden_size)
    if not settings.gradient_checkpointing:
        return mask + num_layers * layer + cast_bytes(settings, num_layers) + max(head, gradients)
    stream = num_layers * settings.forward_weight_bytes * config.hidden_size * tokens
    cached = 1 if settings.adapter_parameters else num_layers  # autocast caches no frozen weights
    forward = 3 * size * config.intermediate_size * tokens + cast_bytes(settings, cached)
    return mask + stream + max(forward, head, layer + cast_bytes(settings, 1) + gradients)


def held_bytes(settings: Settings) -> tuple[float, float, float, float]:
    r"""Bytes of weights, of accumulated gradients, of the optimizer's state and of the buffers of communication.

    Weights: all of them, $1/N_d$ with `zero3` and `fsdp`, and an adapter in float32; quantized, a layer's matrices
    take 4 bits and their scales, while embedding, head and norms stay. Gradients: as what is trained,
    $1/N_d$ with `zero2` too. Optimizer: AdamW's two moments, in the dtype of the weights that it updates; with
    DeepSpeed also the float32 master weights and their gradient, all $1/N_d$.

    Buffers gather and reduce. DDP keeps the gradients a second time, in its buckets, because accelerate leaves
    `gradient_as_bucket_view` off. DeepSpeed fills a bucket of gradients, two with ZeRO-3, which overlaps; ZeRO-3
    gathers up to its limit of live parameters. FSDP2 gathers embedding, head and two layers (the next is fetched
    ahead), and reduces the gradients of one group while those of the next are made.
    """
    architecture, sharding, share = settings.architecture, settings.sharding, 1 / settings.num_gpus
    size, whole, layer = settings.forward_weight_bytes, architecture.num_parameters, architecture.layer_parameters
    kept = share if sharding in ("zero3", "fsdp") else 1.0
    model, adapter = 1.0 * (FLOAT32 if sharding == "fsdp" else size) * whole, FLOAT32 * settings.adapter_parameters
    model -= settings.load_in_4bit * (size - QUANTISED) * architecture.quantized_parameters
    trained, elements = adapter or model, settings.adapter_parameters or whole
    weights, gradients = kept * (model + adapter), trained * (share if sharding == "zero2" else kept)
    if sharding == "none":
        return weights, gradients, 2.0 * trained, gradients if settings.num_gpus > 1 else 0.0
    if sharding == "fsdp":
        outer = whole - architecture.config.num_hidden_layers * layer
        return weights, gradients, 2.0 * FLOAT32 * elements * share, size * (2.0 * outer + 3 * layer)
    bucket = float(size * min(elements, DEEPSPEED_BUCKET))
    buffers = 2 * bucket + size * min(whole, DEEPSPEED_LIVE_PARAMETERS) if sharding == "zero3" else bucket
    return weights, gradients, 4.0 * FLOAT32 * elements * share, buffers


def cache_bytes(settings: Settings, tokens: int, element_bytes: int) -> float:
    """Bytes of the keys and values of `tokens` positions: two tensors a layer, a row of `kv_size` for each position.

    Source: [PagedAttention](https://huggingface.co/papers/2309.06180), section 3, with grouped heads.
    """
    architecture = settings.architecture
    return 2.0 * architecture.config.num_hidden_layers * architecture.kv_size * element_bytes * tokens


def vllm_bytes(settings: Settings) -> tuple[float, float, float]:
    """Bytes on one GPU of colocated vLLM: what it reserves, `vllm_gpu_memory_utilization` of the complete GPU; what
    its weights in bfloat16 and its largest forward pass take of that; what the longest sequence takes in its cache.

    The forward pass holds, for a batch of 4,096 positions, the stream, its residual and the feed-forward layer's two
    halves; and for each sequence its logits in bfloat16 and three times in float32 (logits, log-probabilities,
    sorted).
    """
    config, shares = settings.architecture.config, settings.vllm_tensor_parallel_size
    sequences = settings.per_device_train_batch_size * settings.steps_per_generation * shares
    width = 2 * config.hidden_size + 3 * config.intermediate_size / shares
    logits = float(sequences * config.vocab_size * (BFLOAT16 + 3 * FLOAT32))
    weights = BFLOAT16 * settings.architecture.num_parameters / shares
    working = weights + max(VLLM_BATCHED_TOKENS * BFLOAT16 * width, logits)
    sequence = cache_bytes(settings, settings.vllm_max_model_length, BFLOAT16) / shares
    return settings.vllm_gpu_memory_utilization * settings.gpu_memory * GIB, working, sequence


def vllm_sequences(settings: Settings) -> int:
    """Sequences of the greatest length that one colocated engine holds at once; without room for one, 0, vLLM
    refuses to start."""
    share, working, sequence = vllm_bytes(settings)
    return max(0, int((share - working) // sequence))


def items(settings: Settings) -> dict[str, tuple[float, float]]:
    """Bytes of everything that a GPU holds, while a micro-batch is trained and while completions are generated.

    Gradients are dropped after each update (`zero_grad(set_to_none=True)`), so they are not there while completions
    are generated. A reference model is sharded as the policy is. Without vLLM, transformers' `generate` caches a GPU's
    generation batch at full length.
    """
    weights, gradients, state, buffers = held_bytes(settings)
    share = vllm_bytes(settings)[0] if settings.vllm_mode == "colocate" else 0.0
    reference = weights if settings.beta and not settings.use_peft else 0.0
    generated = 0 if settings.vllm_mode else settings.steps_per_generation * settings.tokens
    return {
        "parameters": (weights, weights),
        "gradients": (gradients, 0.0),
        "optimizer state": (state, state),
        "communication buffers": (buffers, buffers),
        "reference model": (reference, reference),
        "activations": (activation_peak(settings), 0.0),
        "vLLM": (0.0 if settings.vllm_enable_sleep_mode else share, share),
        "generation cache": (0.0, cache_bytes(settings, generated, settings.compute_bytes)),
    }


def peak_bytes(settings: Settings) -> tuple[float, ...]:
    """Bytes while a micro-batch is trained, and while completions are generated."""
    return tuple(map(sum, zip(*items(settings).values(), strict=True)))


def usable_bytes(settings: Settings) -> float:
    """Bytes of one GPU that the plan may use."""
    return settings.gpu_memory * GIB * (1 - HEADROOM)


def spare_bytes(settings: Settings) -> float:
    """Usable bytes of a GPU that are free at the higher of the two peaks; negative if there are too few."""
    return usable_bytes(settings) - max(peak_bytes(settings))


def refusal(settings: Settings) -> str | None:
    """Why the run cannot fit, with its largest item; `None` if both peaks are within the usable memory and colocated
    vLLM starts."""
    if settings.vllm_mode == "colocate" and not vllm_sequences(settings):
        share, working, sequence = vllm_bytes(settings)
        least = math.ceil(100 * (working + sequence) / (settings.gpu_memory * GIB)) / 100
        return (
            f"vLLM has {share / GIB:.1f} GiB, but needs {working / GIB:.1f} GiB and {sequence / GIB:.1f} GiB for one "
            f"sequence of {settings.vllm_max_model_length:,} tokens; raise vllm_gpu_memory_utilization to {least}"
        )
    if spare_bytes(settings) >= 0:
        return None
    peaks = peak_bytes(settings)
    moment = peaks.index(max(peaks))
    name, sizes = max(items(settings).items(), key=lambda item: item[1][moment])
    return (
        f"{('training', 'generating')[moment]} takes {max(peaks) / GIB:.1f} GiB of "
        f"{usable_bytes(settings) / GIB:.1f} GiB usable; the largest item is {name} with {sizes[moment] / GIB:.1f} GiB"
    )


def changes(settings: Settings) -> list[dict[str, Any]]:
    """Options that may save memory, each alone, the cheapest first; all but LoRA keep the policy update."""
    rows = settings.per_device_train_batch_size
    doubled = {name: 2 * getattr(settings, name) for name in ("gradient_accumulation_steps", "steps_per_generation")}
    return [
        {"gradient_checkpointing": True},
        {"attn_implementation": "flash_attention_2"},
        *([{"per_device_train_batch_size": rows // 2, **doubled}] if rows % 2 == 0 else []),
        {"vllm_enable_sleep_mode": True},
        *({"sharding": sharding} for sharding in ("zero2", "fsdp", "zero3") if settings.num_gpus > 1),
        *([{"vllm_mode": "server"}] if settings.vllm_mode else []),
        *([] if settings.use_peft else [{"use_peft": True}]),
        {"use_peft": True, "load_in_4bit": True},
    ]


def memory_lines(settings: Settings) -> list[str]:
    """The items of one GPU's memory in GiB, and their sums."""
    rows = {**items(settings), "sum": peak_bytes(settings), "usable": (usable_bytes(settings),) * 2}
    lines = [f"{'GiB per GPU':<30}{'training':>12}{'generating':>12}"]
    for name, sizes in rows.items():
        if any(sizes):
            lines.append(f"{name:<30}" + "".join(f"{size / GIB:12.2f}" if size else f"{'-':>12}" for size in sizes))
    return lines


def step_lines(settings: Settings, num_iterations: int) -> list[str]:
    """Tokens of the largest micro-batch, of the longest sequence's cache and of a generation batch."""
    rows, limit = settings.per_device_train_batch_size, settings.max_completion_length
    completions = settings.num_gpus * rows * settings.steps_per_generation
    at_once = settings.num_gpus * rows * settings.gradient_accumulation_steps
    lines = [f"largest micro-batch: {settings.tokens:,} tokens, {rows} x {settings.max_length:,}"]
    if settings.vllm_mode == "colocate":
        sequences = f"{vllm_sequences(settings):,} sequences of {settings.vllm_max_model_length:,} tokens"
        lines.append(f"vLLM holds {sequences} at once, {vllm_bytes(settings)[2] / GIB:.2f} GiB each")
    batch = f"generation batch: {completions:,} completions, {num_iterations * completions / at_once:g} policy updates"
    return [*lines, f"{batch} of {at_once:,}; at most {completions * limit:,} tokens, {limit:,} each"]


def verdict_lines(settings: Settings) -> list[str]:
    """Whether the run fits, and if so how tightly; if not, why, and what each change would make of it."""
    spare = spare_bytes(settings)
    if reason := refusal(settings):
        lines = [f"does not fit: {reason}", "options that save memory, each alone:"]
        for change in changes(settings):
            changed = replace(settings, **change)
            if spare_bytes(changed) > spare:
                options = " ".join(f"--{name} {str(value).lower()}" for name, value in change.items())
                peak = max(peak_bytes(changed)) / GIB
                lines.append(f"  {options}: {peak:.1f} GiB{'' if refusal(changed) else ', fits'}")
        return [*lines, "otherwise take more GPUs with --sharding fsdp, or GPUs with more memory"]
    if spare < TIGHT_SHARE * usable_bytes(settings):
        return [f"fits, with only {spare / GIB:.1f} GiB to spare: the estimate was checked on CPUs only"]
    return ["fits"]
