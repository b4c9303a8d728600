r"""Plans a run's memory: bytes of one GPU while it trains and while it generates, part by part, and what would make it
fit. Pure; looks at no device.

With $\Psi$ parameters on $N_d$ GPUs, weights, gradients and optimizer state follow
[ZeRO](https://huggingface.co/papers/1910.02054), section 3.1 and figure 1, with what the engines that TRL runs on add.
TRL loads weights in float32 unless `dtype` says otherwise, and `bf16: true` then means autocast: one copy in float32
is both weights and master, there is no further one. DeepSpeed turns the same weights into bfloat16 and makes its own
master copy; FSDP2 keeps float32 shards and gathers bfloat16. With LoRA only the adapter has gradients and optimizer
state, and activations are those of full training.

Activations are counted tensor by tensor, as in [Reducing Activation Recomputation in Large Transformer
Models](https://huggingface.co/papers/2205.05198), section 4. Its 34 bytes per position and unit of width are GPT's in
half precision with dropout; the numbers here are those of transformers' Llama and Qwen layers, whose norms compute in
float32, and which under autocast keep a float32 residual stream. `tests/planning` compares them with what autograd
really saves.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash_trl.engines.checkpoint_path import complete_model_path


if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedConfig


PAPER_MODELS: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("paper_models.json").read_text())
"""Sizes of the paper's models, so that planning and measuring them needs no download."""

MODEL_TYPES = ("qwen2", "qwen3", "llama", "mistral")
"""Model types that the formulas hold for."""
SHARDINGS = ("none", "zero1", "zero2", "zero3", "fsdp")
"""How training is distributed: DDP, DeepSpeed's ZeRO stages, FSDP2."""

GIB = 2**30
BFLOAT16, FLOAT32 = 2, 4
HEADROOM = 0.05
"""Share of a GPU that the plan leaves free: CUDA context, NCCL's buffers, fragments."""
TIGHT_SHARE = 0.05
"""Of the usable memory; to have less left is within the estimate's error."""
HEAD_TOKENS, HEAD_COLUMNS = 4096, 32768
"""Tile of logits that TRL's fused head computes at a time: `TOKEN_CHUNK_SIZE`, `_CHUNKED_LOGPROB_CHUNK_SIZE`."""
DEEPSPEED_BUCKET = 500_000_000
"""Elements of DeepSpeed's `reduce_bucket_size`, whose default the recipes keep."""
DEEPSPEED_LIVE_PARAMETERS = 1_000_000_000
"""Elements of DeepSpeed's `stage3_max_live_parameters`: parameters gathered at once."""
VLLM_BATCHED_TOKENS = 4096
"""Positions that TRL lets colocated vLLM compute at a time: `max_num_batched_tokens` in trl/generation."""


@dataclass(frozen=True)
class Architecture:
    """A decoder with gated feed-forward layers and RMS norms; all numbers count elements.

    Args:
        config (`PreTrainedConfig`):
            Its configuration.
        head_dim (`int`):
            Width of a head.
        linear_parameters (`int`), layer_parameters (`int`):
            One layer's matrices and biases; the complete layer, norms included.
        num_parameters (`int`):
            The complete model; a tied head counts once.
        adapter_parameters (`int`):
            The adapter that is trained in the model's place; 0 if the model itself is trained.
    """

    config: "PreTrainedConfig"
    head_dim: int
    linear_parameters: int
    layer_parameters: int
    num_parameters: int
    adapter_parameters: int

    @property
    def query_size(self) -> int:
        """Width of all query heads together."""
        return self.config.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key heads together; values have the same."""
        return self.config.num_key_value_heads * self.head_dim


def load_model_config(model: str, config_file: str | None) -> "PreTrainedConfig":
    """A model's configuration: the given file, a folder's, one of the paper's models, the gym's or the Hub's."""
    from transformers import AutoConfig

    if config_file is None and model in PAPER_MODELS and not Path(model).is_dir():
        return AutoConfig.for_model(**PAPER_MODELS[model])
    return AutoConfig.from_pretrained(config_file or complete_model_path(model))


def read_architecture(config: "PreTrainedConfig", peft_config: "PeftConfig | None" = None) -> Architecture:
    """The sizes of a model and its adapter, counted on torch's meta device, which holds no data.

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

    def count(*modules: torch.nn.Module) -> int:
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        layer, num_parameters = model.model.layers[0], count(model)
        linear = [part for part in layer.modules() if isinstance(part, torch.nn.Linear)]
        sizes = (layer.self_attn.head_dim, count(*linear), count(layer), num_parameters)
        if peft_config is None:
            return Architecture(config, *sizes, adapter_parameters=0)
        from peft import get_peft_model

        return Architecture(config, *sizes, adapter_parameters=count(get_peft_model(model, peft_config)) - sizes[-1])


@dataclass(frozen=True)
class Settings:
    """One run to plan. Fields that a recipe has mean what they mean there; errors name the options of `leash plan`.

    Args:
        architecture (`Architecture`):
            Shapes of the policy.
        num_gpus (`int`):
            GPUs that train.
        gpu_memory (`float`):
            Memory of one GPU, in GiB. Must be positive.
        sharding (`str`):
            A name of `SHARDINGS`.
        weight_bytes (`int`):
            Bytes per element of the weights as loaded: 4, TRL's default, or 2 with `dtype: bfloat16`.
        has_reference (`bool`):
            Whether there is a reference model, as with `beta` other than 0; an adapter is switched off instead.
        keeps_attention_mask (`bool`):
            Whether padded batches get a mask of T x T, as `sdpa` attention does and flash attention does not.
        groups_lengths (`bool`):
            Whether micro-batches are filled by tokens: `length_grouped_microbatches`, unless other settings forbid it.
        prompt_length (`int`), max_completion_length (`int`):
            Tokens of the longest prompt and of the longest completion.

    Raises:
        `ValueError`: If a value is out of its range.
    """

    architecture: Architecture
    num_gpus: int
    gpu_memory: float
    sharding: str
    weight_bytes: int
    bf16: bool
    gradient_checkpointing: bool
    has_reference: bool
    keeps_attention_mask: bool
    groups_lengths: bool
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int
    prompt_length: int
    max_completion_length: int
    use_vllm: bool
    vllm_mode: str
    vllm_gpu_memory_utilization: float
    vllm_enable_sleep_mode: bool
    vllm_tensor_parallel_size: int
    vllm_max_model_length: int

    def __post_init__(self) -> None:
        for name in ("gpu_memory", "prompt_length", "max_completion_length"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"--{name} is {getattr(self, name)}, but must be positive and finite")

    @property
    def config(self) -> "PreTrainedConfig":
        """Configuration of the model."""
        return self.architecture.config

    @property
    def is_colocated(self) -> bool:
        """Whether vLLM shares the training GPUs."""
        return self.use_vllm and self.vllm_mode == "colocate"

    @property
    def max_length(self) -> int:
        """Tokens of the longest row, prompt included."""
        return self.prompt_length + self.max_completion_length

    @property
    def tokens(self) -> int:
        """Positions of the largest micro-batch: as many rows as one has on average, all of the greatest length.

        TRL pads every micro-batch to this. If micro-batches are filled by tokens (`arrange` in
        `leash_trl.microbatching.partition`), none is larger.
        """
        return self.per_device_train_batch_size * self.max_length

    @property
    def needs_mask(self) -> bool:
        """Whether attention keeps a mask of the largest micro-batch; one of a single row that is trimmed has no
        padding."""
        return self.keeps_attention_mask and (self.per_device_train_batch_size > 1 or not self.groups_lengths)

    @property
    def usable_bytes(self) -> float:
        """Bytes of one GPU that the plan may use."""
        return self.gpu_memory * GIB * (1 - HEADROOM)

    @property
    def compute_bytes(self) -> int:
        """Bytes per element of matrix products."""
        return BFLOAT16 if self.bf16 else self.weight_bytes

    @property
    def forward_weight_bytes(self) -> int:
        """Bytes per element of the weights that the forward pass reads: the engines that shard cast them first."""
        return self.weight_bytes if self.sharding == "none" else self.compute_bytes

    @property
    def uses_autocast(self) -> bool:
        """Whether matrix products cast weights and inputs."""
        return self.forward_weight_bytes != self.compute_bytes


def layer_bytes(settings: Settings) -> int:
    """Bytes that one layer keeps for the backward pass of the largest micro-batch.

    Returns:
        `int`: For each position the sum over

        - two norms: input in float32, normalised input, one float32 factor;
        - inputs of the matrix products; under autocast each of the five that read a norm casts its own copy;
        - queries, keys, values and output of attention and its float32 log-sum; with a mask, `sdpa` repeats keys and
          values for each query head;
        - four tensors of the feed-forward layer: gate, its activation, up, and their product;
        - with norms of queries and keys, as in Qwen3: their input in float32, normalised, and a float32 factor per
          head;

        and where it needs a mask an additive one of length x length for each row.
    """
    config, query, kv = settings.config, settings.architecture.query_size, settings.architecture.kv_size
    size, heads = settings.compute_bytes, config.num_attention_heads
    norms = 2 * ((FLOAT32 + settings.forward_weight_bytes) * config.hidden_size + FLOAT32)
    inputs = (5 if settings.uses_autocast else 2) * size * config.hidden_size
    attention = 2 * size * query + 2 * size * (query if settings.needs_mask else kv) + FLOAT32 * heads
    feed_forward = 4 * size * config.intermediate_size
    query_key_norms = (FLOAT32 + size) * (query + kv) + FLOAT32 * (heads + config.num_key_value_heads)
    query_key_norms = query_key_norms if config.model_type == "qwen3" else 0
    mask = size * settings.max_length if settings.needs_mask else 0
    return settings.tokens * (norms + inputs + attention + feed_forward + query_key_norms + mask)


def cast_bytes(settings: Settings, num_layers: int) -> int:
    """Bytes of the weights' bfloat16 copies that autocast holds for `num_layers` layers; 0 if nothing is cast.

    Autocast keeps the copies until the forward pass ends, and without checkpointing the graph keeps them until the
    layer's backward pass. Source: `cached_cast` in torch's aten/src/ATen/autocast_mode.cpp.
    """
    return settings.uses_autocast * BFLOAT16 * num_layers * settings.architecture.linear_parameters


def outer_bytes(settings: Settings) -> int:
    """Bytes kept outside the layers: the last norm and the tokens' ids. What the head keeps is `head_bytes`."""
    return settings.tokens * ((FLOAT32 + settings.forward_weight_bytes) * settings.config.hidden_size + FLOAT32 + 8)


def head_bytes(settings: Settings) -> int:
    """Peak bytes of log-probabilities and their backward pass with TRL's fused head, which holds a tile of logits.

    The tile, which is as wide for a small vocabulary, the head's slice in the computing dtype, the head's gradient
    in float32, then cast to the weights' dtype, and per position the hidden state, its selection and its float32
    gradient. An adapter leaves the head without a gradient. Source: `ChunkedLogProbFunction` in trl/kernels.
    """
    vocabulary, hidden = settings.config.vocab_size, settings.config.hidden_size
    size, tokens = settings.forward_weight_bytes, settings.tokens
    tile = settings.compute_bytes * min(tokens, HEAD_TOKENS) * HEAD_COLUMNS
    head_slice = settings.compute_bytes * min(vocabulary, HEAD_COLUMNS) * hidden
    gradient = (FLOAT32 + (size if size != FLOAT32 else 0)) * vocabulary * hidden
    gradient = 0 if settings.architecture.adapter_parameters else gradient
    return tile + head_slice + gradient + tokens * (2 * size + FLOAT32) * hidden


def activation_peak(settings: Settings) -> int:
    """Most bytes of activations, logits included, that the largest micro-batch holds at once.

    With gradient checkpointing these are the residual stream before each layer, and the largest of: the copies of all
    weights and the last layer's three feed-forward tensors in the forward pass; the head's backward pass; one layer's
    activations, copies and gradients. The first two do not overlap: autocast has dropped its copies when the backward
    pass begins. Without, everything that all layers keep, and the larger of the head's backward pass and one layer's
    gradients: two of the feed-forward layer's width and one of a matrix product's input. Source: section 5 of
    [Reducing Activation Recomputation in Large Transformer Models](https://huggingface.co/papers/2205.05198).
    """
    config, tokens, size = settings.config, settings.tokens, settings.compute_bytes
    num_layers, layer = config.num_hidden_layers, layer_bytes(settings)
    mask = tokens * settings.max_length if settings.needs_mask else 0
    head = head_bytes(settings) + outer_bytes(settings)
    gradients = tokens * size * (2 * config.intermediate_size + config.hidden_size)
    if not settings.gradient_checkpointing:
        return mask + num_layers * layer + cast_bytes(settings, num_layers) + max(head, gradients)
    stream = num_layers * settings.forward_weight_bytes * config.hidden_size * tokens
    cached = 1 if settings.architecture.adapter_parameters else num_layers  # autocast caches no frozen weights
    forward = 3 * size * config.intermediate_size * tokens + cast_bytes(settings, cached)
    return mask + stream + max(forward, head, layer + cast_bytes(settings, 1) + gradients)


def held_bytes(settings: Settings) -> tuple[float, float, float]:
    r"""Bytes of weights, of accumulated gradients and of the optimizer's state.

    Weights: all of them, $1/N_d$ with `zero3` and `fsdp`, and an adapter in float32. Gradients: as what is trained,
    $1/N_d$ with `zero2` too. Optimizer: AdamW's two moments, in the dtype of the weights that it updates; with
    DeepSpeed also the float32 master weights and their gradient, all $1/N_d$.
    """
    architecture, sharding, share = settings.architecture, settings.sharding, 1 / settings.num_gpus
    size = FLOAT32 if sharding == "fsdp" else settings.forward_weight_bytes
    kept = share if sharding in ("zero3", "fsdp") else 1.0
    adapter = FLOAT32 * architecture.adapter_parameters
    trained, elements = size * architecture.num_parameters, architecture.num_parameters
    weights = kept * (trained + adapter)
    if adapter:
        trained, elements = adapter, architecture.adapter_parameters
    gradients = trained * (share if sharding == "zero2" else kept)
    if sharding == "none":
        return weights, gradients, 2.0 * trained
    return weights, gradients, (2 if sharding == "fsdp" else 4) * FLOAT32 * elements * share


def communication_buffers(settings: Settings) -> float:
    """Bytes of the buffers for gathering and reducing.

    DDP keeps the gradients a second time, in its buckets, because accelerate leaves `gradient_as_bucket_view` off.
    DeepSpeed fills a bucket of gradients, two with ZeRO-3, which overlaps; ZeRO-3 gathers up to its limit of live
    parameters. FSDP2 gathers embedding, head and two layers (the next is fetched ahead), and reduces the gradients
    of one group while those of the next are made.
    """
    architecture, size = settings.architecture, settings.forward_weight_bytes
    if settings.sharding == "none":
        return held_bytes(settings)[1] if settings.num_gpus > 1 else 0.0
    if settings.sharding == "fsdp":
        outer = architecture.num_parameters - settings.config.num_hidden_layers * architecture.layer_parameters
        return float(size * (2 * outer + 3 * architecture.layer_parameters))
    bucket = float(size * min(architecture.adapter_parameters or architecture.num_parameters, DEEPSPEED_BUCKET))
    if settings.sharding == "zero3":
        return 2 * bucket + size * min(architecture.num_parameters, DEEPSPEED_LIVE_PARAMETERS)
    return bucket


def cache_bytes(settings: Settings, tokens: int, element_bytes: int) -> float:
    """Bytes of the keys and values of `tokens` positions: two tensors a layer, a row of `kv_size` for each position.

    Source: [PagedAttention](https://huggingface.co/papers/2309.06180), section 3, with grouped heads.
    """
    architecture = settings.architecture
    return 2.0 * architecture.config.num_hidden_layers * architecture.kv_size * element_bytes * tokens


def vllm_share(settings: Settings) -> float:
    """Bytes that colocated vLLM reserves: `vllm_gpu_memory_utilization` of the complete GPU; 0 elsewhere."""
    return settings.vllm_gpu_memory_utilization * settings.gpu_memory * GIB if settings.is_colocated else 0.0


def vllm_working_bytes(settings: Settings) -> float:
    """Bytes of vLLM's weights in bfloat16 and of its largest forward pass, on one of its GPUs.

    The forward pass holds, for a batch of 4,096 positions, the stream, its residual and the feed-forward layer's two
    halves; and for each sequence its logits in bfloat16 and three times in float32 (logits, log-probabilities,
    sorted).
    """
    config, shares = settings.architecture.config, settings.vllm_tensor_parallel_size
    sequences = settings.per_device_train_batch_size * settings.steps_per_generation * shares
    width = 2 * config.hidden_size + 3 * config.intermediate_size / shares
    logits = float(sequences * config.vocab_size * (BFLOAT16 + 3 * FLOAT32))
    weights = BFLOAT16 * settings.architecture.num_parameters / shares
    return weights + max(VLLM_BATCHED_TOKENS * BFLOAT16 * width, logits)


def vllm_sequence_bytes(settings: Settings) -> float:
    """Bytes that the longest sequence takes in the cache of one of vLLM's GPUs."""
    return cache_bytes(settings, settings.vllm_max_model_length, BFLOAT16) / settings.vllm_tensor_parallel_size


def vllm_sequences(settings: Settings) -> int:
    """Sequences of the greatest length that one colocated engine holds at once; without room for one, 0, vLLM
    refuses to start."""
    free = vllm_share(settings) - vllm_working_bytes(settings)
    return max(0, int(free // vllm_sequence_bytes(settings)))


def items(settings: Settings) -> dict[str, tuple[float, float]]:
    """Bytes of everything that a GPU holds, while a micro-batch is trained and while completions are generated.

    Gradients are dropped after each update (`zero_grad(set_to_none=True)`), so they are not there while completions
    are generated. A reference model is sharded as the policy is. Without vLLM, transformers' `generate` caches a GPU's
    generation batch at full length.
    """
    weights, gradients, state = held_bytes(settings)
    buffers, share = communication_buffers(settings), vllm_share(settings)
    reference = weights if settings.has_reference else 0.0
    generated = 0 if settings.use_vllm else settings.steps_per_generation * settings.tokens
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


def peak_bytes(settings: Settings) -> tuple[float, float]:
    """Bytes while a micro-batch is trained, and while completions are generated."""
    training, generating = zip(*items(settings).values(), strict=True)
    return sum(training), sum(generating)


def spare_bytes(settings: Settings) -> float:
    """Usable bytes of a GPU that are free at the higher of the two peaks; negative if there are too few."""
    return settings.usable_bytes - max(peak_bytes(settings))


def refusal(settings: Settings) -> str | None:
    """Why the run cannot fit, with its largest item; `None` if both peaks are within the usable memory and colocated
    vLLM starts."""
    if settings.is_colocated and not vllm_sequences(settings):
        working, sequence = vllm_working_bytes(settings), vllm_sequence_bytes(settings)
        return (
            f"vLLM has {vllm_share(settings) / GIB:.1f} GiB, but needs {working / GIB:.1f} GiB for itself and "
            f"{sequence / GIB:.1f} GiB for one sequence of {settings.vllm_max_model_length:,} tokens; raise "
            "vllm_gpu_memory_utilization to "
            f"{math.ceil(100 * (working + sequence) / (settings.gpu_memory * GIB)) / 100}"
        )
    if spare_bytes(settings) >= 0:
        return None
    peaks = peak_bytes(settings)
    moment = peaks.index(max(peaks))
    name, sizes = max(items(settings).items(), key=lambda item: item[1][moment])
    return (
        f"{('training', 'generating')[moment]} takes {max(peaks) / GIB:.1f} GiB of "
        f"{settings.usable_bytes / GIB:.1f} GiB usable; the largest item is {name} with {sizes[moment] / GIB:.1f} GiB"
    )


def changes(settings: Settings) -> dict[str, Settings]:
    """The run after each change that saves memory and keeps the policy update, by the options of the change, cheapest
    first."""
    rows, steps = settings.per_device_train_batch_size, settings.gradient_accumulation_steps
    halved = {
        "per_device_train_batch_size": rows // 2,
        "gradient_accumulation_steps": 2 * steps,
        "steps_per_generation": 2 * settings.steps_per_generation,
    }
    found: list[dict[str, Any]] = [
        {"gradient_checkpointing": True},
        {"keeps_attention_mask": False},
        halved if rows % 2 == 0 else {},
        {"vllm_enable_sleep_mode": True},
        *({"sharding": sharding} for sharding in ("zero2", "fsdp", "zero3") if settings.num_gpus > 1),
        {"vllm_mode": "server"},
    ]
    return {_options(change): changed for change in found if (changed := replace(settings, **change)) != settings}


def _options(change: dict[str, Any]) -> str:
    """The options of `leash plan` that make a change."""
    if "keeps_attention_mask" in change:
        return "--attn_implementation flash_attention_2"
    return " ".join(f"--{name} {str(value).lower()}" for name, value in change.items())


def memory_lines(settings: Settings) -> list[str]:
    """The items of one GPU's memory in GiB, and their sums."""
    rows = {**items(settings), "sum": peak_bytes(settings), "usable": (settings.usable_bytes, settings.usable_bytes)}
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
    if settings.is_colocated:
        lines.append(
            f"vLLM holds {vllm_sequences(settings):,} sequences of {settings.vllm_max_model_length:,} tokens "
            f"at once, {vllm_sequence_bytes(settings) / GIB:.2f} GiB each"
        )
    elif settings.use_vllm:
        lines.append("the server's GPUs are not planned here; it takes its own --gpu_memory_utilization of each")
    updates = num_iterations * completions / at_once
    return [
        *lines,
        f"generation batch: {completions:,} completions, {updates:g} policy updates of {at_once:,}; at most "
        f"{completions * limit:,} tokens, {limit:,} each",
    ]


def verdict_lines(settings: Settings) -> list[str]:
    """Whether the run fits, and if so how tightly; if not, why, and what each change would make of it."""
    spare = spare_bytes(settings)
    if reason := refusal(settings):
        lines = [f"does not fit: {reason}", "options that save memory, each alone:"]
        for options, changed in changes(settings).items():
            if spare_bytes(changed) > spare:
                peak = max(peak_bytes(changed)) / GIB
                lines.append(f"  {options}: {peak:.1f} GiB{'' if refusal(changed) else ', fits'}")
        return [*lines, "otherwise take more GPUs with --sharding fsdp, or GPUs with more memory"]
    if spare < TIGHT_SHARE * settings.usable_bytes:
        return [f"fits, with only {spare / GIB:.1f} GiB to spare: the estimate was checked on CPUs only"]
    return ["fits"]
