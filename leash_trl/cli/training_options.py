"""Prints the help of `leash train`: the short form with the usual options, or all of them."""

import argparse
from collections.abc import Collection
from typing import NoReturn

from leash_trl.length_control.leash import Leash
from leash_trl.trainer.leash_grpo_config import LAMBDA_FIELDS


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

OWN_HELP = {
    "model_name_or_path": "Model to train: a Hub id, a folder, or gym, the embedded model.",
    "dataset_name": "Problems to train on: a Hub id, a folder, a file, or gym, the embedded task.",
    "output_dir": "Folder for checkpoints, logs and the trained model.",
    "resume_from_checkpoint": "`true` for the last complete checkpoint in `output_dir`, or a folder, or hf://owner/name.",
}
"""Help for options where the text of TRL and transformers leaves out what `leash train` does."""


def print_help(parser: argparse.ArgumentParser, our_fields: Collection[str], shows_all: bool) -> NoReturn:
    """Prints the help of `leash train`, our options and those much used or all, and exits.

    Args:
        parser (`argparse.ArgumentParser`):
            Parser with an option for every field; of no more use afterwards.
        our_fields (`Collection[str]`):
            Fields that stand first.
        shows_all (`bool`):
            Whether the options of TRL and transformers are shown too.
    """
    parser.description = (
        "Train a model with LEASH, or with another method of leash methods. Every field of TRL's GRPOConfig is an "
        "option, here and in the recipe."
    )
    parser.usage = "leash train --config RECIPE.yaml [--any_field value ...]"
    parser.add_argument(
        "--config",
        help="YAML recipe, a file or one of the package's, such as gym/leash.yaml; the command line overrides it",
    )
    parser.add_argument(HELP_ALL, action="help", help="show every option of TRL and transformers too and exit")
    first = ["help", "help_all", "config", "model_name_or_path", "dataset_name", "output_dir", *our_fields]
    shown = {*first, *MOST_USED}
    for action in parser._actions:
        negates = action.option_strings[0].startswith("--no_")
        if not shows_all and (action.dest not in shown or negates):
            action.help = argparse.SUPPRESS
        elif action.dest in OWN_HELP:
            action.help = OWN_HELP[action.dest]
        if action.dest in LAMBDA_FIELDS:
            own = getattr(Leash(), action.dest)
            action.help = f"{action.help} (default: the method's own, {own:g} for leash)"
        if action.default is None:
            action.default = argparse.SUPPRESS  # not "(default: None)"
        # the same names with hyphens stay readable
        action.option_strings = action.option_strings[: 2 if action.dest == "help" else 1]
    parser._optionals._group_actions.sort(key=lambda action: [*first, action.dest].index(action.dest))
    parser.print_help()
    parser.exit()
