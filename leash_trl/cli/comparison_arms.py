"""Reads the file of a comparison, and decides which runs it has: its arms, the points of their grids, the seeds."""

import copy
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash_trl.cli.arguments import load_recipe
from leash_trl.cli.comparison_arguments import checked_recipe, evaluation_options, prompt_endings_of
from leash_trl.cli.errors import errors_to_user_errors
from leash_trl.comparison.run import BASE, ComparedRun, PromptEndings
from leash_trl.model_paths import model_path
from leash_trl.saved_recipe import field_as_mapping, recipe_of_model


if TYPE_CHECKING:
    from leash_trl.cli.commands.compare import CompareArguments

COMPARISON_SECTIONS = ("base", "eval", "arms", "grid")
BASE_EXPLANATION = "which in table and figure is the model before training, evaluated in every comparison"
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
        fields (`dict`): Fields of the recipe that the arm sets, or of the evaluation, if it is not trained.
        label (`str`): Name in table and figure.
        seeds (`int`), train (`bool`): Number of seeds, and whether the runs train a model.
        grid (`dict`): Values of fields in which the points of the arm differ.
        evals (`dict[str, dict]`): Options of further evaluations, by their names.

    Raises:
        `ValueError`: If a value is wrong, or a seed is set.
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
        if not isinstance(self.train, bool):
            raise ValueError(f"{self.where}: train is {self.train!r}, but must be true or false")
        # `evals` must be like {"forced": {"decoding": "budget_forcing"}}.
        has_options = isinstance(self.evals, dict) and all(isinstance(value, dict) for value in self.evals.values())
        if not has_options or (self.evals and not self.train):
            raise ValueError(
                f"{self.where}: evals is {self.evals!r}, but must be options of leash eval by name, in an arm that is "
                "trained; without training, set the options of the arm itself"
            )
        if self.label == BASE:
            raise ValueError(f"{self.where}: label is {BASE!r}, {BASE_EXPLANATION}; give the arm another label")
        check_no_seed(self.where, self.fields, self.grid, *self.evals.values())


@dataclass(frozen=True)
class Comparison:
    """What to compare.

    Args:
        path (`str`), folder (`Path`): File of the comparison, for messages, and folder for the runs.
        arms (`list[Arm]`): The arms to run.
        base (`dict`), grid (`dict`), eval_options (`dict`): What arms share: fields of a recipe, lists of values of
            fields, and options of evaluation.
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
    """Returns the base and then all runs, with the first seed of every arm before any second one, so that a stopped
    comparison is balanced.

    Args:
        options (`CompareArguments`), overrides (`Mapping[str, Any]`): Options of `leash compare`, and fields of the
            recipe that the command line sets for every arm.

    Raises:
        `UserError`: If the file is missing or an entry of it is wrong, if two runs would have the same name, or if the
            runs cannot be compared.
    """
    with errors_to_user_errors():
        comparison = load_comparison(options, overrides)
        # An arm at one point of its grid is a run without a seed, from which its runs with seeds are made.
        points: list[ComparedRun] = []
        runs_by_point: list[list[ComparedRun]] = []
        for arm in comparison.arms:
            # A seed that the user wrote twice counts once; a dict keeps the order, which a set would not.
            seeds = dict.fromkeys(options.seeds or range(arm.seeds))
            for point in runs_without_seed(comparison, arm):
                points.append(point)
                runs_by_point.append(
                    [replace(point, seed=seed, folder=point.folder / f"seed-{seed}") for seed in seeds]
                )
        # Rows of the table: two points of one arm need different labels, targets or settings.
        check_rows_differ(comparison, points)
        check_same_model_and_evaluation(comparison, points)
    # The model before training is that of all trained arms, as was checked above, and is evaluated with their options.
    first_trained = next(point for point in points if point.is_trained)
    base = ComparedRun(
        arm=BASE,
        label=BASE,
        recipe=first_trained.recipe,
        grid_values={},
        eval_options=first_trained.eval_options,
        is_trained=False,
        folder=comparison.folder / BASE,
    )
    runs = [base]
    # The first turn has the first seed of every point, the second turn the second one, and so on. In the last turns,
    # `zip_longest` has `None` for arms with fewer seeds.
    for turn in itertools.zip_longest(*runs_by_point):
        runs.extend(run for run in turn if run is not None)
    return runs


def load_comparison(options: "CompareArguments", overrides: Mapping[str, Any]) -> Comparison:
    """Returns what to compare; a recipe is a comparison of one arm.

    Raises:
        `OSError`: If the file is missing.
        `ValueError`: If it is no mapping, or has an unknown entry or a seed, or no arm of a selected name.
    """
    path = options.comparison
    sections = load_recipe(path)  # such as {"base": {...}, "eval": {...}, "arms": {"leash": {...}}, "grid": {...}}
    # A file without arms is a recipe: a comparison of one arm, which has the file's name and no fields of its own.
    if "arms" not in sections:
        sections = {"base": sections, "arms": {Path(path).stem: None}}
    for name in sections:
        if name not in COMPARISON_SECTIONS:
            raise ValueError(f"{path}: {name!r} is neither base, eval, arms nor grid; correct the name")
    fields_by_arm = sections["arms"] or {}
    if BASE in fields_by_arm:
        raise ValueError(f"{path}: arms has {BASE!r}, {BASE_EXPLANATION}; rename or remove the arm")
    arms = []
    for name in options.arms or fields_by_arm:
        if name not in fields_by_arm:
            raise ValueError(f"{path}: arms has no {name!r}; name one of {', '.join(fields_by_arm)}")
        fields = dict(fields_by_arm[name] or {})  # an arm may be empty
        # Entries that are about the arm itself, such as {"label": "LEASH", "seeds": 5}, are taken out of the fields of
        # its recipe.
        settings: Fields = {"label": name}
        for key in ARM_SETTINGS:
            value = fields.pop(key, None)
            if value is not None:
                settings[key] = value
        arms.append(Arm(name, f"{path}: arm {name!r}", fields, **settings))
    base = sections.get("base") or {}
    comparison = Comparison(
        path=path,
        folder=Path(options.output_dir),
        arms=arms,
        base=load_recipe(base) if isinstance(base, str) else base,  # text names a recipe
        grid=sections.get("grid") or {},
        eval_options=sections.get("eval") or {},
        overrides=overrides,
    )
    check_no_seed(path, comparison.eval_options, comparison.grid, overrides)
    return comparison


def check_no_seed(where: str, *parts: Mapping[str, Any]) -> None:
    """Raises `ValueError` if a part of the comparison sets a seed: every run gets one from the comparison."""
    for fields in parts:  # fields of a recipe or options, by name
        if "seed" in fields:
            raise ValueError(
                f"{where}: seed is {fields['seed']!r}, but leash compare gives each run its seed; remove it, and "
                "name the seeds with --seeds, or set their number as seeds of an arm"
            )


def runs_without_seed(comparison: Comparison, arm: Arm) -> Iterator[ComparedRun]:
    """Yields a run without a seed for each point of an arm's grid."""
    grid = arm.grid
    fields_of_arm = arm.fields
    # The base and the common grid are about training; an arm that is not trained has options of evaluation instead.
    if arm.train:
        grid = {**grid_without_fields_of(arm, comparison.grid), **arm.grid}
        fields_of_arm = {**comparison.base, **arm.fields}
        # An arm may have null for the default, which the configuration would refuse, so the field is removed.
        if fields_of_arm.get("length_of") is None:
            fields_of_arm.pop("length_of", None)
    check_grid(grid, comparison.overrides, arm.where)
    for point in points_of_grid(grid):  # such as {"target_length": 12}
        fields = copy.deepcopy(fields_of_arm)  # since `set_field` also changes mappings inside the fields
        for name in grid:
            set_field(fields, name, point.get(name))  # `None`, which removes the field, if the grid has null for it
        prompt_endings: PromptEndings | None = None
        variants: dict[str, Fields] = {}
        if arm.train:
            recipe = checked_recipe(fields, comparison.overrides, arm.where)
            eval_options = evaluation_options(recipe, comparison.eval_options, f"{comparison.path}: eval")
            prompt_endings = prompt_endings_of(recipe)
            variants = read_variants(comparison, arm, recipe)
        else:
            recipe, eval_options = settings_of_untrained_arm(comparison, arm, fields)
        # such as "leash-target_length-12"
        name = "-".join([arm.name, *(f"{field}-{value}" for field, value in point.items())])
        yield ComparedRun(
            arm=name,
            label=arm.label,
            recipe=recipe,
            grid_values=point,
            eval_options=eval_options,
            is_trained=arm.train,
            folder=comparison.folder / name,
            prompt_endings=prompt_endings,
            variants=variants,
        )


def read_variants(comparison: Comparison, arm: Arm, recipe: Fields) -> dict[str, Fields]:
    """Returns the options of the further evaluations of an arm, by their names.

    Raises:
        `ValueError`: If a target is set, or two evaluations would have the same folder, whose name is that of the
            effort and of the further evaluation.
    """
    variants: dict[str, Fields] = {}
    for variant, options in arm.evals.items():
        where = f"{arm.where}, evals {variant!r}"
        if "target_length" in options:
            raise ValueError(
                f"{where}: target_length is {options['target_length']!r}, but a run is measured by the target of its "
                "training; remove it"
            )
        variants[variant] = evaluation_options(recipe, {**comparison.eval_options, **options}, where)
    # A run has an evaluation for each effort, such as "low", and each of these again for each variant: "low-forced".
    # An effort that has this very name would share the folder.
    efforts = field_as_mapping("efforts", recipe.get("efforts")) or {}
    folders = [*efforts]
    for effort, variant in itertools.product(efforts, variants):
        folders.append(f"{effort}-{variant}")
    if len({*folders}) < len(folders):
        raise ValueError(f"{arm.where}: evals has the same name twice among {', '.join(folders)}; rename one")
    return variants


def settings_of_untrained_arm(comparison: Comparison, arm: Arm, fields: Fields) -> tuple[Fields, Fields]:
    """Returns recipe and options of evaluation of an arm that is not trained, whose fields are a model and options of
    evaluation."""
    # The other fields are options of evaluation.
    model = {name: fields.pop(name) for name in MODEL_FIELDS if fields.get(name)}
    # The recipe is not used to train, but shows which data, rewards and prompts the other arms have.
    recipe_fields = {
        **comparison.base,
        **comparison.overrides,
        **model,
        "length_control": "none",
        "length_control_kwargs": None,  # "none" would refuse those of another method
        "min_accuracy": None,
    }
    recipe = checked_recipe(recipe_fields, overrides={}, where=arm.where)
    # A model of its own that `leash train` saved has a recipe, from which `leash eval` takes the prompts.
    saved_recipe: Fields = {}
    if "model_name_or_path" in model:
        name_or_path = model_path(model["model_name_or_path"])
        saved_recipe = recipe_of_model(name_or_path, model.get("model_revision"))
    options = {**comparison.eval_options, **fields}
    return recipe, evaluation_options(recipe, options, arm.where, model_has_recipe=bool(saved_recipe))


def grid_without_fields_of(arm: Arm, grid: Fields) -> Fields:
    """Returns the part of the common grid whose fields the arm does not set itself."""
    # An entry of a mapping is named as in a grid: "length_control_kwargs.alpha".
    set_by_arm = set(arm.fields)
    for name, value in arm.fields.items():
        if isinstance(value, dict):
            set_by_arm.update(f"{name}.{entry}" for entry in value)
    return {name: values for name, values in grid.items() if name not in set_by_arm}


def check_grid(grid: Fields, overrides: Mapping[str, Any], where: str) -> None:
    """Raises `ValueError` if values of a grid are neither a list nor null, or the command line sets the field too."""
    for name, values in grid.items():
        is_list = isinstance(values, list)
        # of "length_control_kwargs.alpha", the field is "length_control_kwargs"
        is_overridden = name.partition(".")[0] in overrides
        if values is not None and (not is_list or is_overridden):
            raise ValueError(
                f"{where}: grid has {name}: {values!r}; write a list or null, and do not set it elsewhere"
            )


def points_of_grid(grid: Fields) -> Iterator[Fields]:
    """Yields each combination of the values of the fields, without those that null removes.

    Example:
        >>> list(points_of_grid({"lambda_lr": [0.1, 0.2], "target_length": None}))
        [{'lambda_lr': 0.1}, {'lambda_lr': 0.2}]
    """
    # A field that is null in the grid has no values to combine.
    axes = {name: values for name, values in grid.items() if values is not None}
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def set_field(recipe: Fields, name: str, value: Any) -> None:
    """Sets a field of a recipe, or an entry of a field by a name such as `length_control_kwargs.alpha`; `None` removes
    it."""
    # "target_length" is a field of the recipe, "length_control_kwargs.alpha" the entry "alpha" of a mapping in it.
    field_name, _, entry = name.partition(".")
    fields = recipe.setdefault(field_name, {}) if entry else recipe
    key = entry or field_name
    fields.pop(key, None)
    if value is not None:
        fields[key] = value


def check_rows_differ(comparison: Comparison, points: Sequence[ComparedRun]) -> None:
    """Raises `ValueError` if two points would have the same folder, or be the same row of the table."""
    # Names of arms by what must differ: the name of the folder, which is that of the arm, and the row in the table.
    arms: dict[str, str] = {}
    for point in points:
        # Rows are told apart by label, target and the values of the grid, all of which the table shows.
        row = repr((point.label, point.recipe.get("target_length"), point.grid_values))
        other = arms.get(point.arm) or arms.get(row)
        if other is not None:
            raise ValueError(f"{comparison.path}: {point.arm!r} (label {point.label!r}) is also {other!r}; rename one")
        arms[point.arm] = point.arm
        arms[row] = point.arm


def check_same_model_and_evaluation(comparison: Comparison, points: Sequence[ComparedRun]) -> None:
    """Raises `ValueError` if no arm is trained, if trained arms differ in their model or their evaluation, or if any
    arms differ in [`SHARED_OPTIONS`]."""
    trained = [point for point in points if point.is_trained]
    if not trained:
        raise ValueError(f"{comparison.path}: no arm is trained; use leash eval")
    first = trained[0]
    for point in points:
        # Trained arms are compared with the base, so they share its model and all options of its evaluation. An arm
        # that is not trained may have another model, and options such as `prompt_ending`.
        if point.is_trained:
            check_settings_equal(comparison, MODEL_FIELDS, (first, first.recipe), (point, point.recipe))
            names = [*first.eval_options, *point.eval_options]
            check_settings_equal(comparison, names, (first, first.eval_options), (point, point.eval_options))
        for options in (point.eval_options, *point.variants.values()):
            check_settings_equal(comparison, SHARED_OPTIONS, (first, first.eval_options), (point, options))


def check_settings_equal(
    comparison: Comparison, names: Iterable[str], first: tuple[ComparedRun, Fields], other: tuple[ComparedRun, Fields]
) -> None:
    """Raises `ValueError` if two arms differ in one of the settings of these names. Each arm is a pair: the arm at a
    point of its grid, and its recipe or its options of evaluation."""
    first_point, first_settings = first
    point, settings = other
    for name in names:
        first_value = first_settings.get(name)  # `None` if it has its default
        value = settings.get(name)
        if value != first_value:
            remedy = (
                "use one model" if name in MODEL_FIELDS else f"set eval: {{{name}: ...}}, which holds for all arms"
            )
            raise ValueError(
                f"{comparison.path}: {name} is {first_value!r} in {first_point.arm!r}, but {value!r} in "
                f"{point.arm!r}; {remedy}"
            )
