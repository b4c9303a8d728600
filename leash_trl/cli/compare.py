"""`leash compare`: several methods over the same seeds, then one table with intervals and one figure."""

import copy
import itertools
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from leash_trl.cli import gym_run
from leash_trl.cli.arguments import option, parse_known, read_recipe
from leash_trl.cli.errors import UserError, going_on, user_errors
from leash_trl.cli.run_queue import cause, run_all
from leash_trl.files import write_whole
from leash_trl.trainer.checkpoints import only_run_in


DEFAULT_SEEDS = 3
LOG_FILE = "log.txt"
CONFIG_HELP = (
    "file with base (fields of leash train for all), arms (methods with their own fields, label and number of seeds: "
    f"{DEFAULT_SEEDS} unless said) and grid (lists of values, for arms without such a field or grid; null takes "
    "a field out), as the package's gym/compare.yaml; or a recipe, then the only arm"
)
# One thread a run: several runs at once use the cores better than several threads in one run.
RUN_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class CompareArguments:
    """Options of `leash compare`."""

    comparison: str = field(metadata={"aliases": ["--config"], "help": CONFIG_HELP})
    arms: list[str] | None = option("only these arms, at all points of their grids")
    seeds: list[int] | None = option("seeds of every arm, over the arms' own `seeds`")
    jobs: int = option("runs at the same time, one core each", 2)
    output_dir: str = option("folder for everything, of one comparison", "runs/compare")


@dataclass(eq=False)
class Run:
    """One seed of one arm at one point of its grid.

    Args:
        arm (`str`), name (`str`): The arm's name and its point, such as `leash-target_length-12`, and the run's folder
            in that of the output.
        label (`str`): The arm's name in table and figure, the same at all points.
        recipe (`dict[str, Any]`), point (`dict[str, Any]`): Fields of its recipe, and those of its grid among them.
    """

    arm: str
    name: str
    label: str
    recipe: dict[str, Any]
    point: dict[str, Any]
    seed: int
    folder: Path


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
    turns: list[list[Run]] = []
    taken: dict[Any, str] = {}
    for name in options.arms or arms:
        own = {**(arms[name] or {})}
        label, num_seeds = own.pop("label", name), own.pop("seeds", DEFAULT_SEEDS)
        for point, recipe in _points(own, base, grid, f"{config}: arm {name!r}", overrides):
            arm = "-".join([name, *(f"{field}-{value}" for field, value in point.items())])
            for place in (arm, repr((label, recipe.get("target_length"), point))):
                if place in taken:
                    raise UserError(f"{config}: {arm!r} (label {label!r}) is also {taken[place]!r}; rename one")
                taken[place] = arm
            names = {f"{arm}/seed-{seed}": seed for seed in options.seeds or range(num_seeds)}
            folder = Path(options.output_dir)
            turns.append([Run(arm, run, label, recipe, point, seed, folder / run) for run, seed in names.items()])
    return [run for turn in itertools.zip_longest(*turns) for run in turn if run is not None]


def _points(
    own: dict[str, Any], base: dict[str, Any], grid: dict[str, Any], where: str, overrides: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The points of an arm's grid, and the recipe at each, checked."""
    from leash_trl.cli.training_arguments import arguments_of, training_parser

    own_grid = own.pop("grid", {})
    names = {*own, *(f"{head}.{entry}" for head in own if isinstance(own[head], dict) for entry in own[head])}
    wanted = {**{name: values for name, values in grid.items() if name not in names}, **own_grid}
    axes = {name: values for name, values in wanted.items() if values is not None}
    for name, values in axes.items():
        if not isinstance(values, list) or name.partition(".")[0] in overrides:
            raise UserError(f"{where}: grid has {name}: {values!r}; write a list or null, and give no such option")
    for values in itertools.product(*axes.values()):
        point, recipe = dict(zip(axes, values, strict=True)), copy.deepcopy({**base, **own})
        for name in wanted:
            head, _, entry = name.partition(".")
            fields = recipe.setdefault(head, {}) if entry else recipe
            fields.pop(entry or head, None)
            fields.update({entry or head: point[name]} if name in point else {})
        recipe = {**training_parser().checked(recipe, where), **overrides}
        try:
            arguments_of(recipe)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        if recipe.get("model_name_or_path") != "gym":
            raise UserError(f"{where}: model_name_or_path is not gym, the only base that a comparison can score")
        yield point, recipe


def main(argv: list[str]) -> int:
    """Runs `leash compare` and returns the exit code: 1 if a run failed."""
    options, rest = parse_known(
        CompareArguments,
        argv,
        prog="leash compare",
        description="Train and score methods on the embedded gym over the same seeds: a table with 95 % intervals and "
        "a figure. The same command goes on where it was stopped. Fields of leash train may follow, for every arm.",
    )
    os.environ.update(RUN_ENVIRONMENT)
    warnings.filterwarnings("ignore", category=FutureWarning)
    from leash_trl.cli.training_arguments import given_fields

    runs = planned_runs(options, given_fields(rest, prog="leash compare"))
    claims = {run: gym_run.claim(run.recipe, run.seed) for run in runs}
    for run, claim in claims.items():
        gym_run.check_claim(run.folder, claim)
    to_do = [run for run in runs if not (run.folder / gym_run.RESULT_FILE).is_file()]
    jobs = {run.folder / LOG_FILE: partial(gym_run.commands, run.folder) for run in to_do}
    num_failed = 0
    with going_on(options.output_dir, "the same command goes on from here"), only_run_in(options.output_dir):
        for run in to_do:
            write_whole(run.folder / gym_run.RECIPE_FILE, claims[run])
        ended = run_all(jobs, options.jobs)
        for log, exit_code, seconds in tqdm(ended, total=len(runs), initial=len(runs) - len(jobs), unit="run"):
            said = f"failed with exit code {exit_code}: {cause(log)} (see {log})" if exit_code else "done"
            tqdm.write(f"{log.parent} {said} ({seconds:.0f} s)", file=sys.stderr)
            num_failed += exit_code != 0
    if num_failed < len(runs):
        _report(shlex.join(["leash", "compare", *argv]), runs, Path(options.output_dir))
    return 1 if num_failed else 0


def _report(command: str, runs: list[Run], output_dir: Path) -> None:
    """Writes tables and figure of the finished runs and prints the table; for one arm, before and after training."""
    import pandas as pd

    from leash_trl.evaluation import tables
    from leash_trl.figures import dynamics_figure, load_curves, pareto_figure, write_figure
    from leash_trl.gym import base_record
    from leash_trl.gym.dataset import SIZES, gym_problems
    from leash_trl.trainer.leash_grpo_config import mapping_field

    base, levels = base_record(), gym_problems("test", SIZES["test"])["level"]
    results = {run: pd.read_csv(file) for run in runs if (file := run.folder / gym_run.RESULT_FILE).is_file()}
    curves = {run: load_curves(run.folder) for run in results}
    seed_rows: list[dict[str, Any]] = []
    level_rows: list[dict[str, Any]] = []
    changes: list[dict[str, str]] = []
    p95: list[float] = []
    for arm in dict.fromkeys(run.arm for run in results):
        own = {run: found[found["model"] == "trained"] for run, found in results.items() if run.arm == arm}
        for run, samples in own.items():
            target, log = run.recipe.get("target_length"), curves[run]
            milestones = mapping_field("target_milestones", run.recipe.get("target_milestones")) or {0: None}
            changed_at = max(map(int, milestones))  # policy updates before the target was what it is at the end
            lengths = log["leash/mean_length"].dropna().loc[changed_at + 1 :]
            row = tables.seed_row(samples, base, target, lengths.set_axis(lengths.index - changed_at))
            row = {"name": run.label, "seeds": str(run.seed)} | row
            row["generated_tokens"] = int(log["leash/generated_tokens"].max())
            seed_rows.append(row | {name: str(run.point[name]) for name in run.point if name != "target_length"})
            for (effort, its_target), both in results[run].groupby(["effort", "target"], dropna=False, sort=False):
                means = both.groupby("model")[["is_correct", "num_tokens"]].mean().T
                before = means.get("base", [base["accuracy"], base["mean_tokens"]])
                cells = {"run": run.name, "effort": effort, "target": tables.tokens(its_target)}
                for when, (accuracy, length) in {"before": before, "after": means["trained"]}.items():
                    cells |= {f"accuracy {when}": f"{accuracy:.3f}", f"tokens {when}": tables.tokens(length)}
                if not pd.isna(its_target):
                    lengths = both.loc[both["model"] == "trained", "num_tokens"]
                    cells["satisfied"] = f"{(lengths <= its_target).mean():.3f}"
                if (lam := log.get("leash/lambda")) is not None:
                    cells["lambda end (peak)"] = f"{lam.iloc[-1]:.3f} ({lam.max():.3f})"
                changes.append(cells)
        level_rows += tables.level_rows(tables.in_words(seed_rows[-1]), target, [*own.values()], levels)
        p95.append(float(pd.concat(own.values())["num_tokens"].quantile(0.95)))
    seeds, by_level = pd.DataFrame(seed_rows), pd.DataFrame(level_rows)
    changed = pd.DataFrame(changes).dropna(axis="columns", how="all").fillna("")
    is_alone = len({run.arm for run in runs}) == 1
    missing = ", ".join(run.name for run in runs if run not in results)
    paragraphs = [
        f"`{command}`: {len(levels)} held-out problems, {samples['sample'].max() + 1} samples each at "
        "temperature 1; last checkpoint.",
        f"Missing: {missing}." if missing else "",
        "" if is_alone else tables.comparison_markdown(seeds, base, by_level, p95),
        tables.markdown(changed) if is_alone or "effort" in changed else "",
    ]
    text = "\n\n".join(filter(None, paragraphs))
    rows = tables.comparison_rows(seeds, base, p95)
    for name, frame in {"table": rows, "seeds": seeds, "levels": by_level}.items():
        write_whole(output_dir / f"{name}.csv", tables.csv(frame))
    write_whole(output_dir / "table.md", text + "\n")
    figure = dynamics_figure([*curves.values()]) if is_alone else pareto_figure(rows)
    write_figure(figure, output_dir / ("dynamics.png" if is_alone else "pareto.png"))
    print(f"\n{text}\n\nTables and figure are in {output_dir}.")
