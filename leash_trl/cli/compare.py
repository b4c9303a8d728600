"""`leash compare`: several methods over the same seeds, then one table with intervals and one figure."""

import itertools
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from tqdm import tqdm

from leash_trl.cli import gym_run
from leash_trl.cli.arguments import parse_known, read_recipe
from leash_trl.cli.errors import UserError, only_command_in, user_errors
from leash_trl.cli.run_queue import cause, run_all
from leash_trl.files import write_whole


if TYPE_CHECKING:
    import pandas as pd

DEFAULT_SEEDS = 3
LOG_FILE = "log.txt"
CONFIG_HELP = (
    "file with base (fields of leash train for all), arms (methods with their own fields, label and number of seeds) "
    "and grid (lists of values, as {target_length: [12, 18]}: each arm runs with all combinations). An arm's own "
    "fields replace those of grid, its own grid replaces both, and null takes a field out. Or a recipe, then the only arm. "
    "Example: the package's gym/compare.yaml"
)
# One thread a run: several runs at once use the cores better than several threads in one run.
RUN_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class CompareArguments:
    """Options of `leash compare`."""

    comparison: str = field(metadata={"aliases": ["--config"], "help": CONFIG_HELP})
    arms: list[str] | None = field(default=None, metadata={"help": "only these arms, at all points of their grids"})
    seeds: list[int] | None = field(default=None, metadata={"help": "seeds of every arm, over the arms' own `seeds`"})
    jobs: int = field(default=2, metadata={"help": "runs at the same time, one core each"})
    output_dir: str = field(default="runs/compare", metadata={"help": "folder for everything, of one comparison"})


@dataclass(frozen=True)
class Run:
    """One seed of one arm at one point of its grid.

    Args:
        arm (`str`):
            The arm's name and its point, which is also its folder's, such as `leash-target_length-12`.
        label (`str`):
            The arm's name in table and figure, the same at all points.
        recipe (`dict[str, Any]`), point (`dict[str, Any]`):
            Fields of its recipe, and those of its grid among them.
    """

    arm: str
    label: str
    recipe: dict[str, Any] = field(hash=False)
    point: dict[str, Any] = field(hash=False)
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.arm} seed {self.seed}"


def planned_runs(options: CompareArguments, overrides: Mapping[str, Any]) -> list[Run]:
    """All runs, every arm's first seed before any second, so that a stopped comparison is balanced.

    Raises:
        `UserError`: If the file is missing, something in it has no meaning, or runs cannot be told apart.
    """
    config = options.comparison
    with user_errors():
        comparison = read_recipe(config)
    if "arms" not in comparison:
        comparison = {"base": comparison, "arms": {Path(config).stem: None}}
    base, arms, grid = (comparison.pop(name, None) or {} for name in ("base", "arms", "grid"))
    if unknown := [*comparison, *({*(options.arms or [])} - {*arms})]:
        raise UserError(f"{config}: {unknown[0]!r} is neither base, arms or grid, nor one of {', '.join(arms)}")
    points: dict[str, list[Run]] = {}
    told: dict[str, str] = {}
    for name in options.arms or arms:
        own = {**(arms[name] or {})}
        label, num_seeds = own.pop("label", name), own.pop("seeds", DEFAULT_SEEDS)
        seeds = dict.fromkeys(options.seeds or range(num_seeds))
        for point, recipe in _points(own, base, grid, f"{config}: arm {name!r}", overrides):
            arm = "-".join([name, *(f"{field}-{value}" for field, value in point.items())])
            settings = repr((label, recipe.get("target_length"), point))
            if not re.fullmatch(r"\w[\w.+-]*", arm) or arm in points:
                raise UserError(f"{config}: {arm!r} names no folder or two; give arm and grid other names or values")
            if settings in told:
                raise UserError(f"{config}: label {label!r} is that of {told[settings]!r} and {arm!r}; change one")
            told[settings] = arm
            points[arm] = [
                Run(arm, label, recipe, point, seed, Path(options.output_dir, arm, f"seed-{seed}")) for seed in seeds
            ]
    return [run for turn in itertools.zip_longest(*points.values()) for run in turn if run is not None]


def _points(
    own: dict[str, Any], base: dict[str, Any], grid: dict[str, Any], where: str, overrides: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The points of an arm's grid, and the recipe at each, checked."""
    from leash_trl.cli.training_arguments import arguments_of, training_parser

    wanted = {**{name: values for name, values in grid.items() if not _has(own, name)}, **own.pop("grid", {})}
    for name, values in wanted.items():
        if values is not None and (not isinstance(values, list) or name.partition(".")[0] in overrides):
            raise UserError(f"{where}: grid has {name}: {values!r}; write a list or null, and give no such option")
    axes = {name: values for name, values in wanted.items() if values is not None}
    for values in itertools.product(*axes.values()):
        point, recipe = dict(zip(axes, values, strict=True)), {**base, **own}
        for name in wanted:
            recipe = _with(recipe, name, point.get(name))
        recipe = {**training_parser().checked(recipe, where), **overrides}
        try:
            arguments_of(recipe)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        if recipe.get("model_name_or_path") != "gym":
            raise UserError(f"{where}: model_name_or_path is not gym, the only base that a comparison can score")
        yield point, recipe


def _has(recipe: Mapping[str, Any], field: str) -> bool:
    """Whether a recipe has a field, or with a dot in its name an entry of one."""
    head, _, entry = field.partition(".")
    return head in recipe and (not entry or entry in recipe[head])


def _with(recipe: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    """The recipe with a field's value, or with a dot in its name that of an entry of one; `None` takes it out."""
    head, _, entry = field.partition(".")
    changed = _with(recipe.get(head) or {}, entry, value) if entry else value
    return {
        **{name: old for name, old in recipe.items() if name != head},
        **({} if changed is None else {head: changed}),
    }


def main(argv: list[str]) -> int:
    """Runs `leash compare` and returns the exit code: 1 if a run failed."""
    options, rest = parse_known(
        CompareArguments,
        argv,
        prog="leash compare",
        description="Train and score methods on the embedded gym over the same seeds: a table with 95 % intervals, "
        "which methods can be told apart, and a figure. The same command goes on where it was stopped. Fields of "
        "leash train may follow, such as --max_steps 50: they hold for every arm.",
    )
    os.environ.update(RUN_ENVIRONMENT)
    warnings.filterwarnings("ignore", category=FutureWarning)
    from leash_trl.cli.training_arguments import given_fields

    runs = planned_runs(options, given_fields(rest, prog="leash compare"))
    claims = {run: gym_run.claim(run.recipe, run.seed) for run in runs}
    for run in runs:
        gym_run.check_claim(run.folder, claims[run])
    pending = {run.folder / LOG_FILE: run for run in runs if gym_run.read_result(run.folder) is None}
    failed = []
    try:
        with only_command_in(options.output_dir):
            for run in pending.values():
                write_whole(run.folder / gym_run.CLAIM_FILE, json.dumps(claims[run], indent=2) + "\n")
                write_whole(run.folder / gym_run.RECIPE_FILE, yaml.safe_dump(run.recipe, sort_keys=False))
            jobs = {log: partial(gym_run.commands, run.folder, run.seed) for log, run in pending.items()}
            for log, exit_code, progress in run_all(jobs, options.jobs, len(runs) - len(pending)):
                said = f"failed with exit code {exit_code}: {cause(log)} (see {log})" if exit_code else "done"
                failed += [f"{pending[log].name} {said}"] if exit_code else []
                tqdm.write(f"{pending[log].name} {said} ({progress})")
    except KeyboardInterrupt:
        print("\nleash compare: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    if len(failed) < len(runs):
        _report(shlex.join(["leash", "compare", *argv]), runs, Path(options.output_dir))
    others = {*Path(options.output_dir).glob(f"*/seed-*/{gym_run.RESULT_FILE}")}
    if others := others - {run.folder / gym_run.RESULT_FILE for run in runs}:
        left_out = f"{options.output_dir} holds {len(others)} more runs, of other arms or seeds: not in the table"
        print(f"leash compare: {left_out}", file=sys.stderr)
    print(*failed, sep="\n", file=sys.stderr, end="\n" if failed else "")
    return 1 if failed else 0


def _report(command: str, runs: list[Run], output_dir: Path) -> None:
    """Writes tables and figure of the finished runs and prints the table; for one arm, before and after training."""
    import numpy as np
    import pandas as pd

    from leash_trl.evaluation import tables
    from leash_trl.figures import dynamics_figure, load_curves, pareto_figure, write_figure
    from leash_trl.gym import base_record
    from leash_trl.gym.dataset import SIZES, gym_problems
    from leash_trl.trainer.leash_grpo_config import mapping_field

    base, levels = base_record(), gym_problems("test", SIZES["test"])["level"]
    results = {run: found for run in runs if (found := gym_run.read_result(run.folder)) is not None}
    curves = {run: load_curves(run.folder) for run in results}
    seed_rows: list[dict[str, Any]] = []
    level_rows: list[dict[str, Any]] = []
    changes: list[dict[str, str]] = []
    p95: list[float] = []
    for arm in dict.fromkeys(run.arm for run in results):
        own = {run: samples[samples["model"] == "trained"] for run, samples in results.items() if run.arm == arm}
        for run, samples in own.items():
            target, log = run.recipe.get("target_length"), curves[run]
            milestones = mapping_field("target_milestones", run.recipe.get("target_milestones")) or {0: None}
            changed_at = max(map(int, milestones))  # policy updates before the target was what it is at the end
            lengths = log["leash/mean_length"].dropna().loc[changed_at + 1 :]
            row = tables.seed_row(samples, base, target, lengths.set_axis(lengths.index - changed_at))
            row = {"name": run.label, "seeds": str(run.seed)} | row
            row["generated_tokens"] = int(log["leash/generated_tokens"].max())
            seed_rows.append(row | {name: str(run.point[name]) for name in run.point if name != "target_length"})
            efforts = mapping_field("efforts", run.recipe.get("efforts")) or {}
            changes += _changes(seed_rows[-1], results[run], log, base, efforts)
        level_rows += tables.level_rows(tables.in_words(seed_rows[-1]), target, [*own.values()], levels)
        p95.append(float(np.quantile(pd.concat(own.values())["num_tokens"], 0.95)))
    seeds, by_level = pd.DataFrame(seed_rows), pd.DataFrame(level_rows)
    is_alone = len({run.arm for run in runs}) == 1
    missing = [run.name for run in runs if run not in results]
    paragraphs = [
        f"`{command}`: {len(levels)} held-out problems, {samples['sample'].max() + 1} samples each at "
        "temperature 1; last checkpoint.",
        *([f"Missing: {', '.join(missing)}."] if missing else []),
        *([] if is_alone else [tables.comparison_markdown(seeds, base, by_level, p95)]),
        *([tables.markdown(pd.DataFrame(changes).fillna(""))] if is_alone or "effort" in changes[0] else []),
    ]
    text = "\n\n".join(paragraphs)
    rows = tables.comparison_rows(seeds, base, p95)
    for name, frame in {"table": rows, "seeds": seeds, "levels": by_level}.items():
        write_whole(output_dir / f"{name}.csv", tables.csv(frame))
    write_whole(output_dir / "table.md", text + "\n")
    if is_alone:
        write_figure(dynamics_figure([*curves.values()]), output_dir / "dynamics.png")
    else:
        write_figure(pareto_figure(rows), output_dir / "pareto.png")
    print(f"\n{text}\n\nTables and figure are in {output_dir}.")


def _changes(
    row: dict[str, Any], results: "pd.DataFrame", curves: "pd.DataFrame", base: dict[str, Any], efforts: dict[str, Any]
) -> Iterator[dict[str, str]]:
    """A run's row of what training changed, or one for each of its efforts."""
    for effort, target in efforts.items():
        means = results[results["effort"] == effort].groupby("model")[["is_correct", "num_tokens"]].mean()
        cells = {"seed": row["seeds"], "effort": effort, "target": f"{target:g}"}
        cells |= {f"accuracy: {model}": f"{means.at[model, 'is_correct']:.3f}" for model in ("base", "trained")}
        yield cells | {f"tokens: {model}": f"{means.at[model, 'num_tokens']:.1f}" for model in ("base", "trained")}
    if not efforts:
        lambdas = curves["leash/lambda"].dropna() if "leash/lambda" in curves else []
        numbers = {
            "accuracy: base": (base["accuracy"], ".3f"),
            "accuracy: trained": (row["accuracy"], ".3f"),
            "tokens: base": (base["mean_tokens"], ".1f"),
            "tokens: trained": (row["mean_tokens"], ".1f"),
            "change": (row["token_change"], "+.1%"),
            "satisfied": (row["satisfaction_rate"], ".3f"),
            "lambda: peak": (max(lambdas, default=None), ".3f"),
            "lambda: end": ([None, *lambdas][-1], ".3f"),
        }
        shown = {name: "" if value is None else f"{value:{form}}" for name, (value, form) in numbers.items()}
        yield {"seed": row["seeds"], **shown}
