"""The arguments of `leash train`: its fields, their values in recipe and command line, and a short and a long help."""

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trl import DatasetMixtureConfig, ModelConfig, ScriptArguments

from leash_trl.cli.arguments import CommandParser, check_chat_template, fill_dataclass
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


HELP_ALL = "--help-all"


@dataclass
class LeashScriptArguments(ScriptArguments):
    """Fields of `leash train` in addition to those of training, model and data mixture.

    Args:
        reward_model_name_or_path (`str`): Reward model, as a Hub id or a local folder.
        reward_funcs (`list[str]`): Reward functions: math_reward (the default), lenient_math_reward, TRL's
            accuracy_reward, reasoning_accuracy_reward, think_format_reward, or import paths such as
            my_module.my_reward or my_file.py:my_reward.
        prompt_suffix (`str`): Text to append to prompts that are text, which become user messages (default: a request
            for a box if the answers are graded as mathematics, else nothing).
        system_prompt (`str`): System message for prompts that do not begin with one.
        chat_template (`str`): Jinja text that replaces the tokenizer's chat template and is saved with the model.
        efforts (`dict[str, float]`): Target for each effort, such as {low: 1024, high: 8192}; each question
            is asked once per effort.
        effort_suffix (`str`): Text to append to prompts if there are efforts, in which {effort} is replaced by the
            name of the effort (default: " Effort: {effort}.", or nothing with effort_template_kwargs).
        effort_template_kwargs (`dict[str, dict]`): Arguments of the chat template for each effort, such as
            {low: {reasoning_effort: low}, "off": {enable_thinking: false}}, in addition to chat_template_kwargs.
        rollout_func (`str`): Function that generates completions instead of TRL, as my_module.my_function or
            my_file.py:my_function.
    """

    reward_model_name_or_path: str | None = None
    reward_funcs: list[str] | None = None
    prompt_suffix: str | None = None
    system_prompt: str | None = None
    chat_template: str | None = None
    efforts: dict = field(default_factory=dict)
    effort_suffix: str | None = None
    effort_template_kwargs: dict = field(default_factory=dict)
    rollout_func: str | None = None

    def __post_init__(self) -> None:
        check_chat_template(self.chat_template)
        if self.effort_template_kwargs and not self.efforts:
            raise ValueError("effort_template_kwargs is set, but efforts is not; set the target of each effort")


# fields that the short help shows: common ones of TRL, and all of ours
SHORT_HELP_FIELDS = {
    "help",
    "help_all",
    "config",
    "output_dir",
    "max_steps",
    "learning_rate",
    "num_generations",
    "use_peft",
    "model_name_or_path",
    "dataset_name",
    "resume_from_checkpoint",
    *LeashScriptArguments.__annotations__,
    *LeashGRPOConfig.__annotations__,
}

TrainingArguments = tuple[LeashScriptArguments, LeashGRPOConfig, ModelConfig, DatasetMixtureConfig]


def training_parser(prog: str = "leash train", shows_all: bool = False) -> CommandParser:
    """Returns a parser with an option for every field. Its help shows our fields and common ones of TRL or, with
    `shows_all`, all fields."""
    parser = CommandParser(
        (LeashScriptArguments, LeashGRPOConfig, ModelConfig, DatasetMixtureConfig),
        takes_recipe=True,
        prog=prog,
        usage="leash train --config RECIPE.yaml [--any_field value ...]",
        description=f"Train a model. Every field of TRL's GRPOConfig and ModelConfig is an option; see {HELP_ALL}.",
    )
    parser.add_argument(HELP_ALL, action="help", help="also show all options of TRL and transformers, and exit")
    # There are hundreds of options, most of which the short help leaves out.
    for action in parser._actions:
        if not shows_all and action.dest not in SHORT_HELP_FIELDS:
            action.help = argparse.SUPPRESS
    return parser


def fields_of_command_line(argv: Sequence[str], prog: str = "leash train") -> dict[str, Any]:
    """Returns the values of a command line and of its `--config` by field name: the recipe that repeats the run."""
    return training_parser(prog, shows_all=HELP_ALL in argv).parse_all(argv)


def arguments_of(recipe: dict[str, Any], config_type: type[LeashGRPOConfig] = LeashGRPOConfig) -> TrainingArguments:
    """Returns script, training, model and data arguments for a recipe; raises `UserError` if a value is wrong.

    `config_type` is the class of the training arguments. Runs are logged to TensorBoard unless the recipe sets
    `report_to`.
    """
    # TRL modifies the parts of a mixture (`datasets`) in place, and the recipe must stay as the user wrote it.
    values = copy.deepcopy({"report_to": "tensorboard", **recipe})
    return (
        fill_dataclass(LeashScriptArguments, values),
        fill_dataclass(config_type, values),
        fill_dataclass(ModelConfig, values),
        fill_dataclass(DatasetMixtureConfig, values),
    )
