"""`leash train`: TRL's GRPO script with `LeashGRPOTrainer`, `math_reward` and the gym."""

import argparse
import difflib
import importlib
import os
import sys
import traceback
import warnings
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from transformers import ProgressCallback
from trl import (
    DatasetMixtureConfig,
    ModelConfig,
    ScriptArguments,
    TrlParser,
    get_dataset,
    get_peft_config,
    get_quantization_config,
)
from trl.rewards import accuracy_reward, reasoning_accuracy_reward, think_format_reward

from leash_trl.checkpoints.completeness import (
    CannotStartError,
    check_is_there,
    last_whole_checkpoint,
    problem_of_used_folder,
    whole_checkpoints,
)
from leash_trl.checkpoints.state_file import read_state, restore_method
from leash_trl.cli.command_parser import TRL_NAMES, CommandParser, recipe_with_trl_names
from leash_trl.cli.errors import UserError, check_writable, failure_line, refuse, user_errors
from leash_trl.cli.progress import LeashProgressCallback
from leash_trl.cli.recipe_arguments import DEFAULT_RECIPE, check_values, read_recipe, recipe_path
from leash_trl.cli.training_checks import check_solutions, check_splits
from leash_trl.cli.training_options import check_options, size_help
from leash_trl.data import BOXED_SUFFIX
from leash_trl.engines.chat_template import TEMPLATE_FAULTS
from leash_trl.engines.checkpoint_path import has_chat_template
from leash_trl.hub.repository import local_checkpoint, what_went_wrong
from leash_trl.rewards import get_math_reward, lenient_math_reward, math_reward
from leash_trl.rewards.answer import opens_thinking
from leash_trl.trainer.advice import advise
from leash_trl.trainer.checked_rewards import RewardError
from leash_trl.trainer.checks import check_vllm
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig
from leash_trl.trainer.leash_grpo_trainer import LeashGRPOTrainer


REWARD_FUNCS = {
    "math_reward": math_reward,
    "lenient_math_reward": lenient_math_reward,
    "accuracy_reward": accuracy_reward,
    "reasoning_accuracy_reward": reasoning_accuracy_reward,
    "think_format_reward": think_format_reward,
}


@dataclass
class LeashScriptArguments(ScriptArguments):
    """
    Script arguments of `leash train`.

    Args:
        reward_model_name_or_path (`str`, *optional*):
            Reward model, as a Hub id or a local folder.
        reward_funcs (`list[str]`, *optional*):
            Reward functions: `math_reward` (the default), `lenient_math_reward`, TRL's `accuracy_reward`,
            `reasoning_accuracy_reward` and `think_format_reward`, or dotted import paths such as
            `my_lib.rewards.custom_reward`.
        prompt_suffix (`str`, *optional*):
            Appended to string prompts, which become user messages so that the chat template applies, defaults to the
            instruction of the LEASH authors' release; `""` appends nothing. Messages stay as they are.
        rollout_func (`str`, *optional*):
            Dotted import path of a function that generates in TRL's place, such as
            `leash_trl.engines.shrinking_batch.shrinking_rollout`.
    """

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
    rollout_func: str | None = field(
        default=None,
        metadata={
            "help": "Dotted import path of a function that generates in TRL's place, such as "
            "`leash_trl.engines.shrinking_batch.shrinking_rollout`."
        },
    )


DATACLASS_TYPES = (LeashScriptArguments, LeashGRPOConfig, ModelConfig, DatasetMixtureConfig)
OUR_FIELDS = (*LeashScriptArguments.__annotations__, *LeashGRPOConfig.__annotations__)


class RecipeParser(CommandParser, TrlParser):
    """`TrlParser` that finds the package's recipes by their names, and reads the short names of options."""

    def __init__(self, dataclass_types=DATACLASS_TYPES, **kwargs):
        TrlParser.__init__(self, dataclass_types, **kwargs)

    def parse_args_and_config(self, args):
        """As `TrlParser`'s, which opens the recipe itself."""
        words = list(args)
        if "--config" in words:
            where = words.index("--config") + 1
            words[where] = str(recipe_path(words[where]))
        return super().parse_args_and_config(words)

    def error(self, message):
        """Refuses a command line without the usage in front."""
        refuse(message)

    def set_defaults_with_config(self, **recipe):
        """As `TrlParser`'s, which hands the recipe's fields to it."""
        return super().set_defaults_with_config(**recipe_with_trl_names(recipe, "the recipe"))


def make_parser() -> RecipeParser:
    """Parser of YAML recipes and command lines, in TRL's style."""
    parser = RecipeParser(prog="leash train")
    parser.set_defaults_with_config(report_to="tensorboard")
    return parser


def parse(argv: list[str]) -> tuple[LeashScriptArguments, LeashGRPOConfig, ModelConfig, DatasetMixtureConfig]:
    """Script, training, model and data arguments of one command line; unknown keys are errors."""
    _check_names(argv)
    try:
        return make_parser().parse_args_and_config(argv)
    except TypeError as error:  # a value of another type than a field's, such as a list for a number
        raise ValueError(str(error)) from error


def _check_names(argv: list[str]) -> None:
    """Names what neither recipe nor parser knows, and prints the help if it is asked for."""
    if "--config" in argv:
        check_recipe(argv[min(argv.index("--config") + 1, len(argv) - 1)])
    checking = make_parser()
    size_help(checking, OUR_FIELDS, argv)
    check_options(checking, argv)


def given_fields(argv: list[str]) -> dict[str, Any]:
    """What a command line and its recipe say, by field name: the recipe that repeats the run.

    Args:
        argv (`list[str]`):
            A command line that [`parse`] takes.
    """
    parser = RecipeParser(argument_default=argparse.SUPPRESS)
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    given = vars(parser.parse_known_args(argv)[0])
    recipe = read_recipe(argv[argv.index("--config") + 1]) if "--config" in argv else {}
    return {**recipe, **given}


def _check_given(fields: dict[str, Any]) -> None:
    """Raises `ValueError` without a model or data; to be called before the configuration asks for a GPU."""
    missing = [] if fields.get("model_name_or_path") else ["no --model_name_or_path"]
    if not fields.get("dataset_name") and not fields.get("datasets"):
        missing.append("no --dataset_name")
    if missing:
        raise ValueError(
            f"there is {' and '.join(missing)}; give what is missing, or with --config a recipe that has it, such as "
            f"{DEFAULT_RECIPE}"
        )


def check_recipe(path: str) -> None:
    """Names misspelt keys and values of another type. TrlParser would name keys too, but only after the configuration
    has missed what they meant."""
    recipe = read_recipe(path)
    check_values(make_parser(), recipe, path)
    known = {
        "env",
        *TRL_NAMES,
        *(field.name for dataclass_type in DATACLASS_TYPES for field in fields(dataclass_type)),
    }
    for key in recipe.keys() - known:
        similar = difflib.get_close_matches(key, known, n=1)
        raise ValueError(f"{path}: unknown key {key!r}" + (f", did you mean {similar[0]!r}?" if similar else ""))


def load_reward_funcs(script_args: LeashScriptArguments) -> list:
    """Reward functions and models that a recipe names; `math_reward` if it names none.

    Raises:
        `ValueError`: If a name is neither known nor an import path that leads to a function.
    """
    reward_funcs: list = [script_args.reward_model_name_or_path] if script_args.reward_model_name_or_path else []
    names = script_args.reward_funcs  # a recipe may name one without a list
    names = [names] if isinstance(names, str) else names or ([] if reward_funcs else ["math_reward"])
    return reward_funcs + [_load_reward_func(name) for name in names]


def _load_reward_func(name: str):
    if name in REWARD_FUNCS:
        return REWARD_FUNCS[name]
    try:
        return _imported(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"reward_funcs: cannot load {name!r} ({error}); known names are {', '.join(REWARD_FUNCS)}, anything else "
            "must be an import path such as my_lib.rewards.custom_reward"
        ) from error


def _load_rollout_func(name: str | None):
    if name is None:
        return None
    try:
        return _imported(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"rollout_func: cannot load {name!r} ({error}); it must be a dotted import path") from error


def _imported(name: str):
    module_path, _, attribute = name.rpartition(".")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return getattr(importlib.import_module(module_path), attribute)


def load_training_data(
    script_args: LeashScriptArguments,
    dataset_args: DatasetMixtureConfig,
    evaluates: bool = False,
    has_template: bool = True,
):
    """Splits of what a recipe names: a mixture, `gym`, a source of `leash_trl.data`, a file, a folder, a Hub id.

    Prompts of the split to train on, and of the one to evaluate on if the run `evaluates`, are read by the rule of
    [`~leash_trl.data.as_conversation`], for a tokenizer that `has_template` or not. Other splits are as they come.
    """
    from leash_trl import gym
    from leash_trl.data.references import parse_reference
    from leash_trl.data.sources import load_problems
    from leash_trl.data.splits import load_splits, named_files
    from leash_trl.data.training_rows import training_rows

    suffix = BOXED_SUFFIX if script_args.prompt_suffix is None else script_args.prompt_suffix
    name, train_split = script_args.dataset_name, script_args.dataset_train_split
    read = {train_split, script_args.dataset_test_split} if evaluates else {train_split}

    def as_read(splits, source):
        return {
            split: training_rows(rows, source, suffix, has_template) if split in read else rows
            for split, rows in splits.items()
        }

    if dataset_args.datasets:
        with named_files("a part of the mixture"):
            return as_read(get_dataset(dataset_args), "datasets")
    if name is None:
        raise ValueError("a recipe needs dataset_name (a Hub id, a file, a folder or gym) or datasets (a mixture)")
    reference = parse_reference(name)
    if reference.source is not None and name != gym.NAME:
        return {train_split: load_problems(name, suffix=suffix, has_chat_template=has_template)}
    options = {"streaming": True} if script_args.dataset_streaming else {}
    splits = load_splits(replace(reference, config=script_args.dataset_config or reference.config), **options)
    if reference.path is not None and reference.path.is_file():
        splits = {train_split: splits["train"]}
    return as_read(splits, reference.name)


def _checkpoint_to_resume(training_args: LeashGRPOConfig) -> str | bool:
    """`true` and `false` on a command line or in YAML mean the last checkpoint and none; all else is a folder."""
    requested = str(training_args.resume_from_checkpoint)
    if requested.lower() in ("none", "false"):
        if (problem := problem_of_used_folder(training_args.output_dir)) is not None:
            raise ValueError(problem)
        return False
    output_dir, is_last = training_args.output_dir, requested.lower() == "true"
    # what is wrong with newer ones is for the trainer to say, once
    last = next(whole_checkpoints(output_dir), None) or last_whole_checkpoint(output_dir) if is_last else None
    checkpoint = last or Path(local_checkpoint(requested))
    check_is_there(checkpoint, output_dir)
    # what is missing is better said before the model is loaded
    restore_method(training_args.make_length_control(), read_state(checkpoint), checkpoint)
    # which one that is, also on the Hub, the processes of a run agree on in the trainer
    return is_last or requested


def build_trainer(script_args, training_args: LeashGRPOConfig, model_args, dataset_args) -> LeashGRPOTrainer:
    """The trainer that the arguments describe, with its model and data loaded."""
    check_vllm(training_args)
    reward_funcs = load_reward_funcs(script_args)
    mixed = ", ".join(str(part.data_files or part.path) for part in dataset_args.datasets) or None
    with user_errors(
        only_loads=True, **({"datasets": mixed} if mixed else {"dataset_name": script_args.dataset_name})
    ):
        has_template = has_chat_template(model_args.model_name_or_path, model_args.model_revision)
        dataset = load_training_data(script_args, dataset_args, training_args.eval_strategy != "no", has_template)
    check_splits(dataset, script_args, training_args)
    train_dataset = dataset[script_args.dataset_train_split]
    check_solutions(train_dataset, reward_funcs)
    model_init_kwargs = {
        "revision": model_args.model_revision,
        "attn_implementation": model_args.attn_implementation,
        "dtype": model_args.dtype,
    }
    training_args.model_init_kwargs = {**model_init_kwargs, **(training_args.model_init_kwargs or {})}
    trainer = LeashGRPOTrainer(
        model=model_args.model_name_or_path,
        reward_funcs=reward_funcs,
        args=training_args,
        train_dataset=train_dataset,
        eval_dataset=dataset[script_args.dataset_test_split] if training_args.eval_strategy != "no" else None,
        quantization_config=get_quantization_config(model_args),
        peft_config=get_peft_config(model_args),
        rollout_func=_load_rollout_func(script_args.rollout_func),
    )
    _heed_opened_thinking(trainer)
    if trainer.pop_callback(ProgressCallback) is not None:
        trainer.add_callback(LeashProgressCallback())
    return trainer


def _heed_opened_thinking(trainer: LeashGRPOTrainer) -> None:
    """Where the chat template opens `<think>` in the prompt, a completion without `</think>` gives no answer."""
    tokenizer = trainer.processing_class
    if getattr(tokenizer, "chat_template", None) is None:
        return
    question = [{"role": "user", "content": "?"}]
    try:
        prompt = tokenizer.apply_chat_template(
            question, tokenize=False, add_generation_prompt=True, **trainer.chat_template_kwargs
        )
    except TEMPLATE_FAULTS:  # some want a system message, or lists for contents
        return
    if opens_thinking(prompt):
        strict = {
            math_reward: get_math_reward(opens_thinking=True),
            lenient_math_reward: get_math_reward(lenient=True, opens_thinking=True),
        }
        trainer.reward_funcs = [strict.get(reward, reward) for reward in trainer.reward_funcs]


def run_training(
    script_args, training_args: LeashGRPOConfig, model_args, dataset_args, recipe: dict[str, Any] | None = None
) -> LeashGRPOTrainer:
    """Trains as the arguments say, saves the model, the state and its card, and pushes to the Hub if asked.

    `recipe` is what to keep beside every checkpoint, as [`given_fields`] gives it.
    """
    models = {"model_name_or_path": model_args.model_name_or_path}
    models["reward_model_name_or_path"] = script_args.reward_model_name_or_path
    with user_errors(**models):
        check_writable(training_args.output_dir)
        checkpoint = _checkpoint_to_resume(training_args)
        trainer = build_trainer(script_args, training_args, model_args, dataset_args)
    if recipe is not None:
        trainer.publishing.recipe = recipe
    trainer.accelerator.print(training_args.batches())
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    except (CannotStartError, RewardError) as error:
        raise UserError(str(error)) from error
    trainer.save_state()
    if training_args.push_to_hub:
        _push(trainer, script_args.dataset_name)  # saves the model first
    else:
        trainer.save_model(training_args.output_dir)
        trainer.create_model_card(dataset_name=script_args.dataset_name)
    return trainer


def _push(trainer: LeashGRPOTrainer, dataset_name: str | None) -> None:
    try:
        with advise(trainer.args):
            trainer.push_to_hub(dataset_name=dataset_name)
    except Exception as error:
        if failure_line(error) is not None:  # it was saving that failed
            raise
        folder, repo = trainer.args.output_dir, trainer.hub_model_id
        raise UserError(
            f"training is done and the model is in {folder}, but pushing it to {repo} failed "
            f"({what_went_wrong(error, trainer.args.hub_token)}); try again with leash push {folder} --repo {repo}"
        ) from error


def _warning_line(message, *args, **kwargs) -> str:
    """A warning without the place in our code; the line break in front ends a progress bar's line."""
    return f"\nleash train: warning: {message}\n"


def main(argv: list[str]) -> int:
    """Runs `leash train`; a failure with a known remedy is one line, with its traceback at `--log_level debug`."""
    # what upstream will rename, and that a rollout function of the recipe's is an experiment
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|trl|leash_trl")
    warnings.formatwarning = _warning_line
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    with user_errors():
        _check_names(argv)
        recipe = given_fields(argv)
        _check_given(recipe)
        arguments = parse(argv)
    try:
        with advise(arguments[1]):  # what is saved at the end, too
            trainer = run_training(*arguments, recipe=recipe)
    except Exception as error:
        is_debugging = arguments[1].log_level == "debug"
        if is_debugging and isinstance(error, UserError):
            traceback.print_exception(error.__cause__)
        if is_debugging or (line := failure_line(error)) is None:
            raise
        print(f"leash train: {line}", file=sys.stderr)
        return 1
    state = "".join(f" {name}={value:.4g}" for name, value in trainer.length_control.statistics().items())
    trainer.accelerator.print(f"Trained{' to' + state if state else ''}; model is in {trainer.args.output_dir}")
    if (pushes := trainer.publishing.pushes) is not None:
        trainer.accelerator.print(f"Hub repository {trainer.hub_model_id}: {pushes.report}")
    return 0
