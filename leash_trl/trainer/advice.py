"""What to do when training runs out of memory or disk space: which knob, and what it stands at. Pure.

Failures pass `advise` on their way out; the exception stays what it is and gains a note, which ends its traceback.
"""

import errno
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from leash_trl.checkpoints.completeness import last_whole_checkpoint


if TYPE_CHECKING:
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


Doing = Literal["starting", "generating", "computing the loss", "evaluating", "updating the weights", "saving"]

MARK = "What to do: "
MIB = 2**20

OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE)
VLLM_NEEDS_MORE = re.compile(r"no available memory for the cache blocks|KV cache is needed|KV cache memory", re.I)
VLLM_NEEDS_LESS = re.compile(r"less than desired GPU memory utilization", re.IGNORECASE)

NO_SPACE_NUMBERS = frozenset({errno.ENOSPC, errno.EDQUOT})
# safetensors hands on the system's text; torch's zip writer knows only that a write came up short
NO_SPACE = re.compile(
    r"no space left on device|disk quota exceeded|PytorchStreamWriter failed|unexpected pos \d", re.I
)


@contextmanager
def advise(doing: Doing, args: "LeashGRPOConfig", folder: str | Path | None = None) -> Iterator[None]:
    """Adds to an exception that passes what can be done about it, once; exceptions it knows nothing of stay bare.

    Args:
        doing (`str`):
            What the code inside does.
        args (`LeashGRPOConfig`):
            Configuration, whose values the advice names.
        folder (`str` or `Path`, *optional*):
            What is being saved.
    """
    try:
        yield
    except Exception as error:
        if advice_in(error) is None and (text := advice(error, doing, args, folder)) is not None:
            error.add_note(MARK + text)
        raise


def advice_in(error: BaseException) -> str | None:
    """The advice that `advise` has added to an exception.

    Example:
        >>> error = OSError("full")
        >>> error.add_note("What to do: delete something")
        >>> advice_in(error), advice_in(OSError("full"))
        ('delete something', None)
    """
    notes = error.__dict__.get("__notes__", [])
    return next((note.removeprefix(MARK) for note in notes if note.startswith(MARK)), None)


def advice(
    error: BaseException, doing: Doing, args: "LeashGRPOConfig", folder: str | Path | None = None
) -> str | None:
    """What to do about a failure, with the values of the fields that matter; `None` if it is no known one."""
    if is_out_of_space(error):
        return _about_space(Path(folder or args.output_dir), args)
    text = str(error)
    if doing == "starting" and args.use_vllm and VLLM_NEEDS_MORE.search(text):
        return _sentence("starting vLLM", [f"raise {_vllm_share(args)}", f"lower {_vllm_length(args)}"])
    if doing == "starting" and args.use_vllm and VLLM_NEEDS_LESS.search(text):
        return _sentence("starting vLLM", [f"lower {_vllm_share(args)}", "end other programs on the GPU"])
    if OUT_OF_MEMORY.search(text) or isinstance(error, MemoryError):
        return _sentence(doing, _memory_knobs(doing, args))
    return None


def is_out_of_space(error: BaseException) -> bool:
    """Whether a write failed because the disk is full.

    Example:
        >>> import errno
        >>> is_out_of_space(OSError(errno.ENOSPC, "No space left on device"))
        True
        >>> is_out_of_space(RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"))
        True
        >>> is_out_of_space(OSError(errno.EACCES, "Permission denied"))
        False
    """
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in NO_SPACE_NUMBERS
    return NO_SPACE.search(str(error)) is not None


def _sentence(doing: str, knobs: list[str]) -> str:
    return f"Memory ran out while {doing}: {'; or '.join(knobs)}. leash plan --config RECIPE.yaml shows what needs it"


def _memory_knobs(doing: Doing, args: "LeashGRPOConfig") -> list[str]:
    if doing == "starting":
        return [*_vllm_knobs(args), "load a smaller model, or one in bfloat16 (dtype: bfloat16)", "use more GPUs"]
    if doing == "generating":
        return _generation_knobs(args)
    if doing == "evaluating":
        return [
            f"lower per_device_eval_batch_size (now {args.per_device_eval_batch_size})",
            f"lower max_completion_length (now {args.max_completion_length})",
        ]
    if doing in ("updating the weights", "saving"):
        return [
            "train adapters instead of all weights (use_peft: true), whose AdamW moments are small",
            "share weights and optimizer between GPUs (DeepSpeed or FSDP, recipes/accelerate)",
            # an enum at first, text where it was set later: of both, the text that they are
            f"take an optimizer with smaller state, such as adamw_bnb_8bit (optim is {str.__str__(args.optim)})",
        ]
    return _loss_knobs(args)


def _generation_knobs(args: "LeashGRPOConfig") -> list[str]:
    limit = f"lower max_completion_length (now {args.max_completion_length})"
    if args.use_vllm:
        return [*_vllm_knobs(args), limit]
    return [
        "lower the number of completions made at once, per_device_train_batch_size * steps_per_generation (now "
        f"{args.per_device_train_batch_size} * {args.steps_per_generation})",
        limit,
        "let vLLM generate (use_vllm: true)",
    ]


def _loss_knobs(args: "LeashGRPOConfig") -> list[str]:
    knobs = []
    if args.per_device_train_batch_size > 1:
        knobs.append(
            f"lower per_device_train_batch_size (now {args.per_device_train_batch_size}) and raise "
            f"gradient_accumulation_steps (now {args.gradient_accumulation_steps}) by the same factor"
        )
    if not args.gradient_checkpointing:
        knobs.append("set gradient_checkpointing: true")
    if not args.use_liger_kernel:
        knobs.append("set use_liger_kernel: true, which never holds all logits")
    return [*knobs, *_vllm_knobs(args), "train adapters instead of all weights (use_peft: true)"]


def _vllm_knobs(args: "LeashGRPOConfig") -> list[str]:
    """What makes vLLM take less of a GPU that it shares with training."""
    if not args.use_vllm or args.vllm_mode != "colocate":
        return []
    sleep = [] if args.vllm_enable_sleep_mode else ["set vllm_enable_sleep_mode: true, so that it rests in training"]
    return [f"lower {_vllm_share(args)}", *sleep]


def _vllm_share(args: "LeashGRPOConfig") -> str:
    return f"vllm_gpu_memory_utilization (now {args.vllm_gpu_memory_utilization})"


def _vllm_length(args: "LeashGRPOConfig") -> str:
    return f"vllm_max_model_length (now {args.vllm_max_model_length or 'that of the model'})"


def _about_space(folder: Path, args: "LeashGRPOConfig") -> str:
    try:
        whole = str(last_whole_checkpoint(args.output_dir))
        resuming = f"the last whole checkpoint is {whole}, and resume_from_checkpoint: true goes on from it"
    except ValueError:
        resuming = f"{args.output_dir} holds no whole checkpoint, so the run has to start again"
    savings = [f"set save_total_limit (now {args.save_total_limit}) to keep fewer checkpoints"]
    if not args.save_only_model:
        savings.append("set save_only_model: true to save no optimizer state, which lets a run resume only roughly")
    free = free_bytes(folder)
    is_checkpoint = folder.resolve() != Path(args.output_dir).resolve()
    first = "delete it, for it is not whole, and " if is_checkpoint else ""
    return (
        f"No space was left for {folder}{'' if free is None else f' ({free / MIB:.1f} MiB are free)'}: {first}make "
        f"room or choose another output_dir; {'; or '.join(savings)}; {resuming}"
    )


def free_bytes(folder: str | Path) -> int | None:
    """Free bytes of the disk that a folder is on, or will be on; `None` if the system does not say, as some network
    file systems give no sizes."""
    path = Path(folder).resolve()
    try:
        while not path.exists():
            path = path.parent
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return usage.free if usage.total > 0 else None


def space_problem(folder: str | Path, needed: int) -> str | None:
    """
    What is wrong with the disk that checkpoints go to, if one does not fit on it.

    Args:
        folder (`str` or `Path`):
            `output_dir`, there or not.
        needed (`int`):
            Bytes that one checkpoint takes at least.

    Example:
        >>> space_problem("/", 0) is None
        True
    """
    free = free_bytes(folder)
    if free is None or free >= needed:
        return None
    return (
        f"output_dir is {folder}, where {free / MIB:.1f} MiB are free, but one checkpoint takes at least "
        f"{needed / MIB:.1f} MiB: make room or choose another output_dir, or set save_only_model: true or "
        "save_strategy: 'no'"
    )
