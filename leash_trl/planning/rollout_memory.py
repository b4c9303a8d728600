"""Bytes that generation takes on a training GPU: colocated vLLM's share, or the cache of transformers' `generate`."""

from leash_trl.planning.settings import GIB, Settings
from leash_trl.planning.states import compute_bytes


BFLOAT16 = 2
VLLM_BATCHED_TOKENS = 4096
"""Positions that TRL lets colocated vLLM compute at a time: `max_num_batched_tokens` in trl/generation."""


def cache_bytes_per_token(settings: Settings, element_bytes: int = BFLOAT16) -> int:
    """Bytes of the keys and values of one position: two tensors a layer, one row of `kv_size` each.

    Source: [PagedAttention](https://huggingface.co/papers/2309.06180), section 3, with grouped heads.
    """
    architecture = settings.architecture
    return 2 * architecture.num_layers * architecture.kv_size * element_bytes


def vllm_share(settings: Settings) -> float:
    """Bytes that colocated vLLM reserves: `vllm_gpu_memory_utilization` of the whole GPU; 0 elsewhere."""
    return settings.vllm_gpu_memory_utilization * settings.gpu_memory * GIB if settings.is_colocated else 0.0


def vllm_working_bytes(settings: Settings) -> float:
    """Bytes of vLLM's weights in bfloat16 and of its largest forward pass, on one of its GPUs.

    The forward pass holds, for a batch of 4,096 positions, the stream, its residual and the feed-forward layer's two
    halves; and for each sequence its logits in bfloat16 and three times in float32 (logits, log-probabilities,
    sorted).
    """
    architecture = settings.architecture
    shares = settings.vllm_tensor_parallel_size
    sequences = settings.per_device_train_batch_size * settings.steps_per_generation * shares
    weights = BFLOAT16 * architecture.num_parameters / shares
    layer = (
        VLLM_BATCHED_TOKENS * BFLOAT16 * (2 * architecture.hidden_size + 3 * architecture.intermediate_size / shares)
    )
    logits = sequences * architecture.vocab_size * (BFLOAT16 + 3 * 4)
    return weights + max(layer, float(logits))


def cache_bytes(settings: Settings) -> float:
    """Bytes left for keys and values in the share of colocated vLLM; negative if not even the weights fit."""
    return vllm_share(settings) - vllm_working_bytes(settings)


def sequence_cache_bytes(settings: Settings, length: int) -> float:
    """Bytes of the cache of one sequence of `length` tokens on one of vLLM's GPUs."""
    return cache_bytes_per_token(settings) * length / settings.vllm_tensor_parallel_size


def concurrent_sequences(settings: Settings, length: int) -> int:
    """Sequences of `length` tokens that one colocated engine holds at once; 0 if none fits."""
    return max(0, int(cache_bytes(settings) // sequence_cache_bytes(settings, length)))


def smallest_vllm_share(settings: Settings) -> float:
    """The least `vllm_gpu_memory_utilization`, rounded up to hundredths, with which vLLM starts: its weights, its
    forward pass and one sequence of the greatest length. May be above 1."""
    needed = vllm_working_bytes(settings) + sequence_cache_bytes(settings, settings.vllm_max_model_length)
    return -(-100 * needed // (settings.gpu_memory * GIB)) / 100


def generate_cache(settings: Settings) -> float:
    """Bytes of the cache of transformers' `generate` for a GPU's generation batch at full length; 0 with vLLM."""
    if settings.use_vllm:
        return 0.0
    rows = settings.per_device_train_batch_size * settings.steps_per_generation
    return float(rows * settings.max_length * cache_bytes_per_token(settings, compute_bytes(settings)))
