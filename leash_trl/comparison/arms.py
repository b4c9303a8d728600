"""Decides which runs a comparison has: its arms, the points of their grids, and the seeds."""

import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    """Content of a comparison's file.

    Args:
        path (`str`): The file, for messages.
        arms (`dict[str, dict]`): Fields of each arm, by its name.
        base (`dict`), grid (`dict`), evaluation (`dict`): What arms share: fields of a recipe, lists of values of
            fields, and options of evaluation.
    """

    path: str
    arms: dict[str, Fields | None]
    base: Fields = field(default_factory=dict)
    grid: Fields = field(default_factory=dict)
    evaluation: Fields = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """What to run of a comparison.

    Args:
        folder (`Path`): Folder for the runs.
        arms (`Sequence[str]`): Names of the arms; `None` for all.
        seeds (`Sequence[int]`): Seeds of every arm; `None` for the arms' own number of seeds.
        overrides (`Mapping[str, Any]`): Fields of the recipe that the command line sets for every arm.
    """

    folder: Path
    arms: Sequence[str] | None = None
    seeds: Sequence[int] | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


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


def planned_runs(comparison: Comparison, selection: Selection, reader: RecipeReader) -> list[ComparedRun]:
    """Returns the base and then all runs, with the first seed of every arm before any second one, so that a stopped
    comparison is balanced.

    Raises:
        `ValueError`: If an entry of the file is unknown or wrong, if two runs would have the same name, or if the runs
            cannot be compared.
    """
    check_names(comparison, selection)
    check_no_seeds(comparison, selection)
    points: list[ArmPoint] = []
    for name in selection.arms or comparison.arms:
        arm = read_arm(comparison, name)
        if arm.is_trained:
            points.extend(trained_points(comparison, arm, selection.overrides, reader))
        else:
            points.extend(untrained_points(comparison, arm, selection.overrides, reader))
    check_points_differ(comparison, points)
    runs = runs_in_turns(points, selection)
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
        folder=selection.folder / BASE,
    )
    return [base, *runs]


def check_names(comparison: Comparison, selection: Selection) -> None:
    """Raises `ValueError` if the selected arms do not exist, or an arm has the name of the base."""
    selected = selection.arms or []
    if BASE in comparison.arms or BASE in selected:
        raise ValueError(f"{comparison.path}: arms has {BASE!r}, {ALWAYS_EVALUATED}; rename or remove the arm")
    for name in selected:
        if name not in comparison.arms:
            raise ValueError(f"{comparison.path}: arm {name!r} is not one of {', '.join(comparison.arms)}")


def check_no_seeds(comparison: Comparison, selection: Selection) -> None:
    """Raises `ValueError` if a part that all arms share sets a seed."""
    check_no_seed(comparison.evaluation, f"{comparison.path}: eval")
    check_no_seed(comparison.grid, f"{comparison.path}: grid")
    check_no_seed(selection.overrides, f"{comparison.path}: the command line")


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


def trained_points(
    comparison: Comparison, arm: Arm, overrides: Mapping[str, Any], reader: RecipeReader
) -> Iterator[ArmPoint]:
    """Yields an arm that is trained at the points of its grid."""
    varied = varied_fields(arm, comparison.grid)
    for point, fields in points_of_grid(arm, {**comparison.base, **arm.fields}, varied, overrides):
        recipe = reader.recipe(fields, overrides, where=arm.where)
        evaluation = reader.evaluation(recipe, comparison.evaluation, has_own_prompts=False)
        yield ArmPoint(arm, point, recipe, evaluation, reader.prompt_endings(recipe))


def untrained_points(
    comparison: Comparison, arm: Arm, overrides: Mapping[str, Any], reader: RecipeReader
) -> Iterator[ArmPoint]:
    """Yields an arm that is not trained, whose fields are a model and options of evaluation, at the points of its
    grid."""
    for point, fields in points_of_grid(arm, arm.fields, arm.grid, overrides):
        model = {name: fields.pop(name) for name in MODEL_FIELDS if fields.get(name)}
        recipe_fields = {
            **comparison.base,
            **overrides,
            **model,
            "length_control": "none",
            "length_control_kwargs": None,  # "none" would refuse those of another method
            "min_accuracy": None,
        }
        recipe = reader.recipe(recipe_fields, overrides={}, where=arm.where)
        has_own_prompts = False
        name_or_path = model.get("model_name_or_path")
        if name_or_path:
            saved_recipe = recipe_of_model(checkpoint_path(name_or_path), model.get("model_revision"))
            has_own_prompts = bool(saved_recipe)
        options = {**comparison.evaluation, **fields}
        yield ArmPoint(arm, point, recipe, reader.evaluation(recipe, options, has_own_prompts))


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
    arm: Arm, fields: Fields, varied: Fields, overrides: Mapping[str, Any]
) -> Iterator[tuple[Fields, Fields]]:
    """Yields the points of a grid, with all fields of the arm at each point.

    Args:
        arm (`Arm`), fields (`dict`): The arm, and its fields before the grid sets some.
        varied (`dict`): List of values of each field of the grid; `None` removes the field.
        overrides (`Mapping`): Fields that the command line sets, which a grid cannot vary.

    Raises:
        `ValueError`: If values are no list, or the command line sets the field.
    """
    axes = {name: values for name, values in varied.items() if values is not None}
    for name, values in axes.items():
        if not isinstance(values, list) or name.partition(".")[0] in overrides:
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
    if entry:
        fields, key = recipe.setdefault(field_name, {}), entry
    else:
        fields, key = recipe, field_name
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


def runs_in_turns(points: Sequence[ArmPoint], selection: Selection) -> list[ComparedRun]:
    """Returns the runs of all points: first the first seed of each, then the second of each, and so on."""
    runs_by_point = []
    for point in points:
        seeds = selection.seeds or range(point.arm.num_seeds)
        runs_by_point.append([point.run(seed, selection.folder) for seed in dict.fromkeys(seeds)])
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
