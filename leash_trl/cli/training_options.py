"""The options of `leash train` as people meet them: the help in two sizes, and names that are misspelt."""

import argparse
import difflib
from collections.abc import Collection, Sequence


HELP_ALL = "--help-all"
MOST_USED = frozenset(
    {
        "model_name_or_path",
        "dataset_name",
        "output_dir",
        "max_steps",
        "num_train_epochs",
        "learning_rate",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "steps_per_generation",
        "num_generations",
        "temperature",
        "scale_rewards",
        "mask_truncated_completions",
        "chat_template_kwargs",
        "use_vllm",
        "vllm_mode",
        "vllm_gpu_memory_utilization",
        "use_peft",
        "bf16",
        "gradient_checkpointing",
        "save_steps",
        "report_to",
        "resume_from_checkpoint",
        "seed",
    }
)
"""Fields of TRL and transformers that the short help shows beside ours."""


def size_help(parser: argparse.ArgumentParser, our_fields: Collection[str], argv: Sequence[str]) -> None:
    """Leaves the options out of the help that are neither ours nor much used, unless `--help-all` asks for all."""
    parser.usage = "leash train --config RECIPE.yaml [--any_field value ...]"
    parser.add_argument("--config", default=argparse.SUPPRESS, help="YAML recipe; the command line overrides it")
    parser.add_argument(HELP_ALL, action="help", help="show every option of TRL and transformers too and exit")
    if HELP_ALL in argv:
        return
    shown = {"help", "help_all", "config", *our_fields, *MOST_USED}
    for action in parser._actions:
        if action.dest not in shown:
            action.help = argparse.SUPPRESS


def check_options(parser: argparse.ArgumentParser, argv: Sequence[str]) -> None:
    """Names what no option reads, before the configuration misses what it meant.

    Raises:
        `ValueError`: If there is something.
    """
    if joined := next((word for word in argv if word.startswith("--config=")), None):
        raise ValueError(f"{joined} is not read; write {joined.replace('=', ' ')}")
    _, unread = parser.parse_known_args(argv)
    if not unread:
        return
    known = [option for action in parser._actions for option in action.option_strings]
    name = next((word for word in unread if word.startswith("-")), unread[0]).partition("=")[0]
    if not name.startswith("-"):
        raise ValueError(f"{name!r} belongs to no option; options are written --name value")
    similar = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {similar[0]}?" if similar else f"leash train {HELP_ALL} lists all"
    raise ValueError(f"unknown option {name}, {hint}")
