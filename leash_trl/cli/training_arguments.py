"""What `leash train` takes, from recipe and command line: fields, their values, and the help in two sizes."""

import argparse
import copy
import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments, TrlParser

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.recipe import DEFAULT_RECIPE, checked_recipe, read_recipe, split_config
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


class TrainingParser(CommandParser, TrlParser):
    """Parser with an option for every field."""

    help_option = HELP_ALL

    def __init__(self, prog: str = "leash train"):
        TrlParser.__init__(self, DATACLASS_TYPES, prog=prog)

    def options(self) -> list[str]:
        """As `CommandParser`'s, with that which [`split_config`] reads."""
        return [*super().options(), "--config"]


def given_fields(argv: Sequence[str], prog: str = "leash train") -> dict[str, Any]:
    """What a command line and its recipe say, by field name: the recipe that repeats the run.

    Args:
        argv (`Sequence[str]`):
            Options, of which `--config` names the recipe; the others come before it.
        prog (`str`, *optional*, defaults to `"leash train"`):
            What errors call the command.

    Raises:
        `ValueError` or `UserError`: If recipe or command line have something that no option reads, or a value of
            another type than the field's.
    """
    parser = TrainingParser(prog)
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    path, words = split_config(argv)
    recipe = {} if path is None else checked_recipe(parser, read_recipe(path), path, has_env=True)
    given = vars(parser.parse_args(words))
    # TRL's parser reads null for numbers only
    return {**recipe, **{name: None if value in ("null", ["null"]) else value for name, value in given.items()}}


def arguments_of(given: dict[str, Any], config_type: type[LeashGRPOConfig] = LeashGRPOConfig) -> TrainingArguments:
    """Script, training, model and data arguments of given fields; their `env` goes into the environment.

    Raises:
        `ValueError`: If a value is wrong.
    """
    environment = given.get("env", {})
    if not isinstance(environment, dict):
        raise ValueError(f"env is {environment!r}, but must be a mapping of names to values")
    os.environ.update({name: str(value) for name, value in environment.items()})
    values = copy.deepcopy({**DEFAULTS, **given})  # TRL changes the parts of a mixture in place

    def made(kind: type) -> Any:
        check_kinds(kind, values)
        return kind(**{part.name: values[part.name] for part in dataclasses.fields(kind) if part.name in values})

    try:
        return (made(LeashScriptArguments), made(config_type), made(ModelConfig), made(DatasetMixtureConfig))
    except TypeError as error:  # a value of another type than a field's, such as a list for a number
        raise ValueError(str(error)) from error


def check_kinds(kind: type, values: Mapping[str, Any]) -> None:
    """Looks for null and lists among the values of a dataclass's fields, which an option's own type does not check.

    Args:
        kind (`type`):
            The dataclass.
        values (`Mapping[str, Any]`):
            Values by field name; those of other dataclasses too.

    Raises:
        `ValueError`: If a field that must have a value is null, or one that takes one value has a list.
    """
    hints = get_type_hints(kind)
    for part in dataclasses.fields(kind):
        if part.name not in values:
            continue
        hint, value = hints[part.name], values[part.name]
        takes = {get_origin(one) or one for one in ([hint] if get_origin(hint) is list else get_args(hint) or [hint])}
        if value is None and type(None) not in takes:
            raise ValueError(f"{part.name} is null, but must have a value; leave it out for the default")
        if isinstance(value, list) and list not in takes and part.name != "fsdp":  # transformers reads lists there
            raise ValueError(f"{part.name} is {value!r}, but must be one value, not a list")


def parse(argv: Sequence[str]) -> TrainingArguments:
    """Script, training, model and data arguments of one command line; unknown keys are errors."""
    return arguments_of(given_fields(argv))


def print_help(shows_all: bool) -> NoReturn:
    """Prints the help, our options and those much used, or all those of TRL and transformers too, and exits."""
    parser = TrainingParser()
    parser.set_defaults(**DEFAULTS)
    parser.description = (
        "Train a model with LEASH, or with another method of leash methods. Every field of TRL's GRPOConfig is an "
        "option, here and in the recipe."
    )
    parser.usage = "leash train --config RECIPE.yaml [--any_field value ...]"
    parser.add_argument(
        "--config",
        help=f"YAML recipe, a file or one of the package's, such as {DEFAULT_RECIPE}; the command line overrides it",
    )
    parser.add_argument(HELP_ALL, action="help", help="show every option of TRL and transformers too and exit")
    first = ["help", "help_all", "config", "model_name_or_path", "dataset_name", "output_dir", *OUR_FIELDS]
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
