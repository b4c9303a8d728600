"""Reads the file of a comparison, whose fields are those of `leash train` and options of `leash eval`."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leash_trl.cli.arguments import CommandParser, load_recipe, make_dataclass
from leash_trl.cli.commands.eval import EvalArguments
from leash_trl.cli.errors import UserError, user_errors
from leash_trl.cli.training_arguments import arguments_of, training_parser
from leash_trl.comparison.arms import ALWAYS_EVALUATED, BASE, Comparison
from leash_trl.comparison.run import PromptEndings
from leash_trl.data.problems import load_splits
from leash_trl.data.sources import parse_reference
from leash_trl.reward_functions import default_suffix, named_reward_funcs


REWARD_FIELDS = ("reward_funcs", "reward_weights", "correctness_func")
SECTIONS = ("base", "eval", "arms", "grid")


def load_comparison(
    path: str, folder: Path, selected: Sequence[str] | None, seeds: Sequence[int] | None, overrides: Mapping[str, Any]
) -> Comparison:
    """Returns what to compare; a recipe is a comparison of one arm.

    Args:
        path (`str`), folder (`Path`): File of the comparison, and folder for the runs.
        selected (`Sequence[str]`): Names of the arms to run; `None` for all.
        seeds (`Sequence[int]`), overrides (`Mapping[str, Any]`): As in [`~leash_trl.comparison.arms.Comparison`].

    Raises:
        `OSError`: If the file is missing.
        `ValueError`: If it is no mapping, or has an unknown entry, or no arm of a selected name.
    """
    sections = load_recipe(path)
    if "arms" not in sections:
        sections = {"base": sections, "arms": {Path(path).stem: None}}
    for name in sections:
        if name not in SECTIONS:
            raise ValueError(f"{path}: {name!r} is neither base, eval, arms nor grid; correct the name")
    arms = sections["arms"] or {}
    names = selected or list(arms)
    if BASE in arms or BASE in names:
        raise ValueError(f"{path}: arms has {BASE!r}, {ALWAYS_EVALUATED}; rename or remove the arm")
    for name in names:
        if name not in arms:
            raise ValueError(f"{path}: arms has no {name!r}; name one of {', '.join(arms)}")
    base = sections.get("base") or {}
    return Comparison(
        path=path,
        folder=folder,
        arms={name: arms[name] for name in names},
        base=load_recipe(base) if isinstance(base, str) else base,
        grid=sections.get("grid") or {},
        evaluation=sections.get("eval") or {},
        overrides=overrides,
        seeds=seeds,
    )


@dataclass(frozen=True)
class CommandLineReader:
    """Reads recipes and options of evaluation as `leash train` and `leash eval` would.

    Args:
        path (`str`): File of the comparison, for messages.
    """

    path: str

    def recipe(self, fields: dict[str, Any], overrides: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Returns the recipe of these fields and `overrides`; raises `UserError` if a value is wrong."""
        recipe = {**training_parser().checked(fields, where), **overrides}
        try:
            arguments_of(recipe)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        return recipe

    def evaluation(self, recipe: dict[str, Any], options: dict[str, Any], has_own_prompts: bool) -> dict[str, Any]:
        """Returns the options of `leash eval` for a recipe: the settings of training, unless the comparison sets
        others.

        For a model `has_own_prompts` that another training saved, `leash eval` takes the prompts from there.
        """
        script_args, training_args, *_ = arguments_of(recipe)
        settings = {
            "num_samples": 4,
            "temperature": training_args.temperature,
            "top_p": training_args.top_p,
            "top_k": training_args.top_k,
        }
        if training_args.generation_limit != math.inf:
            settings["max_new_tokens"] = training_args.generation_limit
        if "benchmarks" not in options:
            if script_args.dataset_name is None or script_args.dataset_config:
                raise UserError(
                    f"{self.path}: the arms train on a mixture, or have a dataset_config; set benchmarks under eval"
                )
            settings["benchmarks"] = [script_args.dataset_name]
            settings["split"] = script_args.dataset_test_split
        if "reward_funcs" not in options:
            if script_args.reward_model_name_or_path:
                raise UserError(
                    f"{self.path}: leash eval has no reward_model_name_or_path; set reward_funcs under eval"
                )
            settings.update({name: recipe.get(name) for name in REWARD_FIELDS})
        if not has_own_prompts:
            settings["prompt_suffix"] = suffix_of_training(script_args)
            settings["system_prompt"] = script_args.system_prompt
            settings["chat_template"] = script_args.chat_template
            settings["chat_template_kwargs"] = training_args.chat_template_kwargs or {}
            settings["thinking_end"] = recipe.get("thinking_end")
        parser = CommandParser([EvalArguments], prog="leash eval")
        settings.update(parser.checked(options, f"{self.path}: eval"))
        evaluation = {name: value for name, value in settings.items() if value is not None}
        # raises if a value is wrong; model and folder are those of each run
        make_dataclass(EvalArguments, {**evaluation, "model_name_or_path": "", "output_dir": ""})
        return evaluation

    def prompt_endings(self, recipe: dict[str, Any]) -> PromptEndings:
        """Returns what the recipe's training appends to prompts."""
        script_args, training_args, *_ = arguments_of(recipe)
        return PromptEndings(
            training_args.make_length_control, training_args.generation_limit, script_args.effort_suffix
        )


def suffix_of_training(script_args: Any) -> str:
    """Returns the text that training appends to prompts, also for the models that are not trained."""
    if script_args.prompt_suffix is not None:
        return str(script_args.prompt_suffix)
    with user_errors():
        reward_funcs = named_reward_funcs(script_args)
        columns: Collection[str] = ()
        reference = None
        if script_args.dataset_name is not None:
            reference = parse_reference(script_args.dataset_name)
        # the columns decide what grades the answers; data on the Hub has none of reasoning-gym
        if not reward_funcs and reference is not None and reference.hub_id is None:
            rows = next(iter(load_splits(reference, streaming=True).values()))
            columns = rows.column_names or list(next(iter(rows)))
        return default_suffix(reward_funcs, columns)
