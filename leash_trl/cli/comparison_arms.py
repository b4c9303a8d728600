"""Reads the file of a comparison, and decides which runs it has: its arms, the points of their grids, the seeds."""

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash_trl.cli.arguments import load_recipe
from leash_trl.cli.comparison_arguments import read_evaluation, read_prompt_endings, read_recipe
from leash_trl.cli.errors import user_errors
from leash_trl.comparison.run import BASE, ComparedRun, PromptEndings
from leash_trl.run_folder import checkpoint_path
from leash_trl.saved_recipe import mapping_field, recipe_of_model


if TYPE_CHECKING:
    from leash_trl.cli.commands.compare import CompareArguments

SECTIONS = ("base", "eval", "arms", "grid")
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
    "length_of",
)
DEFAULT_SEEDS = 3

Fields = dict[str, Any]


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Args:
        path (`str`), folder (`Path`): File of the comparison, for messages, and folder for the runs.
        arms (`dict[str, dict]`): Fields of each arm to run, by its name.
        base (`dict`), grid (`dict`), evaluation (`dict`): What arms share: fields of a recipe, lists of values of
            fields, and options of evaluation.
        overrides (`Mapping[str, Any]`): Fields of the recipe that the command line sets for every arm.
    """

    path: str
    folder: Path
    arms: dict[str, Fields | None]
    base: Fields
    grid: Fields
    evaluation: Fields
    overrides: Mapping[str, Any]


@dataclass(frozen=True)
class Arm:
    """One arm, as the comparison's file describes it.

    Args:
        name (`str`), label (`str`): Name of the arm, and the one that it has in table and figure.
        num_seeds (`int`), is_trained (`bool`): Number of seeds, and whether the runs train a model.
        fields (`dict`), grid (`dict`): Fields that the arm sets itself, and values of fields in which its points
            differ.
        variants (`dict[str, dict]`): Options of further evaluations, by their names.
        where (`str`): The arm's place in the file, for messages.
    """

    name: str
    label: str
    num_seeds: int
    is_trained: bool
    fields: Fields
    grid: Fields
    variants: dict[str, Fields]
    where: str


def planned_runs(options: "CompareArguments", overrides: Mapping[str, Any]) -> list[ComparedRun]:
    """Returns the base and then all runs, with the first seed of every arm before any second one, so that a stopped
    comparison is balanced.

    Args:
        options (`CompareArguments`), overrides (`Mapping[str, Any]`): Options of `leash compare`, and fields of the
            recipe that the command line sets for every arm.

    Raises:
        `UserError`: If the file is missing or an entry of it is wrong, if two runs would have the same name, or if the
            runs cannot be compared.
    """
    with user_errors():
        comparison = load_comparison(options, overrides)
        points: list[ComparedRun] = []
        runs_by_point: list[list[ComparedRun]] = []
        for name in comparison.arms:
            arm = read_arm(comparison, name)
            seeds = dict.fromkeys(options.seeds or range(arm.num_seeds))  # each once
            for point in points_of_arm(comparison, arm):
                points.append(point)
                runs_by_point.append(
                    [replace(point, seed=seed, folder=point.folder / f"seed-{seed}") for seed in seeds]
                )
        check_points_differ(comparison, points)
        check_same_model_and_work(comparison, points)
    first_trained = next(point for point in points if point.is_trained)
    base = ComparedRun(
        arm=BASE,
        label=BASE,
        recipe=first_trained.recipe,
        point={},
        evaluation=first_trained.evaluation,
        is_trained=False,
        folder=comparison.folder / BASE,
    )
    runs = [base]
    for turn in itertools.zip_longest(*runs_by_point):
        runs.extend(run for run in turn if run is not None)  # an arm with fewer seeds has no run in the last turns
    return runs


def load_comparison(options: "CompareArguments", overrides: Mapping[str, Any]) -> Comparison:
    """Returns what to compare; a recipe is a comparison of one arm.

    Raises:
        `OSError`: If the file is missing.
        `ValueError`: If it is no mapping, or has an unknown entry or a seed, or no arm of a selected name.
    """
    path = options.comparison
    sections = load_recipe(path)
    if "arms" not in sections:
        sections = {"base": sections, "arms": {Path(path).stem: None}}
    for name in sections:
        if name not in SECTIONS:
            raise ValueError(f"{path}: {name!r} is neither base, eval, arms nor grid; correct the name")
    arms = sections["arms"] or {}
    names = options.arms or list(arms)
    if BASE in arms or BASE in names:
        raise ValueError(f"{path}: arms has {BASE!r}, {ALWAYS_EVALUATED}; rename or remove the arm")
    for name in names:
        if name not in arms:
            raise ValueError(f"{path}: arms has no {name!r}; name one of {', '.join(arms)}")
    base = sections.get("base") or {}
    comparison = Comparison(
        path=path,
        folder=Path(options.output_dir),
        arms={name: arms[name] for name in names},
        base=load_recipe(base) if isinstance(base, str) else base,
        grid=sections.get("grid") or {},
        evaluation=sections.get("eval") or {},
        overrides=overrides,
    )
    check_no_seed(comparison.evaluation, f"{path}: eval")
    check_no_seed(comparison.grid, f"{path}: grid")
    check_no_seed(overrides, f"{path}: the command line")
    return comparison


def check_no_seed(fields: Mapping[str, Any], where: str) -> None:
    """Raises `ValueError` if a part of the comparison sets a seed: every run gets one from the comparison."""
    if "seed" in fields:
        raise ValueError(
            f"{where}: seed is {fields['seed']!r}, but every run has a seed of the comparison; remove it, and set "
            "seeds on the command line, or seeds of an arm to their number"
        )


def read_arm(comparison: Comparison, name: str) -> Arm:
    """Returns an arm of the comparison's file; raises `ValueError` if its label, `train`, `evals` or a seed is
    wrong."""
    where = f"{comparison.path}: arm {name!r}"
    fields = dict(comparison.arms[name] or {})
    label = fields.pop("label", name)
    num_seeds = fields.pop("seeds", DEFAULT_SEEDS)
    is_trained = fields.pop("train", True)
    grid = fields.pop("grid", None) or {}
    variants = fields.pop("evals", None) or {}
    if not isinstance(is_trained, bool):
        raise ValueError(f"{where}: train is {is_trained!r}, but must be true or false")
    has_names = isinstance(variants, dict) and all(isinstance(options, dict) for options in variants.values())
    if not has_names or (variants and not is_trained):
        raise ValueError(
            f"{where}: evals is {variants!r}, but must be options of leash eval by name, in an arm that is trained; "
            "without training, set the options of the arm itself"
        )
    if label == BASE:
        raise ValueError(f"{where}: label is {BASE!r}, {ALWAYS_EVALUATED}; give the arm another label")
    check_no_seed(fields, where)
    check_no_seed(grid, where)
    return Arm(
        name,
        label,
        num_seeds=num_seeds,
        is_trained=is_trained,
        fields=fields,
        grid=grid,
        variants=variants,
        where=where,
    )


def points_of_arm(comparison: Comparison, arm: Arm) -> Iterator[ComparedRun]:
    """Yields an arm at each point of its grid, as a run without a seed."""
    if arm.is_trained:
        fields_of_arm = {**comparison.base, **arm.fields}
        if fields_of_arm.get("length_of") is None:  # null stands for the default
            fields_of_arm.pop("length_of", None)
        varied = varied_fields(arm, comparison.grid)
    else:
        fields_of_arm = arm.fields
        varied = arm.grid
    for point, fields in points_of_grid(comparison, arm, fields_of_arm, varied):
        prompt_endings: PromptEndings | None = None
        variants: dict[str, Fields] = {}
        if arm.is_trained:
            recipe = read_recipe(fields, comparison.overrides, arm.where)
            evaluation = read_evaluation(recipe, comparison.evaluation, f"{comparison.path}: eval")
            prompt_endings = read_prompt_endings(recipe)
            for variant, options in arm.variants.items():
                where = f"{arm.where}, evals {variant!r}"
                check_no_seed(options, where)
                if "target_length" in options:
                    raise ValueError(
                        f"{where}: target_length is {options['target_length']!r}, but a run is measured by the target "
                        "of its training; remove it"
                    )
                variants[variant] = read_evaluation(recipe, {**comparison.evaluation, **options}, where)
            check_evaluations_differ(recipe, variants, arm.where)
        else:
            recipe, evaluation = settings_without_training(comparison, arm, fields)
        name = "-".join([arm.name, *(f"{field}-{value}" for field, value in point.items())])
        yield ComparedRun(
            arm=name,
            label=arm.label,
            recipe=recipe,
            point=point,
            evaluation=evaluation,
            is_trained=arm.is_trained,
            folder=comparison.folder / name,
            prompt_endings=prompt_endings,
            variants=variants,
        )


def check_evaluations_differ(recipe: Fields, variants: Fields, where: str) -> None:
    """Raises `ValueError` if two evaluations of a run would have the same folder, whose name is that of the effort and
    of the further evaluation."""
    efforts = mapping_field("efforts", recipe.get("efforts")) or {}
    names = [*efforts]
    for effort, variant in itertools.product(efforts, variants):
        names.append(f"{effort}-{variant}")
    if len({*names}) < len(names):
        raise ValueError(
            f"{where}: evals has {', '.join(variants)}, but with the efforts {', '.join(efforts)} two evaluations "
            "would have the same name; rename one"
        )


def settings_without_training(comparison: Comparison, arm: Arm, fields: Fields) -> tuple[Fields, Fields]:
    """Returns recipe and options of evaluation of an arm that is not trained, whose fields are a model and options of
    evaluation."""
    model = {name: fields.pop(name) for name in MODEL_FIELDS if fields.get(name)}
    recipe_fields = {
        **comparison.base,
        **comparison.overrides,
        **model,
        "length_control": "none",
        "length_control_kwargs": None,  # "none" would refuse those of another method
        "min_accuracy": None,
    }
    recipe = read_recipe(recipe_fields, overrides={}, where=arm.where)
    saved_recipe: Fields = {}
    if "model_name_or_path" in model:
        name_or_path = checkpoint_path(model["model_name_or_path"])
        saved_recipe = recipe_of_model(name_or_path, model.get("model_revision"))
    options = {**comparison.evaluation, **fields}
    return recipe, read_evaluation(recipe, options, arm.where, has_own_prompts=bool(saved_recipe))


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


def check_points_differ(comparison: Comparison, points: Sequence[ComparedRun]) -> None:
    """Raises `ValueError` if two points have the same name, or would be the same row of the table."""
    arms: set[str] = set()
    arm_by_row: dict[str, str] = {}
    for point in points:
        row = repr((point.label, point.recipe.get("target_length"), point.point))
        other = point.arm if point.arm in arms else arm_by_row.get(row)
        if other is not None:
            raise ValueError(f"{comparison.path}: {point.arm!r} (label {point.label!r}) is also {other!r}; rename one")
        arms.add(point.arm)
        arm_by_row[row] = point.arm


def check_same_model_and_work(comparison: Comparison, points: Sequence[ComparedRun]) -> None:
    """Raises `ValueError` if no arm is trained, if trained arms differ in their model or their evaluation, or if any
    arms differ in [`SHARED_OPTIONS`]."""
    trained = [point for point in points if point.is_trained]
    if not trained:
        raise ValueError(f"{comparison.path}: no arm is trained; use leash eval")
    first = trained[0]
    for point in points:
        if point.is_trained:
            check_same(comparison, MODEL_FIELDS, (first, first.recipe), (point, point.recipe))
            names = [*first.evaluation, *point.evaluation]
            check_same(comparison, names, (first, first.evaluation), (point, point.evaluation))
        for options in (point.evaluation, *point.variants.values()):
            check_same(comparison, SHARED_OPTIONS, (first, first.evaluation), (point, options))


def check_same(
    comparison: Comparison, names: Iterable[str], first: tuple[ComparedRun, Fields], other: tuple[ComparedRun, Fields]
) -> None:
    """Raises `ValueError` if two arms, each given with settings, differ in one of the settings of these names."""
    first_point, first_settings = first
    point, settings = other
    for name in names:
        first_value = first_settings.get(name)
        value = settings.get(name)
        if value != first_value:
            remedy = (
                "use one model" if name in MODEL_FIELDS else f"set eval: {{{name}: ...}}, which holds for all arms"
            )
            raise ValueError(
                f"{comparison.path}: {name} is {first_value!r} in {first_point.arm!r}, but {value!r} in "
                f"{point.arm!r}; {remedy}"
            )
