"""Reads an arm of a comparison: its recipe as `leash train` would, its options of evaluation as `leash eval` would."""

import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from leash_trl.cli.arguments import CommandParser, fill_dataclass
from leash_trl.cli.commands.eval import EvalArguments
from leash_trl.cli.errors import UserError
from leash_trl.cli.training_arguments import LeashScriptArguments, arguments_of
from leash_trl.comparison.run import LengthRequest
from leash_trl.completions.costs import MESSAGE_COSTS
from leash_trl.completions.prompts import effort_text
from leash_trl.data.problems import load_splits
from leash_trl.data.sources import parse_reference
from leash_trl.reward_functions import named_reward_funcs, suffix_or_default
from leash_trl.run_folder import length_control_state
from leash_trl.trainer.leash_grpo_config import LeashGRPOConfig


REWARD_FIELDS = ("reward_funcs", "reward_weights", "correctness_func")
# options of evaluation that differ between the runs of a comparison
OPTIONS_OF_COMPARE = ("model_name_or_path", "revision", "label", "output_dir")


def evaluation_options(
    recipe: dict[str, Any], options: dict[str, Any], where: str, model_has_recipe: bool = False
) -> dict[str, Any]:
    """Returns the options of `leash eval` for a recipe: the settings of training, unless the comparison sets others.

    Args:
        recipe (`dict`): Fields of the recipe.
        options (`dict`), where (`str`): Options that the comparison sets, and their place, for messages.
        model_has_recipe (`bool`): Whether the model has the recipe of an earlier training. `leash eval` then asks as
            in that training, and not as in the training of `recipe`.

    Raises:
        `UserError`: If a field or an option is wrong, or if the comparison must set `benchmarks` or `reward_funcs`.
    """
    script_args, training_args, *_ = arguments_of(recipe)
    # Options of `leash eval` by name; those that are not set here have the defaults of `leash eval`.
    settings = sampling_options(training_args)
    if "benchmarks" not in options:
        settings.update(benchmark_options(script_args, where))
    # The three fields belong together: if the comparison sets other reward functions, the weights and the deciding
    # function of training would be wrong.
    if "reward_funcs" not in options:
        if script_args.reward_model_name_or_path:
            raise UserError(f"{where}: leash eval has no reward_model_name_or_path; set reward_funcs")
        settings.update({name: recipe.get(name) for name in REWARD_FIELDS})
    # If the model has a recipe of its own, `leash eval` reads these fields there.
    if not model_has_recipe:
        settings.update(prompt_options(script_args, training_args))
        settings["thinking_end"] = recipe.get("thinking_end")
    settings.update(CommandParser([EvalArguments], prog="leash eval").parse_recipe(options, where))
    for name in OPTIONS_OF_COMPARE:
        if name in settings:
            raise UserError(f"{where}: {name} is {settings[name]!r}, but leash compare sets it; remove it")
    evaluation = {name: value for name, value in settings.items() if value is not None}
    # This raises if a value is wrong. The result is not used: model and folder differ between runs, and are empty.
    fill_dataclass(EvalArguments, {**evaluation, "model_name_or_path": "", "output_dir": ""}).sampling_plan()
    return evaluation


def sampling_options(training_args: LeashGRPOConfig) -> dict[str, Any]:
    """Returns the options of `leash eval` with which completions are sampled and measured as in training."""
    options = {
        "num_samples": 4,
        "temperature": training_args.temperature,
        "top_p": training_args.top_p,
        "top_k": training_args.top_k,
    }
    # An evaluation runs no tools, so it measures completions where training counted tool calls or turns.
    if training_args.length_of not in MESSAGE_COSTS:
        options["length_of"] = training_args.length_of
    if training_args.generation_limit != math.inf:
        options["max_new_tokens"] = training_args.generation_limit
    return options


def benchmark_options(script_args: LeashScriptArguments, where: str) -> dict[str, Any]:
    """Returns the options of `leash eval` for the test split of the data of training; raises `UserError` for a
    mixture, or for data with a `dataset_config`, which `leash eval` does not have."""
    if script_args.dataset_name is None or script_args.dataset_config:
        raise UserError(f"{where}: the arms train on a mixture, or have a dataset_config; set benchmarks")
    return {"benchmarks": [script_args.dataset_name], "split": script_args.dataset_test_split}


def prompt_options(script_args: LeashScriptArguments, training_args: LeashGRPOConfig) -> dict[str, Any]:
    """Returns the options of `leash eval` with which the model is asked as in training."""
    return {
        "prompt_suffix": suffix_of_training(script_args),
        "system_prompt": script_args.system_prompt,
        "chat_template": script_args.chat_template,
        "chat_template_kwargs": training_args.chat_template_kwargs or {},
    }


def prompt_ending_of_training(recipe: dict[str, Any]) -> Callable[[Path, LengthRequest], str]:
    """Returns a function that tells the text that the recipe's training in a folder appended to prompts for an effort
    or a target."""
    script_args, training_args, *_ = arguments_of(recipe)

    def prompt_ending_of(folder: Path, request: LengthRequest) -> str:
        method = training_args.make_length_control()
        # The suffix of a method may depend on its state at the end of training.
        saved = length_control_state(folder)
        if saved is not None:
            method.load_state_dict(saved["state"])
        method_suffix = method.prompt_suffix(request.target_length, training_args.generation_limit)
        if request.effort is None:
            return method_suffix
        # Where the chat template states the efforts, by arguments of their own, the prompt needs no text for them.
        template_states_effort = bool(script_args.effort_template_kwargs)
        return effort_text(request.effort, script_args.effort_suffix, template_states_effort) + method_suffix

    return prompt_ending_of


def suffix_of_training(script_args: LeashScriptArguments) -> str:
    """Returns the text that training appends to prompts. Arms that are not trained append it, too."""
    columns: Collection[str] = ()
    if script_args.dataset_name is not None:
        reference = parse_reference(script_args.dataset_name)
        # Without reward functions of the user, the columns decide what grades the answers: problems of reasoning-gym
        # have a column `reasoning_gym`. Data on the Hub is assumed to have none, and is not loaded.
        if reference.hub_id is None:
            rows = next(iter(load_splits(reference, streaming=True).values()))
            # Some streams do not state their columns; the first row then shows them.
            columns = rows.column_names or list(next(iter(rows)))
    return suffix_or_default(script_args.prompt_suffix, named_reward_funcs(script_args), columns)
