"""`leash plan`: estimates memory per GPU and tokens per step of a recipe, without any GPU."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from leash_trl.cli.arguments import parse_known
from leash_trl.cli.errors import user_errors
from leash_trl.planning import plan


DEFAULT_PROMPT_LENGTH = 1024
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")


@dataclass
class PlanArguments:
    """Estimate the memory per GPU of --config RECIPE or of fields of leash train; refuse recipes that do not fit.

    Args:
        num_gpus (`int`): Number of GPUs that train.
        gpu_memory (`float`): Memory of one GPU, in GiB.
        sharding (`str`): How training is distributed over the GPUs.
        model_config (`str`): File config.json of the model, if the Hub cannot be reached.
        prompt_length (`int`): Length of prompts in tokens (default: the part of vllm_max_model_length that completions
            leave, or 1024).
    """

    num_gpus: int
    gpu_memory: float
    sharding: Literal["none", "zero1", "zero2", "zero3", "fsdp"] = "none"
    model_config: str | None = None
    prompt_length: int | None = None


def parse_plan(argv: Sequence[str]) -> tuple[PlanArguments, Any, Any]:
    """Returns the options of the plan, and the training and model arguments of the recipe for that number of GPUs."""
    arguments, rest = parse_known(PlanArguments, argv, "leash plan")
    from leash_trl.cli.training_arguments import arguments_of, given_fields
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig

    class PlannedConfig(LeashGRPOConfig):
        world_size = property(lambda self: arguments.num_gpus)

    # without a GPU, which planning does not need, transformers would refuse bf16
    given = given_fields(["--use_cpu", "true", *rest], prog="leash plan")
    _, training_args, model_args, _ = arguments_of(given, PlannedConfig)
    if model_args.model_name_or_path is None:
        raise ValueError("--model_name_or_path is missing: neither --config RECIPE nor the command line names it")
    return arguments, training_args, model_args


def make_settings(arguments: PlanArguments, training_args: Any, model_args: Any) -> plan.Settings:
    """Returns the settings of the plan; raises `ValueError` for settings of the recipe whose memory is not
    modeled."""
    from trl import get_peft_config

    from leash_trl.microbatching import batch_fields, loss_weights

    _check_known(training_args, model_args)
    limit, longest = training_args.vllm_max_model_length, training_args.generation_limit
    prompt, model = arguments.prompt_length, model_args.model_name_or_path
    if prompt is None:
        prompt = limit - longest if limit and limit > longest else DEFAULT_PROMPT_LENGTH
    with user_errors(only_loads=True, model_config=arguments.model_config, model_name_or_path=model):
        config = plan.load_model_config(model, arguments.model_config)
    rope_type = (config.rope_parameters or {}).get("rope_type")
    # no model that can be planned has a router
    reasons = loss_weights.reasons_against_regrouping(training_args, has_router_loss=False)
    is_tied = bool(reasons) or rope_type in batch_fields.LENGTH_DEPENDENT_ROPE
    given = vars(model_args) | vars(training_args) | vars(arguments)
    same = {name: given[name] for name in given.keys() & {field.name for field in fields(plan.Settings)}}
    is_half = model_args.dtype in ("bfloat16", "float16")
    worked_out = {
        "architecture": plan.read_architecture(config, get_peft_config(replace(model_args, use_peft=True))),
        "weight_bytes": 2 if is_half else 4,
        "compute_bytes": 2 if training_args.bf16 or is_half else 4,
        "attn_implementation": model_args.attn_implementation or "sdpa",
        "groups_lengths": training_args.length_grouped_microbatches and not is_tied,
        "max_length": prompt + longest,
        "max_completion_length": longest,
        "vllm_mode": training_args.vllm_mode if training_args.use_vllm else None,
        "vllm_max_model_length": limit or prompt + longest,
    }
    return plan.Settings(**same | worked_out)


def _check_known(training_args: Any, model_args: Any) -> None:
    unknown = {
        "load_in_4bit, which needs use_peft,": model_args.load_in_4bit and not model_args.use_peft,
        "load_in_8bit": model_args.load_in_8bit,
        "cast_lm_head_to_fp32": training_args.cast_lm_head_to_fp32,
        "fp16": training_args.fp16,
        "dtype auto": model_args.dtype == "auto",
        "attn_implementation eager": model_args.attn_implementation == "eager",
        f"optim {training_args.optim.value}": training_args.optim not in OPTIMIZERS,
    }
    if names := [name for name, is_set in unknown.items() if is_set]:
        raise ValueError(f"the memory of {' and '.join(names)} is not modeled; plan without it or change its value")


def main(argv: list[str]) -> int:
    """Runs `leash plan` and returns 0 if the run fits, else 1."""
    warnings.simplefilter("ignore", FutureWarning)  # about names that TRL itself sets
    with user_errors():
        arguments, training_args, model_args = parse_plan(argv)
        settings = make_settings(arguments, training_args, model_args)
    adapter = settings.adapter_parameters
    print(
        f"{model_args.model_name_or_path}: {settings.architecture.num_parameters:,} parameters"
        f"{f' and {adapter:,} of an adapter, which are trained,' if adapter else ''} on {settings.num_gpus} x "
        f"{settings.gpu_memory:g} GiB, sharding {settings.sharding}; {model_args.dtype} weights"
        f"{', computed in bfloat16' if training_args.bf16 else ''}\n"
    )
    steps = plan.step_lines(settings, training_args.num_iterations)
    print("\n".join([*plan.memory_lines(settings), "", *steps, "", *plan.verdict_lines(settings)]))
    return 1 if plan.refusal(settings) else 0
