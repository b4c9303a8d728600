"""A plan in words: memory per GPU, tokens per step, and whether the run fits or what would make it."""

from leash_trl.planning import memory
from leash_trl.planning.memory import GIB, Settings


TIGHT_SHARE = 0.05  # of the usable memory; to have less left is within the estimate's error


def memory_lines(settings: Settings) -> list[str]:
    """The items of one GPU's memory in GiB, and their sums."""
    usable = (settings.usable_bytes, settings.usable_bytes)
    rows = {**memory.items(settings), "sum": memory.peak_bytes(settings), "usable": usable}
    lines = [f"{'GiB per GPU':<30}{'training':>12}{'generating':>12}"]
    for name, sizes in rows.items():
        if any(sizes):
            lines.append(f"{name:<30}" + "".join(f"{size / GIB:12.2f}" if size else f"{'-':>12}" for size in sizes))
    return lines


def step_lines(settings: Settings, num_iterations: int) -> list[str]:
    """Tokens of the largest micro-batch, of the longest sequence's cache and of a generation batch."""
    batch, limit = memory.largest_micro_batch(settings), settings.max_completion_length
    completions, at_once = settings.generated_completions, settings.update_completions
    lines = [
        f"largest micro-batch: {batch.tokens:,} tokens, {settings.per_device_train_batch_size} x {batch.length:,}"
    ]
    if settings.is_colocated:
        lines.append(
            f"vLLM holds {memory.vllm_sequences(settings):,} sequences of {settings.vllm_max_model_length:,} tokens "
            f"at once, {memory.vllm_sequence_bytes(settings) / GIB:.2f} GiB each"
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
    if reason := memory.refusal(settings):
        lines = [f"does not fit: {reason}", "options that save memory, each alone:"]
        for options, changed in memory.changes(settings).items():
            if memory.spare_bytes(changed) > memory.spare_bytes(settings):
                peak = max(memory.peak_bytes(changed)) / GIB
                lines.append(f"  {options}: {peak:.1f} GiB{', fits' if memory.fits(changed) else ''}")
        return [*lines, "otherwise take more GPUs with --sharding fsdp, or GPUs with more memory"]
    spare = memory.spare_bytes(settings)
    if spare < TIGHT_SHARE * settings.usable_bytes:
        return [f"fits, with only {spare / GIB:.1f} GiB to spare: the estimate was checked on CPUs only"]
    return ["fits"]


def precision(settings: Settings, dtype: str) -> str:
    """In what weights are loaded and matrices multiplied; the engines that shard cast without autocast."""
    if not settings.bf16:
        return f"{dtype} weights, no autocast"
    return f"{dtype} weights, {'bfloat16 autocast' if settings.sharding == 'none' else 'computed in bfloat16'}"
