r"""Computes the memory of one GPU while a run trains and while it generates, and finds changes that make it fit.

With $\Psi$ parameters on $N_d$ GPUs, weights, gradients and optimizer state follow
[ZeRO](https://huggingface.co/papers/1910.02054), section 3.1 and figure 1, with what the engines that TRL runs on add.
TRL loads weights in float32 unless `dtype` says otherwise, and `bf16: true` then means autocast: one copy in float32
is both weights and master, there is no further one. DeepSpeed turns the same weights into bfloat16 and makes its own
master copy; FSDP2 keeps float32 shards and gathers bfloat16.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from leash_trl.planning.activations import FLOAT32, Architecture, MicroBatch, checkpointed_peak, kept_peak


GIB = 2**30
BFLOAT16 = 2
HEADROOM = 0.05
"""Share of a GPU that the plan leaves free: CUDA context, NCCL's buffers, fragments."""
SHARDINGS = ("none", "zero1", "zero2", "zero3", "fsdp")
"""How training is distributed: DDP, DeepSpeed's ZeRO stages, FSDP2."""
DEEPSPEED_BUCKET = 500_000_000
"""Elements of DeepSpeed's `reduce_bucket_size`, whose default the recipes keep."""
DEEPSPEED_LIVE_PARAMETERS = 1_000_000_000
"""Elements of DeepSpeed's `stage3_max_live_parameters`: parameters gathered at once."""
VLLM_BATCHED_TOKENS = 4096
"""Positions that TRL lets colocated vLLM compute at a time: `max_num_batched_tokens` in trl/generation."""


@dataclass(frozen=True)
class Settings:
    """
    One run to plan. Fields that a recipe has mean what they mean there; errors name the options of `leash plan`.

    Args:
        architecture (`Architecture`):
            Shapes of the policy.
        num_gpus (`int`):
            GPUs that train. Must be positive.
        gpu_memory (`float`):
            Memory of one GPU, in GiB. Must be positive.
        sharding (`str`):
            A name of `SHARDINGS`.
        weight_bytes (`int`):
            Bytes per element of the weights as loaded: 4, TRL's default, or 2 with `dtype: bfloat16`.
        has_reference (`bool`):
            Whether there is a reference model, as with `beta` other than 0.
        keeps_attention_mask (`bool`):
            Whether padded batches get a mask of T x T, as `sdpa` attention does and flash attention does not.
        groups_lengths (`bool`):
            Whether micro-batches are filled by tokens: `length_grouped_microbatches`, unless other settings forbid it.
        max_prompt_length (`int`), max_completion_length (`int`):
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
    max_prompt_length: int
    max_completion_length: int
    use_vllm: bool
    vllm_mode: str
    vllm_gpu_memory_utilization: float
    vllm_enable_sleep_mode: bool
    vllm_tensor_parallel_size: int
    vllm_max_model_length: int

    def __post_init__(self) -> None:
        positive = {
            "--num_gpus": self.num_gpus,
            "--gpu_memory": self.gpu_memory,
            "--prompt_length": self.max_prompt_length,
            "--max_completion_length": self.max_completion_length,
        }
        for option, value in positive.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{option} is {value}, but must be positive and finite")

    @property
    def is_colocated(self) -> bool:
        """Whether vLLM shares the training GPUs."""
        return self.use_vllm and self.vllm_mode == "colocate"

    @property
    def generated_completions(self) -> int:
        """Completions of a generation batch, over all GPUs."""
        return self.num_gpus * self.per_device_train_batch_size * self.steps_per_generation

    @property
    def update_completions(self) -> int:
        """Completions of a policy update, over all GPUs."""
        return self.num_gpus * self.per_device_train_batch_size * self.gradient_accumulation_steps

    @property
    def max_length(self) -> int:
        """Tokens of the longest row, prompt included."""
        return self.max_prompt_length + self.max_completion_length

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


def weights(settings: Settings) -> float:
    r"""Bytes of the weights: all of them, $1/N_d$ with `zero3` and `fsdp`."""
    parameters = settings.architecture.num_parameters
    if settings.sharding == "fsdp":
        return FLOAT32 * parameters / settings.num_gpus
    return settings.forward_weight_bytes * parameters / (settings.num_gpus if settings.sharding == "zero3" else 1)


def gradients(settings: Settings) -> float:
    r"""Bytes of the accumulated gradients: as those of the weights, and $1/N_d$ with `zero2` too."""
    return weights(settings) / (settings.num_gpus if settings.sharding == "zero2" else 1)


def optimizer_state(settings: Settings) -> float:
    r"""Bytes of AdamW's two moments, in the dtype of the weights that it updates; with DeepSpeed also of the float32
    master weights and their gradient, all $1/N_d$."""
    parameters = settings.architecture.num_parameters
    if settings.sharding == "none":
        return 2 * settings.weight_bytes * parameters
    return (2 if settings.sharding == "fsdp" else 4) * FLOAT32 * parameters / settings.num_gpus


def communication_buffers(settings: Settings) -> float:
    """
    Bytes of the buffers for gathering and reducing.

    DDP keeps the gradients a second time, in its buckets, because accelerate leaves `gradient_as_bucket_view` off.
    DeepSpeed fills a bucket of gradients, two with ZeRO-3, which overlaps; ZeRO-3 gathers up to its limit of live
    parameters. FSDP2 gathers embedding, head and two layers (the next is fetched ahead), and reduces the gradients
    of one group while those of the next are made.
    """
    architecture, size = settings.architecture, settings.forward_weight_bytes
    parameters = architecture.num_parameters
    if settings.sharding == "none":
        return settings.weight_bytes * parameters if settings.num_gpus > 1 else 0.0
    if settings.sharding == "fsdp":
        return float(size * (2 * architecture.outer_parameters + 3 * architecture.layer_parameters))
    bucket = size * min(parameters, DEEPSPEED_BUCKET)
    if settings.sharding == "zero3":
        return float(2 * bucket + size * min(parameters, DEEPSPEED_LIVE_PARAMETERS))
    return float(bucket)


def cache_bytes(settings: Settings, tokens: int, element_bytes: int) -> float:
    """Bytes of the keys and values of `tokens` positions: two tensors a layer, a row of `kv_size` for each position.

    Source: [PagedAttention](https://huggingface.co/papers/2309.06180), section 3, with grouped heads.
    """
    architecture = settings.architecture
    return 2.0 * architecture.num_layers * architecture.kv_size * element_bytes * tokens


def vllm_share(settings: Settings) -> float:
    """Bytes that colocated vLLM reserves: `vllm_gpu_memory_utilization` of the complete GPU; 0 elsewhere."""
    return settings.vllm_gpu_memory_utilization * settings.gpu_memory * GIB if settings.is_colocated else 0.0


def vllm_working_bytes(settings: Settings) -> float:
    """Bytes of vLLM's weights in bfloat16 and of its largest forward pass, on one of its GPUs.

    The forward pass holds, for a batch of 4,096 positions, the stream, its residual and the feed-forward layer's two
    halves; and for each sequence its logits in bfloat16 and three times in float32 (logits, log-probabilities,
    sorted).
    """
    architecture, shares = settings.architecture, settings.vllm_tensor_parallel_size
    sequences = settings.per_device_train_batch_size * settings.steps_per_generation * shares
    width = 2 * architecture.hidden_size + 3 * architecture.intermediate_size / shares
    logits = float(sequences * architecture.vocab_size * (BFLOAT16 + 3 * FLOAT32))
    return BFLOAT16 * architecture.num_parameters / shares + max(VLLM_BATCHED_TOKENS * BFLOAT16 * width, logits)


def vllm_sequence_bytes(settings: Settings) -> float:
    """Bytes that the longest sequence takes in the cache of one of vLLM's GPUs."""
    return cache_bytes(settings, settings.vllm_max_model_length, BFLOAT16) / settings.vllm_tensor_parallel_size


def vllm_sequences(settings: Settings) -> int:
    """Sequences of the greatest length that one colocated engine holds at once; without room for one, 0, vLLM
    refuses to start."""
    free = vllm_share(settings) - vllm_working_bytes(settings)
    return max(0, int(free // vllm_sequence_bytes(settings)))


def generate_cache(settings: Settings) -> float:
    """Bytes of the cache of transformers' `generate` for a GPU's generation batch at full length; 0 with vLLM."""
    if settings.use_vllm:
        return 0.0
    rows = settings.per_device_train_batch_size * settings.steps_per_generation
    return cache_bytes(settings, rows * settings.max_length, settings.compute_bytes)


def largest_micro_batch(settings: Settings) -> MicroBatch:
    """The largest micro-batch of a GPU: as many rows as a micro-batch has on average, all of the greatest length.

    TRL pads every micro-batch to this. If micro-batches are filled by tokens (`arrange` in
    `leash_trl.microbatching.partition`), none is larger, and one of a single row has no padding.
    """
    rows, longest = settings.per_device_train_batch_size, settings.max_length
    return MicroBatch(rows * longest, longest, is_padded=rows > 1 or not settings.groups_lengths)


def activations(settings: Settings) -> float:
    """Most bytes of activations, logits included, that the largest micro-batch holds at once."""
    peak = checkpointed_peak if settings.gradient_checkpointing else kept_peak
    batch, sizes = largest_micro_batch(settings), (settings.forward_weight_bytes, settings.compute_bytes)
    return peak(settings.architecture, batch, *sizes, settings.keeps_attention_mask)


def items(settings: Settings) -> dict[str, tuple[float, float]]:
    """Bytes of everything that a GPU holds, while a micro-batch is trained and while completions are generated.

    Gradients are dropped after each update (`zero_grad(set_to_none=True)`), so they are not there while completions
    are generated. A reference model is sharded as the policy is.
    """
    held, state, buffers = weights(settings), optimizer_state(settings), communication_buffers(settings)
    reference = held if settings.has_reference else 0.0
    share = vllm_share(settings)
    return {
        "parameters": (held, held),
        "gradients": (gradients(settings), 0.0),
        "optimizer state": (state, state),
        "communication buffers": (buffers, buffers),
        "reference model": (reference, reference),
        "activations": (activations(settings), 0.0),
        "vLLM": (0.0 if settings.vllm_enable_sleep_mode else share, share),
        "generation cache": (0.0, generate_cache(settings)),
    }


def peak_bytes(settings: Settings) -> tuple[float, float]:
    """Bytes while a micro-batch is trained, and while completions are generated."""
    training, generating = zip(*items(settings).values(), strict=True)
    return sum(training), sum(generating)


def spare_bytes(settings: Settings) -> float:
    """Usable bytes of a GPU that are free at the higher of the two peaks; negative if there are too few."""
    return settings.usable_bytes - max(peak_bytes(settings))


def fits(settings: Settings) -> bool:
    """Whether both peaks are within the usable memory and colocated vLLM starts."""
    return spare_bytes(settings) >= 0 and (not settings.is_colocated or vllm_sequences(settings) > 0)


def refusal(settings: Settings) -> str | None:
    """Why the run cannot fit, with its largest item; `None` if it fits."""
    if fits(settings):
        return None
    if settings.is_colocated and not vllm_sequences(settings):
        needed = vllm_working_bytes(settings) + vllm_sequence_bytes(settings)
        return (
            f"vLLM has {vllm_share(settings) / GIB:.1f} GiB, but needs {vllm_working_bytes(settings) / GIB:.1f} GiB "
            f"for itself and {vllm_sequence_bytes(settings) / GIB:.1f} GiB for one sequence of "
            f"{settings.vllm_max_model_length:,} tokens; raise vllm_gpu_memory_utilization to "
            f"{math.ceil(100 * needed / (settings.gpu_memory * GIB)) / 100}"
        )
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
    generation_steps = settings.steps_per_generation
    found = {
        "--gradient_checkpointing true": replace(settings, gradient_checkpointing=True),
        "--attn_implementation flash_attention_2": replace(settings, keeps_attention_mask=False),
    }
    if rows % 2 == 0:
        halved: dict[str, Any] = {
            "per_device_train_batch_size": rows // 2,
            "gradient_accumulation_steps": 2 * steps,
            "steps_per_generation": 2 * generation_steps,
        }
        found[" ".join(f"--{name} {value}" for name, value in halved.items())] = replace(settings, **halved)
    if settings.is_colocated:
        found["--vllm_enable_sleep_mode true"] = replace(settings, vllm_enable_sleep_mode=True)
    for sharding in ("zero2", "fsdp", "zero3") if settings.num_gpus > 1 else ():
        found[f"--sharding {sharding}"] = replace(settings, sharding=sharding)
    if settings.is_colocated:
        found["--vllm_mode server"] = replace(settings, vllm_mode="server")
    return {options: changed for options, changed in found.items() if changed != settings}
