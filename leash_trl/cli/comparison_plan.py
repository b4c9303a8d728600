"""Reads the runs of `leash compare` from a comparison file: its arms, the points of their grids and their seeds."""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leash_trl.cli.errors import UserError, user_errors
from leash_trl.cli.gym_run import gym_arguments, run_claim
from leash_trl.cli.recipe import read_recipe, with_trl_names


DEFAULT_SEEDS = 3
NOT_IN_A_GRID = ("label", "seeds", "seed")


@dataclass(frozen=True, eq=False)
class Arm:
    """One method of a comparison, at one point of its grid.

    Args:
        name (`str`):
            Its name in the file and its point, which is also its folder's, such as `leash-target_length-12`.
        label (`str`):
            Its name in table and figure, the same at all points.
        num_seeds (`int`):
            How many seeds it gets if the command line does not say.
        recipe (`dict[str, Any]`):
            Fields of its recipe.
        point (`dict[str, Any]`):
            Values of the fields of its grid; empty without one.
    """

    name: str
    label: str
    num_seeds: int
    recipe: dict[str, Any]
    point: dict[str, Any]


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
    """The arms of a comparison file at all points of their grids, or those of them that are named, in its order.

    Raises:
        `UserError`: If the file is missing, something in it has no meaning, or it has no arm of a name.
    """
    with user_errors():
        comparison = read_recipe(config)
    for key in comparison.keys() - {"base", "arms", "grid"}:
        raise UserError(f"{config}: unknown key {key!r}; a comparison has base (fields of a recipe), arms and grid")
    for key in ("base", "arms"):
        if not isinstance(comparison.get(key), dict) or not comparison[key]:
            value = f"is {comparison[key]!r}" if comparison.get(key) else "is missing or empty"
            raise UserError(f"{config}: {key} {value}, but must be a mapping of names to values")
    arms = {str(name): fields for name, fields in comparison["arms"].items()}
    for name in names or []:
        if name not in arms:
            raise UserError(f"--arms: {config} has no arm {name!r}; it has {', '.join(arms)}")
    with user_errors():
        base = with_trl_names(comparison["base"], f"{config}: base")
    grid = _checked_grid(comparison.get("grid", {}), config)
    chosen = [name for name in arms if names is None or name in names]
    points = [point for name in chosen for point in _points(name, arms[name], base, grid, config)]
    return points


def _check_distinct(points: list[Arm], config: str) -> None:
    """Prevents that two arms share a folder, or a row of the table."""
    folders = [point.name for point in points]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UserError(f"{config}: two runs would use the folder {folder!r}; rename an arm or drop a value")
    told: dict[str, str] = {}
    for point in points:
        settings = (point.label, {"target_length": point.recipe.get("target_length"), **point.point})
        if (first := told.setdefault(repr(settings), point.name)) != point.name:
            raise UserError(
                f"{config}: arms {first!r} and {point.name!r} are both {point.label!r} in table and figure; give one "
                "another label"
            )


def _points(name: str, fields: Any, base: dict[str, Any], grid: dict[str, Any], config: str) -> list[Arm]:
    """One arm at each point of its grid."""
    where = f"{config}: arm {name!r}"
    if not re.fullmatch(r"[\w.+-]*\w[\w.+-]*", name):
        raise UserError(f"{where} cannot name a folder; use letters, digits, _, -, + and .")
    if not isinstance(fields, dict) or not fields:
        raise UserError(f"{where} has no fields; write what differs from base, as {{lambda_lr: 0.02}}")
    with user_errors():
        own = with_trl_names(fields, where)
    label, num_seeds = own.pop("label", name), own.pop("seeds", DEFAULT_SEEDS)
    if not isinstance(label, str) or not label:
        raise UserError(f"{where}: label is {label!r}, but must be text; leave it out to take the arm's name")
    own_grid = _checked_grid(own.pop("grid", {}), where)
    if isinstance(num_seeds, bool) or not isinstance(num_seeds, int) or num_seeds < 1:
        raise UserError(f"{where}: seeds is {num_seeds!r}, but must be how many there are, 1 or more")
    shared = {field: values for field, values in grid.items() if not _has_field(own, field)}
    wanted = {**shared, **own_grid}
    axes = {field: values for field, values in wanted.items() if values is not None}
    arms = []
    for values in itertools.product(*axes.values()):
        recipe, point = {**base, **own}, dict(zip(axes, values, strict=True))
        for field in wanted.keys() - axes.keys():
            recipe = _without_field(recipe, field)
        for field, value in point.items():
            recipe = _with_field(recipe, field, value, where)
        folder = "-".join([name, *(f"{field}-{value}" for field, value in point.items())])
        arms.append(Arm(folder, label, num_seeds, recipe, point))
    return arms


def _checked_grid(grid: Any, where: str) -> dict[str, list[Any] | None]:
    """The values of each field; `None` takes a field out of the arm's recipe and of the grid."""
    if not isinstance(grid, dict):
        raise UserError(
            f"{where}: grid is {grid!r}, but must be a mapping, as {{target_length: [12, 18, 28]}}; to take a field "
            "of it out of an arm, write {target_length: null}"
        )
    with user_errors():
        axes = with_trl_names({str(field): values for field, values in grid.items()}, f"{where}: grid")
    for field, values in axes.items():
        if field in NOT_IN_A_GRID:
            raise UserError(f"{where}: grid has {field}, but must not; arms have label and seeds, --seeds names seeds")
        if values is None:
            continue
        if not isinstance(values, list) or not values:
            raise UserError(f"{where}: grid: {field} is {values!r}, but must be a list of values, or null for none")
        for value in values:
            if not _names_a_folder(value):
                raise UserError(
                    f"{where}: grid: {field} has {value!r}, but must have numbers, true, false and words without "
                    "spaces and slashes"
                )
    return axes


def _names_a_folder(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) or (isinstance(value, str) and re.fullmatch(r"[\w.+-]+", value) is not None)


def _has_field(recipe: Mapping[str, Any], field: str) -> bool:
    """Whether a recipe has a field, or with a dot in its name an entry of a field."""
    head, _, rest = field.partition(".")
    if not rest:
        return head in recipe
    return isinstance(recipe.get(head), dict) and _has_field(recipe[head], rest)


def _with_field(recipe: dict[str, Any], field: str, value: Any, where: str) -> dict[str, Any]:
    """The recipe with a field's value, or with a dot in its name that of an entry of a field."""
    head, _, rest = field.partition(".")
    if not rest:
        return {**recipe, head: value}
    entries = recipe.get(head) or {}
    if not isinstance(entries, dict):
        raise UserError(
            f"{where}: grid has {field}, but {head} is {entries!r}; write it as a mapping, or drop {field}"
        )
    return {**recipe, head: _with_field(entries, rest, value, where)}


def _without_field(recipe: Mapping[str, Any], field: str) -> dict[str, Any]:
    """The recipe without a field, or with a dot in its name without that entry of a field."""
    head, _, rest = field.partition(".")
    if rest and isinstance(entries := recipe.get(head), dict):
        return {**recipe, head: _without_field(entries, rest)}
    return {name: value for name, value in recipe.items() if name != field}


def checked_arms(arms: list[Arm], options: list[str], config: str) -> list[Arm]:
    """The arms with fields of `leash train` from the command line in all their recipes.

    Raises:
        `UserError`: If an option is none of `leash train` or stands in a grid, or an arm has a mistake or is not for
            the gym.
    """
    from leash_trl.cli.training_arguments import given_fields, training_parser

    with user_errors():
        given, parser = given_fields(options), training_parser()
    checked = []
    for arm in arms:
        where = f"{config}: arm {arm.name!r}"
        for field in arm.point:
            if (option := field.partition(".")[0]) in given:
                raise UserError(f"--{option}: {where} takes {field} from a grid; change the grid, or drop the option")
        with user_errors():
            recipe = {**parser.checked(arm.recipe, where), **given}
        gym_arguments(recipe, where)
        with user_errors():
            run_claim(recipe, seed=0)
        if recipe.get("efforts"):
            raise UserError(f"{where} has efforts, which leash compare does not score by effort; use leash demo")
        checked.append(replace(arm, recipe=recipe))
    _check_distinct(checked, config)
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
