"""Decides which runs a comparison has: its arms, the points of their grids, and the seeds."""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from leash_trl.comparison.run import ComparedRun, PromptEndings
from leash_trl.run_folder import checkpoint_path
from leash_trl.saved_recipe import recipe_of_model


BASE = "base"
ALWAYS_EVALUATED = "which in table and figure is the model before training, evaluated in every comparison"
MODEL_FIELDS = ("model_name_or_path", "model_revision")
# options of evaluation that all arms must share, so that their results can be compared
SHARED_OPTIONS = (
    "benchmarks",
    "split",
    "limit",
    "num_samples",
    "temperature",
    "reward_funcs",
    "reward_weights",
    "correctness_func",
)
DEFAULT_SEEDS = 3

Fields = dict[str, Any]


class RecipeReader(Protocol):
    """Reads the fields that a comparison gives to `leash train` and `leash eval`, which know what they mean."""

    def recipe(self, fields: Fields, overrides: Mapping[str, Any], where: str) -> Fields:
        """Returns the recipe of these fields, which are checked, and of `overrides`, which are checked already and
        replace them. `where` names the fields' place in messages."""

    def evaluation(self, recipe: Fields, options: Fields, has_own_prompts: bool) -> Fields:
        """Returns all options of evaluation: these, and for the others the settings of the recipe's training. The
        prompts are left out if the model brings its own."""

    def prompt_endings(self, recipe: Fields) -> PromptEndings:
        """Returns what the recipe's training appends to prompts."""


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Args:
        path (`str`): File of the comparison, for messages.
        folder (`Path`): Folder for the runs.
        arms (`dict[str, dict]`): Fields of each arm to run, by its name.
        base (`dict`), grid (`dict`), evaluation (`dict`): What arms share: fields of a recipe, lists of values of
            fields, and options of evaluation.
        overrides (`Mapping[str, Any]`): Fields of the recipe that the command line sets for every arm.
        seeds (`Sequence[int]`): Seeds of every arm; `None` for the arms' own number of seeds.
    """

    path: str
    folder: Path
    arms: dict[str, Fields | None]
    base: Fields
    grid: Fields
    evaluation: Fields
    overrides: Mapping[str, Any]
    seeds: Sequence[int] | None


@dataclass(frozen=True)
class Arm:
    """One arm, as the comparison's file describes it.

    Args:
        name (`str`), label (`str`): Name of the arm, and the one that it has in table and figure.
        num_seeds (`int`), is_trained (`bool`): Number of seeds, and whether the runs train a model.
        fields (`dict`), grid (`dict`): Fields that the arm sets itself, and values of fields in which its points
            differ.
        where (`str`): The arm's place in the file, for messages.
    """

    name: str
    label: str
    num_seeds: int
    is_trained: bool
    fields: Fields
    grid: Fields
    where: str


@dataclass(frozen=True)
class ArmPoint:
    """An arm at one point of its grid.

    Args:
        arm (`Arm`): The arm.
        point (`dict`): The values of the fields in which the arm's points differ.
        recipe (`dict`), evaluation (`dict`): Checked fields of the recipe, and options of evaluation.
        prompt_endings (`PromptEndings`): What the training appends to prompts; `None` if the arm is not trained.
    """

    arm: Arm
    point: Fields
    recipe: Fields
    evaluation: Fields
    prompt_endings: PromptEndings | None = None

    @property
    def name(self) -> str:
        """Name of the arm with its point, such as `leash-target_length-12`."""
        return "-".join([self.arm.name, *(f"{name}-{value}" for name, value in self.point.items())])

    def run(self, seed: int, folder: Path) -> ComparedRun:
        """Returns the run with a seed; `folder` is that of the comparison."""
        return ComparedRun(
            arm=self.name,
            label=self.arm.label,
            recipe=self.recipe,
            point=self.point,
            evaluation=self.evaluation,
            is_trained=self.arm.is_trained,
            seed=seed,
            folder=folder / self.name / f"seed-{seed}",
            prompt_endings=self.prompt_endings,
        )


def planned_runs(comparison: Comparison, reader: RecipeReader) -> list[ComparedRun]:
    """Returns the base and then all runs, with the first seed of every arm before any second one, so that a stopped
    comparison is balanced.

    Raises:
        `ValueError`: If an entry of the file is wrong, if two runs would have the same name, or if the runs cannot be
            compared.
    """
    check_no_seed(comparison.evaluation, f"{comparison.path}: eval")
    check_no_seed(comparison.grid, f"{comparison.path}: grid")
    check_no_seed(comparison.overrides, f"{comparison.path}: the command line")
    points: list[ArmPoint] = []
    for name in comparison.arms:
        arm = read_arm(comparison, name)
        points_of_arm = trained_points if arm.is_trained else untrained_points
        points.extend(points_of_arm(comparison, arm, reader))
    check_points_differ(comparison, points)
    runs = runs_in_turns(comparison, points)
    trained = [run for run in runs if run.is_trained]
    if not trained:
        raise ValueError(f"{comparison.path}: no arm is trained; use leash eval")
    check_same_model_and_work(comparison, trained, runs)
    base = ComparedRun(
        arm=BASE,
        label=BASE,
        recipe=trained[0].recipe,
        point={},
        evaluation=trained[0].evaluation,
        is_trained=False,
        seed=None,
        folder=comparison.folder / BASE,
    )
    return [base, *runs]


def check_no_seed(fields: Mapping[str, Any], where: str) -> None:
    """Raises `ValueError` if a part of the comparison sets a seed: every run gets one from the comparison."""
    if "seed" in fields:
        raise ValueError(
            f"{where}: seed is {fields['seed']!r}, but every run has a seed of the comparison; remove it, and set "
            "seeds on the command line, or seeds of an arm to their number"
        )


def read_arm(comparison: Comparison, name: str) -> Arm:
    """Returns an arm of the comparison's file; raises `ValueError` if its label, `train` or a seed is wrong."""
    where = f"{comparison.path}: arm {name!r}"
    fields = dict(comparison.arms[name] or {})
    label = fields.pop("label", name)
    num_seeds = fields.pop("seeds", DEFAULT_SEEDS)
    is_trained = fields.pop("train", True)
    grid = fields.pop("grid", None) or {}
    if not isinstance(is_trained, bool):
        raise ValueError(f"{where}: train is {is_trained!r}, but must be true or false")
    if label == BASE:
        raise ValueError(f"{where}: label is {BASE!r}, {ALWAYS_EVALUATED}; give the arm another label")
    check_no_seed(fields, where)
    check_no_seed(grid, where)
    return Arm(name, label, num_seeds=num_seeds, is_trained=is_trained, fields=fields, grid=grid, where=where)


def trained_points(comparison: Comparison, arm: Arm, reader: RecipeReader) -> Iterator[ArmPoint]:
    """Yields an arm that is trained at the points of its grid."""
    fields_of_arm = {**comparison.base, **arm.fields}
    varied = varied_fields(arm, comparison.grid)
    for point, fields in points_of_grid(comparison, arm, fields_of_arm, varied):
        recipe = reader.recipe(fields, comparison.overrides, where=arm.where)
        evaluation = reader.evaluation(recipe, comparison.evaluation, has_own_prompts=False)
        yield ArmPoint(arm, point, recipe, evaluation, reader.prompt_endings(recipe))


def untrained_points(comparison: Comparison, arm: Arm, reader: RecipeReader) -> Iterator[ArmPoint]:
    """Yields an arm that is not trained, whose fields are a model and options of evaluation, at the points of its
    grid."""
    for point, fields in points_of_grid(comparison, arm, arm.fields, arm.grid):
        model = {name: fields.pop(name) for name in MODEL_FIELDS if fields.get(name)}
        recipe_fields = {
            **comparison.base,
            **comparison.overrides,
            **model,
            "length_control": "none",
            "length_control_kwargs": None,  # "none" would refuse those of another method
            "min_accuracy": None,
        }
        recipe = reader.recipe(recipe_fields, overrides={}, where=arm.where)
        saved_recipe: Fields = {}
        if "model_name_or_path" in model:
            name_or_path = checkpoint_path(model["model_name_or_path"])
            saved_recipe = recipe_of_model(name_or_path, model.get("model_revision"))
        options = {**comparison.evaluation, **fields}
        evaluation = reader.evaluation(recipe, options, has_own_prompts=bool(saved_recipe))
        yield ArmPoint(arm, point, recipe, evaluation)


def varied_fields(arm: Arm, grid: Fields) -> Fields:
    """Returns the values of each field in which the points of an arm differ: the fields of the common grid that the
    arm does not set itself, and those of its own grid."""
    set_by_arm = set(arm.fields)
    for name, value in arm.fields.items():
        if isinstance(value, dict):
            set_by_arm.update(f"{name}.{entry}" for entry in value)
    common = {name: values for name, values in grid.items() if name not in set_by_arm}
    return {**common, **arm.grid}


def points_of_grid(
    comparison: Comparison, arm: Arm, fields: Fields, varied: Fields
) -> Iterator[tuple[Fields, Fields]]:
    """Yields the points of a grid, with all fields of the arm at each point.

    Args:
        comparison (`Comparison`), arm (`Arm`): For messages, and for the fields that the command line sets.
        fields (`dict`): Fields of the arm before the grid sets some.
        varied (`dict`): List of values of each field of the grid; `None` removes the field.

    Raises:
        `ValueError`: If values are no list, or the command line sets the field.
    """
    axes = {name: values for name, values in varied.items() if values is not None}
    for name, values in axes.items():
        if not isinstance(values, list) or name.partition(".")[0] in comparison.overrides:
            raise ValueError(
                f"{arm.where}: grid has {name}: {values!r}; write a list or null, and do not set it elsewhere"
            )
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        fields_at_point = copy.deepcopy(fields)
        for name in varied:
            set_field(fields_at_point, name, point.get(name))
        yield point, fields_at_point


def set_field(recipe: Fields, name: str, value: Any) -> None:
    """Sets a field of a recipe, or an entry of a field by a name such as `length_control_kwargs.alpha`; `None` removes
    it."""
    field_name, _, entry = name.partition(".")
    fields = recipe.setdefault(field_name, {}) if entry else recipe
    key = entry or field_name
    fields.pop(key, None)
    if value is not None:
        fields[key] = value


def check_points_differ(comparison: Comparison, points: Sequence[ArmPoint]) -> None:
    """Raises `ValueError` if two points have the same name, or would be the same row of the table."""
    names: dict[str, str] = {}  # by what must be unique, the name of the point that has it
    for point in points:
        row = repr((point.arm.label, point.recipe.get("target_length"), point.point))
        for unique in (point.name, row):
            if unique in names:
                raise ValueError(
                    f"{comparison.path}: {point.name!r} (label {point.arm.label!r}) is also {names[unique]!r}; "
                    "rename one"
                )
            names[unique] = point.name


def runs_in_turns(comparison: Comparison, points: Sequence[ArmPoint]) -> list[ComparedRun]:
    """Returns the runs of all points: first the first seed of each, then the second of each, and so on."""
    runs_by_point = []
    for point in points:
        seeds = dict.fromkeys(comparison.seeds or range(point.arm.num_seeds))  # each once
        runs_by_point.append([point.run(seed, comparison.folder) for seed in seeds])
    runs: list[ComparedRun] = []
    for turn in itertools.zip_longest(*runs_by_point):
        runs.extend(run for run in turn if run is not None)  # an arm with fewer seeds has no run in the last turns
    return runs


def check_same_model_and_work(
    comparison: Comparison, trained: Sequence[ComparedRun], runs: Sequence[ComparedRun]
) -> None:
    """Raises `ValueError` if trained runs differ in their model or their evaluation, or if any runs differ in
    [`SHARED_OPTIONS`]."""
    to_compare: list[Fields] = []
    for run in trained:
        model = {name: run.recipe.get(name) for name in MODEL_FIELDS}
        to_compare.append({**run.evaluation, **model})
    reference = to_compare[0]
    for run in runs:
        to_compare.append({name: run.evaluation.get(name, reference.get(name)) for name in SHARED_OPTIONS})
    first_values: Fields = {}
    differing: list[str] = []
    for facts in to_compare:
        for name, value in facts.items():
            if first_values.setdefault(name, value) != value and name not in differing:
                differing.append(name)
    if differing:
        raise ValueError(
            f"{comparison.path}: arms differ in {', '.join(differing)}; use one model, and set the rest under eval"
        )
