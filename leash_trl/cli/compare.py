"""`leash compare`: several methods on the gym over the same seeds, then one table with intervals and one figure."""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.comparison_plan import DEFAULT_SEEDS, Run, checked_arms, load_arms, planned_runs
from leash_trl.cli.errors import UserError, only_command_in
from leash_trl.cli.gym_run import RESULT_FILE, check_claim, prepare_environment, read_result, run_claim
from leash_trl.cli.process_queue import Job, run_jobs
from leash_trl.files import write_whole


LOG_FILE = "log.txt"
RECIPE_FILE = "recipe.yaml"
# One thread a run: several runs at once use the cores better than several threads in one run.
RUN_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def main(argv: list[str]) -> int:
    """Runs `leash compare` and returns the exit code: 1 if a run failed."""
    arguments, overrides = _build_parser().parse_known_args(argv)
    if arguments.jobs < 1:
        raise UserError(f"--jobs is {arguments.jobs}, but must be 1 or more")

    for seed in arguments.seeds or []:
        if not 0 <= seed < 2**32:
            raise UserError(f"--seeds has {seed}, but must have whole numbers from 0 to {2**32 - 1}")
    environment = {**os.environ, **RUN_ENVIRONMENT}
    prepare_environment()
    arms = checked_arms(load_arms(arguments.config, arguments.arms), overrides, arguments.config)
    runs = planned_runs(arms, arguments.seeds, arguments.output_dir)
    for run in runs:
        check_claim(run.folder, run_claim(run.arm.recipe, run.seed))
    try:
        with only_command_in(arguments.output_dir):
            failed = _train(runs, arguments.jobs, environment)
    except KeyboardInterrupt:
        print("\nleash compare: stopped; the same command goes on from here", file=sys.stderr)
        return 130
    if results := {run: result for run in runs if (result := read_result(run.folder)) is not None}:
        from leash_trl.cli.comparison_report import write_report

        write_report(f"leash compare {shlex.join(argv)}", runs, results, arguments.output_dir)
    finished = {path.parent for path in arguments.output_dir.glob(f"*/seed-*/{RESULT_FILE}")}
    if others := finished - {run.folder for run in runs}:
        print(
            f"leash compare: {arguments.output_dir} holds {len(others)} more runs, of other arms or seeds, which the "
            "table leaves out; name them, or take another --output_dir",
            file=sys.stderr,
        )
    for run, exit_code in failed.items():
        print(_failure(run, exit_code), file=sys.stderr)
    return 1 if failed else 0


def _build_parser() -> CommandParser:
    parser = CommandParser(
        prog="leash compare",
        description="Train and score several methods on the embedded gym over the same seeds. Prints a table with "
        "95 % intervals over seeds, says which methods can be told apart, and writes table.md, table.csv, seeds.csv, "
        "levels.csv and pareto.png. The same command again goes on where it was stopped. Fields of leash train may "
        "follow, such as --max_steps 50: they hold for every arm.",
    )
    parser.add_argument(
        "--config",
        required=True,
        help="file with base (fields of leash train for all), arms (methods with their own fields, label and seeds) "
        "and grid (lists of values, as {target_length: [12, 18, 28]}: every arm runs with every combination). An "
        "arm's own fields replace those of grid, its own grid replaces both, and null takes a field out. Example: the "
        "package's gym/compare.yaml",
    )
    parser.add_argument(
        "--arms", nargs="+", metavar="ARM", help="only these arms, at all points of their grids (default: all)"
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        metavar="SEED",
        help=f"seeds of every arm (default: 0 to the arm's own `seeds` - 1, of which there are {DEFAULT_SEEDS} "
        "unless the file says otherwise)",
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time, one core each (default: 2)")
    parser.add_argument(
        "--output_dir",
        type=Path,
        default=Path("runs/compare"),
        help="folder for everything (default: runs/compare); one comparison at a time uses it",
    )
    return parser


def _train(runs: list[Run], at_once: int, environment: Mapping[str, str]) -> dict[Run, int]:
    """Trains and scores what is not done yet; returns the runs that failed, with their exit codes."""
    pending = [run for run in runs if read_result(run.folder) is None]
    for arm, folder in {run.arm: run.folder.parent for run in pending}.items():
        write_whole(folder / RECIPE_FILE, yaml.safe_dump(arm.recipe, sort_keys=False))
    jobs = {Job(run.name, tuple(child_command(run)), run.folder / LOG_FILE): run for run in pending}
    exit_codes = run_jobs(
        list(jobs),
        at_once,
        environment,
        lambda job, exit_code, seconds: _outcome(jobs[job], exit_code, seconds),
        num_done=len(runs) - len(pending),
    )
    return {run: exit_codes[job] for job, run in jobs.items() if read_result(run.folder) is None}


def child_command(run: Run) -> list[str]:
    """The command line that trains and scores one run."""
    arguments = ["--config", str(run.folder.parent / RECIPE_FILE), "--seed", str(run.seed)]
    return [sys.executable, "-m", "leash_trl.cli.gym_run", *arguments, "--output_dir", str(run.folder)]


def _outcome(run: Run, exit_code: int, seconds: float) -> str:
    result = read_result(run.folder)
    if result is None:
        return _failure(run, exit_code)
    trained = result["trained"]
    return f"{run.name}: accuracy {trained['accuracy']:.3f}, {trained['mean_tokens']:.1f} tokens, {seconds:.0f} s"


def _failure(run: Run, exit_code: int) -> str:
    log_file = run.folder / LOG_FILE
    lines = [line for line in re.split(r"[\r\n]+", log_file.read_text(errors="replace")) if line.strip()]
    return f"{run.name} failed with exit code {exit_code}, see {log_file}: {lines[-1][:200] if lines else 'empty'}"
