"""The items of one GPU's memory, the two moments at which they peak, and what would make a run fit."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from leash_trl.planning import activations, rollout_memory, states
from leash_trl.planning.micro_batches import MicroBatch, largest_micro_batch
from leash_trl.planning.settings import GIB, Settings


@dataclass(frozen=True)
class Item:
    """One entry of a GPU's memory.

    Args:
        name (`str`):
            What it is.
        size (`float`):
            Bytes.
        is_trained (`bool`):
            Whether it is there while a micro-batch is trained.
        is_generating (`bool`):
            Whether it is there while completions are generated.
    """

    name: str
    size: float
    is_trained: bool = True
    is_generating: bool = True


def activation_peak(settings: Settings, batch: MicroBatch, gradient_checkpointing: bool) -> float:
    """Most bytes of activations, logits included, that a micro-batch holds at once."""
    peak = activations.checkpointed_peak if gradient_checkpointing else activations.kept_peak
    weight_bytes, compute_bytes = states.forward_weight_bytes(settings), states.compute_bytes(settings)
    return peak(settings.architecture, batch, weight_bytes, compute_bytes, settings.keeps_attention_mask)


def items(settings: Settings) -> list[Item]:
    """Everything that a GPU holds, in the order of a step. Gradients are dropped after each update
    (`zero_grad(set_to_none=True)`), so they are not there while completions are generated."""
    batch = largest_micro_batch(settings)
    activation = activation_peak(settings, batch, settings.gradient_checkpointing)
    return [
        Item("parameters", states.weights(settings)),
        Item("gradients", states.gradients(settings), is_generating=False),
        Item("optimizer state", states.optimizer_state(settings)),
        Item("communication buffers", states.communication_buffers(settings)),
        Item("reference model", states.reference_weights(settings)),
        Item("activations", activation, is_generating=False),
        Item("vLLM", rollout_memory.vllm_share(settings), is_trained=not settings.vllm_enable_sleep_mode),
        Item("generation cache", rollout_memory.generate_cache(settings), is_trained=False),
    ]


def peak_bytes(settings: Settings) -> tuple[float, float]:
    """Bytes while a micro-batch is trained, and while completions are generated."""
    entries = items(settings)
    return sum(i.size for i in entries if i.is_trained), sum(i.size for i in entries if i.is_generating)


def spare_bytes(settings: Settings) -> float:
    """Usable bytes of a GPU that are free at the higher of the two peaks; negative if there are too few."""
    return settings.usable_bytes - max(peak_bytes(settings))


def vllm_starts(settings: Settings) -> bool:
    """Whether colocated vLLM has room for one sequence of the greatest length, without which it refuses to start."""
    return (
        not settings.is_colocated or rollout_memory.concurrent_sequences(settings, settings.vllm_max_model_length) > 0
    )


def fits(settings: Settings) -> bool:
    """Whether both peaks are within the usable memory and vLLM starts."""
    return spare_bytes(settings) >= 0 and vllm_starts(settings)


def _halved_batch(settings: Settings) -> dict[str, Any]:
    """Half the rows a micro-batch, twice as many micro-batches: the same update."""
    if settings.per_device_train_batch_size % 2:
        return {}
    return {
        "per_device_train_batch_size": settings.per_device_train_batch_size // 2,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps * 2,
        "steps_per_generation": settings.steps_per_generation * 2,
    }


def _vllm_share(settings: Settings) -> float:
    """The share of vLLM that fits, in hundredths: what training leaves, but at least what lets vLLM start."""
    others = max(peak_bytes(replace(settings, vllm_gpu_memory_utilization=0.0)))
    left = math.floor(100 * (settings.usable_bytes - others) / (settings.gpu_memory * GIB)) / 100
    return max(min(left, settings.vllm_gpu_memory_utilization), rollout_memory.smallest_vllm_share(settings))


def _changes(settings: Settings) -> Iterator[dict[str, Any]]:
    """Single changes that save memory and leave the policy update as it is, cheapest first."""
    yield {"gradient_checkpointing": True}
    if not settings.reasons_against_grouping:
        yield {"groups_lengths": True}
    yield {"keeps_attention_mask": False}
    yield _halved_batch(settings)
    if settings.is_colocated:
        yield {"vllm_gpu_memory_utilization": _vllm_share(settings)}
        yield {"vllm_enable_sleep_mode": True}
    for sharding in ("zero2", "fsdp", "zero3") if settings.num_gpus > 1 else ():
        yield {"sharding": sharding}
    if settings.is_colocated:
        yield {"vllm_mode": "server"}


def remedies(settings: Settings, limit: int = 4) -> list[dict[str, Any]]:
    """
    The smallest sets of changes, of one to three fields, with which the run fits.

    Args:
        settings (`Settings`):
            The run that does not fit.
        limit (`int`, *optional*, defaults to 4):
            Most sets to return.

    Returns:
        `list[dict[str, Any]]`: New values by name, cheapest first; empty if no such set is enough.
    """
    singles = [
        change
        for change in _changes(settings)
        if change and any(getattr(settings, name) != value for name, value in change.items())
    ]
    for size in (1, 2, 3):
        found = []
        for parts in combinations(singles, size):
            merged = {name: value for part in parts for name, value in part.items()}
            overlaps = len(merged) < sum(len(part) for part in parts)
            if not overlaps and fits(replace(settings, **merged)):
                found.append(merged)
        if found:
            return found[:limit]
    return []


def _spread(settings: Settings, factor: int) -> dict[str, Any]:
    """FSDP2 over `factor` times the GPUs, with the same update where micro-batches can be divided among them."""
    change: dict[str, Any] = {"num_gpus": factor * settings.num_gpus, "sharding": "fsdp"}
    steps = {
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "steps_per_generation": settings.steps_per_generation,
    }
    if any(value % factor for value in steps.values()):
        return change
    return change | {name: value // factor for name, value in steps.items()}


def more_gpus(settings: Settings) -> dict[str, Any] | None:
    """
    The changes with which the run fits on twice, four or eight times as many GPUs with FSDP2, the fewest first.

    Args:
        settings (`Settings`):
            The run that does not fit.

    Returns:
        `dict[str, Any]`: New values by name; `None` if no such number is enough.
    """
    for factor in (2, 4, 8):
        change = _spread(settings, factor)
        spread = replace(settings, **change)
        for further in [{}] if fits(spread) else remedies(spread):
            if "sharding" not in further:
                return change | further
    return None


def refusal(settings: Settings) -> str | None:
    """Why the run cannot fit, with its largest item; `None` if it fits."""
    training, generating = peak_bytes(settings)
    if not vllm_starts(settings):
        needed = rollout_memory.vllm_working_bytes(settings) / GIB
        cache = rollout_memory.sequence_cache_bytes(settings, settings.vllm_max_model_length) / GIB
        return (
            f"vLLM has {rollout_memory.vllm_share(settings) / GIB:.1f} GiB, but needs {needed:.1f} GiB for itself and "
            f"{cache:.1f} GiB for one sequence of {settings.vllm_max_model_length:,} tokens"
        )
    if spare_bytes(settings) >= 0:
        return None
    is_training = training >= generating
    largest = max(
        (item for item in items(settings) if (item.is_trained if is_training else item.is_generating)),
        key=lambda item: item.size,
    )
    return (
        f"{'training' if is_training else 'generating'} takes {max(training, generating) / GIB:.1f} GiB of "
        f"{settings.usable_bytes / GIB:.1f} GiB usable; the largest item is {largest.name} with "
        f"{largest.size / GIB:.1f} GiB"
    )
