"""The settings that decide what a run trains; each checkpoint holds them, so that a resume notices other settings."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from datasets import Dataset
from huggingface_hub import try_to_load_from_cache
from peft import PeftModel

from leash_trl.checkpoints.fingerprint import files_fingerprint
from leash_trl.hub.recipe import changed_fields, portable
from leash_trl.length_control.targets import TARGET_COLUMN
from leash_trl.trainer.leash_grpo_config import LAMBDA_FIELDS, LeashGRPOConfig


# fields that may differ between a checkpoint and the run that resumes from it; all others change what is trained
MAY_DIFFER = (
    *("max_steps", "num_train_epochs"),
    # what is logged, saved, pushed and evaluated, and how a run is resumed
    *("output_dir", "run_name", "project", "trackio_*", "report_to", "log_*", "logging_*", "disable_tqdm", "debug"),
    *("num_completions_to_print", "skip_memory_metrics", "include_num_input_tokens_seen", "push_to_hub", "hub_*"),
    *("save_*", "enable_jit_checkpoint", "do_*", "eval_*", "*_eval", "per_device_eval_batch_size"),
    *("num_generations_eval", "prediction_loss_only", "include_for_metrics", "batch_eval_metrics"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better"),
    *("resume_from_checkpoint", "ignore_data_skip", "restore_callback_states_from_checkpoint"),
    # where and how the same gradient is computed
    *("use_cpu", "local_rank", "full_determinism", "tf32", "torch_compile*", "torch_empty_cache_steps", "use_cache"),
    *("ddp_*", "fsdp*", "deepspeed", "accelerator_config", "parallelism_config", "ds3_gather_for_generation"),
    *("dataloader_*", "gradient_checkpointing*", "activation_checkpointing*", "use_liger_kernel"),
    *("liger_kernel_config", "auto_find_batch_size", "model_init_kwargs", "trust_remote_code"),
    *("length_grouped_microbatches", "skip_zero_signal", "use_vllm", "vllm_mode", "vllm_model_impl"),
    *("vllm_enable_sleep_mode", "vllm_server_*", "vllm_group_port", "vllm_gpu_memory_utilization"),
    *("vllm_max_model_length", "vllm_tensor_parallel_size", "use_transformers_*"),
    *("transformers_continuous_batching_config", "cache_implementation"),
    # what counts is their product over all processes
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "generation_batch_size"),
    "update_batch_size",
)
# these only give a warning: one model has several names, such as a Hub id, its snapshot on disk, a copy
ONLY_SAID = frozenset({"model"})
BASE_WEIGHTS = "weights of the base model"
# transformers reads the first kind that is there; other files of the like are variants
WEIGHT_FILES = (
    ("model.safetensors", "model-*-of-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model-*-of-*.bin"),
)
ARCHITECTURE = ("model_type", "hidden_size", "num_hidden_layers")
NOT_THE_ADAPTER = ("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision")
NUM_PROMPTS = 16  # prompts that identify a data set
MOST_SHOWN = 60  # characters of a value shown in a message


def run_settings(
    args: LeashGRPOConfig, model: Mapping[str, Any], reward_funcs: Sequence[str], dataset: Any
) -> dict[str, Any]:
    """Settings that must be equal for a run to resume from a checkpoint, as JSON returns them.

    Args:
        args ([`LeashGRPOConfig`]):
            Configuration; fields at their defaults are left out.
        model (`Mapping`):
            From [`model_settings`] and [`base_settings`].
        reward_funcs (`list[str]`):
            Names of the reward functions.
        dataset (`Dataset`, *optional*):
            Training data, identified by its size, some prompts, and all golds, targets and values that the method
            reads; a stream is not compared.
    """
    fields = {name: value for name, value in portable(changed_fields(args)).items() if not _may_differ(name)}
    method = args.make_length_control()
    settings = {
        **fields,
        # a recipe may name the method's own default, or leave it out
        **{name: getattr(method, name) for name in LAMBDA_FIELDS if hasattr(method, name)},
        "completions per update": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "completions per generation batch": args.generation_batch_size,
        **model,
        "reward_funcs": list(reward_funcs),
    }
    if (data := _data(dataset, method.columns_read())) is not None:
        settings["data"] = data
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def _may_differ(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in MAY_DIFFER)


def model_settings(model: Any) -> dict[str, Any]:
    """The same for the model to train, read before DeepSpeed or FSDP change the type of its weights.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Identified by its architecture, its adapter and the last part of its name.
    """
    is_adapter = isinstance(model, PeftModel)
    adapter = model.peft_config[model.active_adapter].to_dict() if is_adapter else {"peft_type": None}
    config = model.config.get_text_config()
    return {
        "model": model.config.name_or_path.rstrip("/").rpartition("/")[2],
        "dtype": str(model.dtype).removeprefix("torch."),
        **{name: getattr(config, name) for name in ARCHITECTURE if hasattr(config, name)},
        **{
            f"adapter.{name}": sorted(value) if isinstance(value, set) else value
            for name, value in adapter.items()
            if name not in NOT_THE_ADAPTER
        },
    }


def base_settings(model: Any, source: Any, args: LeashGRPOConfig) -> dict[str, str]:
    """The fingerprint of the base model's weights, where a run that resumes still needs them as they were.

    With an adapter it does: a checkpoint holds the adapter alone. Without one, the checkpoint's weights replace the
    base model's; what is left of it is the reference of a KL term (`beta` above 0), unless that moves
    (`sync_ref_model`) and is saved itself. Only the main process, which compares and saves settings, reads files.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            The model to train.
        source (`str` or [`~transformers.PreTrainedModel`]):
            What it was loaded from. A model that was given itself has no fingerprint: its files are not known.
        args ([`LeashGRPOConfig`]):
            Configuration.
    """
    has_fixed_reference = args.beta != 0 and not args.sync_ref_model
    is_needed = isinstance(model, PeftModel) or has_fixed_reference
    if not is_needed or not isinstance(source, str) or args.process_index != 0:
        return {}
    folder = Path(source)
    if not folder.is_dir():
        revision = (args.model_init_kwargs or {}).get("revision")
        cached = try_to_load_from_cache(source, "config.json", revision=revision)
        if not isinstance(cached, str):
            return {}
        folder = Path(cached).parent
    found = next(filter(None, (files_fingerprint(folder, patterns) for patterns in WEIGHT_FILES)), None)
    return {BASE_WEIGHTS: found} if found else {}


def _data(dataset: Any, columns_read: Sequence[str]) -> str | None:
    if not isinstance(dataset, Dataset) or dataset.format["type"] == "custom" or "prompt" not in dataset.column_names:
        return None
    rows = len(dataset)
    prompts = dataset.select_columns("prompt").select(range(0, rows, max(1, rows // NUM_PROMPTS)))
    small = {
        name: dataset[name][:] for name in ("solution", TARGET_COLUMN, *columns_read) if name in dataset.column_names
    }
    # images in messages have no text of their own
    text = json.dumps([list(prompts), small], default=lambda value: type(value).__name__, sort_keys=True)
    return f"{rows} rows {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """Settings that changed, as `old -> new` by name; a setting that one side does not have does not count, nor does
    another name of the same weights.

    Example:
        >>> differences({"seed": 1}, {"seed": 2, "data": "8 rows", "weight_decay": 0.0})
        {'seed': '1 -> 2', 'weight_decay': '0.1 -> 0.0'}
    """
    defaults = {name: field.default for name, field in LeashGRPOConfig.__dataclass_fields__.items()}
    before, after = {**defaults, **saved}, {**defaults, **now}
    is_same_base = BASE_WEIGHTS in saved and saved[BASE_WEIGHTS] == now.get(BASE_WEIGHTS)
    return {
        name: _change(before[name], after[name])
        for name in sorted((saved.keys() | now.keys()) & before.keys() & after.keys())
        if before[name] != after[name] and not _may_differ(name) and not (is_same_base and name == "model")
    }


def _change(old: Any, new: Any) -> str:
    """Two values as `old -> new`, each cut to the part where they differ."""
    texts = (str(old), str(new))
    pairs = enumerate(zip(*texts, strict=False))
    same = next((place for place, (one, other) in pairs if one != other), min(map(len, texts)))
    start = max(0, same - MOST_SHOWN // 2) if max(map(len, texts)) > MOST_SHOWN else 0
    return " -> ".join(_cut(text, start) for text in texts)


def _cut(text: str, start: int) -> str:
    end = start + MOST_SHOWN
    return ("..." if start else "") + text[start:end] + ("..." if text[end:] else "")
