"""Reads the file of a comparison, and decides on its runs: one for each arm, each point of its grid, and each seed."""

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from leash_trl.cli.arguments import load_recipe
from leash_trl.cli.comparison_arguments import evaluation_options, prompt_ending_of_training
from leash_trl.cli.errors import errors_to_user_errors
from leash_trl.cli.training_arguments import training_parser
from leash_trl.comparison.run import BASE, ComparedRun, LengthRequest
from leash_trl.model_paths import model_path
from leash_trl.saved_recipe import recipe_of_model


if TYPE_CHECKING:
    from leash_trl.cli.commands.compare import CompareArguments

COMPARISON_SECTIONS = ("base", "eval", "arms", "grid")
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
    "length_of",
)
ARM_SETTINGS = ("label", "seeds", "train", "grid", "evals")  # entries of an arm that are no fields of a recipe

Fields = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """One arm, as the comparison's file describes it.

    Args:
        name (`str`), where (`str`): Name of the arm, and its place in the file, for messages.
        fields (`dict`): Fields of the recipe that the arm sets; if the arm is not trained, fields of its model and
            options of its evaluation.
        label (`str`): Name in table and figure.
        seeds (`int`), train (`bool`): Number of seeds, and whether the runs train a model.
        grid (`dict`): List of values for each field in which the points of the arm differ.
        evals (`dict[str, dict]`): Options of further evaluations of the trained models, by the names of the
            evaluations.

    Raises:
        `ValueError`: If `evals` does not have options by name, or the arm is not trained and has `evals`, if name or
            label is `base`, or if a seed is set.
    """

    name: str
    where: str
    fields: Fields
    label: str
    seeds: int = 3
    train: bool = True
    grid: Fields = field(default_factory=dict)
    evals: dict[str, Fields] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_evals()
        if self.evals and not self.train:
            raise ValueError(
                f"{self.where}: evals is {self.evals!r}, but the arm is not trained; set the options of the arm itself"
            )
        if BASE in (self.name, self.label):
            raise ValueError(
                f"{self.where}: {BASE!r} is the name of the model before training, which every comparison evaluates; "
                "give the arm another name and label"
            )
        check_no_seed(self.where, self.fields, self.grid, *self.evals.values())

    def _check_evals(self) -> None:
        """Raises `ValueError` unless `evals` has options for names that can be parts of file names."""
        names_options = isinstance(self.evals, dict) and all(isinstance(value, dict) for value in self.evals.values())
        if not names_options or any("/" in str(name) for name in self.evals):
            raise ValueError(
                f"{self.where}: evals is {self.evals!r}, but must have options of leash eval for each name, and names "
                "without a slash, such as {forced: {decoding: budget_forcing}}"
            )


@dataclass(frozen=True)
class Comparison:
    """The content of a comparison's file, with the arms that were selected.

    Args:
        path (`str`), folder (`Path`): File of the comparison, for messages, and folder for the runs.
        arms (`list[Arm]`): The arms to run.
        base (`dict`), grid (`dict`), eval_options (`dict`): Fields of the recipe, lists of values of fields, and
            options of evaluation that the arms share.
        overrides (`Mapping[str, Any]`): Fields of the recipe that the command line sets for every arm.
    """

    path: str
    folder: Path
    arms: list[Arm]
    base: Fields
    grid: Fields
    eval_options: Fields
    overrides: Mapping[str, Any]


def planned_runs(options: "CompareArguments", overrides: Mapping[str, Any]) -> list[ComparedRun]:
    """Returns the base and then all runs: the first seed of every point of every arm, then the second seeds, and so
    on, so that a comparison that is stopped has about equally many seeds of each.

    Args:
        options (`CompareArguments`), overrides (`Mapping[str, Any]`): Options of `leash compare`, and fields of the
            recipe that the command line sets for every arm.

    Raises:
        `UserError`: If the file is missing or an entry of it is wrong, if two points would have the same name or the
            same row of the table, or if the runs cannot be compared.
    """
    with errors_to_user_errors():
        comparison = load_comparison(options, overrides)
        # A point is a run without a seed. Its runs are copies of it with the seeds.
        points: list[ComparedRun] = []
        runs_by_point: list[list[ComparedRun]] = []
        for arm in comparison.arms:
            for point in runs_without_seed(comparison, arm):
                points.append(point)
                runs_by_point.append(runs_with_seeds(point, options.seeds or range(arm.seeds)))
        check_rows_differ(comparison, points)
        check_same_model_and_evaluation(comparison, points)
        return [base_run(comparison, points), *in_turns(runs_by_point)]


def runs_with_seeds(point: ComparedRun, seeds: Iterable[int]) -> list[ComparedRun]:
    """Returns the runs of an arm at one point of its grid, each seed once."""
    # A dict keeps the order, which a set would not.
    return [replace(point, seed=seed, folder=point.folder / f"seed-{seed}") for seed in dict.fromkeys(seeds)]


def in_turns(runs_by_point: Sequence[Sequence[ComparedRun]]) -> list[ComparedRun]:
    """Returns the first run of every point, then the second one of every point that has one, and so on."""
    runs: list[ComparedRun] = []
    # In the last turns, `zip_longest` has `None` for points with fewer runs.
    for turn in itertools.zip_longest(*runs_by_point):
        runs.extend(run for run in turn if run is not None)
    return runs


def base_run(comparison: Comparison, points: Sequence[ComparedRun]) -> ComparedRun:
    """Returns the run that evaluates the model before training, which all trained arms share, with their options."""
    point = first_trained(comparison, points)
    return ComparedRun(
        arm=BASE,
        label=BASE,
        recipe=point.recipe,
        grid_values={},
        eval_options=point.eval_options,
        is_trained=False,
        folder=comparison.folder / BASE,
    )


def first_trained(comparison: Comparison, points: Sequence[ComparedRun]) -> ComparedRun:
    """Returns the first point that is trained; raises `ValueError` if none is."""
    for point in points:
        if point.is_trained:
            return point
    raise ValueError(f"{comparison.path}: no arm is trained; use leash eval")


def load_comparison(options: "CompareArguments", overrides: Mapping[str, Any]) -> Comparison:
    """Returns the comparison that the options name.

    Raises:
        `OSError`: If the file is missing.
        `ValueError`: If the file is no mapping, has an unknown section or a seed, or lacks a selected arm.
    """
    path = options.comparison
    sections = read_sections(path)
    fields_by_arm = sections["arms"]
    base = sections.get("base") or {}
    grid = sections.get("grid") or {}
    eval_options = sections.get("eval") or {}
    check_no_seed(path, eval_options, grid, overrides)
    names = options.arms or list(fields_by_arm)
    for name in names:
        if name not in fields_by_arm:
            raise ValueError(f"arms is {name!r}, but {path} has {', '.join(fields_by_arm)}; name one of them")
    return Comparison(
        path=path,
        folder=Path(options.output_dir),
        arms=[read_arm(path, name, fields_by_arm[name]) for name in names],
        base=load_recipe(base) if isinstance(base, str) else base,  # text names a recipe
        grid=grid,
        eval_options=eval_options,
        overrides=overrides,
    )


def read_sections(path: str) -> dict[str, Any]:
    """Returns the sections of a comparison's file, such as `{"base": {...}, "arms": {"leash": {...}}}`. A file without
    arms is read as a recipe: it becomes the base of one arm, which has the file's name and no fields of its own."""
    sections = load_recipe(path)
    if "arms" not in sections:
        return {"base": sections, "arms": {Path(path).stem: None}}
    for name in sections:
        if name not in COMPARISON_SECTIONS:
            raise ValueError(f"{path}: {name!r} is neither base, eval, arms nor grid; correct the name")
    return sections


def read_arm(path: str, name: str, entries: Fields | None) -> Arm:
    """Returns the arm of a name by its entries in the file; `entries` is `None` if the arm has none."""
    fields = dict(entries or {})
    # Entries about the arm itself, such as {"label": "LEASH", "seeds": 5}, are not fields of its recipe.
    settings: Fields = {"label": name}
    for key in ARM_SETTINGS:
        value = fields.pop(key, None)
        if value is not None:  # null is the default, as in a recipe
            settings[key] = value
    return Arm(name, f"{path}: arm {name!r}", fields, **settings)


def check_no_seed(where: str, *parts: Mapping[str, Any]) -> None:
    """Raises `ValueError` if a part of the comparison sets a seed: `leash compare` gives every run its seed."""
    for fields in parts:  # fields of a recipe or options, by name
        if "seed" in fields:
            raise ValueError(
                f"{where}: seed is {fields['seed']!r}, but leash compare gives each run its seed; remove it, and "
                "name the seeds with --seeds, or set their number as seeds of an arm"
            )


class PointSettings(NamedTuple):
    """Recipe and evaluations of an arm at one point of its grid; for the fields, see [`ComparedRun`]."""

    recipe: Fields
    eval_options: Fields
    prompt_ending_of: Callable[[Path, LengthRequest], str] | None = None
    evals: Mapping[str, Fields] = MappingProxyType({})


def runs_without_seed(comparison: Comparison, arm: Arm) -> Iterator[ComparedRun]:
    """Yields a run without a seed for each point of an arm's grid."""
    grid = grid_of(comparison, arm)
    check_grid(grid, comparison.overrides, arm.where)
    settings_at = trained_settings if arm.train else untrained_settings
    for point in points_of_grid(grid):  # such as {"target_length": 12}
        name = arm.name
        for field_name, value in point.items():
            name += f"-{field_name}-{value}"  # such as "leash-target_length-12"
        settings = settings_at(comparison, arm, fields_at_point(comparison, arm, grid, point=point))
        yield ComparedRun(
            arm=name,
            label=arm.label,
            grid_values=point,
            is_trained=arm.train,
            folder=comparison.folder / name,
            **settings._asdict(),
        )


def fields_at_point(comparison: Comparison, arm: Arm, grid: Fields, point: Fields) -> Fields:
    """Returns the fields of an arm at a point of its grid. For a trained arm, they are those of a recipe, with the
    fields of the base; for another arm, they are fields of its model and options of evaluation."""
    # a copy, since `set_field` also changes mappings inside the fields
    fields = copy.deepcopy({**comparison.base, **arm.fields} if arm.train else arm.fields)
    for name in grid:
        set_field(fields, name, point.get(name))  # if the grid has null for a field, `None` removes the field
    return fields


def trained_settings(comparison: Comparison, arm: Arm, fields: Fields) -> PointSettings:
    """Returns the settings of an arm with these fields of a recipe."""
    recipe = {**training_parser().parse_recipe(fields, arm.where), **comparison.overrides}
    evals: dict[str, Fields] = {}
    for eval_name, options in arm.evals.items():
        where = f"{arm.where}, evals {eval_name!r}"
        evals[eval_name] = evaluation_options(recipe, {**comparison.eval_options, **options}, where)
    eval_options = evaluation_options(recipe, comparison.eval_options, f"{comparison.path}: eval")
    return PointSettings(recipe, eval_options, prompt_ending_of_training(recipe), evals)


def untrained_settings(comparison: Comparison, arm: Arm, fields: Fields) -> PointSettings:
    """Returns the settings of an arm that is not trained; `fields` has its model and options of evaluation."""
    model = {name: fields.pop(name) for name in MODEL_FIELDS if fields.get(name)}
    # The recipe is not used to train, but shows which data, rewards and prompts the other arms have. Its method
    # becomes "none", which would refuse the hyper-parameters of another method, so these are removed.
    no_method = {"length_control": "none", "length_control_kwargs": None, "min_accuracy": None}
    base = training_parser().parse_recipe(comparison.base, arm.where)
    recipe = {**base, **comparison.overrides, **model, **no_method}
    # If the arm has a model of its own that `leash train` saved, `leash eval` takes the prompts from its recipe.
    saved_recipe: Fields = {}
    if "model_name_or_path" in model:
        name_or_path = model_path(model["model_name_or_path"])
        saved_recipe = recipe_of_model(name_or_path, model.get("model_revision"))
    options = {**comparison.eval_options, **fields}
    return PointSettings(recipe, evaluation_options(recipe, options, arm.where, model_has_recipe=bool(saved_recipe)))


def grid_of(comparison: Comparison, arm: Arm) -> Fields:
    """Returns the grid of an arm. For a trained arm, this includes the common grid without the fields that the arm
    sets itself."""
    if not arm.train:
        return arm.grid
    return {**grid_without_fields_of(arm, comparison.grid), **arm.grid}


def grid_without_fields_of(arm: Arm, grid: Fields) -> Fields:
    """Returns the part of the common grid whose fields the arm does not set itself."""
    # An entry of a mapping is named as in a grid: "length_control_kwargs.alpha".
    set_by_arm = set(arm.fields)
    for name, value in arm.fields.items():
        if isinstance(value, dict):
            set_by_arm.update(f"{name}.{entry}" for entry in value)
    return {name: values for name, values in grid.items() if name not in set_by_arm}


def check_grid(grid: Fields, overrides: Mapping[str, Any], where: str) -> None:
    """Raises `ValueError` if a field of a grid has neither a list nor null, or if the command line sets it, too.

    Without these checks, every character of a text would be a value, or all points would have the value of the command
    line.
    """
    for name, values in grid.items():
        if values is None:
            continue
        if not isinstance(values, list):
            raise ValueError(f"{where}: grid has {name}: {values!r}, but must have a list or null; write [{values}]")
        # of "length_control_kwargs.alpha", the field is "length_control_kwargs"
        if name.partition(".")[0] in overrides:
            raise ValueError(f"{where}: grid has {name}: {values!r}, which the command line sets too; remove one")


def points_of_grid(grid: Fields) -> Iterator[Fields]:
    """Yields each combination of the values of the fields; fields that are null in the grid are left out.

    Example:
        >>> list(points_of_grid({"lambda_lr": [0.1, 0.2], "target_length": None}))
        [{'lambda_lr': 0.1}, {'lambda_lr': 0.2}]
    """
    axes = {name: values for name, values in grid.items() if values is not None}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def set_field(recipe: Fields, name: str, value: Any) -> None:
    """Sets a field of a recipe such as `target_length`, or an entry of a field that is a mapping, such as
    `length_control_kwargs.alpha`. The value `None` removes the field or entry."""
    field_name, _, entry = name.partition(".")
    fields = recipe.setdefault(field_name, {}) if entry else recipe
    key = entry or field_name
    fields.pop(key, None)
    if value is not None:
        fields[key] = value


def check_rows_differ(comparison: Comparison, points: Sequence[ComparedRun]) -> None:
    """Raises `ValueError` if two points, or evaluations of them with other options, would have the same folder or the
    same row of the table."""
    taken: set[str] = set()  # the names of points, which are also their folders, and the rows
    for point in points:
        for request in (LengthRequest(eval_name=eval_name) for eval_name in (None, *point.evals)):
            name = request.name_with_eval(point.arm)
            label = request.name_with_eval(point.label)
            # The table shows label, target and the values of the grid, so these must tell rows apart.
            row = repr((label, point.recipe.get("target_length"), point.grid_values))
            if name in taken or row in taken:
                raise ValueError(
                    f"{comparison.path}: {name!r} has the same name as another arm, or the same label {label!r}, "
                    "target and grid values; rename one"
                )
            taken.update([name, row])


class ArmSettings(NamedTuple):
    """Fields of an arm's recipe, or options of one of its evaluations."""

    arm: str  # for an entry of `evals`, with its name: "leash, greedy"
    values: Fields


def check_same_model_and_evaluation(comparison: Comparison, points: Sequence[ComparedRun]) -> None:
    """Raises `ValueError` if no arm is trained, if trained arms differ in their model or their evaluation, or if any
    arms differ in [`SHARED_OPTIONS`]."""
    first = first_trained(comparison, points)
    first_evaluation = ArmSettings(first.arm, first.eval_options)
    for point in points:
        # Trained arms are compared with the base, so they share its model and all options of its evaluation. An arm
        # that is not trained may have another model, and options such as `prompt_ending`.
        if point.is_trained:
            recipe = ArmSettings(point.arm, point.recipe)
            check_settings_equal(comparison.path, MODEL_FIELDS, ArmSettings(first.arm, first.recipe), recipe)
            names = [*first.eval_options, *point.eval_options]
            check_settings_equal(comparison.path, names, first_evaluation, ArmSettings(point.arm, point.eval_options))
        for eval_name in (None, *point.evals):
            name = LengthRequest(eval_name=eval_name).name_with_eval(point.arm)
            options = point.eval_options if eval_name is None else point.evals[eval_name]
            check_settings_equal(comparison.path, SHARED_OPTIONS, first_evaluation, ArmSettings(name, options))


def check_settings_equal(path: str, names: Iterable[str], first: ArmSettings, other: ArmSettings) -> None:
    """Raises `ValueError` if two arms differ in one of the settings of these names."""
    for name in names:
        first_value = first.values.get(name)  # `None` if it has its default
        value = other.values.get(name)
        if value != first_value:
            remedy = f"set eval: {{{name}: ...}}, which holds for all arms"
            if name in MODEL_FIELDS:
                remedy = "use one model for all arms that are trained"
            raise ValueError(
                f"{path}: {name} is {first_value!r} in {first.arm!r}, but {value!r} in {other.arm!r}; {remedy}"
            )
