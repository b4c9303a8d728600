"""`leash compare`: trains and evaluates variants of a recipe, called arms, over the same seeds: a table, a figure."""

import copy
import itertools
import math
import os
import shlex
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from leash_trl.cli.arguments import CommandParser, load_recipe, make_dataclass, parse_known
from leash_trl.cli.compared_run import EVALUATION, ComparedRun
from leash_trl.cli.errors import UserError, resumable, user_errors
from leash_trl.cli.run_queue import cause, run_all
from leash_trl.files import write_whole
from leash_trl.run_folder import checkpoint_path, only_run_in
from leash_trl.saved_recipe import recipe_of_model


BASE = "base"
ALWAYS_EVALUATED = "which in table and figure is the model before training, evaluated in every comparison"
ONE_MODEL = ("model_name_or_path", "model_revision")
REWARDS = ("reward_funcs", "reward_weights", "correctness_func")
ONE_WORK = ("benchmarks", "split", "limit", "num_samples", "temperature", *REWARDS)
DEFAULT_SEEDS = 3
LOG_FILE = "log.txt"
# One thread per run, since several runs at once use the cores better than several threads in one run.
RUN_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class CompareArguments:
    """Train and evaluate methods over the same seeds, and write a table with 95 % intervals and a figure.

    Run the same command again to resume. Fields of leash train on the command line apply to every arm. The file is a
    recipe, which is then the only arm, or it has four parts, as in own_task_compare.yaml: base, a recipe or its
    fields, which all arms share; eval, options of leash eval (default: the settings of training); arms, each with its
    own fields, label and number of seeds (default: 3); and grid, with lists of values for fields that an arm does not
    set itself, where null removes a field. An arm with train: false is not trained: it is the base model, or its own
    model_name_or_path, evaluated with options of leash eval such as prompt_ending or max_new_tokens. In table and
    figure, base is the model before training, which is always evaluated, so no arm may have this name or label.

    Args:
        comparison (`str`): File that describes the comparison.
        arms (`list[str]`): Arms to run, at all points of their grids (default: all).
        seeds (`list[int]`): Seeds of every arm, instead of the arms' own number of seeds.
        jobs (`int`): Number of runs at the same time (default: 2, or 1 if there is a GPU).
        devices (`str`): GPUs for each of the runs at the same time, such as '0,1;2,3' for two runs on two GPUs each.
        output_dir (`str`): Folder for everything in this comparison.
    """

    comparison: str = field(metadata={"aliases": ["--config"]})
    arms: list[str] | None = None
    seeds: list[int] | None = None
    jobs: int | None = None
    devices: str | None = None
    output_dir: str = "runs/compare"


def planned_runs(options: CompareArguments, overrides: Mapping[str, Any]) -> list[ComparedRun]:
    """Returns the base and then all runs, with the first seed of every arm before any second one, so that a stopped
    comparison is balanced.

    Raises:
        `UserError`: If the file is missing or has an unknown entry, or if two runs would have the same name.
    """
    config, folder = options.comparison, Path(options.output_dir)
    with user_errors():
        comparison = load_recipe(config)
        if "arms" not in comparison:
            comparison = {"base": comparison, "arms": {Path(config).stem: None}}
        base, arms, grid, own_eval = (comparison.pop(name, None) or {} for name in ("base", "arms", "grid", "eval"))
        base = load_recipe(base) if isinstance(base, str) else base
    for section, fields in {"eval": own_eval, "grid": grid, "the command line": overrides}.items():
        _check_no_seed(fields, f"{config}: {section}")
    if BASE in [*arms, *(options.arms or [])]:
        raise UserError(f"{config}: arms has {BASE!r}, {ALWAYS_EVALUATED}; rename or remove the arm")
    if unknown := [*comparison, *({*(options.arms or [])} - {*arms})]:
        raise UserError(f"{config}: {unknown[0]!r} is neither base, eval, arms or grid, nor one of {', '.join(arms)}")
    turns: list[list[ComparedRun]] = []
    taken: dict[Any, str] = {}
    for name in options.arms or arms:
        own = {**(arms[name] or {})}
        label, num_seeds = own.pop("label", name), own.pop("seeds", DEFAULT_SEEDS)
        where, is_trained = f"{config}: arm {name!r}", own.pop("train", True)
        if not isinstance(is_trained, bool):
            raise UserError(f"{where}: train is {is_trained!r}, but must be true or false")
        if label == BASE:
            raise UserError(f"{where}: label is {BASE!r}, {ALWAYS_EVALUATED}; give the arm another label")
        _check_no_seed({**own, **(own.get("grid") or {})}, where)
        for point, fields in _points(own, base if is_trained else {}, grid if is_trained else {}, where, overrides):
            asked = {} if is_trained else fields
            model = {field: asked.pop(field) for field in ONE_MODEL if asked.get(field)}
            plain = {**base, **overrides, **dict.fromkeys(("length_control_kwargs", "min_accuracy")), **model}
            plain["length_control"] = "none"
            recipe = _checked(*((fields, where, overrides) if is_trained else (plain, where, {})))
            has_own_prompts = False
            if name_or_path := model.get("model_name_or_path"):
                with user_errors():
                    saved = recipe_of_model(checkpoint_path(name_or_path), model.get("model_revision"))
                has_own_prompts = bool(saved)
            evaluation = _evaluation(recipe, {**own_eval, **asked}, config, has_own_prompts)
            arm = "-".join([name, *(f"{field}-{value}" for field, value in point.items())])
            for place in (arm, repr((label, recipe.get("target_length"), point))):
                if place in taken:
                    raise UserError(f"{config}: {arm!r} (label {label!r}) is also {taken[place]!r}; rename one")
                taken[place] = arm
            run = partial(ComparedRun, arm, label, recipe, point, evaluation, is_trained)
            seeds = dict.fromkeys(options.seeds or range(num_seeds))
            turns.append([run(seed, folder / arm / f"seed-{seed}") for seed in seeds])
    runs = [run for turn in itertools.zip_longest(*turns) for run in turn if run is not None]
    trained = [run for run in runs if run.is_trained]
    if not trained:
        raise UserError(f"{config}: no arm is trained; use leash eval")
    facts = [{**run.evaluation, **{name: run.recipe.get(name) for name in ONE_MODEL}} for run in trained]
    facts += [{name: run.evaluation.get(name, facts[0].get(name)) for name in ONE_WORK} for run in runs]
    if apart := {name for one in facts for other in facts for name in one.keys() & other if one[name] != other[name]}:
        raise UserError(f"{config}: arms differ in {', '.join(apart)}; use one model, and set the rest under eval")
    return [ComparedRun(BASE, BASE, trained[0].recipe, {}, trained[0].evaluation, False, None, folder / BASE), *runs]


def _check_no_seed(fields: Mapping[str, Any], where: str) -> None:
    """Raises `UserError` if a part of the comparison sets a seed, which every run gets from the comparison instead."""
    if "seed" in fields:
        raise UserError(
            f"{where}: seed is {fields['seed']!r}, but every run has a seed of the comparison; remove it, and set "
            "--seeds, or seeds of an arm to their number"
        )


def _evaluation(
    recipe: dict[str, Any], own: dict[str, Any], config: str, has_own_prompts: bool = False
) -> dict[str, Any]:
    """Returns the options of `leash eval` for a recipe: the settings of training, unless the comparison sets others.

    For a model `has_own_prompts` that another training saved, `leash eval` takes the prompts from there.
    """
    from leash_trl.cli.commands.eval import EvalArguments
    from leash_trl.cli.training_arguments import arguments_of

    script_args, args, *_ = arguments_of(recipe)
    if script_args.reward_model_name_or_path and "reward_funcs" not in own:
        raise UserError(f"{config}: leash eval has no reward_model_name_or_path; set reward_funcs under eval")
    if (script_args.dataset_name is None or script_args.dataset_config) and "benchmarks" not in own:
        raise UserError(f"{config}: the arms train on a mixture, or have a dataset_config; set benchmarks under eval")
    data = {"benchmarks": [script_args.dataset_name], "split": script_args.dataset_test_split}
    prompts = {
        "prompt_suffix": _suffix_of_training(script_args),
        "system_prompt": script_args.system_prompt,
        "chat_template": script_args.chat_template,
        "chat_template_kwargs": args.chat_template_kwargs or {},
        "thinking_end": recipe.get("thinking_end"),
    }
    settings = {
        **(data if "benchmarks" not in own else {}),
        **({name: recipe.get(name) for name in REWARDS} if "reward_funcs" not in own else {}),
        "num_samples": 4,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "max_new_tokens": None if args.generation_limit == math.inf else args.generation_limit,
        **({} if has_own_prompts else prompts),
        **CommandParser([EvalArguments], prog="leash eval").checked(own, f"{config}: eval"),
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    make_dataclass(EvalArguments, {**settings, "model_name_or_path": "", "output_dir": ""})
    return settings


def _suffix_of_training(script_args: Any) -> str:
    """Returns the text that training appends to prompts, also for the models that are not trained."""
    from leash_trl.cli.reward_functions import default_suffix, named_reward_funcs
    from leash_trl.data.problems import load_splits
    from leash_trl.data.sources import parse_reference

    if script_args.prompt_suffix is not None:
        return str(script_args.prompt_suffix)
    with user_errors():
        reward_funcs = named_reward_funcs(script_args)
        columns: Collection[str] = ()
        reference = None if script_args.dataset_name is None else parse_reference(script_args.dataset_name)
        # the columns decide what grades the answers; data on the Hub has none of reasoning-gym
        if not reward_funcs and reference is not None and reference.hub_id is None:
            rows = next(iter(load_splits(reference, streaming=True).values()))
            columns = rows.column_names or [*next(iter(rows))]
        return default_suffix(reward_funcs, columns)


def _points(
    own: dict[str, Any], base: dict[str, Any], grid: dict[str, Any], where: str, overrides: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields the points of an arm's grid with the fields of the arm at each point."""
    own_grid = own.pop("grid", {})
    varied = _varied_fields(own, own_grid, grid)
    axes = {name: values for name, values in varied.items() if values is not None}
    for name, values in axes.items():
        if not isinstance(values, list) or name.partition(".")[0] in overrides:
            raise UserError(f"{where}: grid has {name}: {values!r}; write a list or null, and do not set it elsewhere")
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        fields = copy.deepcopy({**base, **own})
        for name in varied:
            _set_field(fields, name, point.get(name))
        yield point, fields


def _checked(fields: dict[str, Any], where: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the recipe of these fields; raises `UserError` if a value is wrong."""
    from leash_trl.cli.training_arguments import arguments_of, training_parser

    recipe = {**training_parser().checked(fields, where), **overrides}
    try:
        arguments_of(recipe)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error
    return recipe


def _varied_fields(own: dict[str, Any], own_grid: dict[str, Any], grid: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of each field in which the points of an arm differ: the fields of the common grid that the
    arm does not set itself, and those of its own grid."""
    set_by_arm = {*own}
    for name, value in own.items():
        if isinstance(value, dict):
            set_by_arm |= {f"{name}.{entry}" for entry in value}
    return {**{name: grid[name] for name in grid if name not in set_by_arm}, **own_grid}


def _set_field(recipe: dict[str, Any], name: str, value: Any) -> None:
    """Sets a field of a recipe, or an entry of a field by a name such as `length_control_kwargs.alpha`; `None` removes
    it."""
    field_name, _, entry = name.partition(".")
    fields = recipe.setdefault(field_name, {}) if entry else recipe
    fields.pop(entry or field_name, None)
    if value is not None:
        fields[entry or field_name] = value


def _devices(options: CompareArguments) -> list[str | None]:
    """Returns the devices of each of the runs at the same time; `None` keeps the environment unchanged."""
    if options.devices is None:
        import torch

        return [None] * (options.jobs or (1 if torch.cuda.is_available() else 2))
    devices: list[str | None] = [*options.devices.split(";")]
    if len({each.count(",") for each in options.devices.split(";")}) > 1 or options.jobs not in (None, len(devices)):
        raise UserError(f"devices is {options.devices!r}, jobs is {options.jobs}; give each job equally many devices")
    return devices


def main(argv: list[str]) -> int:
    """Runs `leash compare` and returns the exit code: 1 if a run failed."""
    options, rest = parse_known(CompareArguments, argv, "leash compare")
    os.environ.update({name: os.environ.get(name, value) for name, value in RUN_ENVIRONMENT.items()})
    warnings.filterwarnings("ignore", category=FutureWarning)
    from leash_trl.cli.training_arguments import given_fields

    runs, devices = planned_runs(options, given_fields(rest, prog="leash compare")), _devices(options)
    with user_errors():
        claims = {run: run.claim() for run in runs}
    for run, claim in claims.items():
        run.check_claim(claim)
    to_do = [run for run in runs if not run.is_done()]
    num_devices = 1 + (devices[0] or "").count(",")
    jobs = {run.folder / LOG_FILE: partial(run.commands, num_devices) for run in to_do}
    num_failed = 0
    with resumable(options.output_dir, "run the same command again to resume"), only_run_in(options.output_dir):
        for run in to_do:
            for name, content in claims[run].items():
                write_whole(run.folder / name, content)
        ended = run_all(jobs, devices)
        for log, exit_code, seconds in tqdm(ended, total=len(runs), initial=len(runs) - len(jobs), unit="run"):
            outcome = f"failed with exit code {exit_code}: {cause(log)} (see {log})" if exit_code else "done"
            tqdm.write(f"{log.parent} {outcome} ({seconds:.0f} s)", file=sys.stderr)
            num_failed += exit_code != 0
    if runs[0].is_done() and any(run.is_done() for run in runs[1:]):
        _report(shlex.join(["leash", "compare", *argv]), runs, Path(options.output_dir))
    return 1 if num_failed else 0


def _report(command: str, runs: list[ComparedRun], output_dir: Path) -> None:
    """Writes tables and figure of the finished runs, and prints the table."""
    import pandas as pd

    from leash_trl.evaluation import comparison_tables
    from leash_trl.evaluation.runs import load_evaluated_run, truncation_warning
    from leash_trl.evaluation.tables import csv
    from leash_trl.figures.evaluation import pareto_figure
    from leash_trl.figures.style import write_figure
    from leash_trl.figures.training import dynamics_figure, load_curves, logged

    arms = [*dict.fromkeys(run.arm for run in runs)]
    done = sorted((run for run in runs if run.is_done()), key=lambda run: arms.index(run.arm))
    with user_errors():
        evaluated = {(run, part): load_evaluated_run(run.folder / part) for run in done for part in run.asked}
    curves = {run: load_curves(run.folder) for run in done if run.is_trained}
    cut = [(run.label, (own.samples["finish_reason"] == "length").mean()) for (run, _), own in evaluated.items()]
    shares = pd.DataFrame(cut, columns=["arm", "share"]).groupby("arm", sort=False)["share"].mean()
    shares = shares.drop([run.label for run in done[1:] if not run.is_trained])  # these may be cut on purpose
    measure, untrained = comparison_tables.measure_of([*evaluated.values()]), evaluated.pop((done[0], EVALUATION))
    base = comparison_tables.measured(untrained, measure)
    rows: list[dict[str, Any]] = [{"name": BASE, "seeds": "", **base}]
    learned: list[pd.Series[float]] = []
    for (run, part), own in evaluated.items():
        log, (effort, target) = curves.get(run, pd.DataFrame()), run.asked[part]
        curve = log if effort is None else run.budget_curves(log, effort, target)
        controlled = "num_thinking_tokens" if run.recipe.get("length_of") == "thinking" else "num_tokens"
        multipliers = logged(curve, "leash/lambda")
        row = comparison_tables.seed_row(own, base, target, run.lengths(curve), multipliers, controlled)
        generated = logged(log, "leash/generated_tokens")
        row["generated_tokens"] = int(max(generated, default=0))
        settings = {name: str(value) for name, value in run.point.items() if name != "target_length"}
        settings |= {} if effort is None else {"effort": effort}
        rows.append({"name": run.label, "seeds": str(run.seed), **row, **settings})
        accuracies = logged(curve, "leash/accuracy")
        learned.append(accuracies.set_axis(generated.reindex(accuracies.index)))
    seeds, asked = pd.DataFrame(rows), done[0].evaluation
    training: dict[str, list[pd.Series[float]]] = {}
    for row, accuracies in zip(seeds[1:].to_dict("records"), learned, strict=True):
        if len(accuracies):
            training.setdefault(comparison_tables.in_words(row), []).append(accuracies)
    missing = ", ".join(run.name for run in runs if run not in done)
    paragraphs = [
        f"`{command}`: {untrained.results['num_problems'].max()} problems of {', '.join(asked['benchmarks'])}, "
        f"{asked['num_samples']} samples each at temperature {asked['temperature']:g}; last checkpoint.",
        *([f"Missing: {missing}."] if missing else []),
        *filter(None, [truncation_warning(shares.to_dict())]),
        comparison_tables.comparison_markdown(seeds),
    ]
    text, table = "\n\n".join(paragraphs), comparison_tables.comparison_rows(seeds)
    write_whole(output_dir / "table.csv", csv(table))
    write_whole(output_dir / "seeds.csv", csv(seeds))
    write_whole(output_dir / "table.md", text + "\n")
    if len(arms) > 2:  # the base and at least two others
        write_figure(pareto_figure(table, training=training), output_dir / "pareto.png")
    else:
        write_figure(dynamics_figure([*curves.values()]), output_dir / "dynamics.png")
    print(f"\n{text}\n\nTables and figure are in {output_dir}.")
