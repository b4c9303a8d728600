"""`leash plan`: memory per GPU and tokens per step of a recipe, without any GPU."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from leash_trl.cli.arguments import option, parse_known
from leash_trl.cli.errors import user_errors
from leash_trl.planning.plan import (
    Settings,
    load_model_config,
    memory_lines,
    read_architecture,
    refusal,
    step_lines,
    verdict_lines,
)


if TYPE_CHECKING:
    from transformers import PreTrainedConfig


DESCRIPTION = "Print what --config RECIPE, or fields of leash train, need per GPU; refuse what cannot fit."
DEFAULT_PROMPT_LENGTH = 1024
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")


@dataclass
class PlanArguments:
    """Options of `leash plan`; `--config` names a recipe, and all others are its fields."""

    num_gpus: int = field(metadata={"help": "GPUs that train"})
    gpu_memory: float = field(metadata={"help": "memory of one GPU, in GiB"})
    sharding: Literal["none", "zero1", "zero2", "zero3", "fsdp"] = option("none is DDP", "none")
    model_config: str | None = option("the model's config.json, for want of the Hub")
    prompt_length: int | None = option(
        "longest prompt in tokens (default: what vllm_max_model_length leaves, or 1024)"
    )


def parse_plan(argv: Sequence[str]) -> tuple[PlanArguments, Any, Any]:
    """The plan's options, and the training and model arguments of the recipe for that number of GPUs."""
    arguments, rest = parse_known(PlanArguments, argv, prog="leash plan", description=DESCRIPTION)
    if arguments.num_gpus < 1:
        raise ValueError(f"--num_gpus is {arguments.num_gpus}, but must be at least 1")
    from leash_trl.cli.training_arguments import arguments_of, given_fields
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig

    class PlannedConfig(LeashGRPOConfig):
        world_size = property(lambda self: arguments.num_gpus)

    # planning happens where there are no GPUs, of which bf16 would ask
    given = given_fields(["--use_cpu", "true", *rest], prog="leash plan")
    _, training_args, model_args, _ = arguments_of(given, PlannedConfig)
    if model_args.model_name_or_path is None:
        raise ValueError("--model_name_or_path is missing: neither --config RECIPE nor the command line names it")
    return arguments, training_args, model_args


def groups_lengths(training_args: Any, config: "PreTrainedConfig") -> bool:
    """Whether `LengthGroupedGRPOTrainer` would move completions between micro-batches."""
    from leash_trl.microbatching import batch_fields, loss_weights

    router_loss = training_args.router_aux_loss_coef
    if router_loss is None:
        router_loss = getattr(config, "router_aux_loss_coef", 0.0)
    # TRL: GRPOTrainer.__init__, aux_loss_enabled
    has_router_loss = hasattr(config, "output_router_logits") and router_loss != 0
    reasons = loss_weights.reasons_against_regrouping(training_args, has_router_loss)
    rope_type = (config.rope_parameters or {}).get("rope_type")
    follows_width = rope_type in batch_fields.LENGTH_DEPENDENT_ROPE
    return training_args.length_grouped_microbatches and not reasons and not follows_width


def make_settings(arguments: PlanArguments, training_args: Any, model_args: Any) -> Settings:
    """The settings of the plan, from options and recipe.

    Raises:
        `ValueError`: If the recipe has something whose memory is not known here.
    """
    from trl import get_peft_config

    _check_known(training_args, model_args)
    limit, longest = training_args.vllm_max_model_length, training_args.generation_limit
    prompt = arguments.prompt_length
    if prompt is None:
        prompt = limit - longest if limit and limit > longest else DEFAULT_PROMPT_LENGTH
    files = {"model_config": arguments.model_config, "model_name_or_path": model_args.model_name_or_path}
    with user_errors(only_loads=True, **files):
        config = load_model_config(model_args.model_name_or_path, arguments.model_config)
    given = vars(model_args) | vars(training_args) | vars(arguments)
    same = {name: given[name] for name in given.keys() & {field.name for field in fields(Settings)}}
    worked_out = {
        "architecture": read_architecture(config, get_peft_config(replace(model_args, use_peft=True))),
        "weight_bytes": 2 if model_args.dtype in ("bfloat16", "float16") else 4,
        "compute_bytes": 2 if training_args.bf16 or model_args.dtype in ("bfloat16", "float16") else 4,
        "attn_implementation": model_args.attn_implementation or "sdpa",
        "groups_lengths": groups_lengths(training_args, config),
        "max_length": prompt + longest,
        "max_completion_length": longest,
        "vllm_mode": training_args.vllm_mode if training_args.use_vllm else None,
        "vllm_max_model_length": limit or prompt + longest,
    }
    return Settings(**same | worked_out)


def _check_known(training_args: Any, model_args: Any) -> None:
    unknown = {
        "load_in_4bit": (model_args.load_in_4bit and not model_args.use_peft, "--use_peft true, which trains it"),
        "load_in_8bit": (model_args.load_in_8bit, "--load_in_8bit false (an upper bound)"),
        "cast_lm_head_to_fp32": (training_args.cast_lm_head_to_fp32, "--cast_lm_head_to_fp32 false"),
        "fp16": (training_args.fp16, "--fp16 false"),
        "dtype=auto": (model_args.dtype == "auto", "--dtype bfloat16 or float32"),
        "attn_implementation=eager": (model_args.attn_implementation == "eager", "--attn_implementation sdpa"),
    }
    for name, (is_set, remedy) in unknown.items():
        if is_set:
            raise ValueError(f"{name} is set, but its memory is not modelled; plan with {remedy}")
    optimizer = str(getattr(training_args.optim, "value", training_args.optim))
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optim is {optimizer!r}, but memory is modelled for {' and '.join(OPTIMIZERS)} only")


def main(argv: list[str]) -> int:
    """Runs `leash plan`: 0 if the run fits, 1 if not."""
    warnings.simplefilter("ignore", FutureWarning)  # of names that TRL itself sets
    with user_errors():
        arguments, training_args, model_args = parse_plan(argv)
        settings = make_settings(arguments, training_args, model_args)
    gpus = "1 GPU" if settings.num_gpus == 1 else f"{settings.num_gpus} GPUs"
    adapter = settings.adapter_parameters
    print(
        f"{model_args.model_name_or_path}: {settings.architecture.num_parameters:,} parameters"
        f"{f' and {adapter:,} of an adapter, which are trained,' if adapter else ''} on {gpus} of "
        f"{settings.gpu_memory:g} GiB, sharding {settings.sharding}; {model_args.dtype} weights"
        f"{', computed in bfloat16' if training_args.bf16 else ''}\n"
    )
    steps = step_lines(settings, training_args.num_iterations)
    print("\n".join([*memory_lines(settings), "", *steps, "", *verdict_lines(settings)]))
    return 1 if refusal(settings) else 0
