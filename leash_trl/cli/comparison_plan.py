"""Reads the runs of `leash compare` from a comparison file: its arms and their seeds."""

import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leash_trl.cli.errors import UserError, user_errors
from leash_trl.cli.gym_run import gym_arguments
from leash_trl.cli.recipe import checked_recipe, read_recipe, with_trl_names


DEFAULT_SEEDS = 3


@dataclass(frozen=True, eq=False)
class Arm:
    """One method of a comparison.

    Args:
        name (`str`):
            Its name in the file, which is also its folder's.
        label (`str`):
            Its name in table and figure.
        num_seeds (`int`):
            How many seeds it gets if the command line does not say.
        recipe (`dict[str, Any]`):
            Fields of its recipe.
    """

    name: str
    label: str
    num_seeds: int
    recipe: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One seed of one arm."""

    arm: Arm
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.arm.name} seed {self.seed}"


def load_arms(config: str, names: list[str] | None = None) -> list[Arm]:
    """The arms of a comparison file, or those of them that are named, in its order.

    Raises:
        `UserError`: If the file is missing, something in it has no meaning, or it has no arm of a name.
    """
    with user_errors():
        comparison = read_recipe(config)
    for key in comparison.keys() - {"base", "arms"}:
        raise UserError(f"{config}: unknown key {key!r}; a comparison has base (fields of a recipe) and arms")
    for key in ("base", "arms"):
        if not isinstance(comparison.get(key), dict) or not comparison[key]:
            raise UserError(f"{config}: {key} is missing or empty, but must be a mapping of names to values")
    arms = {str(name): fields for name, fields in comparison["arms"].items()}
    for name in names or []:
        if name not in arms:
            raise UserError(f"--arms: {config} has no arm {name!r}; it has {', '.join(arms)}")
    with user_errors():
        base = with_trl_names(comparison["base"], f"{config}: base")
    return [_arm(name, fields, base, config) for name, fields in arms.items() if names is None or name in names]


def _arm(name: str, fields: Any, base: dict[str, Any], config: str) -> Arm:
    if not re.fullmatch(r"[\w.+-]*\w[\w.+-]*", name):
        raise UserError(f"{config}: arm {name!r} cannot name a folder; use letters, digits, _, -, + and .")
    if not isinstance(fields, dict) or not fields:
        raise UserError(f"{config}: arm {name!r} has no fields; write what differs from base, as {{lambda_lr: 0.02}}")
    with user_errors():
        own = with_trl_names(fields, f"{config}: arm {name!r}")
    label, num_seeds = str(own.pop("label", name)), own.pop("seeds", DEFAULT_SEEDS)
    if isinstance(num_seeds, bool) or not isinstance(num_seeds, int) or num_seeds < 1:
        raise UserError(f"{config}: arm {name!r}: seeds is {num_seeds!r}, but must be how many there are, 1 or more")
    return Arm(name, label, num_seeds, {**base, **own})


def checked_arms(arms: list[Arm], options: list[str], config: str) -> list[Arm]:
    """The arms with fields of `leash train` from the command line in all their recipes.

    Raises:
        `UserError`: If an option is none of `leash train`, or an arm has a mistake or is not for the gym.
    """
    from leash_trl.cli.training_arguments import TrainingParser, given_fields

    with user_errors():
        given, parser = given_fields(options), TrainingParser()
    checked = []
    for arm in arms:
        where = f"{config}: arm {arm.name!r}"
        with user_errors():
            recipe = {**checked_recipe(parser, arm.recipe, where, has_env=True), **given}
        gym_arguments(recipe, where)
        checked.append(replace(arm, recipe=recipe))
    return checked


def planned_runs(arms: list[Arm], seeds: list[int] | None, output_dir: Path) -> list[Run]:
    """All runs, every arm's first seed before any second, so that a stopped comparison is balanced."""
    of_arms = [
        [
            Run(arm, seed, output_dir / arm.name / f"seed-{seed}")
            for seed in dict.fromkeys(seeds or range(arm.num_seeds))
        ]
        for arm in arms
    ]
    return [run for turn in itertools.zip_longest(*of_arms) for run in turn if run is not None]
