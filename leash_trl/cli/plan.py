"""`leash plan`: memory per GPU, tokens per step and the time's split, before any GPU is asked for."""

import argparse
import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import user_errors
from leash_trl.engines.checkpoint_path import checkpoint_path
from leash_trl.microbatching import loss_weights
from leash_trl.planning import memory, rollout_memory
from leash_trl.planning.architecture import PAPER_MODELS, read_architecture
from leash_trl.planning.measured_rates import ARMS, Rate, read_rates
from leash_trl.planning.micro_batches import grouped_micro_batch, stock_micro_batch
from leash_trl.planning.settings import GIB, SHARDINGS, Settings
from leash_trl.planning.throughput import step_size, step_time


DEFAULT_PROMPT_LENGTH = 1024
TIGHT_SHARE = 0.05  # of the usable memory; to have less left is within the estimate's error
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")
LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
"""As in `leash_trl.microbatching.batch_fields`, repeated because importing it would load torch; a test compares."""


def build_parser() -> argparse.ArgumentParser:
    """Parser of the plan's own options; all others are fields of the recipe."""
    parser = CommandParser(
        prog="leash plan",
        description="Print what a recipe needs per GPU and refuse what cannot fit; fields of leash train may follow.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", required=True, help="recipe of leash train, a file or one of the package's")
    parser.add_argument("--num_gpus", type=int, required=True, help="GPUs that train")
    parser.add_argument("--gpu_memory", type=float, required=True, help="memory of one GPU, in GiB")
    parser.add_argument(
        "--sharding", choices=SHARDINGS, default="none", help="how training is distributed; none is DDP (default)"
    )
    parser.add_argument(
        "--headroom", type=float, default=0.05, help="share of a GPU left to CUDA, NCCL and fragments (default: 0.05)"
    )
    parser.add_argument("--model_config", help="the model's config.json, where the Hub is out of reach")
    parser.add_argument(
        "--prompt_length",
        type=int,
        help="tokens of the longest prompt (default: vllm_max_model_length - max_completion_length, or 1024)",
    )
    parser.add_argument(
        "--mean_length",
        type=int,
        help="mean tokens of the completions of a policy update (default: max_completion_length, the worst case)",
    )
    parser.add_argument("--rollout_rate", type=float, help="measured completion tokens generated per second and GPU")
    parser.add_argument("--train_rate", type=float, help="measured completion tokens trained per second and GPU")
    parser.add_argument("--rollout_gpus", type=int, help="GPUs that generate (default: those that train)")
    parser.add_argument("--bench", nargs="+", help="JSON files of leash bench step and leash bench rollout: the rates")
    return parser


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, Any, Any]:
    """The plan's options, and the training and model arguments of the recipe for that number of GPUs."""
    arguments, rest = build_parser().parse_known_args(argv)
    if arguments.num_gpus < 1:
        raise ValueError(f"--num_gpus is {arguments.num_gpus}, but must be at least 1")
    from leash_trl.cli.train import DATACLASS_TYPES, RecipeParser, check_recipe
    from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig

    class PlannedConfig(LeashGRPOConfig):
        world_size = property(lambda self: arguments.num_gpus)

    check_recipe(arguments.config)
    types = [PlannedConfig if kind is LeashGRPOConfig else kind for kind in DATACLASS_TYPES]
    # planning happens where there are no GPUs, of which bf16 would ask
    parser = RecipeParser(types, prog="leash plan")
    argv = ["--config", arguments.config, "--use_cpu", "true", *rest]
    with warnings.catch_warnings():
        # Trainer's new name for gradient_checkpointing, which TRL itself still sets
        warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)
        _, training_args, model_args, _ = parser.parse_args_and_config(argv)
    if model_args.model_name_or_path is None:
        raise ValueError(f"--model_name_or_path is missing: neither {arguments.config} nor the command line names it")
    return arguments, training_args, model_args


def load_model_config(model: str, config_file: str | None) -> dict[str, Any]:
    """
    Content of a model's config.json: the given file, a folder's, one of the paper's models, the gym's or the Hub's.

    Raises:
        `ValueError`: If there is no config.json to be had, or it is not JSON.
        `FileNotFoundError`: If `config_file` does not exist.
    """
    folder = Path(checkpoint_path(model))
    if config_file is not None:
        if not Path(config_file).is_file():
            raise FileNotFoundError(f"--model_config {config_file}: no such file")
        return _read(Path(config_file))
    if (folder / "config.json").is_file():
        return _read(folder / "config.json")
    if model in PAPER_MODELS:
        return PAPER_MODELS[model]
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return _read(Path(hf_hub_download(model, "config.json")))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ValueError(
            f"model_name_or_path is {model!r}, but its config.json is neither in a folder of that name nor to be had "
            f"from the Hub ({type(error).__name__}); give it with --model_config FILE"
        ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}; give a model's config.json with --model_config") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds a {type(config).__name__}; give a model's config.json with --model_config")
    return config


def reasons_against_grouping(training_args: Any, config: dict[str, Any]) -> list[str]:
    """
    Why `LengthGroupedGRPOTrainer` would leave completions in the micro-batches that TRL has put them in.

    Args:
        training_args (`LeashGRPOConfig`):
            The recipe.
        config (`dict[str, Any]`):
            Content of the model's config.json.
    """
    router_loss = training_args.router_aux_loss_coef
    if router_loss is None:
        router_loss = config.get("router_aux_loss_coef", 0.0)
    reasons = loss_weights.reasons_against_regrouping(
        training_args.loss_type,
        has_entropy_bonus=training_args.entropy_coef != 0 or training_args.use_adaptive_entropy,
        top_entropy_quantile=training_args.top_entropy_quantile,
        # TRL: GRPOTrainer.__init__, aux_loss_enabled
        has_router_loss="output_router_logits" in config and router_loss != 0,
        use_liger_kernel=training_args.use_liger_kernel,
    )
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type"))
    if kind in LENGTH_DEPENDENT_ROPE:
        reasons.append(f"rope_type={kind!r} follows the width of the batch")
    return reasons


def make_settings(arguments: argparse.Namespace, training_args: Any, model_args: Any) -> Settings:
    """What the plan depends on, out of options and recipe.

    Raises:
        `ValueError`: If the recipe has something whose memory is not known here.
    """
    _check_known(training_args, model_args)
    limit = training_args.vllm_max_model_length
    longest = training_args.max_completion_length
    prompt, mean = arguments.prompt_length, arguments.mean_length
    if prompt is None:
        prompt = limit - longest if limit and limit > longest else DEFAULT_PROMPT_LENGTH
    config = load_model_config(model_args.model_name_or_path, arguments.model_config)
    architecture = read_architecture(config)
    reasons = reasons_against_grouping(training_args, config)
    return Settings(
        architecture=architecture,
        num_gpus=arguments.num_gpus,
        gpu_memory=arguments.gpu_memory,
        headroom=arguments.headroom,
        sharding=arguments.sharding,
        weight_bytes=2 if model_args.dtype in ("bfloat16", "float16") else 4,
        bf16=training_args.bf16,
        gradient_checkpointing=training_args.gradient_checkpointing,
        has_reference=training_args.beta != 0,
        keeps_attention_mask="flash" not in (model_args.attn_implementation or "sdpa"),
        groups_lengths=training_args.length_grouped_microbatches and not reasons,
        reasons_against_grouping=tuple(reasons),
        per_device_train_batch_size=training_args.per_device_train_batch_size,
        gradient_accumulation_steps=training_args.gradient_accumulation_steps,
        steps_per_generation=training_args.steps_per_generation,
        num_iterations=training_args.num_iterations,
        max_prompt_length=prompt,
        max_completion_length=longest,
        mean_completion_length=longest if mean is None else mean,
        use_vllm=training_args.use_vllm,
        vllm_mode=training_args.vllm_mode,
        vllm_gpu_memory_utilization=training_args.vllm_gpu_memory_utilization,
        vllm_enable_sleep_mode=training_args.vllm_enable_sleep_mode,
        vllm_tensor_parallel_size=training_args.vllm_tensor_parallel_size,
        vllm_max_model_length=limit or prompt + longest,
    )


def _check_known(training_args: Any, model_args: Any) -> None:
    unknown = {
        "use_peft": model_args.use_peft,
        "load_in_4bit": model_args.load_in_4bit,
        "load_in_8bit": model_args.load_in_8bit,
        "cast_lm_head_to_fp32": training_args.cast_lm_head_to_fp32,
        "fp16": training_args.fp16,
        "dtype=auto": model_args.dtype == "auto",
        "attn_implementation=eager": model_args.attn_implementation == "eager",
    }
    for name, is_set in unknown.items():
        if is_set:
            raise ValueError(f"{name} is set, but its memory is not modelled; plan without it: that is an upper bound")
    optimizer = str(getattr(training_args.optim, "value", training_args.optim))
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optim is {optimizer!r}, but memory is modelled for {' and '.join(OPTIMIZERS)} only")


def memory_lines(settings: Settings) -> list[str]:
    """The items of one GPU's memory in GiB, and their sums."""
    training, generating = memory.peak_bytes(settings)
    lines = [f"{'GiB per GPU':<30}{'training':>12}{'generating':>12}"]
    for item in memory.items(settings):
        if item.size:
            columns = [
                f"{item.size / GIB:12.2f}" if held else f"{'-':>12}" for held in (item.is_trained, item.is_generating)
            ]
            lines.append(f"{item.name:<30}{''.join(columns)}")
    lines.append(f"{'sum':<30}{training / GIB:12.2f}{generating / GIB:12.2f}")
    lines.append(f"{'usable':<30}{settings.usable_bytes / GIB:12.2f}{settings.usable_bytes / GIB:12.2f}")
    return lines


def micro_batch_lines(settings: Settings) -> list[str]:
    """Activations of the largest micro-batch, cut as TRL does and by tokens, with and without checkpointing."""
    columns = ("with gradient checkpointing, GiB", "without, GiB")
    lines = ["", f"{'largest micro-batch':<30}{'tokens':>12}{columns[0]:>35}{columns[1]:>15}"]
    stock, grouped = stock_micro_batch(settings), grouped_micro_batch(settings)
    batches = {"TRL's rows": stock}
    if not settings.reasons_against_grouping:
        batches["filled by tokens, at most"] = grouped
    for name, batch in batches.items():
        sizes = [memory.activation_peak(settings, batch, checkpointing) / GIB for checkpointing in (True, False)]
        lines.append(f"{name:<30}{batch.tokens:12,.0f}{sizes[0]:35.2f}{sizes[1]:15.2f}")
    if settings.reasons_against_grouping:
        lines.append(f"not filled by tokens: {'; '.join(settings.reasons_against_grouping)}")
    elif grouped.tokens < stock.tokens:
        lines.append(
            f"at most, if each {settings.window_completions:,} completions that are split together have a mean length "
            f"of at most {settings.mean_completion_length:,}"
        )
    return lines


def rollout_lines(settings: Settings) -> list[str]:
    """Cache of a sequence, and how many fit into colocated vLLM's share."""
    lengths = sorted({settings.mean_completion_length + settings.max_prompt_length, settings.vllm_max_model_length})
    lines = [""]
    for length in lengths if settings.use_vllm else []:
        cache = rollout_memory.sequence_cache_bytes(settings, length) / GIB
        line = f"cache of a sequence of {length:,} tokens: {cache:.2f} GiB"
        if settings.is_colocated:
            count = rollout_memory.concurrent_sequences(settings, length)
            line += f"; an engine holds {count:,} {'sequence' if count == 1 else 'sequences'} at once"
        lines.append(line)
    if settings.use_vllm and not settings.is_colocated:
        lines.append("the server's GPUs are not planned here; it takes vllm_gpu_memory_utilization of each")
    return lines


def step_lines(settings: Settings) -> list[str]:
    """Completions, updates and tokens of one generation batch."""
    size = step_size(settings)
    return [
        "",
        f"generation batch: {size.completions:,} completions, {size.updates:g} policy updates of "
        f"{size.completions_per_update:,}",
        f"completion tokens: {size.mean_tokens:,} at the mean length {settings.mean_completion_length:,}, at most "
        f"{size.max_tokens:,}",
    ]


def given_rates(arguments: argparse.Namespace, num_parameters: int) -> dict[str, Rate]:
    """The rates that options or reports of `leash bench` give; options go first, then files in their order.

    Raises:
        `ValueError`: If an option is not positive, or a report is of another model or a CPU.
        `FileNotFoundError`: If there is no such report.
    """
    options = vars(arguments)
    for name in (*ARMS, "rollout_gpus"):
        if options[name] is not None and not 0 < options[name] < math.inf:
            raise ValueError(
                f"--{name} is {options[name]:g}, but must be positive and finite; give what you have, or leave it out"
            )
    rates = {name: Rate(options[name], f"--{name}") for name in ARMS if options[name] is not None}
    for path in arguments.bench or []:
        rates = {**read_rates(path, num_parameters), **rates}
    return rates


def time_lines(settings: Settings, arguments: argparse.Namespace) -> list[str]:
    """The rates, and how a step's time divides if both were given."""
    rates = given_rates(arguments, settings.architecture.num_parameters)
    lines = [
        f"{name}: {rate.value:,.1f} completion tokens per second and GPU, from {rate.source}"
        for name, rate in rates.items()
    ]
    if missing := [f"--{name}" for name in ARMS if name not in rates]:
        given = "".join(f"{name} is {rate.value:,.1f}, but " for name, rate in rates.items())
        return [*lines, f"no time: {given}no {' and no '.join(missing)} was given, nor a --bench FILE with it"]
    if settings.use_vllm and not settings.is_colocated and arguments.rollout_gpus is None:
        raise ValueError("--rollout_gpus is missing: with vllm_mode=server, give the number of the server's GPUs")
    values = {name: rate.value for name, rate in rates.items()}
    gpus = settings.num_gpus if arguments.rollout_gpus is None else arguments.rollout_gpus
    time = step_time(settings, **values, rollout_gpus=gpus)
    return [
        *lines,
        f"time: {time.rollout:,.0f} s generating ({time.rollout_share:.0%}) and {time.train:,.0f} s training for each "
        "generation batch, at these rates; scoring, rewards and weight updates come on top",
    ]


def remedy_lines(settings: Settings) -> list[str]:
    """What would make the run fit, as options to add, each with its larger peak in GiB."""
    if found := memory.remedies(settings):
        return ["these changes fit:", *(_change_line(settings, change) for change in found)]
    if change := memory.more_gpus(settings):
        completions = step_size(replace(settings, **change)).completions
        return [
            "no change of up to three fields makes it fit on these GPUs; take more GPUs with --sharding fsdp:",
            f"{_change_line(settings, change)}, {completions:,} completions a generation batch",
        ]
    return [
        "no change of up to three fields makes it fit, nor do eight times as many GPUs: take GPUs with more memory, "
        "or a smaller model"
    ]


def _change_line(settings: Settings, change: dict[str, Any]) -> str:
    peak = max(memory.peak_bytes(replace(settings, **change))) / GIB
    return f"  {' '.join(_as_option(name, value) for name, value in change.items())}: {peak:.1f} GiB"


def _as_option(name: str, value: Any) -> str:
    """The change as an option to add to the command."""
    options = {
        "keeps_attention_mask": "--attn_implementation flash_attention_2",
        "groups_lengths": "--length_grouped_microbatches true",
    }
    return options.get(name, f"--{name} {str(value).lower() if isinstance(value, bool) else value}")


def verdict_lines(settings: Settings) -> list[str]:
    """Whether the run fits, and if so how tightly; if not, why and what would help."""
    if reason := memory.refusal(settings):
        return [f"does not fit: {reason}", *remedy_lines(settings)]
    spare = memory.spare_bytes(settings)
    if spare < TIGHT_SHARE * settings.usable_bytes:
        return [f"fits, with only {spare / GIB:.1f} GiB to spare: the estimate was checked on CPUs only"]
    return ["fits"]


def precision(settings: Settings, dtype: str) -> str:
    """In what weights are loaded and matrices multiplied; the engines that shard cast without autocast."""
    if not settings.bf16:
        return f"{dtype} weights, no autocast"
    return f"{dtype} weights, {'bfloat16 autocast' if settings.sharding == 'none' else 'computed in bfloat16'}"


def main(argv: list[str]) -> int:
    """Runs `leash plan`: 0 if the run fits, 1 if not."""
    with user_errors():
        arguments, training_args, model_args = parse(argv)
        settings = make_settings(arguments, training_args, model_args)
        times = time_lines(settings, arguments)
    gpus = "1 GPU" if settings.num_gpus == 1 else f"{settings.num_gpus} GPUs"
    print(
        f"{model_args.model_name_or_path}: {settings.architecture.num_parameters:,} parameters on {gpus} of "
        f"{settings.gpu_memory:g} GiB, sharding {settings.sharding}; {precision(settings, model_args.dtype)}\n"
    )
    lines = memory_lines(settings) + micro_batch_lines(settings) + rollout_lines(settings) + step_lines(settings)
    if arguments.mean_length is None:
        lines.append("no --mean_length: the worst case, every completion at the limit")
    print("\n".join([*lines, *times, "", *verdict_lines(settings)]))
    return 0 if memory.fits(settings) else 1
