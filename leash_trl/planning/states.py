r"""Bytes of weights, gradients and optimizer state on one GPU: what stays from step to step.

With $\Psi$ parameters on $N_d$ GPUs, following [ZeRO](https://huggingface.co/papers/1910.02054), section 3.1 and
figure 1, with what the engines that TRL runs on add. TRL loads weights in float32 unless `dtype` says otherwise, and
`bf16: true` then means autocast: one copy in float32 is both weights and master, there is no further one. DeepSpeed
turns the same weights into bfloat16 and makes its own master copy; FSDP2 keeps float32 shards and gathers bfloat16.
"""

from leash_trl.planning.settings import Settings


FLOAT32 = 4
BFLOAT16 = 2
ADAM_MOMENTS = 2

DEEPSPEED_BUCKET = 500_000_000
"""Elements of DeepSpeed's `reduce_bucket_size`, whose default the recipes keep."""
DEEPSPEED_LIVE_PARAMETERS = 1_000_000_000
"""Elements of DeepSpeed's `stage3_max_live_parameters`: parameters gathered at once."""


def forward_weight_bytes(settings: Settings) -> int:
    """Bytes per element of the weights that the forward pass reads: the engines that shard cast them first."""
    if settings.sharding == "none":
        return settings.weight_bytes
    return BFLOAT16 if settings.bf16 else settings.weight_bytes


def compute_bytes(settings: Settings) -> int:
    """Bytes per element of matrix products."""
    return BFLOAT16 if settings.bf16 else settings.weight_bytes


def weights(settings: Settings) -> float:
    r"""Bytes of the weights: all of them, $1/N_d$ with `zero3` and `fsdp`."""
    parameters = settings.architecture.num_parameters
    if settings.sharding == "fsdp":
        return FLOAT32 * parameters / settings.num_gpus
    shares = settings.num_gpus if settings.sharding == "zero3" else 1
    return forward_weight_bytes(settings) * parameters / shares


def gradients(settings: Settings) -> float:
    r"""Bytes of the accumulated gradients: $1/N_d$ with `zero2`, `zero3` and `fsdp`."""
    parameters = settings.architecture.num_parameters
    if settings.sharding == "fsdp":
        return FLOAT32 * parameters / settings.num_gpus
    shares = settings.num_gpus if settings.sharding in ("zero2", "zero3") else 1
    return forward_weight_bytes(settings) * parameters / shares


def optimizer_state(settings: Settings) -> float:
    r"""Bytes of AdamW's two moments, in the dtype of the weights that it updates; with DeepSpeed also of the float32
    master weights and their gradient, all $1/N_d$."""
    parameters = settings.architecture.num_parameters
    if settings.sharding == "none":
        return ADAM_MOMENTS * settings.weight_bytes * parameters
    if settings.sharding == "fsdp":
        return ADAM_MOMENTS * FLOAT32 * parameters / settings.num_gpus
    return (ADAM_MOMENTS + 2) * FLOAT32 * parameters / settings.num_gpus


def communication_buffers(settings: Settings) -> float:
    """
    Bytes of what is gathered or reduced at a time.

    DDP keeps the gradients a second time, in its buckets, because accelerate leaves `gradient_as_bucket_view` off.
    DeepSpeed fills a bucket of gradients, two with ZeRO-3, which overlaps; ZeRO-3 gathers up to its limit of live
    parameters. FSDP2 gathers embedding, head and two layers (the next is fetched ahead), and reduces the gradients
    of one group while those of the next are made.
    """
    architecture, size = settings.architecture, forward_weight_bytes(settings)
    parameters = architecture.num_parameters
    if settings.sharding == "none":
        return settings.weight_bytes * parameters if settings.num_gpus > 1 else 0.0
    if settings.sharding == "fsdp":
        gathered = architecture.outer_parameters + 2 * architecture.layer_parameters
        reduced = architecture.outer_parameters + architecture.layer_parameters
        return float(size * (gathered + reduced))
    bucket = size * min(parameters, DEEPSPEED_BUCKET)
    if settings.sharding == "zero3":
        return float(2 * bucket + size * min(parameters, DEEPSPEED_LIVE_PARAMETERS))
    return float(bucket)


def reference_weights(settings: Settings) -> float:
    """Bytes of the reference model, which is sharded like the policy; 0 without one."""
    return weights(settings) if settings.has_reference else 0.0
