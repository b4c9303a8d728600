"""What `leash compare` is to run: the arms of a comparison file and their seeds."""

import itertools
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leash_trl.cli.errors import UserError, user_errors
from leash_trl.cli.recipe_arguments import read_recipe, with_trl_names


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


def load_arms(config: str) -> list[Arm]:
    """The arms of a comparison file, in its order.

    Raises:
        `UserError`: If the file is missing or something in it has no meaning.
    """
    with user_errors():
        comparison = read_recipe(config)
    for key in comparison.keys() - {"base", "arms"}:
        raise UserError(f"{config}: unknown key {key!r}; a comparison has base (fields of a recipe) and arms")
    for key in ("base", "arms"):
        if not isinstance(comparison.get(key), dict) or not comparison[key]:
            raise UserError(f"{config}: {key} is missing or empty, but must be a mapping of names to values")
    return [_arm(str(name), fields, comparison["base"], config) for name, fields in comparison["arms"].items()]


def _arm(name: str, fields: Any, base: dict[str, Any], config: str) -> Arm:
    if not re.fullmatch(r"[\w.+-]*\w[\w.+-]*", name):
        raise UserError(f"{config}: arm {name!r} cannot name a folder; use letters, digits, _, -, + and .")
    if not isinstance(fields, dict) or not fields:
        raise UserError(f"{config}: arm {name!r} has no fields; write what differs from base, as {{lambda_lr: 0.02}}")
    with user_errors():
        base = with_trl_names(base, f"{config}: base")
        fields = with_trl_names(fields, f"{config}: arm {name!r}")
    own = {key: value for key, value in fields.items() if key not in ("seeds", "label")}
    num_seeds = fields.get("seeds", DEFAULT_SEEDS)
    if isinstance(num_seeds, bool) or not isinstance(num_seeds, int) or num_seeds < 1:
        raise UserError(f"{config}: arm {name!r}: seeds is {num_seeds!r}, but must be how many there are, 1 or more")
    return Arm(name, str(fields.get("label", name)), num_seeds, {**base, **own})


def overridden_arms(arms: list[Arm], options: list[str]) -> list[Arm]:
    """The arms with fields of `leash train` from the command line in all their recipes.

    Raises:
        `UserError`: If an option is none of `leash train`, or makes one run of two arms.
    """
    from leash_trl.cli.train import given_fields

    with user_errors():
        given = given_fields(options)
    changed = [replace(arm, recipe={**arm.recipe, **given}) for arm in arms]
    for first, second in itertools.combinations(range(len(arms)), 2):
        if changed[first].recipe == changed[second].recipe and arms[first].recipe != arms[second].recipe:
            raise UserError(
                f"{shlex.join(options)} makes arms {arms[first].name} and {arms[second].name} the same run; choose "
                "one with --arms"
            )
    return changed


def chosen_arms(arms: list[Arm], names: list[str] | None, config: str) -> list[Arm]:
    """The arms that the command line asks for, in the order of the file."""
    known = {arm.name for arm in arms}
    for name in names or []:
        if name not in known:
            raise UserError(f"--arms: {config} has no arm {name!r}; it has {', '.join(arm.name for arm in arms)}")
    return [arm for arm in arms if names is None or arm.name in names]


def planned_runs(arms: list[Arm], seeds: list[int] | None, output_dir: Path) -> list[Run]:
    """All runs, every arm's first seed before any second, so that a stopped comparison is balanced."""
    of_arm = {arm: list(dict.fromkeys(seeds)) if seeds else list(range(arm.num_seeds)) for arm in arms}
    most = max(map(len, of_arm.values()))
    return [
        Run(arm, of_arm[arm][turn], output_dir / arm.name / f"seed-{of_arm[arm][turn]}")
        for turn in range(most)
        for arm in arms
        if turn < len(of_arm[arm])
    ]
