"""What makes a run's training what it is: kept in every checkpoint, so that no run goes on with another's unseen."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from datasets import Dataset
from peft import PeftModel

from leash_trl.hub.recipe import changed_fields, portable
from leash_trl.leash_grpo_config import LeashGRPOConfig


# fields that may differ between a checkpoint and the run that goes on from it; all others change what is trained
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
    # a warning of its own
    "target_length",
)
NOT_THE_ADAPTER = ("base_model_name_or_path", "inference_mode", "revision")
NUM_PROMPTS = 16  # prompts that stand for a data set
MOST_SHOWN = 60  # characters of a value in a message


def run_settings(
    args: LeashGRPOConfig, model: Mapping[str, Any], reward_funcs: Sequence[str], dataset: Any
) -> dict[str, Any]:
    """What must be equal for a run to go on from a checkpoint, as JSON gives it back.

    Args:
        args ([`LeashGRPOConfig`]):
            Configuration; of its fields those that are not at their defaults.
        model (`Mapping`):
            From [`model_settings`].
        reward_funcs (`list[str]`):
            Names of the reward functions.
        dataset (`Dataset`, *optional*):
            Training data, known by its size and some prompts; a stream is not compared.
    """
    fields = {name: value for name, value in portable(changed_fields(args)).items() if not _may_differ(name)}
    settings = {
        **fields,
        "completions per update": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "completions per generation batch": args.generation_batch_size,
        **model,
        "reward_funcs": list(reward_funcs),
        "data": _data(dataset),
    }
    plain: dict[str, Any] = json.loads(json.dumps(settings, default=str))
    return plain


def _may_differ(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in MAY_DIFFER)


def model_settings(model: Any) -> dict[str, Any]:
    """The same of a model that is to be trained, as it is before DeepSpeed or FSDP change its weights' type.

    Args:
        model ([`~transformers.PreTrainedModel`] or [`~peft.PeftModel`]):
            Known by the last part of its name, for folders move.
    """
    adapter = model.peft_config[model.active_adapter].to_dict() if isinstance(model, PeftModel) else {}
    given = {name: value for name, value in adapter.items() if value is not None and name not in NOT_THE_ADAPTER}
    return {
        "model": model.config._name_or_path.rstrip("/").rpartition("/")[2],
        "dtype": str(model.dtype).removeprefix("torch."),
        "adapter": {name: sorted(value) if isinstance(value, set) else value for name, value in given.items()},
    }


def _data(dataset: Any) -> str | None:
    if not isinstance(dataset, Dataset) or dataset.format["type"] == "custom" or "prompt" not in dataset.column_names:
        return None
    rows = len(dataset)
    prompts = dataset.select_columns("prompt").select(range(0, rows, max(1, rows // NUM_PROMPTS)))
    # pictures in messages have no text of their own
    text = json.dumps(list(prompts), default=lambda value: type(value).__name__, sort_keys=True)
    return f"{rows} rows {hashlib.sha256(text.encode()).hexdigest()[:8]}"


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Settings that are not what they were, each as `name old -> new`; what one side does not know is no difference.

    Example:
        >>> differences({"seed": 1, "data": None}, {"seed": 2, "data": "8 rows", "weight_decay": 0.0})
        ['seed 1 -> 2', 'weight_decay 0.1 -> 0.0']
    """
    defaults = {name: field.default for name, field in LeashGRPOConfig.__dataclass_fields__.items()}
    found = []
    for name in sorted(saved.keys() | now.keys()):
        old, new = saved.get(name, defaults.get(name)), now.get(name, defaults.get(name))
        is_unknown = name not in defaults and None in (old, new)
        if old != new and not is_unknown and not _may_differ(name):
            found.append(f"{name} {_shown(old)} -> {_shown(new)}")
    return found


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
