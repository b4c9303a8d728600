"""What `leash train` takes, from recipe and command line: its fields, their values, and the help in two sizes."""

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments

from leash_trl.cli.arguments import CommandParser, make
from leash_trl.data.efforts import EFFORT_SUFFIX
from leash_trl.length_control.leash import Leash
from leash_trl.trainer.leash_grpo_config import LAMBDA_FIELDS, LeashGRPOConfig


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
    "dataset_name": "Problems to train on: a Hub id, a folder, a file, or gym or gym_stories, the embedded task.",
    "output_dir": "Folder for checkpoints, logs and the trained model.",
    "resume_from_checkpoint": "`true` for the last complete checkpoint in `output_dir`, or a folder, or hf://owner/name.",
}
"""Where the help of TRL and transformers leaves out what `leash train` does."""


@dataclass
class LeashScriptArguments(ScriptArguments):
    """Fields of `leash train` beside those of training, model and mixture."""

    reward_model_name_or_path: str | None = field(
        default=None, metadata={"help": "Reward model, as a Hub id or a local folder."}
    )
    reward_funcs: list[str] | None = field(
        default=None,
        metadata={
            "help": "Reward functions: `math_reward` (the default), `lenient_math_reward`, TRL's `accuracy_reward`, "
            "`reasoning_accuracy_reward` and `think_format_reward`, or dotted import paths such as "
            "`my_lib.rewards.custom_reward`."
        },
    )
    prompt_suffix: str | None = field(
        default=None,
        metadata={
            "help": "Appended to string prompts, which become user messages so that the chat template applies, "
            'defaults to the instruction of the LEASH authors\' release; `""` appends nothing.'
        },
    )
    efforts: dict[str, Any] | str | None = field(
        default=None,
        metadata={
            "help": "Target in tokens of each effort, as a mapping or its text, such as `{low: 1024, high: 8192}`: "
            "each question is asked once per effort, which its prompt names and which column `effort` holds."
        },
    )
    effort_suffix: str = field(
        default=EFFORT_SUFFIX,
        metadata={"help": "Appended to prompts if there are `efforts`, with the effort's name for `{effort}`."},
    )
    rollout_func: str | None = field(
        default=None,
        metadata={
            "help": "Dotted import path of a function that generates in TRL's place, such as "
            "`leash_trl.engines.shrinking_batch.shrinking_rollout`."
        },
    )


DATACLASS_TYPES = (LeashScriptArguments, LeashGRPOConfig, ModelConfig, DatasetMixtureConfig)
OUR_FIELDS = (*LeashScriptArguments.__annotations__, *LeashGRPOConfig.__annotations__)
DEFAULTS = {"report_to": "tensorboard"}

TrainingArguments = tuple[LeashScriptArguments, LeashGRPOConfig, ModelConfig, DatasetMixtureConfig]


def training_parser(prog: str = "leash train") -> CommandParser:
    """A parser with an option for every field."""
    parser = CommandParser(
        DATACLASS_TYPES,
        takes_recipe=True,
        prog=prog,
        usage="leash train --config RECIPE.yaml [--any_field value ...]",
        description="Train a model with LEASH, or with another method of leash methods. Every field of TRL's "
        "GRPOConfig is an option, here and in the recipe.",
    )
    parser.help_option = HELP_ALL
    return parser


def given_fields(argv: Sequence[str], prog: str = "leash train") -> dict[str, Any]:
    """What a command line and its recipe say, by field name: the recipe that repeats the run.

    Raises:
        `UserError`: If one of them has something that no option reads, or a value of another type than the field's.
    """
    parser = training_parser(prog)
    given, rest = parser.given(argv)
    parser.refuse(rest)
    return given


def arguments_of(given: dict[str, Any], config_type: type[LeashGRPOConfig] = LeashGRPOConfig) -> TrainingArguments:
    """Script, training, model and data arguments of given fields.

    Raises:
        `UserError`: If a value is wrong.
    """
    values = copy.deepcopy({**DEFAULTS, **given})  # TRL changes the parts of a mixture in place
    return (
        make(LeashScriptArguments, values),
        make(config_type, values),
        make(ModelConfig, values),
        make(DatasetMixtureConfig, values),
    )


def parse(argv: Sequence[str]) -> TrainingArguments:
    """Script, training, model and data arguments of one command line."""
    return arguments_of(given_fields(argv))


def print_help(shows_all: bool) -> NoReturn:
    """Prints the help, our options and those much used, or all those of TRL and transformers too, and exits."""
    parser = training_parser()
    parser.set_defaults(**DEFAULTS)
    parser.add_argument(HELP_ALL, action="help", help="show every option of TRL and transformers too and exit")
    for action in parser._actions:
        is_ours = action.dest in {"help", "help_all", "config", *OUR_FIELDS, *MOST_USED}
        if not shows_all and (not is_ours or (action.nargs == 0 and action.const is False)):
            action.help = argparse.SUPPRESS
        elif action.dest in LAMBDA_FIELDS:
            action.help = f"{action.help} (default: the method's own, {getattr(Leash(), action.dest):g} for leash)"
        else:
            action.help = OWN_HELP.get(action.dest, action.help)
    parser.print_help()
    parser.exit()
