"""Advice for training that runs out of memory or disk space: which fields to change, and their present values.

[`advise`] adds it to the exception as a note, which Python prints below the traceback.
"""

import errno
import re
import shutil
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from leash_trl.checkpoints.completeness import fault_of_checkpoint, whole_checkpoints


if TYPE_CHECKING:
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


# TRL: the first of these functions in the traceback names the phase
PHASES = {
    "GRPOTrainer.__init__": "starting",
    "Trainer.evaluate": "evaluating",
    "Trainer.predict": "evaluating",
    "Trainer.save_model": "saving",
    "LeashGRPOTrainer.save_model": "saving",
    "Trainer._save_checkpoint": "saving",
    "GRPOTrainer._generate": "generating",
    "Trainer.training_step": "computing the loss",
    "Trainer.train": "updating the weights",
}
MARK = "What to do: "
MIB = 2**20

VLLM_NEEDS_MORE = re.compile(r"no available memory for the cache blocks|KV cache is needed|KV cache memory", re.I)
VLLM_NEEDS_LESS = re.compile(r"less than desired GPU memory utilization", re.I)
OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)
NO_SPACE_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT})
# safetensors passes on the system's text; torch's zip writer reports only that a write was too short
NO_SPACE = re.compile(
    r"no space left on device|disk quota exceeded|PytorchStreamWriter failed|unexpected pos \d", re.I
)


@contextmanager
def advise(args: "LeashGRPOConfig") -> Iterator[None]:
    """Adds advice to an exception that leaves this context, once; an unknown exception stays as it is.

    The trainer starts and trains in this context, and all of `leash train` runs in it. Your own program can wrap
    other calls of a trainer in it, such as `evaluate` and `save_model`.

    Args:
        args (`LeashGRPOConfig`):
            Configuration; the advice names its values.
    """
    try:
        yield
    except Exception as error:
        phase = phase_of(error)
        if advice_in(error) is None and phase is not None and (text := advice(error, phase, args)) is not None:
            error.add_note(MARK + text)
        raise


def advice_in(error: BaseException) -> str | None:
    """The advice that `advise` added to an exception.

    Example:
        >>> error = OSError("full")
        >>> error.add_note("What to do: delete something")
        >>> advice_in(error), advice_in(OSError("full"))
        ('delete something', None)
    """
    notes = error.__dict__.get("__notes__", [])
    return next((note.removeprefix(MARK) for note in notes if note.startswith(MARK)), None)


def phase_of(error: BaseException) -> str | None:
    """What a trainer was doing when an exception was raised, read from the functions in its traceback; `None` if no
    trainer was at work."""
    passed = {frame.f_code.co_qualname for frame, _ in traceback.walk_tb(error.__traceback__)}
    return next((phase for name, phase in PHASES.items() if name in passed), None)


def advice(error: BaseException, phase: str, args: "LeashGRPOConfig") -> str | None:
    """What to do about a failure, with the values of the fields that matter; `None` if the failure is not known."""
    if is_out_of_space(error):
        return _about_space(args)
    share = f"vllm_gpu_memory_utilization (now {args.vllm_gpu_memory_utilization})"
    if VLLM_NEEDS_MORE.search(str(error)):
        return f"vLLM has no room for its cache: raise {share}; or lower vllm_max_model_length"
    if VLLM_NEEDS_LESS.search(str(error)):
        return f"vLLM finds less free memory than it is to take: lower {share}, or free the GPU of other programs"
    if not isinstance(error, MemoryError) and OUT_OF_MEMORY.search(str(error)) is None:
        return None
    knobs = "; or ".join(_memory_knobs(phase, args))
    return f"Memory ran out while {phase}: {knobs}. leash plan --config RECIPE.yaml shows what needs it"


def is_out_of_space(error: BaseException) -> bool:
    """Whether a write failed because the disk is full."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in NO_SPACE_NUMBERS
    return NO_SPACE.search(str(error)) is not None


def _memory_knobs(phase: str, args: "LeashGRPOConfig") -> list[str]:
    batch, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
    vllm: list[str] = []  # it shares the GPU with training
    if args.use_vllm and args.vllm_mode == "colocate":
        vllm.append(f"lower vllm_gpu_memory_utilization (now {args.vllm_gpu_memory_utilization})")
        if not args.vllm_enable_sleep_mode:
            vllm.append("set vllm_enable_sleep_mode: true, so that it rests in training")
    limit = f"lower max_completion_length (now {args.max_completion_length})"
    adapters = "train adapters instead of all weights (use_peft: true), whose AdamW moments are small"
    if phase == "starting":
        return [*vllm, "load a smaller model, or one in bfloat16 (dtype: bfloat16)", "use more GPUs"]
    if phase == "evaluating":
        return [f"lower per_device_eval_batch_size (now {args.per_device_eval_batch_size})", limit]
    if phase == "generating" and args.use_vllm:
        return [*vllm, limit]
    if phase == "generating":
        product = f"per_device_train_batch_size * steps_per_generation (now {batch} * {args.steps_per_generation})"
        return [f"lower {product}, the completions made at once", limit, "let vLLM generate (use_vllm: true)"]
    if phase == "computing the loss":
        smaller = (
            f"lower per_device_train_batch_size (now {batch}) and raise gradient_accumulation_steps (now "
            f"{accumulation}) by the same factor"
        )
        return [
            *([smaller] if batch > 1 else []),
            *([] if args.gradient_checkpointing else ["set gradient_checkpointing: true"]),
            *([] if args.use_liger_kernel else ["set use_liger_kernel: true, which never holds all logits"]),
            *vllm,
            adapters,
        ]
    return [
        adapters,
        "share weights and optimizer between GPUs (DeepSpeed or FSDP, recipes/accelerate)",
        # `optim` is an enum by default and plain text where it was set later; str.__str__ reads both
        f"take an optimizer with smaller state, such as adamw_bnb_8bit (optim is {str.__str__(args.optim)})",
    ]


def _about_space(args: "LeashGRPOConfig") -> str:
    folder = Path(args.output_dir)
    free = free_bytes(folder)
    torn = sorted(path.name for path in folder.glob("checkpoint-*") if fault_of_checkpoint(path) is not None)
    steps = [
        *([f"delete what is not complete ({', '.join(torn)})"] if torn else []),
        "make room or choose another output_dir",
        f"set save_total_limit (now {args.save_total_limit}) to keep fewer checkpoints",
        *([] if args.save_only_model else ["set save_only_model: true, which lets a run resume only roughly"]),
    ]
    last = next(whole_checkpoints(folder), None)
    resuming = (
        "it holds no complete checkpoint, so the run has to start again"
        if last is None
        else f"the last complete checkpoint is {last}, and resume_from_checkpoint: true goes on from it"
    )
    amount = "" if free is None else f", where {free / MIB:.1f} MiB are free"
    return f"No space was left for output_dir {folder}{amount}: {'; or '.join(steps)}; {resuming}"


def free_bytes(folder: Path) -> int | None:
    """Free bytes on the disk of a folder, which need not exist yet; `None` if the system does not say, as with some
    network file systems."""
    try:
        there = next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
        usage = shutil.disk_usage(there)
    except OSError:
        return None
    return usage.free if usage.total > 0 else None
