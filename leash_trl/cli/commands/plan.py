"""`leash plan`: estimates memory per GPU and tokens per step of a recipe, without any GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from leash_trl import process
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
    arguments, training_words = parse_known(PlanArguments, argv, "leash plan")
    from leash_trl.cli.training_arguments import arguments_of, given_fields
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig

    class PlannedConfig(LeashGRPOConfig):
        world_size = property(
            lambda self: arguments.num_gpus
        )  # transformers would count the processes of this machine

    # without a GPU, which planning does not need, transformers would refuse bf16
    recipe = given_fields(["--use_cpu", "true", *training_words], prog="leash plan")
    _, training_args, model_args, _ = arguments_of(recipe, PlannedConfig)
    if model_args.model_name_or_path is None:
        raise ValueError("--model_name_or_path is missing: neither --config RECIPE nor the command line names it")
    return arguments, training_args, model_args


def make_settings(arguments: PlanArguments, training_args: Any, model_args: Any) -> plan.Settings:
    """Returns the settings of the plan; raises `ValueError` for settings of the recipe whose memory is not
    modeled."""
    from trl import get_peft_config

    from leash_trl.microbatching import batch_fields, loss_weights

    unmodeled = unmodeled_settings(training_args, model_args)
    if unmodeled:
        raise ValueError(
            f"the memory of {' and '.join(unmodeled)} is not modeled; plan without it or change its value"
        )
    model = model_args.model_name_or_path
    with user_errors(only_loads=True, model_config=arguments.model_config, model_name_or_path=model):
        config = plan.load_model_config(model, arguments.model_config)
    completion_length = training_args.generation_limit
    prompt_length = planned_prompt_length(arguments, training_args)
    # no model that can be planned has a router
    reasons = loss_weights.reasons_against_regrouping(training_args, has_router_loss=False)
    rope_type = (config.rope_parameters or {}).get("rope_type")
    depends_on_length = rope_type in batch_fields.LENGTH_DEPENDENT_ROPE
    is_half = model_args.dtype in ("bfloat16", "float16")
    derived = {
        "architecture": plan.read_architecture(config, get_peft_config(replace(model_args, use_peft=True))),
        "weight_bytes": 2 if is_half else 4,
        "compute_bytes": 2 if training_args.bf16 or is_half else 4,
        "attn_implementation": model_args.attn_implementation or "sdpa",
        "groups_lengths": training_args.length_grouped_microbatches and not reasons and not depends_on_length,
        "max_length": prompt_length + completion_length,
        "max_completion_length": completion_length,
        "vllm_mode": training_args.vllm_mode if training_args.use_vllm else None,
        "vllm_max_model_length": training_args.vllm_max_model_length or prompt_length + completion_length,
    }
    # the other settings are fields of the same name
    values = {**vars(model_args), **vars(training_args), **vars(arguments), **derived}
    settings = {field.name: values[field.name] for field in fields(plan.Settings) if field.name in values}
    return plan.Settings(**settings)


def planned_prompt_length(arguments: PlanArguments, training_args: Any) -> int:
    """Returns the length of prompts to plan with, in tokens."""
    if arguments.prompt_length is not None:
        return arguments.prompt_length
    context_length = training_args.vllm_max_model_length
    completion_length = training_args.generation_limit
    if context_length and context_length > completion_length:
        return context_length - completion_length
    return DEFAULT_PROMPT_LENGTH


def unmodeled_settings(training_args: Any, model_args: Any) -> list[str]:
    """Returns the settings of a recipe whose memory is not modeled."""
    unmodeled = []
    if model_args.load_in_4bit and not model_args.use_peft:
        unmodeled.append("load_in_4bit, which needs use_peft,")
    if model_args.load_in_8bit:
        unmodeled.append("load_in_8bit")
    if training_args.cast_lm_head_to_fp32:
        unmodeled.append("cast_lm_head_to_fp32")
    if training_args.fp16:
        unmodeled.append("fp16")
    if model_args.dtype == "auto":
        unmodeled.append("dtype auto")
    if model_args.attn_implementation == "eager":
        unmodeled.append("attn_implementation eager")
    if training_args.optim not in OPTIMIZERS:
        unmodeled.append(f"optim {training_args.optim.value}")
    return unmodeled


def headline(settings: plan.Settings, training_args: Any, model_args: Any) -> str:
    """Returns one line on the model, the GPUs and the types of numbers."""
    parameters = f"{settings.architecture.num_parameters:,} parameters"
    if settings.adapter_parameters:
        parameters += f" and {settings.adapter_parameters:,} of an adapter, which are trained,"
    types = f"{model_args.dtype} weights"
    if training_args.bf16:
        types += ", computed in bfloat16"
    return (
        f"{model_args.model_name_or_path}: {parameters} on {settings.num_gpus} x {settings.gpu_memory:g} GiB, "
        f"sharding {settings.sharding}; {types}"
    )


def main(argv: list[str]) -> int:
    """Prints the memory and the tokens of a recipe, and returns 0 if the run fits, else 1."""
    process.ignore_future_warnings()  # about names that TRL itself sets
    with user_errors():
        arguments, training_args, model_args = parse_plan(argv)
        settings = make_settings(arguments, training_args, model_args)
    sections = [
        [headline(settings, training_args, model_args)],
        plan.memory_lines(settings),
        plan.step_lines(settings, training_args.num_iterations),
        plan.verdict_lines(settings),
    ]
    print("\n\n".join("\n".join(lines) for lines in sections))
    return 1 if plan.refusal(settings) else 0
