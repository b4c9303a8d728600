"""`leash plan`: estimates memory per GPU of a recipe, and updates, tokens and hours of its run, without any GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from leash_trl import process
from leash_trl.cli.arguments import parse_known
from leash_trl.cli.errors import errors_to_user_errors
from leash_trl.planning import duration, plan
from leash_trl.run_folder import RECIPE_FILE, newest_trainer_state


if TYPE_CHECKING:
    from transformers import PreTrainedConfig

DEFAULT_PROMPT_LENGTH = 1024
PLANNED_PROBLEMS = 1000  # if the number of updates depends on the data
# settings whose memory is not modeled
UNMODELED_VALUES = {
    "load_in_8bit": True,
    "cast_lm_head_to_fp32": True,
    "fp16": True,
    "dtype": "auto",
    "attn_implementation": "eager",
}
MODELED_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")


@dataclass
class PlanArguments:
    """Estimate the memory per GPU of --config RECIPE or of fields of leash train, and refuse recipes that do not fit.
    Say how many policy updates, completions and tokens the run has and, if its speed is known, how long it takes.

    Args:
        num_gpus (`int`): Number of GPUs that train.
        gpu_memory (`float`): Memory of one GPU, in GiB; without it, no memory is estimated.
        sharding (`str`): How training is distributed over the GPUs.
        model_config (`str`): File config.json of the model, if the Hub cannot be reached.
        prompt_length (`int`): Length of prompts in tokens (default: what max_completion_length leaves of
            vllm_max_model_length, or 1024).
        tokens_per_second (`float`): Completion tokens of all GPUs together per second of training, which includes
            generation and update.
        step_seconds (`float`): Seconds per policy update, including generation.
        run (`str`): Folder of a run of a few updates with the same batches and GPUs, whose log has the time of an
            update without the optimizer's step; without --config, its recipe is planned: --run RUN --max_steps 400.
    """

    num_gpus: int = 1
    gpu_memory: float | None = None
    sharding: Literal["none", "zero1", "zero2", "zero3", "fsdp"] = "none"
    model_config: str | None = None
    prompt_length: int | None = None
    tokens_per_second: float | None = None
    step_seconds: float | None = None
    run: str | None = None


def parse_plan(argv: Sequence[str]) -> tuple[PlanArguments, Any, Any, Any]:
    """Returns the options of the plan, and the script, training and model arguments of the recipe, for `num_gpus` in
    place of this machine's GPUs."""
    arguments, training_words = parse_known(PlanArguments, argv, "leash plan")
    from leash_trl.cli.training_arguments import arguments_of, fields_of_command_line
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig

    class PlannedConfig(LeashGRPOConfig):
        """A configuration for the planned number of GPUs, instead of the number of processes on this machine."""

        world_size = property(lambda self: arguments.num_gpus)

    if arguments.run is not None:
        # The recipe of the run comes first, so that a --config on the command line replaces it.
        training_words = ["--config", str(Path(arguments.run, RECIPE_FILE)), *training_words]
    # Planning needs no GPU, but transformers would refuse bf16 without one, unless it is told to use the CPU.
    recipe = fields_of_command_line(["--use_cpu", "true", *training_words], prog="leash plan")
    script_args, training_args, model_args, _ = arguments_of(recipe, PlannedConfig)
    return arguments, script_args, training_args, model_args


def plan_settings(arguments: PlanArguments, training_args: Any, model_args: Any) -> plan.Settings:
    """Returns the settings of the plan; raises `ValueError` if the memory of a setting of the recipe is not modeled,
    and `UserError` if the model's configuration cannot be loaded."""
    from trl import get_peft_config

    check_memory_is_modeled(training_args, model_args)
    model = model_args.model_name_or_path
    with errors_to_user_errors(
        always_names_option=True, model_config=arguments.model_config, model_name_or_path=model
    ):
        config = plan.load_model_config(model, arguments.model_config)
    completion_length = training_args.generation_limit
    max_length = planned_prompt_length(arguments, training_args) + completion_length
    is_half = model_args.dtype in ("bfloat16", "float16")
    # fields of `plan.Settings` that are not simply a field of the arguments
    derived = {
        # The size of an adapter is included even if none is trained, since `leash plan` may suggest one.
        "architecture": plan.read_architecture(config, get_peft_config(replace(model_args, use_peft=True))),
        # bytes of each number in the weights, and in the products that are computed with them
        "weight_dtype_bytes": 2 if is_half else 4,
        "compute_dtype_bytes": 2 if training_args.bf16 or is_half else 4,
        "attn_implementation": model_args.attn_implementation or "sdpa",
        "groups_lengths": groups_lengths(training_args, config),
        "max_length": max_length,
        "max_completion_length": completion_length,
        "vllm_mode": training_args.vllm_mode if training_args.use_vllm else None,
        "vllm_max_model_length": training_args.vllm_max_model_length or max_length,
    }
    # All other settings are fields of the same name in one of the three groups of arguments.
    values = {**vars(model_args), **vars(training_args), **vars(arguments), **derived}
    settings = {field.name: values[field.name] for field in fields(plan.Settings)}
    return plan.Settings(**settings)


def groups_lengths(training_args: Any, config: "PreTrainedConfig") -> bool:
    """Returns whether training groups completions by length into micro-batches."""
    from leash_trl.microbatching import batch_fields, loss_weights

    # Completions are grouped only if the loss does not depend on which completions share a micro-batch. The loss of a
    # router would depend on it, but no model that can be planned has a router.
    reasons = loss_weights.reasons_against_regrouping(training_args, has_router_loss=False)
    # The frequencies of some rotary positions depend on the width of a micro-batch, so grouping would change them.
    rope_type = (config.rope_parameters or {}).get("rope_type")
    depends_on_length = rope_type in batch_fields.LENGTH_DEPENDENT_ROPE
    return training_args.length_grouped_microbatches and not reasons and not depends_on_length


def run_size(arguments: PlanArguments, training_args: Any, num_efforts: int) -> duration.RunSize:
    """Returns the updates and completions of a run. Without `max_steps` they depend on the size of the data set, which
    is not loaded, so they are then given for every 1,000 problems."""
    # Every completion is used in `num_iterations` updates, so an update needs only a part of its batch to be new.
    completions_per_update = (
        arguments.num_gpus * training_args.per_device_train_batch_size * training_args.gradient_accumulation_steps
    )
    new_completions_per_update = completions_per_update / training_args.num_iterations
    if training_args.max_steps > 0:
        name = "run"
        num_updates = training_args.max_steps
        num_completions = num_updates * new_completions_per_update
    else:
        name = f"run, for every {PLANNED_PROBLEMS:,} problems in {training_args.num_train_epochs:g} epochs"
        num_prompts = PLANNED_PROBLEMS * max(1, num_efforts)  # each problem once per effort
        num_completions = training_args.num_train_epochs * num_prompts * training_args.num_generations
        num_updates = num_completions / new_completions_per_update
    return duration.RunSize(
        name,
        num_updates,
        num_completions=num_completions,
        max_sampling_rounds=training_args.dynamic_sampling_rounds,
        num_gpus=arguments.num_gpus,
    )


def planned_run_lines(arguments: PlanArguments, script_args: Any, training_args: Any) -> list[str]:
    """Returns lines with the size of the run and, if a rate is known, how long it takes."""
    efforts = script_args.efforts  # such as {"low": 1024, "high": 8192}
    # Each effort has equally many prompts, so the mean target is the mean over efforts.
    target_length = fmean(efforts.values()) if efforts else training_args.target_length
    measured = None  # the duration of an update, as a run of a few updates logged it
    if arguments.run is not None:
        with errors_to_user_errors(always_names_option=True, run=arguments.run):
            measured = duration.measured_update(newest_trainer_state(arguments.run)["log_history"])
    return duration.run_size_lines(
        run_size(arguments, training_args, num_efforts=len(efforts)),
        longest=training_args.generation_limit,
        target_length=target_length if training_args.length_of == "completion" else None,
        step_seconds=arguments.step_seconds,
        tokens_per_second=arguments.tokens_per_second,
        measured=measured,
    )


def planned_prompt_length(arguments: PlanArguments, training_args: Any) -> int:
    """Returns the length of prompts to plan with, in tokens."""
    if arguments.prompt_length is not None:
        return arguments.prompt_length
    # vLLM's context holds prompt and completion, so the prompt may be as long as what completions leave.
    context_length = training_args.vllm_max_model_length
    completion_length = training_args.generation_limit
    if context_length and context_length > completion_length:
        return context_length - completion_length
    return DEFAULT_PROMPT_LENGTH


def check_memory_is_modeled(training_args: Any, model_args: Any) -> None:
    """Raises `ValueError` if a recipe has settings whose memory is not modeled."""
    values = {**vars(model_args), **vars(training_args)}
    # such as ["fp16 True"]
    unmodeled = [f"{name} {value}" for name, value in UNMODELED_VALUES.items() if values[name] == value]
    if training_args.optim not in MODELED_OPTIMIZERS:
        unmodeled.append(f"optim {training_args.optim.value}")
    if unmodeled:
        raise ValueError(
            f"the memory of {' and '.join(unmodeled)} is not modeled; plan without it or change its value"
        )


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
    """Prints the memory, the tokens and the hours of a recipe. Returns 1 if the run does not fit, and 0 if it does or
    if `gpu_memory` is not given."""
    process.ignore_future_warnings()  # about names that TRL itself sets
    with errors_to_user_errors():
        arguments, script_args, training_args, model_args = parse_plan(argv)
        run_size_lines = planned_run_lines(arguments, script_args, training_args)
        settings = None if arguments.gpu_memory is None else plan_settings(arguments, training_args, model_args)
    if settings is None:
        print("\n".join(run_size_lines))
        return 0
    sections = [  # each a list of lines
        [headline(settings, training_args, model_args)],
        plan.memory_table_lines(settings),
        plan.batch_lines(settings, training_args.num_iterations),
        run_size_lines,
        plan.verdict_lines(settings),
    ]
    print("\n\n".join("\n".join(lines) for lines in sections))
    # `misfit_reason` says why the run does not fit; the last section has its text.
    return 1 if plan.misfit_reason(settings) else 0
